//! What went wrong inside a kernel.

use core::fmt;
use std::sync::{Mutex, atomic::AtomicBool, atomic::Ordering};

use crate::sync::lock;

/// A kernel that the machine stopped. The device is lost from then on: calls that touch it return
/// `hipErrorLaunchFailure` until the machine is dropped.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// The device that is lost.
    pub device: u32,
    /// The kernel's entry point; `(stream)` or `(engine)` when no kernel was at work.
    pub kernel: String,
    /// The block in which it was noticed.
    pub block: u32,
    /// The thread of the block whose call or end revealed it.
    pub thread: u32,
    /// What was wrong.
    pub kind: FaultKind,
}

/// The kinds of [`Fault`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum FaultKind {
    /// Lanes of one block met at different block barriers.
    BarrierSites {
        /// Where this thread called (a line number).
        site: u32,
        /// Where those before it wait.
        others: u32,
    },
    /// A block barrier was called although a thread of the block had ended, or a thread ended while others
    /// were at a block barrier.
    BarrierAfterExit {
        /// The barrier's line.
        site: u32,
    },
    /// Lanes of one wave met at different wave operations.
    WaveSites {
        /// Where this thread called (a line number).
        site: u32,
        /// Where those before it wait.
        others: u32,
    },
    /// A wave operation was called although a lane of the wave had ended, or a lane ended while others of its
    /// wave were at a wave operation.
    WaveAfterExit {
        /// The wave operation's line.
        site: u32,
    },
    /// Some lanes of a wave stand at a block barrier while others are at a wave operation.
    WaveAtBarrier {
        /// The line of the wave operation.
        wave_site: u32,
        /// The line of the block barrier.
        barrier_site: u32,
    },
    /// A lane used more than its stack.
    StackOverflow {
        /// The stack's size, bytes.
        bytes: usize,
    },
    /// No lane of the block can go on.
    Stalled,
    /// The machine had no stacks left for a block.
    NoStacks,
    /// A part of the machine itself panicked while it worked on this; the message is in the log.
    Panicked,
}

impl fmt::Display for FaultKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::BarrierSites { site, others } => {
                write!(f, "divergent block barrier: line {site} while others wait at line {others}")
            }
            Self::BarrierAfterExit { site } => {
                write!(f, "divergent block barrier: line {site} is not reached by threads that have ended")
            }
            Self::WaveSites { site, others } => {
                write!(f, "divergent wave operation: line {site} while others wait at line {others}")
            }
            Self::WaveAfterExit { site } => {
                write!(f, "divergent wave operation: line {site} is not reached by lanes that have ended")
            }
            Self::WaveAtBarrier { wave_site, barrier_site } => write!(
                f,
                "divergent wave: some lanes at the wave operation of line {wave_site}, others at the block \
                 barrier of line {barrier_site}"
            ),
            Self::StackOverflow { bytes } => write!(f, "a lane used more than its stack of {bytes} bytes"),
            Self::Stalled => f.write_str("no lane of the block can go on"),
            Self::Panicked => f.write_str("the host machine panicked"),
            Self::NoStacks => f.write_str("no lane stacks are left"),
        }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { device, kernel, block, thread, kind } = self;
        write!(f, "device {device}, kernel {kernel}, block {block}, thread {thread}: {kind}")
    }
}

/// The last fault of a machine, and which devices are lost.
#[derive(Debug)]
pub struct FaultLog {
    last: Mutex<Option<Fault>>,
    lost: Vec<AtomicBool>,
}

impl FaultLog {
    pub(crate) fn new(devices: u32) -> Self {
        Self { last: Mutex::new(None), lost: (0..devices).map(|_| AtomicBool::new(false)).collect() }
    }

    /// Remembers a fault, and loses its device.
    pub fn record(&self, fault: Fault) {
        tracing::error!(%fault, "a kernel was stopped; its device is lost");
        let device = fault.device as usize;
        *lock(&self.last) = Some(fault);
        if let Some(lost) = self.lost.get(device) {
            lost.store(true, Ordering::Release);
        }
    }

    /// Loses a device without a fault of a kernel.
    pub fn lose(&self, device: u32) {
        if let Some(lost) = self.lost.get(device as usize) {
            lost.store(true, Ordering::Release);
        }
    }

    /// A stream or an engine panicked while it worked for a device.
    pub(crate) fn record_panic(&self, device: u32, what: &str) {
        self.record(Fault {
            device,
            kernel: what.to_owned(),
            block: 0,
            thread: 0,
            kind: FaultKind::Panicked,
        });
    }

    /// How many devices there are.
    pub fn devices(&self) -> u32 {
        self.lost.len() as u32
    }

    pub(crate) fn last(&self) -> Option<Fault> {
        lock(&self.last).clone()
    }

    /// Whether a device is lost.
    pub fn is_lost(&self, device: u32) -> bool {
        self.lost.get(device as usize).is_some_and(|lost| lost.load(Ordering::Acquire))
    }
}
