//! A run: who goes next, from the seed alone, until everything has ended.

use std::collections::VecDeque;
use std::sync::Arc;

use super::SeededConfig;
use super::block::{BlockSetup, LaneState, SeededBlock};
use super::cell::WorldCell;
use super::error::SeededError;
use anabranch_hip_host::FaultKind;
use anabranch_hip_host::scheduler::{LaunchPlan, StackArena};

/// The first step of the clock when everything waits; it doubles until something happens.
const FIRST_REST_NS: u64 = 1_000;

/// That a launch whose lanes have ended ends in a turn, parts of 256.
const END: u32 = 6;

/// One stream's launches that have not begun, and the one that runs.
struct Stream {
    device: u32,
    rest: VecDeque<Arc<LaunchPlan>>,
    running: Option<usize>,
}

pub(crate) struct Runner<'a> {
    config: &'a SeededConfig,
    setup: BlockSetup<'a>,
    streams: Vec<Stream>,
    blocks: Vec<SeededBlock>,
    /// Launches whose lanes have all ended and whose stores may still be under way.
    ending: Vec<usize>,
    launches: usize,
    begun_blocks: u32,
    rest_ns: u64,
    /// Changes of memory when everything was last found waiting.
    stalled_at: Option<u64>,
    /// The lane that ran last, by block and thread.
    last: Option<(usize, usize)>,
}

impl<'a> Runner<'a> {
    pub(crate) fn new(
        config: &'a SeededConfig,
        world: &'a Arc<WorldCell>,
        stacks: &'a Arc<StackArena>,
        queues: impl Iterator<Item = (u32, VecDeque<Arc<LaunchPlan>>)>,
    ) -> Self {
        let setup = BlockSetup { world, stacks, width: config.wave_width };
        Self {
            config,
            setup,
            streams: queues.map(|(device, rest)| Stream { device, rest, running: None }).collect(),
            blocks: Vec::new(),
            ending: Vec::new(),
            launches: 0,
            begun_blocks: 0,
            rest_ns: FIRST_REST_NS,
            stalled_at: None,
            last: None,
        }
    }

    pub(crate) fn run(mut self) -> Result<(), SeededError> {
        let world = self.setup.world;
        loop {
            self.begin_launches();
            if self.blocks.is_empty() {
                return Ok(());
            }
            let scripted = world.borrow().random.is_script();
            if !self.ending.is_empty() && !scripted && world.borrow_mut().random.chance(END) {
                self.end_launch();
                continue;
            }
            let chosen = if scripted { self.choose_any() } else { self.choose() };
            let Some((block, thread)) = chosen else {
                self.nothing_runs()?;
                continue;
            };
            self.last = Some((block, thread));
            self.blocks[block].run_lane(thread, world);
            if let Some(failure) = world.borrow_mut().failure.take() {
                return Err(failure);
            }
            if let Some(fault) = self.blocks[block].fault() {
                return Err(SeededError::Fault(fault));
            }
            self.after_turn(block, thread);
        }
    }

    fn begin_launches(&mut self) {
        for (place, stream) in self.streams.iter_mut().enumerate() {
            if stream.running.is_some() {
                continue;
            }
            let Some(launch) = stream.rest.pop_front() else { continue };
            let number = self.launches;
            self.launches += 1;
            stream.running = Some(number);
            for index in 0..launch.grid_blocks() {
                let (device, at) = (stream.device, (place, number));
                let block = SeededBlock::begin(self.setup, &launch, device, at, index, self.begun_blocks);
                self.begun_blocks += 1;
                self.blocks.push(block);
            }
        }
    }

    fn is_ready(state: LaneState, changes: u64) -> bool {
        match state {
            LaneState::Ready => true,
            LaneState::Polls(seen) => seen != changes,
            LaneState::Meets | LaneState::Ended => false,
        }
    }

    fn choose(&mut self) -> Option<(usize, usize)> {
        let (block, wave) = self.choose_wave()?;
        Some((block, self.choose_lane(block, wave)))
    }

    /// The lane that has just run goes on, or, as often as may be, any other does.
    fn choose_any(&mut self) -> Option<(usize, usize)> {
        let mut world = self.setup.world.borrow_mut();
        let changes = world.memory.changes;
        let mut ready = Vec::new();
        for (number, block) in self.blocks.iter().enumerate() {
            let lanes = block.states.iter().enumerate();
            ready.extend(
                lanes.filter(|(_, state)| Self::is_ready(**state, changes)).map(|(lane, _)| (number, lane)),
            );
        }
        let could_go_on =
            self.last.filter(|(block, thread)| self.blocks[*block].states[*thread] == LaneState::Ready);
        let Some(last) = could_go_on else {
            let chosen = world.random.below(ready.len().max(1));
            return ready.get(chosen).copied();
        };
        ready.retain(|lane| *lane != last);
        let others = if world.switches.is_left() { ready.len() } else { 0 };
        match world.random.below(1 + others).checked_sub(1) {
            None => Some(last),
            Some(other) => {
                world.switches.takes(true);
                ready.get(other).copied()
            }
        }
    }

    fn choose_wave(&mut self) -> Option<(usize, u32)> {
        let mut world = self.setup.world.borrow_mut();
        let changes = world.memory.changes;
        let blocks = &self.blocks;
        let ready = blocks.iter().enumerate().flat_map(|(index, block)| {
            (0..block.waves()).filter_map(move |wave| {
                let mut states = block.threads_of(wave).map(|thread| block.states[thread]);
                states.any(|state| Self::is_ready(state, changes)).then_some((index, wave))
            })
        });
        if world.pace.even {
            let count = ready.clone().count();
            return if count == 0 { None } else { ready.clone().nth(world.random.below(count)) };
        }
        ready.max_by_key(|(block, wave)| blocks[*block].priorities[*wave as usize])
    }

    fn choose_lane(&mut self, block: usize, wave: u32) -> usize {
        let mut world = self.setup.world.borrow_mut();
        let changes = world.memory.changes;
        let block = &self.blocks[block];
        let ready = block.threads_of(wave).filter(|thread| Self::is_ready(block.states[*thread], changes));
        let count = ready.clone().count();
        let chosen = world.random.below(count.max(1));
        ready.clone().nth(chosen).unwrap_or(0)
    }

    /// A lane has paused: its wave gets a new priority; a launch of which it was the last lane is ending.
    fn after_turn(&mut self, block: usize, thread: usize) {
        let over = {
            let mut world = self.setup.world.borrow_mut();
            let block = &mut self.blocks[block];
            if matches!(block.states[thread], LaneState::Ready | LaneState::Polls(_)) {
                let wave = thread / self.setup.width as usize;
                block.priorities[wave] = world.random.next();
            }
            block.states[thread] == LaneState::Ended && block.is_over()
        };
        if !over {
            return;
        }
        let number = self.blocks[block].launch_number;
        let of_launch = |block: &&SeededBlock| block.launch_number == number;
        if self.blocks.iter().filter(of_launch).all(SeededBlock::is_over) {
            self.ending.push(number);
        }
    }

    /// Ends one launch: a release of all its waves, to the whole system.
    fn end_launch(&mut self) {
        let chosen = self.setup.world.borrow_mut().random.below(self.ending.len());
        let number = self.ending.swap_remove(chosen);
        let of_launch = |block: &&SeededBlock| block.launch_number == number;
        // The blocks of a launch begin together, so their waves have consecutive numbers.
        let mut world = self.setup.world.borrow_mut();
        let blocks = || self.blocks.iter().filter(of_launch);
        let first = blocks().map(|block| block.first_wave).min().unwrap_or(0);
        let count: u32 = blocks().map(SeededBlock::waves).sum();
        world.memory.end_kernel(first..first + count);
        if let Some(place) = self.streams.iter().position(|stream| stream.running == Some(number)) {
            world.end_launch(place, blocks().count() as u32);
        }
        drop(world);
        self.blocks.retain(|block| block.launch_number != number);
        self.last = None;
        for stream in &mut self.streams {
            if stream.running == Some(number) {
                stream.running = None;
            }
        }
    }

    /// No lane can go on as memory is: first stores arrive, then every load reads the latest, then time passes.
    fn nothing_runs(&mut self) -> Result<(), SeededError> {
        let mut world = self.setup.world.borrow_mut();
        if !self.ending.is_empty() {
            // A script tries only orders of landing that can be distinguished.
            let alike = world.random.is_script()
                && !world.memory.has_rivals()
                && self.blocks.iter().all(SeededBlock::is_over);
            if alike || !world.settle_one() {
                drop(world);
                self.end_launch();
            }
            return Ok(());
        }
        let polls = |block: &SeededBlock| {
            block.states.iter().filter(|state| matches!(state, LaneState::Polls(_))).count()
        };
        if self.blocks.iter().all(|block| polls(block) == 0) {
            let fault = self.blocks[0].fault_of(0, FaultKind::Stalled);
            return Err(SeededError::Fault(fault));
        }
        let changes = world.memory.changes;
        if self.stalled_at != Some(changes) {
            self.rest_ns = FIRST_REST_NS;
            world.memory.fresh = false;
        }
        if world.settle_one() {
            self.stalled_at = None;
            return Ok(());
        }
        if world.memory.fresh {
            world.waited_ns = world.waited_ns.saturating_add(self.rest_ns);
            self.rest_ns = self.rest_ns.saturating_mul(2);
            if world.waited_ns > self.config.longest_virtual_ns {
                let left = |block: &SeededBlock| {
                    block.states.iter().filter(|state| **state != LaneState::Ended).count()
                };
                let lanes = self.blocks.iter().map(left).sum();
                return Err(SeededError::Hang { virtual_ns: world.waited_ns, lanes });
            }
        }
        world.memory.fresh = true;
        self.stalled_at = Some(changes);
        drop(world);
        for block in &mut self.blocks {
            for state in &mut block.states {
                if matches!(state, LaneState::Polls(_)) {
                    *state = LaneState::Ready;
                }
            }
        }
        Ok(())
    }
}
