//! What every form of rendezvous does with a call: check it, send it, wait for the answer, name the culprit.

use crate::error::list;
use crate::mailbox::{Closed, Mailbox, Waited};
use crate::message::{Failure, OperationKey, Reply, Request};
use crate::{Deadline, Error, Loss, LossObserver};
use anabranch_ranks::{GlobalRank, Group};
use std::collections::HashMap;
use std::fmt::Debug;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// The way to the hub.
pub(crate) trait Link: Send + Sync + Debug {
    /// Hands over a request without waiting; what comes of it arrives in the mailbox.
    ///
    /// # Errors
    /// [`TooLarge`], in which case nothing was sent.
    fn send(&self, request: u64, what: Request) -> Result<(), TooLarge>;

    /// Says goodbye and ends everything that runs for this rank.
    fn leave(&self) -> Result<(), Error>;
}

/// A request over the maximum.
#[derive(Debug)]
pub(crate) struct TooLarge {
    pub(crate) bytes: u64,
    pub(crate) limit: u64,
}

/// One rank's calls over some link.
#[derive(Debug)]
pub(crate) struct Client {
    rank: GlobalRank,
    size: u32,
    /// The most bytes of one message, for messages.
    limit: u64,
    /// How long the hub has to say who was missing, once a deadline has passed.
    grace: Duration,
    mailbox: Arc<Mailbox>,
    /// How many calls were made with each group and tag. Never locked across a wait.
    sequences: Mutex<HashMap<(Group, String), u64>>,
    requests: AtomicU64,
    left: AtomicBool,
    // Last, so that all else is still there while it ends.
    link: Box<dyn Link>,
}

impl Client {
    pub(crate) fn new(
        rank: GlobalRank,
        size: u32,
        limit: u64,
        grace: Duration,
        mailbox: Arc<Mailbox>,
        link: Box<dyn Link>,
    ) -> Self {
        Self {
            rank,
            size,
            limit,
            grace,
            mailbox,
            sequences: Mutex::new(HashMap::new()),
            requests: AtomicU64::new(1),
            left: AtomicBool::new(false),
            link,
        }
    }

    pub(crate) fn all_gather(
        &self,
        group: &Group,
        tag: &str,
        bytes: &[u8],
        deadline: Deadline,
    ) -> Result<Vec<Vec<u8>>, Error> {
        let phase = || format!("all_gather '{tag}'");
        if let Some(given) = group.members().iter().copied().find(|rank| rank.get() >= self.size) {
            let allowed = format!("the world has {} ranks", self.size);
            return Err(Error::Invalid {
                phase: phase(),
                given: format!("{given} is in the group"),
                allowed,
            });
        }
        if !group.contains(self.rank) {
            let given = format!("{} is not a member of the group", self.rank);
            let allowed = format!("its members are ranks {}", list(group.members()));
            return Err(Error::Invalid { phase: phase(), given, allowed });
        }
        let (request, key) = self.contribute(group, tag, bytes, &phase)?;
        let mut waited = self.mailbox.wait(request, deadline);
        if matches!(waited, Waited::Expired) {
            // The hub ends the call for all and says who was missing, or has ended it meanwhile.
            if self.link.send(request, Request::Withdraw { key }).is_ok() {
                waited = self.mailbox.wait(request, Deadline::after(self.grace));
            }
            self.mailbox.forget(request);
        }
        match waited {
            Waited::Answered(Reply::Gathered(parts)) => {
                let expected = group.size() as usize;
                if parts.len() != expected {
                    let problem = format!("the answer has {} parts; expected are {expected}", parts.len());
                    return Err(Error::Answer { phase: phase(), problem });
                }
                Ok(Arc::try_unwrap(parts).unwrap_or_else(|shared| (*shared).clone()))
            }
            Waited::Answered(Reply::Failed(failure)) => Err(self.failed(failure, phase(), group, deadline)),
            Waited::Closed(closed) => Err(self.closed(self.first_cause(closed, group), phase())),
            // No answer at all: the root's machine or process is stuck.
            Waited::Answered(Reply::Value(_) | Reply::Lost(_)) | Waited::Expired => Err(Error::Expired {
                phase: phase(),
                by: self.rank,
                waited: Some(deadline.waited()),
                members: group.size(),
                missing: vec![GlobalRank::new(0)],
                elsewhere: Vec::new(),
            }),
        }
    }

    /// Sends this rank's part of the next call with this group and tag.
    fn contribute(
        &self,
        group: &Group,
        tag: &str,
        bytes: &[u8],
        phase: &dyn Fn() -> String,
    ) -> Result<(u64, OperationKey), Error> {
        let request = self.requests.fetch_add(1, Ordering::Relaxed);
        self.mailbox
            .expect(request)
            .map_err(|closed| self.closed(self.first_cause(closed, group), phase()))?;
        // Sending does not wait. The count goes up only when the call was sent, so that one that was refused
        // here does not put this rank out of step; and no other call comes between.
        let mut sequences = self.sequences.lock().unwrap_or_else(PoisonError::into_inner);
        let sequence = sequences.entry((group.clone(), tag.to_owned())).or_insert(0);
        let key = OperationKey { group: group.clone(), tag: tag.to_owned(), sequence: *sequence };
        self.send(request, Request::Contribute { key: key.clone(), bytes: bytes.to_vec() }, phase)?;
        *sequence += 1;
        Ok((request, key))
    }

    pub(crate) fn set(&self, key: &str, value: &[u8]) -> Result<(), Error> {
        let phase = || format!("set key '{key}'");
        if let Some(closed) = self.mailbox.closed() {
            return Err(self.closed(closed, phase()));
        }
        let request = self.requests.fetch_add(1, Ordering::Relaxed);
        self.send(request, Request::Set { key: key.to_owned(), value: value.to_vec() }, &phase)
    }

    pub(crate) fn wait(&self, key: &str, deadline: Deadline) -> Result<Vec<u8>, Error> {
        let phase = || format!("wait for key '{key}'");
        let request = self.expect(&phase)?;
        self.send(request, Request::Wait { key: key.to_owned() }, &phase)?;
        match self.mailbox.wait(request, deadline) {
            Waited::Answered(Reply::Value(value)) => {
                return Ok(Arc::try_unwrap(value).unwrap_or_else(|shared| (*shared).clone()));
            }
            Waited::Closed(closed) => return Err(self.closed(closed, phase())),
            Waited::Answered(_) | Waited::Expired => {}
        }
        self.mailbox.forget(request);
        // A failure to cancel means that the link has ended, and the hub has then forgotten this rank.
        drop(self.link.send(request, Request::Cancel { key: key.to_owned() }));
        Err(Error::KeyNotSet { key: key.to_owned(), waited: deadline.waited(), losses: self.losses() })
    }

    pub(crate) fn rank(&self) -> GlobalRank {
        self.rank
    }

    pub(crate) fn size(&self) -> u32 {
        self.size
    }

    pub(crate) fn losses(&self) -> Vec<Loss> {
        self.mailbox.losses()
    }

    pub(crate) fn observe(&self, observer: &Arc<dyn LossObserver>) {
        self.mailbox.observe(observer);
    }

    pub(crate) fn unobserve(&self, observer: &Arc<dyn LossObserver>) {
        self.mailbox.unobserve(observer);
    }

    pub(crate) fn leave(&self) -> Result<(), Error> {
        if self.left.swap(true, Ordering::AcqRel) {
            return Ok(());
        }
        // First, so that what the root does in answer is not taken for a loss.
        self.mailbox.close(Closed::Left);
        let ended = self.link.leave();
        self.mailbox.drop_observers();
        ended
    }

    fn expect(&self, phase: &dyn Fn() -> String) -> Result<u64, Error> {
        let request = self.requests.fetch_add(1, Ordering::Relaxed);
        self.mailbox.expect(request).map_err(|closed| self.closed(closed, phase()))?;
        Ok(request)
    }

    fn send(&self, request: u64, what: Request, phase: &dyn Fn() -> String) -> Result<(), Error> {
        self.link.send(request, what).map_err(|TooLarge { bytes, limit }| {
            self.mailbox.forget(request);
            too_large(phase(), bytes, limit)
        })
    }

    /// Why a call of the group cannot end. When the root is gone because it had lost a member itself, that member is the cause: the
    /// root informed all ranks before it ended.
    fn first_cause(&self, closed: Closed, group: &Group) -> Closed {
        let Closed::Root(root) = closed else { return closed };
        Closed::Root(self.losses().into_iter().find(|loss| group.contains(loss.rank)).unwrap_or(root))
    }

    fn closed(&self, closed: Closed, phase: String) -> Error {
        match closed {
            Closed::Left => Error::Left { phase },
            Closed::Root(loss) => Error::PeerLost { phase, loss },
            Closed::GivenUp(loss) => Error::GivenUp { phase, loss },
            Closed::CannotForm { by, refusal } => Error::CannotForm { rank: self.rank, by, refusal },
        }
    }

    fn failed(&self, failure: Failure, phase: String, group: &Group, deadline: Deadline) -> Error {
        let members = group.size();
        match failure {
            Failure::Missing { by, missing, elsewhere } => {
                let waited = (by == self.rank).then(|| deadline.waited());
                Error::Expired { phase, by, waited, members, missing, elsewhere }
            }
            Failure::Lost(loss) => Error::PeerLost { phase, loss },
            Failure::TooLarge { bytes } => too_large(phase, bytes, self.limit),
        }
    }
}

fn too_large(phase: String, bytes: u64, limit: u64) -> Error {
    let allowed = format!("max_message_bytes allows {limit}");
    Error::Invalid { phase, given: format!("a message has {bytes} bytes"), allowed }
}

impl Drop for Client {
    fn drop(&mut self) {
        // What the link's end brings about is not news to this rank.
        self.mailbox.close(Closed::Left);
        self.mailbox.drop_observers();
    }
}

/// Implements the trait for a type with a `client`. Each call is a point where a driver of the calling thread may let others go
/// first.
macro_rules! rendezvous_by_client {
    ($name:ty) => {
        impl $crate::Rendezvous for $name {
            fn rank(&self) -> anabranch_ranks::GlobalRank {
                self.client.rank()
            }

            fn size(&self) -> u32 {
                self.client.size()
            }

            fn all_gather(
                &self,
                group: &anabranch_ranks::Group,
                tag: &str,
                bytes: &[u8],
                deadline: $crate::Deadline,
            ) -> Result<Vec<Vec<u8>>, $crate::Error> {
                anabranch_clock::give_way("all_gather");
                self.client.all_gather(group, tag, bytes, deadline)
            }

            fn set(&self, key: &str, value: &[u8]) -> Result<(), $crate::Error> {
                anabranch_clock::give_way("set");
                self.client.set(key, value)
            }

            fn wait(&self, key: &str, deadline: $crate::Deadline) -> Result<Vec<u8>, $crate::Error> {
                anabranch_clock::give_way("wait");
                self.client.wait(key, deadline)
            }

            fn losses(&self) -> Vec<$crate::Loss> {
                self.client.losses()
            }

            fn observe(&self, observer: std::sync::Arc<dyn $crate::LossObserver>) {
                anabranch_clock::give_way("observe");
                self.client.observe(&observer);
            }

            fn unobserve(&self, observer: &std::sync::Arc<dyn $crate::LossObserver>) {
                self.client.unobserve(observer);
            }

            fn leave(&self) -> Result<(), $crate::Error> {
                anabranch_clock::give_way("leave");
                self.client.leave()
            }
        }
    };
}
pub(crate) use rendezvous_by_client;
