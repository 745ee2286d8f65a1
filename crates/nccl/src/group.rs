//! `ncclGroupStart` to `ncclGroupEnd`, for each thread.

use std::cell::RefCell;

use crate::abi::{Handle, IN_PROGRESS};
use crate::error::{Failure, of_panic};
use crate::gpu::RelaxedCapture;
use crate::operation::{self, Operation};
use crate::process::Process;

/// Something that waits for other ranks on the host: an initialisation, a split, the registration of a window.
pub(crate) struct Job {
    /// The communicator's number. Jobs of one communicator run in the order of their calls, which is that of all ranks.
    comm: usize,
    run: Box<dyn FnOnce() -> Result<(), Failure> + Send>,
    /// Goes on after the call has returned.
    is_nonblocking: bool,
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
    pub(crate) fn new(
        comm: Handle,
        is_nonblocking: bool,
        run: impl FnOnce() -> Result<(), Failure> + Send + 'static,
    ) -> Self {
        Self { comm: comm as usize, run: Box::new(run), is_nonblocking }
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
pub(crate) fn noted(result: Result<(), Failure>) -> Result<(), Failure> {
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
    GROUP.with_borrow_mut(std::mem::take);
}

/// Runs a job, also beside captures of this thread and of others.
fn run(job: Job) -> Result<(), Failure> {
    let relaxed = RelaxedCapture::new(Process::get()?.kind())?;
    let result = (job.run)();
    drop(relaxed);
    result
}

/// Runs the jobs of different communicators beside each other: each waits for other ranks, whose jobs may be in the same group. Waits for
/// those of blocking communicators.
///
/// # Errors
/// The first failure. [`IN_PROGRESS`] where a job goes on.
pub(crate) fn run_jobs(mut jobs: Vec<Job>) -> Result<(), Failure> {
    if jobs.len() == 1 && !jobs[0].is_nonblocking {
        return jobs.pop().map_or(Ok(()), run);
    }
    let goes_on = jobs.iter().any(|job| job.is_nonblocking);
    let mut lists: Vec<(usize, bool, Vec<Job>)> = Vec::new();
    for job in jobs {
        match lists.iter_mut().find(|(comm, ..)| *comm == job.comm) {
            // Blocking jobs of the communicator come after it, or before it: the whole list is waited for.
            Some((_, is_nonblocking, list)) => {
                *is_nonblocking &= job.is_nonblocking;
                list.push(job);
            }
            None => lists.push((job.comm, job.is_nonblocking, vec![job])),
        }
    }
    let (mut threads, mut first) = (Vec::new(), Ok(()));
    for (_, is_nonblocking, list) in lists {
        let run = move || list.into_iter().try_for_each(run);
        match std::thread::Builder::new().name("anabranch nccl".to_owned()).spawn(run) {
            Ok(_) if is_nonblocking => {}
            Ok(thread) => threads.push(thread),
            Err(error) => {
                let text = format!("no thread for a rank: {error}");
                first = first.and(Err(Failure::new(crate::abi::SYSTEM, text)));
            }
        }
    }
    for thread in threads {
        let result = thread.join().unwrap_or_else(|panic| Err(of_panic(panic.as_ref())));
        first = first.and(result);
    }
    let in_progress = || Failure::new(IN_PROGRESS, "in progress");
    first.and(if goes_on { Err(in_progress()) } else { Ok(()) })
}
