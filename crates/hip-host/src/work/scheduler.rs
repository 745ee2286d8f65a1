//! What runs when: tasks, and the order of their steps.

use core::fmt;
use std::os::fd::BorrowedFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use anabranch_clock::Driver;
use anabranch_hip::{HipError, Step};

use crate::clock::monotonic_ns;

use crate::memory::mapping::Mapping;
use crate::memory::regions::RegionKind;
use crate::work::launch::Launch;

/// Something that makes a little progress and returns, on the thread that runs it.
pub trait Task {
    /// Goes on with it.
    fn step(&mut self) -> Step;

    /// A step panicked. The task reports it to its waiters and returns what becomes of it; a task that is not finished is
    /// stepped again.
    fn panicked(&mut self) -> Step;

    /// What it waits for, in words, while its steps return [`Step::Waiting`].
    fn waits_for(&self) -> &'static str {
        "something"
    }

    /// Whether the scheduler learns of each of its writes by [`Scheduler::writes`]. Else it may have written any memory
    /// after a step.
    fn reports_writes(&self) -> bool {
        false
    }
}

/// Makes a task on the thread that will run it: lanes cannot move between threads.
pub type Begin = Box<dyn FnOnce() -> Box<dyn Task> + Send>;

/// Memory that the machine makes known.
#[derive(Clone, Copy, Debug)]
pub struct NewMemory<'a> {
    /// What it is.
    pub kind: RegionKind,
    /// Its device; the current one for memory of the host.
    pub device: u32,
    /// Its first byte.
    pub address: usize,
    /// Its size.
    pub bytes: usize,
    /// What keeps it mapped; `None` for memory of the caller, which stays until [`Scheduler::take_back`].
    pub mapping: Option<&'a Arc<Mapping>>,
    /// The file that it is in: the same memory may be mapped at several addresses.
    pub file: Option<BorrowedFd<'a>>,
}

/// An order of steps.
///
/// The required functions run tasks and blocks. The others are what a virtual scheduler decides beyond that; their
/// defaults are those of a machine that runs free.
pub trait Scheduler: Send + Sync + fmt::Debug {
    /// Adds a task that works for a device, or for all of them. After [`Scheduler::stop`] it is dropped.
    fn spawn(&self, device: Option<u32>, begin: Begin);

    /// Runs a block of a launch, for which lanes are free.
    fn spawn_block(&self, launch: Arc<Launch>, index: u32);

    /// So many blocks of a launch never begin, as its device is lost.
    fn abandon_blocks(&self, launch: &Arc<Launch>, count: u32);

    /// Something has changed that waiting tasks may wait for.
    fn wake(&self);

    /// Drops all tasks and ends all threads. Idempotent. Called from one of its own threads it does not wait for that one.
    fn stop(&self);

    /// What the clock of events shows, nanoseconds.
    fn now_ns(&self) -> u64 {
        monotonic_ns()
    }

    /// Whether it decides every step. Then kernels must be instrumented, streams begin one operation a step, and host
    /// threads attach to its [`Scheduler::driver`].
    fn is_virtual(&self) -> bool {
        false
    }

    /// Runs attached host threads one at a time.
    fn driver(self: Arc<Self>) -> Option<Arc<dyn Driver>> {
        None
    }

    /// The calling thread begins a HIP call, with this current device.
    ///
    /// # Errors
    /// The code with which the call fails, without effect.
    fn begin_call(&self, _name: &'static str, _device: u32) -> Result<(), HipError> {
        Ok(())
    }

    /// The HIP call is over, whether it was begun or refused.
    fn end_call(&self) {}

    /// A stream begins an operation for a device; false if nothing must happen, as on a lost device.
    fn begins(&self, _device: u32, _operation: &'static str) -> bool {
        true
    }

    /// Whether a HIP call that waits would do so for ever.
    fn is_hopeless(&self) -> bool {
        false
    }

    /// Numbers memory for kernels' accesses, and returns the number of the memory and the byte of it at `address`.
    fn track(&self, _memory: &NewMemory<'_>) -> Option<(u32, usize)> {
        None
    }

    /// The caller takes registered memory back.
    fn take_back(&self, _number: u32) {}

    /// Other devices than its own may reach this memory from here on.
    fn offer(&self, _number: u32) {}

    /// Calls `write` once, which writes this range from outside of kernels.
    fn writes(&self, _address: usize, _bytes: usize, write: &mut dyn FnMut()) {
        write();
    }
}

/// Steps a task; after a panic, what the task makes of it.
pub fn step_caught(task: &mut Box<dyn Task>) -> Step {
    caught(|| task.step()).or_else(|| caught(|| task.panicked())).unwrap_or(Step::Finished)
}

/// Runs something; `None` after a panic, which is logged.
///
/// What panicked may be half done. The scheduler's own state is whole at every call, and a task is asked for nothing
/// after its panic but `panicked`, which is written for that.
pub fn caught<T>(work: impl FnOnce() -> T) -> Option<T> {
    match catch_unwind(AssertUnwindSafe(work)) {
        Ok(done) => Some(done),
        Err(cause) => {
            let text = cause.downcast_ref::<&str>().copied();
            let text = text.or_else(|| cause.downcast_ref::<String>().map(String::as_str));
            tracing::error!(cause = text.unwrap_or("of unknown kind"), "a task of the host machine panicked");
            None
        }
    }
}
