//! The driver thread: it steps streams, engines and lanes when they have the turn. Lanes cannot move between threads, so all
//! of them live here.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use super::entity::What;
use super::{Newborn, Turn, Turns};
use anabranch_hip::Step;
use anabranch_hip_host::FaultKind;
use anabranch_hip_host::scheduler::{Launch, Task, caught, step_caught};

use crate::block::{BlockSetup, LaneState, SeededBlock};
use crate::sync::{lock, wait};
use crate::world::Who;
use crate::{STREAM, SeededError};

/// What the driver thread owns.
enum Owned {
    Task(Box<dyn Task>),
    Block(Box<SeededBlock>, Arc<Launch>),
}

/// What came of a turn of a block.
#[derive(Clone, Copy)]
enum Left {
    /// Whether a lane can go on, and the oldest count of changes that a lane polls behind.
    Some {
        ready: bool,
        polls: Option<u64>,
    },
    Nothing,
}

impl Turns {
    /// The driver thread's life. A panic of the machine itself ends the run without leaving a thread waiting.
    pub(super) fn drive(&self) {
        let mut owned = BTreeMap::new();
        if let Err(cause) = catch_unwind(AssertUnwindSafe(|| self.take_turns(&mut owned))) {
            self.crash(&mut lock(&self.state), cause.as_ref());
        }
        let mut state = lock(&self.state);
        let unborn = core::mem::take(&mut state.inbox);
        let ending = core::mem::take(&mut state.ending);
        let launches = core::mem::take(&mut state.launches);
        state.turn = Turn::Idle;
        drop(state);
        // Dropped outside the lock: what they own may spawn.
        caught(|| drop((owned, unborn, ending, launches)));
    }

    fn take_turns(&self, owned: &mut BTreeMap<u32, Owned>) {
        let mut state = lock(&self.state);
        while !self.is_stopped() {
            let turn = state.turn.clone();
            match turn {
                Turn::Task(id) => {
                    let newborn = state.inbox.remove(&id);
                    drop(state);
                    self.turn_of(id, newborn, owned);
                }
                Turn::End(launch) => {
                    drop(state);
                    self.end(&launch);
                }
                Turn::Seat(_) | Turn::Idle => {
                    state = wait(&self.driver, state);
                    continue;
                }
            }
            state = lock(&self.state);
            self.pass(&mut state);
        }
    }

    fn turn_of(&self, id: u32, newborn: Option<Newborn>, owned: &mut BTreeMap<u32, Owned>) {
        let mut own = match newborn {
            None => owned.remove(&id),
            Some(Newborn::Task(begin)) => caught(begin).map(Owned::Task),
            Some(Newborn::Block(launch, index)) => self.begin_block(&launch, index),
        };
        let stays = match &mut own {
            None => false,
            Some(Owned::Task(task)) => self.step_task(id, task),
            Some(Owned::Block(block, launch)) => self.step_block(id, block, launch),
        };
        if stays {
            owned.extend(own.map(|own| (id, own)));
            return;
        }
        let mut state = lock(&self.state);
        state.entities.remove(&id);
        state.changes += 1;
        drop(state);
        match own {
            Some(Owned::Block(block, launch)) => {
                drop(block);
                self.block_over(&launch);
            }
            // A panic of its destructor must not end the thread.
            Some(Owned::Task(task)) => {
                caught(|| drop(task));
            }
            None => {}
        }
    }

    fn step_task(&self, id: u32, task: &mut Box<dyn Task>) -> bool {
        let before = {
            let state = lock(&self.state);
            state.now(&self.world.borrow()).changes
        };
        let step = step_caught(task);
        let mut state = lock(&self.state);
        let priority = {
            let mut world = self.world.borrow_mut();
            if step != Step::Waiting && !task.reports_writes() {
                // An engine writes memory as it likes.
                world.memory.notice_all();
            }
            world.random.next()
        };
        state.changes += u64::from(step == Step::Progress);
        let Some(entity) = state.entities.get_mut(&id) else { return false };
        entity.priority = priority;
        entity.what =
            What::Task { seen: (step == Step::Waiting).then_some(before), waits_for: task.waits_for() };
        step != Step::Finished
    }

    fn begin_block(&self, launch: &Arc<Launch>, index: u32) -> Option<Owned> {
        let number = {
            let mut state = lock(&self.state);
            state.held_blocks += 1;
            state.begun_blocks += 1;
            state.begun_blocks
        };
        self.world.borrow_mut().memory.notice_host_memory();
        let setup = BlockSetup { world: &self.world, stacks: &self.stacks, width: self.width };
        let (plan, device) = (launch.plan(), launch.device());
        let Some(block) = caught(|| SeededBlock::begin(setup, plan, device, (0, 0), index, number)) else {
            launch.report(index, 0, FaultKind::Panicked);
            self.block_over(launch);
            return None;
        };
        let waves = block.first_wave..block.first_wave + block.waves();
        Self::progress(&mut lock(&self.state), launch).waves.push(waves);
        Some(Owned::Block(Box::new(block), Arc::clone(launch)))
    }

    /// A block that had begun is over: its lanes are free for others.
    fn block_over(&self, launch: &Arc<Launch>) {
        launch.free_lanes();
        self.blocks_over(launch, 1);
    }

    /// One lane of one wave goes on until it pauses.
    fn step_block(&self, id: u32, block: &mut SeededBlock, launch: &Launch) -> bool {
        if launch.device_is_lost() {
            return false;
        }
        let again = {
            let mut state = lock(&self.state);
            match state.entities.get_mut(&id).map(|entity| &mut entity.what) {
                Some(What::Block { again, .. }) => core::mem::take(again),
                _ => false,
            }
        };
        if again {
            for lane in block.states.iter_mut().filter(|lane| matches!(lane, LaneState::Polls(_))) {
                *lane = LaneState::Ready;
            }
        }
        let Some((wave, thread)) = self.choose_lane(block) else { return self.keep(id, look(block)) };
        block.run_lane(thread, &self.world);
        if let Some(fault) = block.fault() {
            self.faults.record(fault.clone());
            let mut state = lock(&self.state);
            let world = self.world.borrow();
            self.fail(&mut state, &world, SeededError::Fault(fault.clone()), Some(fault.device));
            return false;
        }
        if matches!(block.states[thread], LaneState::Ready | LaneState::Polls(_)) {
            block.priorities[wave as usize] = self.world.borrow_mut().random.next();
        }
        let left = look(block);
        let injected_now = {
            let world = self.world.borrow();
            world.failure.is_some() || !world.injected.just_died.is_empty()
        };
        if !injected_now && !block.is_over() && matches!(left, Left::Some { ready: false, polls: None }) {
            let fault = block.fault_of(0, FaultKind::Stalled);
            self.faults.record(fault.clone());
            let mut state = lock(&self.state);
            let world = self.world.borrow();
            let device = Some(fault.device);
            self.fail(&mut state, &world, SeededError::Fault(fault), device);
            return false;
        }
        self.keep(id, left)
    }

    fn keep(&self, id: u32, left: Left) -> bool {
        let Left::Some { ready: is_ready, polls: behind } = left else { return false };
        let mut state = lock(&self.state);
        let next = self.world.borrow_mut().random.next();
        let Some(entity) = state.entities.get_mut(&id) else { return false };
        entity.priority = next;
        if let What::Block { ready, polls, .. } = &mut entity.what {
            (*ready, *polls) = (is_ready, behind);
        }
        true
    }

    fn choose_lane(&self, block: &SeededBlock) -> Option<(u32, usize)> {
        let mut world = self.world.borrow_mut();
        let changes = world.memory.changes;
        let ready = |thread: &usize| match block.states[*thread] {
            LaneState::Ready => true,
            LaneState::Polls(seen) => seen != changes,
            LaneState::Meets | LaneState::Ended => false,
        };
        let waves: Vec<u32> =
            (0..block.waves()).filter(|wave| block.threads_of(*wave).any(|thread| ready(&thread))).collect();
        let wave = if world.pace.even {
            *waves.get(world.random.below(waves.len().max(1)))?
        } else {
            waves.into_iter().max_by_key(|wave| block.priorities[*wave as usize])?
        };
        let lanes: Vec<usize> = block.threads_of(wave).filter(ready).collect();
        Some((wave, *lanes.get(world.random.below(lanes.len().max(1)))?))
    }

    /// Ends a kernel: what it has stored is visible to all from now on.
    fn end(&self, launch: &Arc<Launch>) {
        let device = launch.device();
        let progress = lock(&self.state).launches.remove(&Arc::as_ptr(launch).addr());
        let blocks = progress.map_or_else(Vec::new, |progress| progress.waves);
        let mut world = self.world.borrow_mut();
        let alive = world.sync(&Who::host(device, 0, STREAM), "kernel ends");
        if alive {
            for waves in &blocks {
                world.memory.end_kernel(waves.clone());
            }
        }
        drop(world);
        launch.end_blocks(launch.plan().grid_blocks());
        let mut state = lock(&self.state);
        state.held_blocks = state.held_blocks.saturating_sub(blocks.len());
        state.changes += 1;
    }
}

fn look(block: &SeededBlock) -> Left {
    if block.is_over() {
        return Left::Nothing;
    }
    let ready = block.states.contains(&LaneState::Ready);
    let polls = block.states.iter().filter_map(|state| match state {
        LaneState::Polls(seen) => Some(*seen),
        _ => None,
    });
    Left::Some { ready, polls: polls.min() }
}
