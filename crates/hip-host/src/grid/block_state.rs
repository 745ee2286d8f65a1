//! Where the lanes of a block meet, and how divergence is noticed.
//!
//! All lanes of a block run on one thread, one at a time. A lane leaves the processor only by calling the machine; the
//! state below is therefore plain cells, and each borrow ends before a lane is switched.

use core::cell::{Cell, RefCell};
use std::collections::VecDeque;

use crate::fault::FaultKind;

/// Whether a lane that arrived where lanes meet may go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arrival {
    /// It was the last one.
    Complete,
    /// It has to let others run until they have come, or for ever if the block has failed.
    Wait,
}

/// Where the lanes of a wave meet.
#[derive(Debug, Default)]
struct Wave {
    /// Lanes that the wave has: fewer than the width in the last wave of some blocks.
    lanes: u32,
    arrived: Cell<u32>,
    site: Cell<u32>,
    exited: Cell<u32>,
    at_barrier: Cell<u32>,
    /// Which of the two buffers the current exchange fills. Two suffice: an exchange completes only when all
    /// lanes have come, so no lane reads the buffer of the exchange before the last one any more.
    parity: Cell<usize>,
}

/// What the lanes of a block share with the machine.
#[derive(Debug)]
pub(crate) struct BlockState {
    threads: u32,
    width: u32,
    stack_bytes: usize,
    runnable: RefCell<VecDeque<u32>>,
    exited: Cell<u32>,
    at_barrier: Cell<u32>,
    barrier_site: Cell<u32>,
    waves: Vec<Wave>,
    /// `[wave][parity][lane]`.
    exchanged: Vec<Cell<u64>>,
    /// Whether a lane did anything but poll since the last look.
    progressed: Cell<bool>,
    fault: Cell<Option<(u32, FaultKind)>>,
}

impl BlockState {
    pub(crate) fn new(threads: u32, width: u32, stack_bytes: usize) -> Self {
        let waves = threads.div_ceil(width);
        let wave = |index| Wave { lanes: width.min(threads - index * width), ..Wave::default() };
        Self {
            threads,
            width,
            stack_bytes,
            runnable: RefCell::new((0..threads).collect()),
            exited: Cell::new(0),
            at_barrier: Cell::new(0),
            barrier_site: Cell::new(0),
            waves: (0..waves).map(wave).collect(),
            exchanged: vec![Cell::new(0); (waves * 2 * width) as usize],
            progressed: Cell::new(false),
            fault: Cell::new(None),
        }
    }

    fn wave(&self, thread: u32) -> &Wave {
        &self.waves[(thread / self.width) as usize]
    }

    /// Stops the block; the first cause counts.
    pub(crate) fn fail(&self, thread: u32, kind: FaultKind) {
        if self.fault.get().is_none() {
            self.fault.set(Some((thread, kind)));
        }
    }

    /// A lane found its stack overflowed.
    pub(crate) fn fail_stack(&self, thread: u32) {
        self.fail(thread, FaultKind::StackOverflow { bytes: self.stack_bytes });
    }

    /// A lane lets others run. `waiting` is 0 (not waiting), 1 (it polls), 2 (the first poll of a new wait).
    pub(crate) fn give_way(&self, thread: u32, waiting: u32) {
        if waiting != 1 {
            self.progressed.set(true);
        }
        self.runnable.borrow_mut().push_back(thread);
    }

    /// A lane calls the block barrier.
    pub(crate) fn arrive_at_barrier(&self, thread: u32, site: u32) -> Arrival {
        let wave = self.wave(thread);
        let arrived = self.at_barrier.get();
        if self.exited.get() > 0 {
            self.fail(thread, FaultKind::BarrierAfterExit { site });
            return Arrival::Wait;
        }
        if wave.arrived.get() > 0 {
            self.fail(thread, FaultKind::WaveAtBarrier { wave_site: wave.site.get(), barrier_site: site });
            return Arrival::Wait;
        }
        if arrived > 0 && self.barrier_site.get() != site {
            self.fail(thread, FaultKind::BarrierSites { site, others: self.barrier_site.get() });
            return Arrival::Wait;
        }
        self.barrier_site.set(site);
        if arrived + 1 < self.threads {
            self.at_barrier.set(arrived + 1);
            wave.at_barrier.set(wave.at_barrier.get() + 1);
            return Arrival::Wait;
        }
        self.at_barrier.set(0);
        for wave in &self.waves {
            wave.at_barrier.set(0);
        }
        self.release(0..self.threads, thread);
        Arrival::Complete
    }

    /// A lane calls a wave operation and deposits `value`. The returned slice holds the values of all lanes
    /// once the exchange is complete.
    pub(crate) fn arrive_at_exchange(&self, thread: u32, value: u64, site: u32) -> (Arrival, &[Cell<u64>]) {
        let index = thread / self.width;
        let wave = self.wave(thread);
        let start = ((index * 2 + wave.parity.get() as u32) * self.width) as usize;
        let buffer = &self.exchanged[start..start + self.width as usize];
        let arrived = wave.arrived.get();
        let fault = if wave.exited.get() > 0 {
            Some(FaultKind::WaveAfterExit { site })
        } else if wave.at_barrier.get() > 0 {
            Some(FaultKind::WaveAtBarrier { wave_site: site, barrier_site: self.barrier_site.get() })
        } else if arrived > 0 && wave.site.get() != site {
            Some(FaultKind::WaveSites { site, others: wave.site.get() })
        } else {
            None
        };
        if let Some(kind) = fault {
            self.fail(thread, kind);
            return (Arrival::Wait, buffer);
        }
        buffer[(thread % self.width) as usize].set(value);
        wave.site.set(site);
        if arrived + 1 < wave.lanes {
            wave.arrived.set(arrived + 1);
            return (Arrival::Wait, buffer);
        }
        wave.arrived.set(0);
        wave.parity.set(1 - wave.parity.get());
        let first = index * self.width;
        self.release(first..first + wave.lanes, thread);
        (Arrival::Complete, buffer)
    }

    /// Makes all `threads` but the one that runs already runnable again.
    fn release(&self, threads: core::ops::Range<u32>, running: u32) {
        self.progressed.set(true);
        self.runnable.borrow_mut().extend(threads.filter(|thread| *thread != running));
    }

    /// The next thread that may go on.
    pub(crate) fn next_runnable(&self) -> Option<u32> {
        self.runnable.borrow_mut().pop_front()
    }

    /// How many threads may go on.
    pub(crate) fn runnable(&self) -> usize {
        self.runnable.borrow().len()
    }

    /// Whether every lane has ended.
    pub(crate) fn is_over(&self) -> bool {
        self.exited.get() == self.threads
    }

    /// Whether a lane did anything but poll since the last call.
    pub(crate) fn take_progress(&self) -> bool {
        self.progressed.replace(false)
    }

    /// Moves the threads that were made runnable since the last call out, in order.
    pub(crate) fn take_runnable(&self) -> VecDeque<u32> {
        self.runnable.take()
    }

    /// The first cause that stopped the block.
    pub(crate) fn fault(&self) -> Option<(u32, FaultKind)> {
        self.fault.get()
    }

    /// A lane ended.
    pub(crate) fn exit(&self, thread: u32) {
        self.progressed.set(true);
        self.exited.set(self.exited.get() + 1);
        let wave = self.wave(thread);
        wave.exited.set(wave.exited.get() + 1);
        if wave.arrived.get() > 0 {
            self.fail(thread, FaultKind::WaveAfterExit { site: wave.site.get() });
        } else if self.at_barrier.get() > 0 {
            self.fail(thread, FaultKind::BarrierAfterExit { site: self.barrier_site.get() });
        }
    }
}
