//! The collective calls of a communicator on the host: its initialisation, splits, registrations of windows, its end. Nonblocking ones run on
//! threads. All exchange over one world, so they run one after another, in the order in which the program called: that is one on all ranks.

use std::collections::VecDeque;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex};

use crate::abi::SYSTEM;
use crate::comm::{Comm, lock};
use crate::error::{Failure, caught};
use crate::process::Process;

/// The calls that are not over, in their order.
#[derive(Debug, Default)]
pub(crate) struct Steps(Mutex<Waiting>);

#[derive(Debug, Default)]
struct Waiting {
    next: u64,
    steps: VecDeque<Entry>,
}

#[derive(Debug)]
struct Entry {
    number: u64,
    is_nonblocking: bool,
    has_begun: bool,
    turn: Sender<()>,
}

impl Steps {
    /// Whether a nonblocking call goes on.
    pub(crate) fn are_in_progress(&self) -> bool {
        lock(&self.0).steps.iter().any(|step| step.is_nonblocking)
    }

    /// The first, unless it has begun.
    fn first_waiting(&self) -> Option<u64> {
        lock(&self.0).steps.front().filter(|first| !first.has_begun).map(|first| first.number)
    }
}

impl Waiting {
    fn wake_first(&self) {
        // No thread waits for a step that was dropped.
        let _ = self.steps.front().map(|first| first.turn.send(()));
    }
}

/// One of the calls, from the call to its end. The first is the initialisation.
#[derive(Debug)]
pub(crate) struct Step {
    pub(crate) comm: Arc<Comm>,
    number: u64,
    pub(crate) is_nonblocking: bool,
    turn: Receiver<()>,
    /// Why its work is not done.
    refused: Option<Failure>,
}

impl Step {
    /// The call after all earlier ones. Until a nonblocking one is over, the communicator's state is "in progress".
    pub(crate) fn new(comm: &Arc<Comm>, is_nonblocking: bool) -> Self {
        let (sender, turn) = channel();
        let mut waiting = lock(&comm.steps.0);
        let number = waiting.next;
        waiting.next += 1;
        waiting.steps.push_back(Entry { number, is_nonblocking, has_begun: false, turn: sender });
        if waiting.steps.len() == 1 {
            waiting.wake_first();
        }
        drop(waiting);
        Self { comm: Arc::clone(comm), number, is_nonblocking, turn, refused: None }
    }

    /// Waits until the earlier calls are over. One that has begun ends with an error of its own within the deadlines.
    ///
    /// # Errors
    /// An earlier call that does not end, as one of a group of another thread that stays open.
    pub(crate) fn wait(&self) -> Result<(), Failure> {
        let process = Process::get()?;
        let deadlines = &process.config().deadline;
        let limit = deadlines.rendezvous.duration().saturating_add(deadlines.operation.duration());
        let mut first = self.comm.steps.first_waiting();
        // The other end is in the list until this step is dropped.
        while self.turn.recv_timeout(limit) == Err(RecvTimeoutError::Timeout) {
            let before = std::mem::replace(&mut first, self.comm.steps.first_waiting());
            if first.is_some() && first == before {
                let text = format!(
                    "an earlier collective call of the communicator is not over after {limit:?}: it may be in a group that no ncclGroupEnd ends"
                );
                return Err(Failure::new(SYSTEM, text).on(self.comm.rank, self.comm.size));
            }
        }
        if let Some(own) = lock(&self.comm.steps.0).steps.front_mut().filter(|own| own.number == self.number)
        {
            own.has_begun = true;
        }
        Ok(())
    }

    /// The call's work will not be done: [`Self::run`] returns the failure.
    pub(crate) fn refuse(&mut self, failure: Failure) {
        self.refused = Some(failure);
    }

    /// Runs the call's work when its turn has come.
    ///
    /// # Errors
    /// The work's failure, or its panic, with the rank; those of [`Self::refuse`] and [`Self::wait`]. It is that of the initialisation if the
    /// step is that, and `ncclCommGetAsyncError` reports it if it is nonblocking.
    pub(crate) fn run<T>(mut self, work: impl FnOnce(&Comm) -> Result<T, Failure>) -> Result<T, Failure> {
        let ready = self.refused.take().map_or_else(|| self.wait(), Err);
        let work = || caught(|| work(&self.comm)).map_err(|failure| self.comm.explain(failure));
        ready.and_then(|()| work()).map_err(|failure| self.fail(failure))
    }

    fn fail(&self, failure: Failure) -> Failure {
        let failure = failure.on(self.comm.rank, self.comm.size);
        if self.number == 0 {
            self.comm.settle(Err(failure.clone()));
        }
        if self.is_nonblocking {
            self.comm.note(&failure);
        }
        failure
    }
}

impl Drop for Step {
    fn drop(&mut self) {
        if self.number == 0 {
            self.comm.give_up();
        }
        let mut waiting = lock(&self.comm.steps.0);
        let was_first = waiting.steps.front().is_some_and(|first| first.number == self.number);
        waiting.steps.retain(|step| step.number != self.number);
        if was_first {
            waiting.wake_first();
        }
    }
}
