//! What a stream can be asked to do, and how it is done a little at a time.

use core::ffi::c_uint;
use core::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use anabranch_hip::types::flags;

use crate::grid::plan::LaunchPlan;
use crate::memory::mapping::Mapping;
use crate::work::core::Core;
use crate::work::device::DeviceState;
use crate::work::event::{Event, Recording};
use crate::work::graph::{GraphPlan, GraphRun};
use crate::work::launch::Launch;
use crate::work::stream::Stream;

/// Bytes that a copy or fill moves in one step, so that blocks on the same worker are not held up.
const PIECE: usize = 512 * 1024;

/// A word of 64 bits in memory that a stream writes or waits for. The address was checked when the operation was made.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Word {
    pub(crate) address: usize,
}

impl Word {
    fn load(self) -> u64 {
        // SAFETY: the address was checked to be 8 aligned bytes of an allocation; a call that frees memory
        // that a stream still uses breaks HIP's contract.
        unsafe { AtomicU64::from_ptr(self.address as *mut u64) }.load(Ordering::Acquire)
    }

    fn store(self, value: u64) {
        // SAFETY: as in `load`.
        unsafe { AtomicU64::from_ptr(self.address as *mut u64) }.store(value, Ordering::Release);
    }
}

/// A condition on a word, as `hipStreamWaitValue` states it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Condition {
    pub(crate) value: u64,
    pub(crate) mask: u64,
    pub(crate) kind: c_uint,
}

impl Condition {
    fn holds(self, word: u64) -> bool {
        let masked = word & self.mask;
        match self.kind {
            flags::WAIT_VALUE_GREATER_OR_EQUAL => {
                // Wrap-safe, as HIP and CUDA define it: the signed difference is not negative.
                masked.wrapping_sub(self.value) as i64 >= 0
            }
            flags::WAIT_VALUE_EQUAL => masked == self.value,
            flags::WAIT_VALUE_AND => masked & self.value != 0,
            _ => (masked | self.value) != u64::MAX,
        }
    }
}

/// One thing to do. Cloning is cheap: a graph's operations are run many times.
#[derive(Clone, Debug)]
pub(crate) enum Operation {
    Launch {
        plan: Arc<LaunchPlan>,
        device: Arc<DeviceState>,
    },
    Copy {
        target: usize,
        source: usize,
        bytes: usize,
        staged: Option<Arc<[u8]>>,
    },
    Fill {
        target: usize,
        value: u8,
        bytes: usize,
    },
    Record(Arc<Recording>),
    Await(Arc<Recording>),
    /// A record of each launch of a graph, which makes it a [`Self::Record`].
    RecordEvent(Arc<Event>),
    /// A wait of each launch of a graph, which makes it a [`Self::Await`].
    AwaitEvent(Arc<Event>),
    Nothing,
    WriteValue {
        word: Word,
        value: u64,
    },
    WaitValue {
        word: Word,
        condition: Condition,
    },
    Graph(Arc<GraphPlan>),
    /// Waits until another stream has done what it had been given at some time.
    AwaitStream {
        stream: Arc<Stream>,
        ticket: u64,
    },
    /// Lets go of freed memory after the work that may still use it.
    Release {
        _mapping: Arc<Mapping>,
    },
}

impl Operation {
    /// What it is, for a log.
    fn name(&self) -> &'static str {
        match self {
            Self::Launch { .. } => "launch",
            Self::Copy { .. } => "copy",
            Self::Fill { .. } => "fill",
            Self::Record(_) => "record",
            Self::Await(_) => "await event",
            Self::RecordEvent(_) => "record in a graph",
            Self::AwaitEvent(_) => "await event in a graph",
            Self::Nothing => "nothing",
            Self::WriteValue { .. } => "write value",
            Self::WaitValue { .. } => "wait value",
            Self::Graph(_) => "graph",
            Self::AwaitStream { .. } => "await stream",
            Self::Release { .. } => "release",
        }
    }
}

/// For whom operations are done.
#[derive(Clone, Copy, Debug)]
pub(crate) struct On<'a> {
    pub(crate) core: &'a Arc<Core>,
    pub(crate) device: u32,
    /// The device is lost.
    pub(crate) lost: bool,
}

/// How far an operation is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Advance {
    Done,
    /// Something was done, more remains.
    Moved,
    Waiting,
}

/// An operation that has begun.
#[derive(Debug)]
pub(crate) enum Running {
    Launch(Arc<Launch>),
    Pieces { operation: Operation, done: usize },
    Poll(Operation),
    Graph(Box<GraphRun>),
}

impl Running {
    /// Begins an operation; `None` if it is already over. On a lost device nothing begins, and what others
    /// wait for counts as reached: they learn of the loss from their own next call.
    pub(crate) fn begin(operation: Operation, on: On<'_>) -> Option<Self> {
        let core = on.core;
        let lost = on.lost || !core.scheduler.begins(on.device, operation.name());
        match operation {
            Operation::Record(recording) => {
                recording.reach(core.scheduler.now_ns());
                core.scheduler.wake();
                None
            }
            Operation::Release { .. }
            | Operation::Nothing
            | Operation::RecordEvent(_)
            | Operation::AwaitEvent(_) => None,
            // Also on a lost device: its records are reached.
            Operation::Graph(plan) => Some(Self::Graph(Box::new(GraphRun::new(plan)))),
            _ if lost => None,
            Operation::Launch { plan, device } => {
                Some(Self::Launch(Launch::start(plan, device, Arc::clone(core))))
            }
            Operation::WriteValue { word, value } => {
                core.writes(word.address, 8, || word.store(value));
                core.scheduler.wake();
                None
            }
            Operation::Copy { .. } | Operation::Fill { .. } => Some(Self::Pieces { operation, done: 0 }),
            Operation::Await(_) | Operation::WaitValue { .. } | Operation::AwaitStream { .. } => {
                Some(Self::Poll(operation))
            }
        }
    }

    /// Goes on with it.
    pub(crate) fn advance(&mut self, on: On<'_>) -> Advance {
        let lost = on.lost;
        let done = match self {
            Self::Launch(launch) => {
                if lost {
                    // Blocks that have not begun never will.
                    launch.device_state().start_blocks();
                }
                launch.is_done()
            }
            Self::Pieces { operation, done } => {
                return if lost { Advance::Done } else { piece(on.core, operation, done) };
            }
            Self::Poll(operation) => lost || is_met(operation),
            Self::Graph(run) => return run.advance(on),
        };
        if done { Advance::Done } else { Advance::Waiting }
    }
}

impl Running {
    /// What it waits for, in words.
    pub(crate) fn waits_for(&self) -> &'static str {
        match self {
            Self::Launch(_) => "the end of a kernel",
            Self::Pieces { .. } => "a copy",
            Self::Poll(Operation::Await(_)) => "an event",
            Self::Poll(Operation::WaitValue { .. }) => "a word in memory",
            Self::Poll(_) => "another stream",
            Self::Graph(_) => "a graph",
        }
    }
}

fn is_met(operation: &Operation) -> bool {
    match operation {
        Operation::Await(recording) => recording.is_reached(),
        Operation::WaitValue { word, condition } => condition.holds(word.load()),
        Operation::AwaitStream { stream, ticket } => stream.completed() >= *ticket,
        _ => true,
    }
}

fn piece(core: &Core, operation: &Operation, done: &mut usize) -> Advance {
    let total = match operation {
        Operation::Copy { target, source, bytes, staged } => {
            let source = staged.as_ref().map_or(*source, |staged| staged.as_ptr() as usize);
            // Pieces of overlapping ranges would overwrite what is still to be read.
            let overlap = source < target + bytes && *target < source + bytes;
            let count = if overlap { *bytes } else { PIECE.min(bytes - *done) };
            copy_bytes(core, *target + *done, source + *done, count);
            *done += count;
            *bytes
        }
        Operation::Fill { target, value, bytes } => {
            let count = PIECE.min(bytes - *done);
            fill_bytes(core, *target + *done, *value, count);
            *done += count;
            *bytes
        }
        _ => *done,
    };
    if *done >= total { Advance::Done } else { Advance::Moved }
}

/// Copies between ranges that were checked when the operation was made.
pub(crate) fn copy_bytes(core: &Core, target: usize, source: usize, bytes: usize) {
    // SAFETY: ranges that start in an allocation of the machine were checked to lie in it; others are the
    // caller's host memory, valid by the contract of hipMemcpy. Overlap is allowed by `copy`.
    core.writes(target, bytes, || unsafe { ptr::copy(source as *const u8, target as *mut u8, bytes) });
}

/// Fills a range that was checked when the operation was made.
pub(crate) fn fill_bytes(core: &Core, target: usize, value: u8, bytes: usize) {
    // SAFETY: the range was checked to lie in an allocation of the machine.
    core.writes(target, bytes, || unsafe { ptr::write_bytes(target as *mut u8, value, bytes) });
}
