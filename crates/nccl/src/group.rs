//! `ncclGroupStart` to `ncclGroupEnd`, for each thread.

use std::cell::RefCell;
use std::sync::Arc;
use std::sync::mpsc::channel;

use crate::abi::{IN_PROGRESS, SYSTEM};
use crate::comm::{Comm, NOT_INITIALISED};
use crate::error::{Failure, of_panic};
use crate::operation::{self, Operation};
use crate::process::Process;
use crate::steps::Step;

/// Something that waits for other ranks on the host: an initialisation, a split, the registration of a window.
pub(crate) struct Job {
    step: Step,
    work: Box<dyn FnOnce(Step) -> Result<(), Failure> + Send>,
}

#[derive(Default)]
struct Group {
    depth: u32,
    jobs: Vec<Job>,
    operations: Vec<Operation>,
    /// The first call of the group that failed.
    failure: Option<Failure>,
}

thread_local! {
    static GROUP: RefCell<Group> = RefCell::default();
}

impl Job {
    pub(crate) fn new(step: Step, work: impl FnOnce(Step) -> Result<(), Failure> + Send + 'static) -> Self {
        Self { step, work: Box::new(work) }
    }

    /// Runs the job, also beside captures of this thread and of others.
    fn run(self) -> Result<(), Failure> {
        match Process::get().and_then(|process| process.relax_captures()) {
            Ok(_relaxed) => (self.work)(self.step),
            Err(failure) => self.refuse(failure),
        }
    }

    /// Ends the job without its work. An initialisation releases its communicator then.
    fn refuse(mut self, failure: Failure) -> Result<(), Failure> {
        self.step.refuse(failure);
        (self.work)(self.step)
    }
}

/// Takes a job into the thread's group, or runs it.
pub(crate) fn submit_job(job: Job) -> Result<(), Failure> {
    let alone = GROUP.with_borrow_mut(|group| {
        if group.depth == 0 {
            return Some(job);
        }
        group.jobs.push(job);
        None
    });
    alone.map_or(Ok(()), |job| run_jobs(vec![job]))
}

/// Returns the result of a call that may be in a group. After a failure the thread's group launches nothing, and ends with that failure.
pub(crate) fn noted<T>(result: Result<T, Failure>) -> Result<T, Failure> {
    result.inspect_err(|failure| {
        GROUP.with_borrow_mut(|group| {
            if group.depth > 0 {
                group.failure.get_or_insert_with(|| failure.clone());
            }
        });
    })
}

/// Takes an operation into the thread's group, or launches it.
pub(crate) fn submit(operation: Operation) -> Result<(), Failure> {
    let alone = GROUP.with_borrow_mut(|group| {
        if group.depth == 0 {
            return Some(operation);
        }
        group.operations.push(operation);
        None
    });
    alone.map_or(Ok(()), |operation| operation::launch(&[operation]))
}

/// `ncclGroupStart`.
pub(crate) fn start() {
    GROUP.with_borrow_mut(|group| group.depth += 1);
}

/// `ncclGroupEnd`: the outermost one runs the group.
///
/// # Errors
/// The first failure of the group; no group.
pub(crate) fn end() -> Result<(), Failure> {
    let group = GROUP.with_borrow_mut(|group| match group.depth {
        0 => Err(Failure::usage("ncclGroupEnd without ncclGroupStart")),
        1 => Ok(std::mem::take(group)),
        _ => {
            group.depth -= 1;
            Ok(Group::default())
        }
    })?;
    if let Some(failure) = group.failure {
        release(group.jobs);
        return Err(failure);
    }
    // Operations are of communicators that are there, or that a job of the group has made meanwhile.
    match run_jobs(group.jobs) {
        Err(failure) if failure.code == IN_PROGRESS => operation::launch(&group.operations).and(Err(failure)),
        ran => ran.and_then(|()| operation::launch(&group.operations)),
    }
}

/// `ncclGroupSimulateEnd` ends the group without running it.
pub(crate) fn discard() {
    release(GROUP.with_borrow_mut(std::mem::take).jobs);
}

/// Releases the communicators of initialisations that do not run. Programs end nonblocking ones, whose error is set when their job is
/// dropped.
fn release(jobs: Vec<Job>) {
    for job in jobs.into_iter().filter(|job| !job.step.is_nonblocking) {
        // The group has an error of its own.
        let _ = job.refuse(Failure::usage(NOT_INITIALISED));
    }
}

/// Refuses to end a communicator while the thread's group has calls of it.
///
/// # Errors
/// As described.
pub(crate) fn check_has_none_of(comm: &Arc<Comm>) -> Result<(), Failure> {
    let is_of = |other: &Arc<Comm>| Arc::ptr_eq(other, comm);
    let has_some = GROUP.with_borrow(|group| {
        group.jobs.iter().any(|job| is_of(&job.step.comm))
            || group.operations.iter().any(|operation| is_of(&operation.comm))
    });
    if has_some {
        let text = "the communicator cannot end before ncclGroupEnd: the group has calls of it";
        return Err(Failure::usage(text));
    }
    Ok(())
}

/// Runs jobs beside each other: each waits for other ranks, whose jobs may be in the same group, and for the earlier steps of its
/// communicator. Waits for blocking ones.
///
/// # Errors
/// The first failure. [`IN_PROGRESS`] where a job goes on.
pub(crate) fn run_jobs(mut jobs: Vec<Job>) -> Result<(), Failure> {
    if jobs.len() == 1 && !jobs[0].step.is_nonblocking {
        return jobs.pop().map_or(Ok(()), Job::run);
    }
    let (mut threads, mut first, mut goes_on) = (Vec::new(), Ok(()), false);
    for job in jobs {
        let (comm, is_nonblocking) = (Arc::clone(&job.step.comm), job.step.is_nonblocking);
        goes_on |= is_nonblocking;
        // The job is handed to the thread when there is one.
        let (sender, receiver) = channel::<Job>();
        let run = move || receiver.recv().map_or(Ok(()), Job::run);
        match std::thread::Builder::new().name("anabranch nccl".to_owned()).spawn(run) {
            Ok(thread) => {
                // It waits for the job.
                let _ = sender.send(job);
                if !is_nonblocking {
                    threads.push((comm, thread));
                }
            }
            Err(error) => {
                let failure = Failure::new(SYSTEM, format!("no thread for a collective call: {error}"));
                first = first.and(job.refuse(failure));
            }
        }
    }
    for (comm, thread) in threads {
        let result = thread.join().unwrap_or_else(|panic| Err(of_panic(panic.as_ref())));
        first = first.and(result.map_err(|failure| failure.on(comm.rank, comm.size)));
    }
    let in_progress = || Failure::new(IN_PROGRESS, "in progress");
    first.and(if goes_on { Err(in_progress()) } else { Ok(()) })
}
