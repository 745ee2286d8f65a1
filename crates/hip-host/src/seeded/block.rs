//! One block of a seeded run: its lanes, and which of them may run.

use std::sync::Arc;

use corosensei::{Coroutine, CoroutineResult};

use super::Queued;
use super::cell::WorldCell;
use super::lane::{LaneSetup, Pause, SeededBody, SeededLane};
use super::world::Who;
use crate::block::BlockState;
use crate::fault::{Fault, FaultKind};
use crate::lane::LaneYielder;
use crate::local_memory::LocalMemory;
use crate::stack::{StackArena, StackSlot};

type LaneRoutine = Coroutine<(), (), (), StackSlot>;

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
    pub(crate) launch: Arc<Queued>,
    /// Number of the launch in the run.
    pub(crate) launch_number: usize,
    index: u32,
    width: u32,
    // Boxed: lanes point to it.
    state: Box<BlockState>,
    lanes: Box<[SeededLane]>,
    pub(crate) states: Vec<LaneState>,
    routines: Vec<Option<LaneRoutine>>,
    stacks: Vec<StackSlot>,
    // Lanes point to it.
    _local: LocalMemory,
    pub(crate) first_wave: u32,
    /// Of each wave.
    pub(crate) priorities: Vec<u64>,
}

/// What blocks begin with.
pub(crate) struct BlockSetup<'a> {
    pub(crate) world: &'a WorldCell,
    pub(crate) stacks: &'a Arc<StackArena>,
    pub(crate) width: u32,
    pub(crate) stack_bytes: usize,
}

impl SeededBlock {
    /// Begins block `index` of a launch, which is told by its stream's number and its own. The block must be dropped before the world.
    pub(crate) fn begin(
        setup: &BlockSetup<'_>,
        launch: &Arc<Queued>,
        (stream, launch_number): (usize, usize),
        index: u32,
        number: u32,
    ) -> Self {
        let threads = launch.block_threads;
        let width = setup.width;
        let state = Box::new(BlockState::new(threads, width, setup.stack_bytes));
        let local = LocalMemory::new(launch.local_bytes as usize);
        let waves = threads.div_ceil(width);
        let kernel: Arc<str> = launch.kernel.name.as_str().into();
        let mut world = setup.world.borrow_mut();
        let first_wave = world.waves.len() as u32;
        let who = |thread: u32, lane: u32| Who {
            device: launch.device,
            kernel: Arc::clone(&kernel),
            block: index,
            thread,
            wave: thread / width,
            view: first_wave + thread / width,
            lane,
        };
        for wave in 0..waves {
            world.memory.begin_wave(launch.device, number);
            world.waves.push(who(wave * width, 0));
        }
        let begun = world.begin_block(stream, (0..threads).map(|thread| who(thread, 0)));
        let priorities = (0..waves).map(|_| world.random.next()).collect();
        drop(world);
        let lane_setup = LaneSetup {
            world: setup.world,
            block: &state,
            local_memory: local.address(),
            local_bytes: launch.local_bytes,
            block_threads: threads,
            grid_blocks: launch.grid_blocks,
            wave_width: width,
            first_wave,
            waves,
        };
        let lanes = (0..threads)
            .map(|thread| {
                let lane = begun.get(thread as usize).copied().unwrap_or(0);
                SeededLane::new(lane_setup, who(thread, lane))
            })
            .collect();
        let stacks = setup.stacks.take(threads as usize).unwrap_or_else(|| {
            state.fail(0, FaultKind::NoStacks);
            Vec::new()
        });
        let mut block = Self {
            launch: Arc::clone(launch),
            launch_number,
            index,
            width,
            state,
            lanes,
            states: vec![LaneState::Meets; threads as usize],
            routines: (0..threads).map(|_| None).collect(),
            stacks,
            _local: local,
            first_wave,
            priorities,
        };
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
        for thread in self.state.take_runnable() {
            self.states[thread as usize] = LaneState::Ready;
        }
    }

    pub(crate) fn fault(&self) -> Option<Fault> {
        self.state.fault().map(|(thread, kind)| self.fault_of(thread, kind))
    }

    pub(crate) fn fault_of(&self, thread: u32, kind: FaultKind) -> Fault {
        let (device, kernel) = (self.launch.device, self.launch.kernel.name.clone());
        Fault { device, kernel, block: self.index, thread, kind }
    }

    /// Runs one lane until it pauses or ends. `changes` tells how much has changed in memory, asked afterwards.
    pub(crate) fn run_lane(&mut self, thread: usize, world: &WorldCell) {
        let mut routine = match self.routines[thread].take() {
            Some(routine) => routine,
            None => match self.start_lane(thread) {
                Some(routine) => routine,
                None => return self.state.fail(thread as u32, FaultKind::NoStacks),
            },
        };
        match routine.resume(()) {
            CoroutineResult::Yield(()) => {
                self.routines[thread] = Some(routine);
                self.states[thread] = match self.lanes[thread].pause.get() {
                    Pause::GaveWay => LaneState::Ready,
                    Pause::Polls => LaneState::Polls(world.borrow().memory.changes),
                    Pause::Meets => LaneState::Meets,
                };
            }
            CoroutineResult::Return(()) => {
                let stack = routine.into_stack();
                if !stack.intact_at_end() {
                    self.state.fail_stack(thread as u32);
                }
                self.stacks.push(stack);
                self.state.exit(thread as u32);
                self.states[thread] = LaneState::Ended;
                world.borrow_mut().sync(&self.lanes[thread].who, "ends");
            }
        }
        self.collect_ready();
    }

    fn start_lane(&mut self, thread: usize) -> Option<LaneRoutine> {
        let stack = self.stacks.pop()?;
        let lane = &self.lanes[thread];
        lane.set_stack(stack.lowest());
        let body = SeededBody {
            lane: core::ptr::from_ref(lane),
            entry: self.launch.kernel.entry,
            arguments: self.launch.arguments.as_ptr().cast(),
        };
        // The closure owns nothing that needs dropping; `Drop` relies on it.
        Some(LaneRoutine::with_stack(stack, move |yielder: &LaneYielder, ()| body.run(yielder)))
    }
}

impl Drop for SeededBlock {
    fn drop(&mut self) {
        for routine in &mut self.routines {
            if let Some(mut routine) = routine.take() {
                // SAFETY: `force_reset` is a longjmp to the routine's root and asks that nothing on its stack needs
                // dropping. On the stack are: the closure of `start_lane` and `SeededBody::run`, which hold raw pointers
                // only; frames of the kernel, which by the ABI owns nothing; and one call of `lane.rs`, which suspends
                // with no borrow of the world and with references and integers only.
                unsafe { routine.force_reset() };
                let stack = routine.into_stack();
                let _ = stack.intact_at_end();
                self.stacks.push(stack);
            }
        }
    }
}
