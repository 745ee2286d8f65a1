//! Streams: queues of operations that run one after another.
//!
//! A stream with work is a task of the scheduler; an idle one costs nothing. The null stream of each device
//! keeps HIP's legacy order: its work comes after what blocking streams of the device were given before, and
//! theirs after its. Streams made with `hipStreamNonBlocking` take no part in that.

use std::sync::{Arc, Mutex};

use anabranch_hip::HipError;

use crate::Step;
use crate::sync::lock;
use crate::work::capture::{Membership, captured_push};
use crate::work::core::Core;
use crate::work::device::DeviceState;
use crate::work::operation::{Advance, On, Operation, Running};
use crate::work::queue::WorkQueue;
use crate::work::scheduler::Task;

/// How a stream stands to the null stream of its device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StreamKind {
    /// It is the null stream.
    Null,
    /// It is ordered with the null stream.
    Blocking,
    /// It is not.
    NonBlocking,
}

/// A stream.
#[derive(Debug)]
pub(crate) struct Stream {
    pub(crate) device: Arc<DeviceState>,
    pub(crate) kind: StreamKind,
    core: Arc<Core>,
    pub(crate) state: Mutex<StreamState>,
    work: WorkQueue<Operation>,
}

/// What changes of a stream.
#[derive(Debug, Default)]
pub(crate) struct StreamState {
    pub(crate) capture: Option<Membership>,
}

/// Operations of one stream that one step may begin.
const OPERATIONS_PER_STEP: u32 = 32;

impl Stream {
    pub(crate) fn new(device: Arc<DeviceState>, kind: StreamKind, core: Arc<Core>) -> Arc<Self> {
        let stream = Arc::new(Self { device, kind, core, state: Mutex::default(), work: WorkQueue::new() });
        stream.device.remember(&stream);
        stream
    }

    pub(crate) fn completed(&self) -> u64 {
        self.work.completed()
    }

    pub(crate) fn is_lost(&self) -> bool {
        self.core.faults.is_lost(self.device.ordinal)
    }

    /// Queues an operation, or adds it to the capture that the stream is in. Returns the ticket that
    /// [`Stream::wait`] takes.
    pub(crate) fn push(self: &Arc<Self>, operation: Operation) -> Result<u64, HipError> {
        if self.is_lost() {
            return Err(HipError::LAUNCH_FAILURE);
        }
        if let Some(membership) = &mut lock(&self.state).capture {
            captured_push(membership, operation)?;
            return Ok(0);
        }
        for other in self.legacy_predecessors()? {
            let ticket = other.submitted();
            if other.completed() < ticket {
                self.queue(Operation::AwaitStream { stream: other, ticket });
            }
        }
        Ok(self.queue(operation))
    }

    /// The streams whose present work comes before what this one is given next.
    fn legacy_predecessors(&self) -> Result<Vec<Arc<Self>>, HipError> {
        let wanted = match self.kind {
            StreamKind::NonBlocking => return Ok(Vec::new()),
            StreamKind::Blocking => StreamKind::Null,
            StreamKind::Null => StreamKind::Blocking,
        };
        let others: Vec<_> =
            self.device.streams().into_iter().filter(|stream| stream.kind == wanted).collect();
        for other in &others {
            if let Some(membership) = &lock(&other.state).capture {
                // The null stream would have to wait for work that is not there.
                membership.graph.invalidate();
                return Err(HipError::STREAM_CAPTURE_IMPLICIT);
            }
        }
        Ok(others)
    }

    /// Queues an operation whatever else the stream is in.
    pub(crate) fn queue(self: &Arc<Self>, operation: Operation) -> u64 {
        let pushed = self.work.push(operation);
        if pushed.start {
            let stream = Arc::clone(self);
            self.core.scheduler.spawn(
                Some(self.device.ordinal),
                Box::new(move || Box::new(StreamTask { stream, running: None, taken: false })),
            );
        }
        pushed.ticket
    }

    /// How many operations the stream has been given.
    pub(crate) fn submitted(&self) -> u64 {
        self.work.submitted()
    }

    /// Whether all that the stream has been given is done.
    pub(crate) fn is_idle(&self) -> bool {
        self.work.is_idle()
    }

    /// Blocks the calling thread until the operation with this ticket is done.
    ///
    /// # Errors
    /// `hipErrorLaunchFailure` if the device is lost.
    pub(crate) fn wait(&self, ticket: u64) -> Result<(), HipError> {
        let scheduler = &self.core.scheduler;
        self.work.wait(ticket, scheduler.is_virtual(), || scheduler.is_hopeless());
        if self.is_lost() { Err(HipError::LAUNCH_FAILURE) } else { Ok(()) }
    }

    /// Drops what is queued; for a machine that ends.
    pub(crate) fn forget_queue(&self) {
        self.work.forget();
    }
}

/// A stream with work, on the worker that runs it.
struct StreamTask {
    stream: Arc<Stream>,
    running: Option<Running>,
    /// An operation was taken from the queue and is not complete.
    taken: bool,
}

impl Task for StreamTask {
    fn step(&mut self) -> Step {
        let core = &self.stream.core;
        let on = On { core, device: self.stream.device.ordinal, lost: self.stream.is_lost() };
        let mut moved = false;
        let most = if core.scheduler.is_virtual() { 1 } else { OPERATIONS_PER_STEP };
        for _ in 0..most {
            if self.running.is_none() {
                let Some(operation) = self.stream.work.next() else { return Step::Finished };
                moved = true;
                self.taken = true;
                self.running = Running::begin(operation, on);
            }
            let advance = match &mut self.running {
                Some(running) => running.advance(on),
                None => Advance::Done,
            };
            match advance {
                Advance::Done => {
                    moved = true;
                    self.running = None;
                    self.taken = false;
                    self.stream.work.complete();
                }
                Advance::Moved => return Step::Progress,
                Advance::Waiting => return if moved { Step::Progress } else { Step::Waiting },
            }
        }
        Step::Progress
    }

    fn waits_for(&self) -> &'static str {
        self.running.as_ref().map_or("work", Running::waits_for)
    }

    /// The device is lost. The operation counts as done, and the rest of the queue is passed as on any lost device, so
    /// that a wait for the stream returns it.
    fn panicked(&mut self) -> Step {
        self.stream.core.faults.record_panic(self.stream.device.ordinal, "(stream)");
        self.running = None;
        if self.taken {
            self.taken = false;
            self.stream.work.complete();
        }
        self.stream.core.scheduler.wake();
        Step::Progress
    }
}
