//! A block of a free-running kernel: a task of a worker that steps the lanes one after another.

use std::sync::Arc;

use anabranch_hip::Step;

use crate::clock::monotonic_ns;
use crate::fault::FaultKind;
use crate::grid::lane::{Arrival, Calls, Lane};
use crate::grid::lanes::BlockLanes;
use crate::work::launch::Launch;
use crate::work::scheduler::Task;

/// What the machine does for a lane of a free-running kernel.
struct FreeLane;

// SAFETY: nothing here needs dropping; the values are the block's, which keeps them as the trait says.
unsafe impl Calls for FreeLane {
    fn yield_lane(lane: &Lane<Self>, waiting: u32) {
        lane.check_stack();
        lane.give_way(waiting);
        lane.suspend();
    }

    fn block_barrier(lane: &Lane<Self>, site: u32) {
        lane.check_stack();
        if lane.arrive_at_barrier(site) == Arrival::Wait {
            lane.suspend();
        }
    }

    fn wave_exchange(lane: &Lane<Self>, value: u64, site: u32) -> *const u64 {
        lane.check_stack();
        let (arrival, values) = lane.arrive_at_exchange(value, site);
        if arrival == Arrival::Wait {
            lane.suspend();
        }
        values
    }

    fn clock_ns(_lane: &Lane<Self>) -> u64 {
        monotonic_ns()
    }
}

/// A block on the worker that runs it.
pub(crate) struct Block {
    index: u32,
    lanes: BlockLanes<FreeLane>,
    // Dropped last: stacks go back before the lanes are counted as free.
    launch: Running,
}

/// A launch of which a block runs.
struct Running(Arc<Launch>);

impl Drop for Running {
    fn drop(&mut self) {
        self.0.free_lanes();
        self.0.end_blocks(1);
    }
}

impl Block {
    /// Sets up block `index` of a launch. Called on the worker that will run it.
    pub(crate) fn begin(launch: Arc<Launch>, index: u32) -> Self {
        let core = launch.core();
        let lanes = BlockLanes::new(launch.plan(), index, core.config.wave_width, &core.stacks, |_| FreeLane);
        Self { index, lanes, launch: Running(launch) }
    }
}

impl Task for Block {
    fn step(&mut self) -> Step {
        let launch = &self.launch.0;
        if launch.device_is_lost() {
            return Step::Finished;
        }
        for _ in 0..self.lanes.state().runnable() {
            let Some(thread) = self.lanes.state().next_runnable() else { break };
            self.lanes.run(thread);
            if let Some((thread, kind)) = self.lanes.fault() {
                launch.report(self.index, thread, kind);
                return Step::Finished;
            }
        }
        let state = self.lanes.state();
        if state.is_over() {
            return Step::Finished;
        }
        if state.runnable() == 0 {
            launch.report(self.index, 0, FaultKind::Stalled);
            return Step::Finished;
        }
        if state.take_progress() { Step::Progress } else { Step::Waiting }
    }

    fn panicked(&mut self) -> Step {
        self.launch.0.report(self.index, 0, FaultKind::Panicked);
        Step::Finished
    }
}

/// A block whose setting-up panicked.
pub(crate) struct Unbegun {
    pub(crate) launch: Arc<Launch>,
    pub(crate) index: u32,
}

impl Task for Unbegun {
    fn step(&mut self) -> Step {
        self.launch.report(self.index, 0, FaultKind::Panicked);
        self.launch.free_lanes();
        self.launch.end_blocks(1);
        Step::Finished
    }

    fn panicked(&mut self) -> Step {
        Step::Finished
    }
}
