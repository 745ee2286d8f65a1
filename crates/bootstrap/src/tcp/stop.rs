//! The end of a join by another thread.

use crate::mailbox::{Closed, Mailbox};
use std::net::{Shutdown, TcpStream};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Ends a [`TcpRendezvous::join`](super::TcpRendezvous::join) from another thread, which then gives [`Error::Left`](crate::Error::Left).
/// Once the rank has joined, its calls that wait end in the same way, and it still has to [leave](crate::Rendezvous::leave).
#[derive(Clone, Debug, Default)]
pub struct JoinStop(Arc<Mutex<State>>);

#[derive(Debug, Default)]
struct State {
    is_stopped: bool,
    wait: Option<Wait>,
}

/// What a rank waits for.
#[derive(Debug)]
pub(super) enum Wait {
    /// The root's part of the handshake.
    Root(TcpStream),
    /// Answers of the root.
    Answers(Arc<Mailbox>),
}

impl Wait {
    fn end(&self) {
        match self {
            // A connection that is closed already ends the wait too.
            Self::Root(stream) => drop(stream.shutdown(Shutdown::Both)),
            Self::Answers(mailbox) => mailbox.close(Closed::Left),
        }
    }
}

impl JoinStop {
    /// Ends the join, also one that has not begun.
    pub fn stop(&self) {
        let mut state = self.lock();
        state.is_stopped = true;
        if let Some(wait) = &state.wait {
            wait.end();
        }
    }

    /// Whether [`Self::stop`] was called.
    pub fn is_stopped(&self) -> bool {
        self.lock().is_stopped
    }

    /// What [`Self::stop`] ends from now on.
    pub(super) fn waits_for(&self, wait: Wait) {
        let mut state = self.lock();
        if state.is_stopped {
            wait.end();
        }
        state.wait = Some(wait);
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Nothing panics under the lock.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
