//! The collective calls of a communicator on the host: its initialisation, splits, registrations of windows, its end. Nonblocking ones run on
//! threads. All exchange over one world, so they run one after another, in the order in which the program called: that is one on all ranks.

use std::collections::VecDeque;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};

use crate::comm::{Comm, lock};
use crate::error::{Failure, caught};

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
    turn: Sender<()>,
}

impl Steps {
    /// Whether a nonblocking call goes on.
    pub(crate) fn are_in_progress(&self) -> bool {
        lock(&self.0).steps.iter().any(|step| step.is_nonblocking)
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
}

impl Step {
    /// The call after all earlier ones. Until a nonblocking one is over, the communicator's state is "in progress".
    pub(crate) fn new(comm: &Arc<Comm>, is_nonblocking: bool) -> Self {
        let (sender, turn) = channel();
        let mut waiting = lock(&comm.steps.0);
        let number = waiting.next;
        waiting.next += 1;
        waiting.steps.push_back(Entry { number, is_nonblocking, turn: sender });
        if waiting.steps.len() == 1 {
            waiting.wake_first();
        }
        drop(waiting);
        Self { comm: Arc::clone(comm), number, is_nonblocking, turn }
    }

    /// Waits until the earlier calls are over.
    pub(crate) fn wait(&self) {
        // The other end is in the list until this step is dropped.
        let _ = self.turn.recv();
    }

    /// Runs the call's work when its turn has come.
    ///
    /// # Errors
    /// The work's failure, or its panic, with the rank. It is noted as with [`Self::fail`].
    pub(crate) fn run<T>(self, work: impl FnOnce(&Comm) -> Result<T, Failure>) -> Result<T, Failure> {
        self.wait();
        caught(|| work(&self.comm)).map_err(|failure| self.fail(self.comm.explain(failure)))
    }

    /// The call failed: so did the initialisation if it is that, and `ncclCommGetAsyncError` reports it if it is nonblocking.
    pub(crate) fn fail(&self, failure: Failure) -> Failure {
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
