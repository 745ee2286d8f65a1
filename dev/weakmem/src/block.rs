//! One block of a seeded run: its lanes, and which of them may run.

use core::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;

use anabranch_hip_host::scheduler::{BlockLanes, LaunchPlan, StackArena};
use anabranch_hip_host::{Fault, FaultKind};

use super::cell::WorldCell;
use super::lane::{Pause, SeededLane};
use super::races::Races;
use super::world::Who;

/// Whether a lane may run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LaneState {
    Ready,
    /// It polls; ready once memory has changed since this count of changes.
    Polls(u64),
    /// It waits for other lanes.
    Meets,
    Ended,
}

pub(crate) struct SeededBlock {
    device: u32,
    /// Number of the launch in the run.
    pub(crate) launch_number: usize,
    index: u32,
    width: u32,
    lanes: BlockLanes<SeededLane>,
    pub(crate) states: Vec<LaneState>,
    pub(crate) first_wave: u32,
    /// Of each wave.
    pub(crate) priorities: Vec<u64>,
}

/// What blocks begin with.
#[derive(Clone, Copy)]
pub(crate) struct BlockSetup<'a> {
    pub(crate) world: &'a Arc<WorldCell>,
    pub(crate) stacks: &'a Arc<StackArena>,
    pub(crate) width: u32,
}

impl SeededBlock {
    /// Begins block `index` of a launch on a device, which has the number of its stream and its own.
    pub(crate) fn begin(
        setup: BlockSetup<'_>,
        plan: &Arc<LaunchPlan>,
        device: u32,
        (stream, launch_number): (usize, usize),
        index: u32,
        number: u32,
    ) -> Self {
        let threads = plan.block_threads();
        let width = setup.width;
        let waves = threads.div_ceil(width);
        let kernel: Arc<str> = plan.kernel().name().into();
        let mut world = setup.world.borrow_mut();
        let first_wave = world.waves.len() as u32;
        let who = |thread: u32, lane: u32| Who {
            device,
            kernel: Arc::clone(&kernel),
            block: index,
            thread,
            wave: thread / width,
            view: first_wave + thread / width,
            lane,
        };
        for wave in 0..waves {
            world.memory.begin_wave(device, number);
            world.waves.push(who(wave * width, 0));
        }
        let begun = world.begin_block(stream, (0..threads).map(|thread| who(thread, 0)));
        let priorities = (0..waves).map(|_| world.random.next()).collect();
        drop(world);
        let local = Rc::new(RefCell::new(Races::default()));
        let own = |thread: u32| {
            let lane = begun.get(thread as usize).copied().unwrap_or(0);
            SeededLane {
                world: Arc::clone(setup.world),
                pause: Cell::new(Pause::GaveWay),
                first_wave,
                waves,
                who: who(thread, lane),
                local: Rc::clone(&local),
            }
        };
        let lanes = BlockLanes::instrumented(plan, index, width, setup.stacks, own);
        let states = vec![LaneState::Meets; threads as usize];
        let mut block = Self { device, launch_number, index, width, lanes, states, first_wave, priorities };
        block.collect_ready();
        block
    }

    pub(crate) fn waves(&self) -> u32 {
        self.priorities.len() as u32
    }

    /// The threads of a wave.
    pub(crate) fn threads_of(&self, wave: u32) -> core::ops::Range<usize> {
        let first = (wave * self.width) as usize;
        first..(first + self.width as usize).min(self.states.len())
    }

    pub(crate) fn is_over(&self) -> bool {
        self.states.iter().all(|state| *state == LaneState::Ended)
    }

    fn collect_ready(&mut self) {
        for thread in self.lanes.take_runnable() {
            self.states[thread as usize] = LaneState::Ready;
        }
    }

    pub(crate) fn fault(&self) -> Option<Fault> {
        self.lanes.fault().map(|(thread, kind)| self.fault_of(thread, kind))
    }

    pub(crate) fn fault_of(&self, thread: u32, kind: FaultKind) -> Fault {
        let kernel = self.lanes.plan().kernel().name().to_owned();
        Fault { device: self.device, kernel, block: self.index, thread, kind }
    }

    /// Runs one lane until it pauses or ends.
    pub(crate) fn run_lane(&mut self, thread: usize, world: &WorldCell) {
        let ended = self.lanes.run(thread as u32);
        let own = self.lanes.own(thread as u32);
        self.states[thread] = if ended {
            world.borrow_mut().sync(&own.who, "ends");
            LaneState::Ended
        } else {
            match own.pause.get() {
                Pause::GaveWay => LaneState::Ready,
                Pause::Polls => LaneState::Polls(world.borrow().memory.changes),
                Pause::Meets => LaneState::Meets,
            }
        };
        self.collect_ready();
    }
}
