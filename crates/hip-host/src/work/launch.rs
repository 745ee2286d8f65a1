//! A kernel launch, and how its blocks get lanes.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::fault::{Fault, FaultKind};
use crate::grid::plan::LaunchPlan;
use crate::sync::lock;
use crate::work::core::Core;
use crate::work::device::DeviceState;

/// A launch that runs.
#[derive(Debug)]
pub struct Launch {
    plan: Arc<LaunchPlan>,
    device: Arc<DeviceState>,
    core: Arc<Core>,
    /// Blocks that have not ended.
    remaining: AtomicU32,
}

impl Launch {
    /// Puts a launch on its device; its blocks start as lanes become free.
    pub(crate) fn start(plan: Arc<LaunchPlan>, device: Arc<DeviceState>, core: Arc<Core>) -> Arc<Self> {
        let remaining = AtomicU32::new(plan.grid_blocks);
        let launch = Arc::new(Self { plan, device, core, remaining });
        lock(&launch.device.lanes).pending.push_back(Pending { launch: Arc::clone(&launch), next: 0 });
        launch.device.start_blocks();
        launch
    }

    /// What it was given.
    pub fn plan(&self) -> &Arc<LaunchPlan> {
        &self.plan
    }

    /// The number of its device.
    pub fn device(&self) -> u32 {
        self.device.ordinal
    }

    pub(crate) fn device_state(&self) -> &DeviceState {
        &self.device
    }

    pub(crate) fn core(&self) -> &Core {
        &self.core
    }

    /// Whether its device is lost: its blocks are to end.
    pub fn device_is_lost(&self) -> bool {
        self.core.faults.is_lost(self.device.ordinal)
    }

    pub(crate) fn is_done(&self) -> bool {
        self.remaining.load(Ordering::Acquire) == 0
    }

    /// So many blocks are over, or will never begin; what they wrote is visible. After the last one the launch is done.
    pub fn end_blocks(&self, count: u32) {
        // Release: what the block wrote is visible to a thread that sees the launch done.
        if self.remaining.fetch_sub(count, Ordering::AcqRel) == count {
            self.core.scheduler.wake();
        }
    }

    /// The lanes of a block are free for others: once for each block that the scheduler was given.
    pub fn free_lanes(&self) {
        lock(&self.device.lanes).free += self.plan.block_threads;
        self.device.start_blocks();
    }

    /// Something went wrong in a block: its device is lost.
    pub fn report(&self, block: u32, thread: u32, kind: FaultKind) {
        let (device, kernel) = (self.device.ordinal, self.plan.kernel.name.clone());
        self.core.faults.record(Fault { device, kernel, block, thread, kind });
    }
}

/// The lanes of a device and the launches that wait for some, first come first served.
#[derive(Debug)]
pub(crate) struct Lanes {
    free: u32,
    pending: VecDeque<Pending>,
}

/// A launch of which not all blocks have begun.
#[derive(Debug)]
struct Pending {
    launch: Arc<Launch>,
    next: u32,
}

impl Lanes {
    pub(crate) fn new(free: u32) -> Self {
        Self { free, pending: VecDeque::new() }
    }

    /// Drops launches that have not begun; for a machine that ends.
    pub(crate) fn forget_pending(&mut self) {
        self.pending.clear();
    }

    /// The next block that fits.
    fn next_block(&mut self) -> Option<(Arc<Launch>, u32)> {
        let front = self.pending.front_mut()?;
        let threads = front.launch.plan.block_threads;
        self.free = self.free.checked_sub(threads)?;
        let launch = Arc::clone(&front.launch);
        let index = front.next;
        front.next += 1;
        if front.next == launch.plan.grid_blocks {
            self.pending.pop_front();
        }
        Some((launch, index))
    }
}

impl DeviceState {
    /// Begins every block that lanes are free for. On a lost device, ends the blocks that never began.
    pub(crate) fn start_blocks(&self) {
        loop {
            let mut lanes = lock(&self.lanes);
            if lanes.pending.front().is_some_and(|pending| pending.launch.device_is_lost()) {
                let abandoned = core::mem::take(&mut lanes.pending);
                drop(lanes);
                for Pending { launch, next } in abandoned {
                    launch.core.scheduler.abandon_blocks(&launch, launch.plan.grid_blocks - next);
                }
                return;
            }
            let Some((launch, index)) = lanes.next_block() else { return };
            drop(lanes);
            let scheduler = Arc::clone(&launch.core.scheduler);
            scheduler.spawn_block(launch, index);
        }
    }
}
