//! One queue's progress: requests go from the ring to the NIC in order, and completions back.

use core::time::Duration;
use std::collections::VecDeque;
use std::sync::{Arc, OnceLock};

use anabranch_clock::Moment;

use super::request::{check, message_bytes, words};
use super::ring::Ring;
use crate::bindings::{
    IBV_WC_FATAL_ERR, IBV_WC_LOC_QP_OP_ERR, IBV_WC_RESP_TIMEOUT_ERR, IBV_WC_SUCCESS, IBV_WC_WR_FLUSH_ERR,
};
use crate::driver::NicLimits;
use crate::posted::PostedRequest;
use crate::syndrome::status_words;

/// The most entries that a queue posts, and completions that it takes, before others have their turn.
pub const TURN: usize = 32;

/// The rate that a message of a working path has at least, in bytes a second. A message's deadline is longer by its bytes at this rate:
/// the NIC completes it only when all of it has moved, and a lost packet may cost it a timeout. (With one packet in a hundred lost, `rdma_rxe`
/// moved 1 MiB in some seconds.) The NIC itself finds a peer that does not answer at all much earlier.
const LEAST_RATE: u64 = 256 << 10;

/// A send queue that takes requests.
pub trait WorkQueue: Send {
    /// Whether it is polled in every turn, also when nothing of it is on its way: what peers ask for moves then only. The thread rests
    /// less for such a queue, as it cannot see what peers wait for.
    const ANSWERS_WHEN_POLLED: bool = false;

    /// A hint for when the peer does not answer, after a semicolon; empty where the NIC's error is sufficient.
    const WHEN_SILENT: &'static str = "";

    /// Posts requests in order, at most [`TURN`], each signaled by its position.
    ///
    /// # Errors
    /// The first that was refused, as an index, and why. Those before it are posted.
    fn post(&mut self, requests: &[(u64, PostedRequest)]) -> Result<(), (usize, String)>;

    /// Adds at most [`TURN`] completions.
    ///
    /// # Errors
    /// Why the queue ends although none of its requests is reported to have failed: the NIC cannot be asked, or it failed for a peer.
    fn poll(&mut self, completions: &mut Vec<Completion>) -> Result<(), Fault>;

    /// Ends all that was posted; nothing is posted any more.
    fn stop(&mut self);
}

/// Why something failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// What is reported to kernels, one of [`super::status`].
    pub status: u32,
    /// What people are.
    pub words: String,
}

/// What a NIC reports about a request. Completions of a queue come in the order of its positions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Completion {
    /// The position of the entry.
    pub position: u64,
    /// The verbs status, one of [`super::status`], which is reported to kernels.
    pub status: u32,
    /// Of one that failed, what the NIC's library says, for people.
    pub cause: String,
}

/// What a turn found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Turn {
    /// The queue has ended.
    Stopped,
    /// There was nothing to do.
    Quiet,
    /// There was nothing to do for kernels of this rank, and peers may have been answered, which does not show.
    Answering,
    /// Something was posted or completed.
    Moved,
}

/// A connected queue with its ring.
#[derive(Debug)]
pub(crate) struct PostQueue<Q> {
    ring: Arc<Ring>,
    queue: Q,
    limits: NicLimits,
    /// How long the oldest entry may be on its way, without its bytes.
    patience: Duration,
    /// Which queue it is, for people.
    name: String,
    stopped: Arc<OnceLock<Ended>>,
    posted: u64,
    completed: u64,
    /// Bytes of each entry from `completed` to `posted`.
    outstanding: VecDeque<u32>,
    /// When the oldest of them became the oldest.
    oldest_since: Moment,
    /// Since when the doorbell has been ahead of an entry without its stamp.
    unfilled_since: Option<Moment>,
    requests: Vec<(u64, PostedRequest)>,
    completions: Vec<Completion>,
}

impl<Q: WorkQueue> PostQueue<Q> {
    /// `patience` is how long an entry without bytes may be on its way.
    pub(crate) fn new(
        ring: Arc<Ring>,
        queue: Q,
        limits: NicLimits,
        patience: Duration,
        name: String,
        stopped: Arc<OnceLock<Ended>>,
    ) -> Self {
        Self {
            ring,
            queue,
            limits,
            patience,
            name,
            stopped,
            posted: 0,
            completed: 0,
            outstanding: VecDeque::new(),
            oldest_since: Moment::now(),
            unfilled_since: None,
            requests: Vec::with_capacity(TURN),
            completions: Vec::with_capacity(TURN),
        }
    }

    /// Takes completions, then posts what kernels have filled, then looks at the deadlines. Waits for nothing.
    pub(crate) fn turn(&mut self) -> Turn {
        if self.stopped.get().is_some() {
            return Turn::Stopped;
        }
        let before = (self.posted, self.completed);
        let ended = self.take_completions().and_then(|()| self.post_filled()).and_then(|()| self.deadlines());
        match ended {
            Err(Failure { position, status, reason }) => {
                self.fail(position, status, &reason);
                Turn::Stopped
            }
            Ok(()) if before == (self.posted, self.completed) => {
                if Q::ANSWERS_WHEN_POLLED {
                    Turn::Answering
                } else {
                    Turn::Quiet
                }
            }
            Ok(()) => Turn::Moved,
        }
    }

    /// Ends the queue for a reason that is none of its own.
    pub(crate) fn end(&mut self, reason: &str) {
        if self.stopped.get().is_none() {
            self.fail(self.completed, IBV_WC_FATAL_ERR, reason);
        }
    }

    fn take_completions(&mut self) -> Result<(), Failure> {
        if self.completed == self.posted && !Q::ANSWERS_WHEN_POLLED {
            return Ok(());
        }
        self.completions.clear();
        let polled = self.queue.poll(&mut self.completions);
        polled.map_err(|Fault { status, words }| Failure {
            position: self.completed,
            status,
            reason: words,
        })?;
        let begun = self.completed;
        let mut ended = Ok(());
        for completion in &self.completions {
            if completion.status != IBV_WC_SUCCESS {
                ended = Err(self.failed(completion));
                break;
            }
            // A reliable connection completes in order, and every entry is signaled.
            if completion.position != self.completed {
                let reason = format!("the NIC completed entry {} before this one", completion.position);
                ended = Err(Failure { position: self.completed, status: IBV_WC_FATAL_ERR, reason });
                break;
            }
            self.completed += 1;
            self.outstanding.pop_front();
        }
        if self.completed != begun {
            self.oldest_since = Moment::now();
            self.ring.complete(self.completed);
        }
        ended
    }

    fn failed(&self, completion: &Completion) -> Failure {
        let (position, status) = (completion.position, completion.status);
        let asked =
            self.ring.request(position).map_or_else(|| "overwritten".to_owned(), |request| words(&request));
        let reason = format!("{asked}: {} (status {status}, {})", status_words(status), completion.cause);
        Failure { position, status, reason }
    }

    fn post_filled(&mut self) -> Result<(), Failure> {
        let filled = self.ring.filled();
        let room = self.completed + self.ring.entries();
        if filled > room {
            let reason =
                format!("the doorbell says {filled}, and there is room up to {room}: it was overwritten");
            return Err(Failure { position: self.posted, status: IBV_WC_LOC_QP_OP_ERR, reason });
        }
        self.requests.clear();
        let mut refused = Ok(());
        for position in (self.posted..filled).take(TURN) {
            let Some(request) = self.ring.request(position) else { break };
            if let Err(problem) = check(&request, &self.limits) {
                let reason = format!("{}: {problem}", words(&request));
                refused = Err(Failure { position, status: IBV_WC_LOC_QP_OP_ERR, reason });
                break;
            }
            self.requests.push((position, request));
        }
        if self.requests.is_empty() {
            // Those before a refused entry complete before it fails.
            let waiting = self.completed != self.posted;
            return if waiting { Ok(()) } else { refused };
        }
        if self.completed == self.posted {
            self.oldest_since = Moment::now();
        }
        let posted = self.queue.post(&self.requests);
        let taken = posted.as_ref().map_or_else(|(index, _)| *index, |()| self.requests.len());
        for (_, request) in &self.requests[..taken.min(self.requests.len())] {
            self.outstanding.push_back(message_bytes(request));
            self.posted += 1;
        }
        posted.map_err(|(_, reason)| Failure { position: self.posted, status: IBV_WC_LOC_QP_OP_ERR, reason })
    }

    fn deadlines(&mut self) -> Result<(), Failure> {
        if let Some(bytes) = self.outstanding.front() {
            let allowed = self.patience + Duration::from_micros(u64::from(*bytes) * 1_000_000 / LEAST_RATE);
            if self.oldest_since.elapsed() > allowed {
                let (position, status) = (self.completed, IBV_WC_RESP_TIMEOUT_ERR);
                let asked = self.ring.request(position).map_or_else(String::new, |request| words(&request));
                let reason = format!("{asked}: {} of {allowed:?}{}", status_words(status), Q::WHEN_SILENT);
                return Err(Failure { position, status, reason });
            }
        }
        let unfilled = self.posted < self.ring.filled() && self.ring.request(self.posted).is_none();
        if !unfilled {
            self.unfilled_since = None;
            return Ok(());
        }
        if self.unfilled_since.get_or_insert_with(Moment::now).elapsed() > self.patience {
            let reason = "the doorbell was rung for an entry that was never filled".to_owned();
            return Err(Failure { position: self.posted, status: IBV_WC_LOC_QP_OP_ERR, reason });
        }
        Ok(())
    }

    /// Ends the queue: the word for kernels, the words for people, and nothing moves any more.
    fn fail(&mut self, position: u64, status: u32, reason: &str) {
        let text = format!("{}: entry {position}, {reason}", self.name);
        tracing::warn!("{text}");
        // Stored before the word that kernels read, so that a reader of that word finds the text.
        let _ = self.stopped.set(Ended { words: text, is_flushed: status == IBV_WC_WR_FLUSH_ERR });
        // Stopped before the word that kernels read is stored: its reader may reuse the memory.
        self.queue.stop();
        self.ring.fail(position, status);
    }
}

/// Why a queue has ended, for people.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Ended {
    /// The queue, the entry, and what failed.
    pub(crate) words: String,
    /// Whether the first entry that failed was flushed: the queue pair was stopped by something else, which is the peer's.
    pub(crate) is_flushed: bool,
}

/// Why a queue ends.
struct Failure {
    position: u64,
    status: u32,
    reason: String,
}

#[cfg(test)]
mod tests;
