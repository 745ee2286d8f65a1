//! Who is next, and what happens when no entity can continue.

use std::sync::Arc;

use super::entity::{Entity, Now, What};
use super::{SeededError, SeededFailure, State, Turn, Turns};
use crate::world::World;

/// Probability that a kernel whose lanes have ended ends when a turn is given up, parts of 256.
const END: u32 = 6;
/// The first step of the clock while kernels poll in vain; it doubles until something happens.
const FIRST_REST_NS: u64 = 1_000;

/// The outcome for a machine in which no entity can continue.
enum Found {
    /// Something has changed.
    Again,
    End,
    Rest,
}

impl Turns {
    /// Draws who has the next turn.
    pub(super) fn choose(&self, state: &mut State) -> Turn {
        let mut world = self.world.borrow_mut();
        let world = &mut *world;
        while !self.is_stopped() {
            self.heed(state, world);
            if !state.ending.is_empty() && world.random.chance(END) {
                return end(state, world);
            }
            if let Some(turn) = self.ready(state, world) {
                return turn;
            }
            match self.move_on(state, world) {
                Found::Again => {}
                Found::End => return end(state, world),
                Found::Rest => break,
            }
        }
        Turn::Idle
    }

    fn ready(&self, state: &State, world: &mut World) -> Option<Turn> {
        let now = state.now(world);
        let ready = |(_, entity): &(&u32, &Entity)| {
            entity.is_ready(now, self.faults.is_lost(entity.owner))
                && !world.injected.is_stalled(entity.owner, now.ns)
        };
        let all: Vec<_> = state.entities.iter().filter(ready).collect();
        let chosen = if world.pace.even {
            let index = world.random.below(all.len().max(1));
            all.get(index)
        } else {
            all.iter().max_by_key(|(_, entity)| entity.priority)
        };
        let (id, entity) = chosen?;
        Some(if matches!(entity.what, What::Seat(_)) { Turn::Seat(**id) } else { Turn::Task(**id) })
    }

    /// Takes note of faults that were injected during the last turn.
    pub(super) fn heed(&self, state: &mut State, world: &mut World) {
        for rank in core::mem::take(&mut world.injected.just_died) {
            let World { memory, random, .. } = world;
            memory.scatter(rank, random);
            self.faults.lose(rank);
            state.changes += 1;
        }
        world.injected.injected_now = false;
        for device in core::mem::take(&mut world.memory.fabric.told) {
            self.faults.lose(device);
            state.changes += 1;
        }
        if let Some(cause) = world.failure.take() {
            world.most_steps = u64::MAX;
            let device = if let SeededError::Access { device, .. } = &cause { Some(*device) } else { None };
            self.fail(state, world, cause, device);
        }
        let settled = state.held_blocks == 0 && !world.memory.is_unsettled() && !world.memory.has_echoes();
        if settled && state.ending.is_empty() && world.waves.len() > 1 {
            world.memory.forget();
            world.waves.truncate(1);
        }
    }

    /// The run has failed: its story is kept, and one device is lost, or all.
    pub(super) fn fail(&self, state: &mut State, world: &World, cause: SeededError, device: Option<u32>) {
        tracing::error!(%cause, "a seeded run has failed");
        if state.failure.is_none() {
            let now = state.now(world);
            let waits = |entity: &&Entity| !entity.is_ready(now, false);
            let waiting = state.entities.values().filter(waits).map(Entity::describe).collect();
            let failure =
                SeededFailure { cause: Arc::new(cause), steps: world.steps, virtual_ns: now.ns, waiting };
            state.failure = Some(failure);
        }
        match device {
            Some(device) => self.faults.lose(device),
            None => (0..self.faults.devices()).for_each(|device| self.faults.lose(device)),
        }
        state.changes += 1;
    }

    /// No entity can continue as things are: first stores arrive, then kernels end, then every load reads the latest, then the
    /// clock moves, to the next deadline or by doubling steps while kernels poll.
    fn move_on(&self, state: &mut State, world: &mut World) -> Found {
        if world.settle_one() {
            return Found::Again;
        }
        if !state.ending.is_empty() {
            return Found::End;
        }
        let now = state.now(world);
        let deadline = state.next_deadline(world, now.ns);
        let polls = state.polling(world, now.ns);
        if polls > 0 {
            let settled = state.changes + now.memory;
            if state.stalled_at != Some(settled) {
                state.rest_ns = FIRST_REST_NS;
                world.memory.fresh = false;
            }
            state.stalled_at = Some(settled);
            if world.memory.fresh {
                let step = deadline.map_or(state.rest_ns, |at| state.rest_ns.min(at.saturating_sub(now.ns)));
                if step == state.rest_ns {
                    state.rest_ns = state.rest_ns.saturating_mul(2);
                }
                self.advance(state, world, step, polls);
            }
            world.memory.fresh = true;
            for entity in state.entities.values_mut() {
                if let What::Block { polls: Some(_), again, .. } = &mut entity.what {
                    *again = true;
                }
            }
            return Found::Again;
        }
        if let Some(at) = deadline {
            self.advance(state, world, at.saturating_sub(now.ns), 0);
            return Found::Again;
        }
        self.all_wait_forever(state, world)
    }

    fn advance(&self, state: &mut State, world: &mut World, ns: u64, lanes: usize) {
        world.waited_ns = world.waited_ns.saturating_add(ns);
        state.clock_moves += 1;
        if world.waited_ns > self.longest_ns && !state.given_up {
            state.given_up = true;
            let cause = SeededError::Hang { virtual_ns: world.waited_ns, lanes };
            self.fail(state, world, cause, None);
        }
    }

    /// All wait, none with a deadline.
    fn all_wait_forever(&self, state: &mut State, world: &World) -> Found {
        let threads = |entity: &Entity| matches!(&entity.what, What::Seat(_));
        if !state.entities.values().any(threads) {
            return Found::Rest;
        }
        if state.given_up {
            state.vain_rounds = state.vain_rounds.saturating_add(1);
        } else {
            state.given_up = true;
            let cause = SeededError::Hang { virtual_ns: world.clock_ns(), lanes: 0 };
            self.fail(state, world, cause, None);
        }
        // They look again, find their devices lost, or see that the run is over.
        for entity in state.entities.values_mut() {
            if let What::Seat(seat) = &mut entity.what {
                seat.waits = None;
            }
        }
        Found::Again
    }
}

fn end(state: &mut State, world: &mut World) -> Turn {
    let chosen = world.random.below(state.ending.len());
    Turn::End(state.ending.swap_remove(chosen))
}

impl State {
    pub(super) fn now(&self, world: &World) -> Now {
        let memory = world.memory.changes;
        Now { changes: self.changes + self.clock_moves + memory, memory, ns: world.clock_ns() }
    }

    /// Blocks that look at memory in vain.
    fn polling(&self, world: &World, now_ns: u64) -> usize {
        let polls = |entity: &&Entity| {
            matches!(entity.what, What::Block { polls: Some(_), .. })
                && !world.injected.is_stalled(entity.owner, now_ns)
        };
        self.entities.values().filter(polls).count()
    }

    /// The earliest time at which a blocked entity can continue.
    fn next_deadline(&self, world: &World, now_ns: u64) -> Option<u64> {
        let ends = self.entities.values().filter_map(|entity| match &entity.what {
            What::Seat(seat) => seat.waits.as_ref()?.until_ns,
            _ => None,
        });
        let stalls = world.injected.stalled_until.iter().copied();
        ends.chain(stalls).filter(|at| *at > now_ns).min()
    }
}
