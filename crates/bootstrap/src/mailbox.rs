//! One rank's side of the connection: awaited answers, known losses, observers.

use crate::message::Reply;
use crate::sync::{Mutex, MutexGuard};
use crate::{Deadline, Loss, LossObserver, Refusal};
use anabranch_clock::Signal;
use anabranch_ranks::GlobalRank;
use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, PoisonError};

/// Why no more answers will come.
#[derive(Clone, Debug)]
pub(crate) enum Closed {
    /// This rank left.
    Left,
    /// The root was lost.
    Root(Loss),
    /// The others count this rank as dead.
    GivenUp(Loss),
    /// The world cannot form, because this rank was refused.
    CannotForm { by: GlobalRank, refusal: Refusal },
}

/// How waiting for an answer ended.
#[derive(Debug)]
pub(crate) enum Waited {
    Answered(Reply),
    Closed(Closed),
    Expired,
}

#[derive(Default)]
struct State {
    /// Requests whose answer is awaited, with the answer once it has come.
    replies: HashMap<u64, Option<Reply>>,
    losses: Vec<Loss>,
    /// How many of the losses the observers have received.
    told: usize,
    observers: Vec<Arc<dyn LossObserver>>,
    closed: Option<Closed>,
}

/// See the module. No lock is held while an observer runs or a peer is waited for.
#[derive(Default)]
pub(crate) struct Mailbox {
    state: Mutex<State>,
    changed: Signal,
}

impl Mailbox {
    /// Announces that the answer to this request will be waited for; to be called before it is sent.
    pub(crate) fn expect(&self, request: u64) -> Result<(), Closed> {
        let mut state = self.lock();
        if let Some(closed) = &state.closed {
            return Err(closed.clone());
        }
        state.replies.insert(request, None);
        Ok(())
    }

    /// No longer waits for this answer.
    pub(crate) fn forget(&self, request: u64) {
        self.lock().replies.remove(&request);
    }

    /// Why no more answers will come, if so.
    pub(crate) fn closed(&self) -> Option<Closed> {
        self.lock().closed.clone()
    }

    /// Puts in what has arrived. An answer that is not awaited is dropped.
    pub(crate) fn deliver(&self, request: u64, reply: Reply) {
        let mut state = self.lock();
        if let Reply::Lost(loss) = reply {
            if !matches!(state.closed, Some(Closed::Left)) && !state.knows(&loss) {
                state.losses.push(loss);
            }
        } else if let Some(slot) = state.replies.get_mut(&request) {
            *slot = Some(reply);
        }
        drop(state);
        self.changed.notify_all();
    }

    /// Says that no more answers will come; the first reason counts.
    pub(crate) fn close(&self, closed: Closed) {
        let mut state = self.lock();
        if state.closed.is_none() {
            if let Closed::Root(loss) = &closed
                && !state.knows(loss)
            {
                state.losses.push(loss.clone());
            }
            state.closed = Some(closed);
        }
        drop(state);
        self.changed.notify_all();
    }

    /// Drops the observers, which may hold this mailbox's owner.
    pub(crate) fn drop_observers(&self) {
        let observers = std::mem::take(&mut self.lock().observers);
        drop(observers);
    }

    /// Waits for an announced answer. Unless the wait expired, the request is done with.
    pub(crate) fn wait(&self, request: u64, deadline: Deadline) -> Waited {
        let mut state = self.lock();
        loop {
            if let Some(reply) = state.replies.get_mut(&request).and_then(Option::take) {
                state.replies.remove(&request);
                return Waited::Answered(reply);
            }
            if let Some(closed) = state.closed.clone() {
                state.replies.remove(&request);
                return Waited::Closed(closed);
            }
            if deadline.expired() {
                return Waited::Expired;
            }
            state = self.changed.wait(&self.state, state, Some(deadline.end()));
        }
    }

    /// The losses noticed so far.
    pub(crate) fn losses(&self) -> Vec<Loss> {
        self.lock().losses.clone()
    }

    /// Adds an observer and gives it, on this thread, the losses that the others have received.
    pub(crate) fn observe(&self, observer: &Arc<dyn LossObserver>) {
        let mut state = self.lock();
        let told: Vec<Loss> = state.losses.iter().take(state.told).cloned().collect();
        if !matches!(state.closed, Some(Closed::Left)) {
            state.observers.push(Arc::clone(observer));
        }
        drop(state);
        for loss in &told {
            observer.lost(loss);
        }
    }

    /// Forgets an observer. A thread that has begun to notify it may still do so once.
    pub(crate) fn unobserve(&self, observer: &Arc<dyn LossObserver>) {
        let is_it =
            |known: &mut Arc<dyn LossObserver>| std::ptr::addr_eq(Arc::as_ptr(known), Arc::as_ptr(observer));
        // Dropped without the lock: it may hold this mailbox's owner.
        let gone: Vec<_> = self.lock().observers.extract_if(.., is_it).collect();
        drop(gone);
    }

    /// Gives the observers the losses that they have not received.
    pub(crate) fn tell_observers(&self) {
        loop {
            let mut state = self.lock();
            let Some(loss) = state.losses.get(state.told).cloned() else { return };
            state.told += 1;
            let observers = state.observers.clone();
            drop(state);
            for observer in observers {
                observer.lost(&loss);
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Nothing in this crate panics while it holds the lock, so what it guards is whole.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn knows(&self, loss: &Loss) -> bool {
        self.losses.iter().any(|known| known.rank == loss.rank)
    }
}

impl fmt::Debug for Mailbox {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = self.lock();
        f.debug_struct("Mailbox")
            .field("awaited", &state.replies.len())
            .field("losses", &state.losses)
            .field("observers", &state.observers.len())
            .field("closed", &state.closed)
            .finish()
    }
}

#[cfg(all(test, loom))]
#[path = "mailbox_loom.rs"]
mod loom_tests;
