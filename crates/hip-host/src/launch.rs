//! A kernel launch, and how its blocks get lanes.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use anabranch_hip::HipError;

use crate::block::Block;
use crate::config::{MAX_BLOCK_THREADS, MAX_LOCAL_BYTES};
use crate::device::DeviceState;
use crate::fault::{Fault, FaultKind};
use crate::machine::Core;
use crate::module::KernelEntry;
use crate::scheduler::{Step, Task, caught};
use crate::sync::lock;

/// What a launch was given, frozen when it was put on a stream. Holding it keeps the kernel's code loaded.
#[derive(Debug)]
pub(crate) struct LaunchPlan {
    pub(crate) kernel: Arc<KernelEntry>,
    pub(crate) grid_blocks: u32,
    pub(crate) block_threads: u32,
    pub(crate) local_bytes: u32,
    /// The argument struct; words of 16 bytes, so that it is aligned for any member.
    pub(crate) arguments: Box<[u128]>,
}

impl LaunchPlan {
    /// Checks the shape against the kernel and the machine.
    pub(crate) fn check(&self, core: &Core) -> Result<(), HipError> {
        let most = MAX_BLOCK_THREADS.min(self.kernel.max_block_threads).min(core.config.lanes_per_device());
        if self.grid_blocks == 0 || self.block_threads == 0 || self.block_threads > most {
            return Err(HipError::INVALID_CONFIGURATION);
        }
        if self.local_bytes > MAX_LOCAL_BYTES {
            return Err(HipError::LAUNCH_OUT_OF_RESOURCES);
        }
        Ok(())
    }
}

/// A launch that runs.
#[derive(Debug)]
pub(crate) struct Launch {
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

    pub(crate) fn plan(&self) -> &LaunchPlan {
        &self.plan
    }

    pub(crate) fn device(&self) -> &DeviceState {
        &self.device
    }

    pub(crate) fn core(&self) -> &Core {
        &self.core
    }

    pub(crate) fn device_is_lost(&self) -> bool {
        self.core.faults.is_lost(self.device.ordinal)
    }

    pub(crate) fn is_done(&self) -> bool {
        self.remaining.load(Ordering::Acquire) == 0
    }

    fn end_blocks(&self, count: u32) {
        // Release: what the block wrote is seen by whoever finds the launch done.
        if self.remaining.fetch_sub(count, Ordering::AcqRel) == count {
            self.core.scheduler.wake();
        }
    }

    /// A block that had begun is over.
    pub(crate) fn block_done(&self) {
        lock(&self.device.lanes).free += self.plan.block_threads;
        self.device.start_blocks();
        self.end_blocks(1);
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

/// A block whose setting-up panicked.
struct Unbegun {
    launch: Arc<Launch>,
    index: u32,
}

impl Task for Unbegun {
    fn step(&mut self) -> Step {
        self.launch.core.faults.record(Fault {
            device: self.launch.device.ordinal,
            kernel: self.launch.plan.kernel.name.clone(),
            block: self.index,
            thread: 0,
            kind: FaultKind::Panicked,
        });
        self.launch.block_done();
        Step::Finished
    }

    fn panicked(&mut self) -> Step {
        Step::Finished
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
                    launch.end_blocks(launch.plan.grid_blocks - next);
                }
                return;
            }
            let Some((launch, index)) = lanes.next_block() else { return };
            drop(lanes);
            let scheduler = Arc::clone(&launch.core.scheduler);
            scheduler.spawn(Box::new(move || match caught(|| Block::begin(Arc::clone(&launch), index)) {
                Some(block) => Box::new(block),
                None => Box::new(Unbegun { launch, index }),
            }));
        }
    }
}
