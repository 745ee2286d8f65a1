//! `ncclGroupStart` to `ncclGroupEnd`, for each thread.

use std::cell::RefCell;

use crate::abi::Handle;
use crate::error::{Failure, of_panic};
use crate::operation::{self, Operation};

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

/// Notes that a call of the thread's group has failed: the group then launches nothing.
pub(crate) fn spoil(failure: &Failure) {
    GROUP.with_borrow_mut(|group| {
        if group.depth > 0 {
            group.failure.get_or_insert_with(|| failure.clone());
        }
    });
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
    run_jobs(group.jobs)?;
    operation::launch(&group.operations)
}

/// `ncclGroupSimulateEnd` ends the group without running it.
pub(crate) fn discard() {
    GROUP.with_borrow_mut(std::mem::take);
}

/// Runs the jobs of different communicators beside each other: each waits for other ranks, whose jobs may be in the same group.
///
/// # Errors
/// The first failure. [`crate::abi::IN_PROGRESS`] where a job goes on.
pub(crate) fn run_jobs(mut jobs: Vec<Job>) -> Result<(), Failure> {
    if jobs.len() == 1 && !jobs[0].is_nonblocking {
        return jobs.pop().map_or(Ok(()), |job| (job.run)());
    }
    let is_nonblocking = jobs.iter().any(|job| job.is_nonblocking);
    let mut lists: Vec<(usize, Vec<Job>)> = Vec::new();
    for job in jobs {
        match lists.iter_mut().find(|(comm, _)| *comm == job.comm) {
            Some((_, list)) => list.push(job),
            None => lists.push((job.comm, vec![job])),
        }
    }
    let mut threads = Vec::new();
    for (_, list) in lists {
        let run = move || list.into_iter().try_for_each(|job| (job.run)());
        let spawned = std::thread::Builder::new().name("anabranch nccl".to_owned()).spawn(run);
        threads.push(
            spawned.map_err(|error| {
                Failure::new(crate::abi::SYSTEM, format!("no thread for a rank: {error}"))
            })?,
        );
    }
    if is_nonblocking {
        return Err(Failure::new(crate::abi::IN_PROGRESS, "in progress"));
    }
    let mut first = Ok(());
    for thread in threads {
        let result = thread.join().unwrap_or_else(|panic| Err(of_panic(panic.as_ref())));
        first = first.and(result);
    }
    first
}
