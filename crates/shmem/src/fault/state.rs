//! Fault state of a world: losses reported by the rendezvous, records written by kernels, the user's own verdict. Each of them ends the
//! kernels' waits at once; the next call of the world selects the cause (`root_cause.rs`).

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};

use anabranch_bootstrap::Loss;
use anabranch_clock::Signal;
use anabranch_transport::StoppedQueue;

use crate::error::Fault;
use crate::error::Result;
use crate::fault::control::Control;
use crate::fault::tolerance::Tolerated;

/// The report of this rank.
#[derive(Debug, Default)]
struct Publication {
    /// A thread publishes.
    is_under_way: bool,
    /// What was published is a cause, decided or not.
    is_cause: bool,
}

#[derive(Debug)]
pub(crate) struct FaultState {
    /// The cause, once it is decided.
    cause: OnceLock<Fault>,
    /// Ranks that were lost, in the order in which they were noticed.
    losses: Mutex<Vec<Loss>>,
    /// The first queue pair of this rank that was found to have stopped.
    stopped: OnceLock<StoppedQueue>,
    /// Losses that were reported before.
    tolerated: Mutex<Tolerated>,
    /// Whether a loss was not reported yet.
    raised: AtomicBool,
    control: Control,
    publication: Mutex<Publication>,
    published: Signal,
    /// From the start of `leave` on, others may leave too.
    leaving: AtomicBool,
}

impl FaultState {
    pub(crate) fn new(control: Control) -> Self {
        Self {
            cause: OnceLock::new(),
            losses: Mutex::default(),
            stopped: OnceLock::new(),
            tolerated: Mutex::default(),
            raised: AtomicBool::new(false),
            control,
            publication: Mutex::default(),
            published: Signal::new(),
            leaving: AtomicBool::new(false),
        }
    }

    pub(crate) fn control(&self) -> &Control {
        &self.control
    }

    /// The cause, when it is decided.
    pub(crate) fn cause(&self) -> Option<&Fault> {
        self.cause.get()
    }

    /// Decides the cause, unless it was decided, and ends the kernels' waits.
    pub(crate) fn decide(&self, fault: Fault) {
        if let Ok(()) = self.cause.set(fault)
            && let Some(fault) = self.cause.get()
        {
            tracing::warn!(%fault, "the world has failed");
        }
        self.abort();
    }

    /// Publishes the decided cause or, until there is one, the caller's: a cause, or something that may lead to one and replaces none. One at
    /// a time, so that nothing replaces the decided one.
    pub(crate) fn publish(&self, is_cause: bool, publish: impl FnOnce(Option<&Fault>)) {
        let mut publication = self.publication.lock().unwrap_or_else(PoisonError::into_inner);
        while publication.is_under_way {
            publication = self.published.wait(&self.publication, publication, None);
        }
        let decided = self.cause();
        let is_cause = is_cause || decided.is_some();
        if publication.is_cause && !is_cause {
            return;
        }
        *publication = Publication { is_under_way: true, is_cause: publication.is_cause || is_cause };
        // Not under the lock: under a driver, others run meanwhile.
        drop(publication);
        publish(decided);
        self.publication.lock().unwrap_or_else(PoisonError::into_inner).is_under_way = false;
        self.published.notify_all();
    }

    /// Whether something has failed, decided or not.
    pub(crate) fn is_raised(&self) -> Result<bool> {
        Ok(self.raised.load(Ordering::Acquire) || self.control.fault()?.is_some())
    }

    pub(crate) fn losses(&self) -> Vec<Loss> {
        self.losses.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(crate) fn leaving(&self) {
        self.leaving.store(true, Ordering::Release);
    }

    /// The rendezvous lost a rank. Never blocks, so that any thread can call it.
    pub(crate) fn lost(&self, loss: &Loss) {
        if self.leaving.load(Ordering::Acquire) {
            return;
        }
        if self.tolerated(|tolerated| tolerated.takes(loss)) {
            tracing::warn!(
                rank = loss.rank.get(),
                detail = loss.detail,
                "a rank was lost, and the world goes on"
            );
        } else {
            self.lost_in_call(loss);
        }
    }

    pub(crate) fn tolerated<T>(&self, change: impl FnOnce(&mut Tolerated) -> T) -> T {
        change(&mut self.tolerated.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// A collective call of this rank could not do without a lost rank.
    pub(crate) fn lost_in_call(&self, loss: &Loss) {
        let mut losses = self.losses.lock().unwrap_or_else(PoisonError::into_inner);
        if losses.iter().all(|known| known.rank != loss.rank) {
            losses.push(loss.clone());
        }
        drop(losses);
        self.abort();
    }

    /// A queue pair of this rank has stopped: what goes by it never comes. The first is kept.
    pub(crate) fn stopped(&self, stopped: StoppedQueue) {
        let _ = self.stopped.set(stopped);
        self.abort();
    }

    pub(crate) fn stopped_nic(&self) -> Option<&StoppedQueue> {
        self.stopped.get()
    }

    fn abort(&self) {
        if self.raised.swap(true, Ordering::AcqRel) {
            return;
        }
        if let Err(error) = self.control.abort() {
            // The kernels' own budget ends their waits then.
            tracing::warn!(%error, "the abort word could not be written");
        }
    }
}
