//! A kernel launch, and how its blocks get lanes.

use core::ops::Range;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};

use anabranch_hip::HipError;

use crate::Step;
use crate::block::Block;
use crate::config::{MAX_BLOCK_THREADS, MAX_LOCAL_BYTES};
use crate::device::DeviceState;
use crate::fault::{Fault, FaultKind};
use crate::machine::Core;
use crate::module::KernelEntry;
use crate::scheduler::{Task, caught};
use crate::seeded::Queued;
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
    seeded: Option<SeededPart>,
}

/// What a seeded machine keeps of a launch.
#[derive(Debug)]
struct SeededPart {
    queued: Arc<Queued>,
    /// Blocks that are over or will never begin.
    over: AtomicU32,
    /// The waves of each block that has begun, by their numbers in the run.
    waves: Mutex<Vec<Range<u32>>>,
}

impl Launch {
    /// Puts a launch on its device; its blocks start as lanes become free.
    pub(crate) fn start(plan: Arc<LaunchPlan>, device: Arc<DeviceState>, core: Arc<Core>) -> Arc<Self> {
        let remaining = AtomicU32::new(plan.grid_blocks);
        let seeded = core.seeded.is_some().then(|| SeededPart {
            queued: Arc::new(Queued {
                kernel: Arc::clone(&plan.kernel),
                device: device.ordinal,
                grid_blocks: plan.grid_blocks,
                block_threads: plan.block_threads,
                local_bytes: plan.local_bytes,
                arguments: plan.arguments.clone(),
            }),
            over: AtomicU32::new(0),
            waves: Mutex::default(),
        });
        let launch = Arc::new(Self { plan, device, core, remaining, seeded });
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
        self.free_lanes();
        self.end_blocks(1);
    }

    /// The lanes of a block are free for others.
    pub(crate) fn free_lanes(&self) {
        lock(&self.device.lanes).free += self.plan.block_threads;
        self.device.start_blocks();
    }

    /// Blocks that have not begun never will.
    fn abandon(self: &Arc<Self>, count: u32) {
        match &self.core.seeded {
            None => self.end_blocks(count),
            Some(turns) => turns.blocks_over(self, count),
        }
    }

    /// What a seeded machine runs.
    pub(crate) fn queued(&self) -> Option<&Arc<Queued>> {
        self.seeded.as_ref().map(|seeded| &seeded.queued)
    }

    /// Counts blocks that are over; whether all are now.
    pub(crate) fn count_over(&self, count: u32) -> bool {
        let Some(seeded) = &self.seeded else { return false };
        seeded.over.fetch_add(count, Ordering::AcqRel) + count == self.plan.grid_blocks
    }

    /// A block of a seeded machine has begun with these waves.
    pub(crate) fn remember_waves(&self, waves: Range<u32>) {
        if let Some(seeded) = &self.seeded {
            lock(&seeded.waves).push(waves);
        }
    }

    /// The waves of all blocks that have begun.
    pub(crate) fn take_waves(&self) -> Vec<Range<u32>> {
        self.seeded.as_ref().map(|seeded| core::mem::take(&mut *lock(&seeded.waves))).unwrap_or_default()
    }

    /// The kernel has ended, of which a seeded machine had begun to run blocks.
    pub(crate) fn end(&self) {
        self.end_blocks(self.plan.grid_blocks);
    }

    /// Something went wrong in a block.
    pub(crate) fn report(&self, block: u32, thread: u32, kind: FaultKind) {
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

/// A block whose setting-up panicked.
struct Unbegun {
    launch: Arc<Launch>,
    index: u32,
}

impl Task for Unbegun {
    fn step(&mut self) -> Step {
        self.launch.report(self.index, 0, FaultKind::Panicked);
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
                    launch.abandon(launch.plan.grid_blocks - next);
                }
                return;
            }
            let Some((launch, index)) = lanes.next_block() else { return };
            drop(lanes);
            if let Some(turns) = launch.core.seeded.clone() {
                turns.spawn_block(launch, index);
                continue;
            }
            let scheduler = Arc::clone(&launch.core.scheduler);
            scheduler.spawn(Box::new(move || match caught(|| Block::begin(Arc::clone(&launch), index)) {
                Some(block) => Box::new(block),
                None => Box::new(Unbegun { launch, index }),
            }));
        }
    }
}
