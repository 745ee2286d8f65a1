//! The trait, and the plain data in its signatures.

use std::fmt;

use anabranch_ranks::GlobalRank;

use crate::{Operation, PeerInfo, Refusal, Scope, Support, TransportKind};

/// A way of reaching peers' memory. Object safe; one instance serves one rank of one world. A program with its own transport gives it to
/// `World::join_with` of `anabranch-shmem`.
pub trait Transport: fmt::Debug + Send + Sync {
    /// Which kind this is.
    fn kind(&self) -> TransportKind;

    /// Whether kernels can do `operation` at `scope` over this transport. A plan asks before anything is launched.
    fn support(&self, operation: Operation, scope: Scope) -> Support;

    /// Whether memory of `peer` can be reached, and by which mechanism. Asks the runtime where it can; maps nothing.
    ///
    /// # Errors
    /// Why it cannot.
    fn reaches(&self, peer: &PeerInfo) -> Result<Reach, Refusal>;

    /// What peers need to open `region` of this rank's memory: bytes to be sent to them.
    ///
    /// # Errors
    /// The region cannot be offered to that audience.
    fn export(&self, region: Region, audience: Audience) -> crate::Result<Vec<u8>>;

    /// Opens the region that `peer` offered. Dropping the result closes it; the peer's memory must not be freed before.
    ///
    /// # Errors
    /// The offer is malformed or smaller than `bytes`, or the runtime refuses it.
    fn open(&self, peer: &PeerInfo, offer: &[u8], bytes: u64) -> crate::Result<Box<dyn PeerMemory>>;

    /// Every peer's route is chosen: the queues to peers that `kept` excludes serve no route and may end. Both ends of a queue get the
    /// same answer. The default does nothing.
    fn keep_only(&self, kept: &dyn Fn(GlobalRank) -> bool) {
        let _ = kept;
    }

    /// Lets kernels of this rank name `region`, memory outside the heap, as the local side of requests, until the result is dropped.
    /// `None`, the default, where requests may name any memory of the device.
    ///
    /// # Errors
    /// Why it cannot.
    fn register_local(&self, region: Region) -> Result<Option<Box<dyn LocalMemory>>, Refusal> {
        let _ = region;
        Ok(None)
    }

    /// The queues to a peer: a description of each, and the reason of those that have stopped. The default has none.
    fn describe_queues(&self, peer: GlobalRank) -> Vec<(String, Option<String>)> {
        let _ = peer;
        Vec::new()
    }

    /// The first queue that has stopped, in the order of ranks, of those to ranks that are not left out; one that stopped by itself comes
    /// before consequences. Called every few milliseconds while a peer is reached by [`Origin::Remote`]. The default has no queue.
    fn first_stopped(&self, is_left_out: &dyn Fn(GlobalRank) -> bool) -> Option<StoppedQueue> {
        let _ = is_left_out;
        None
    }

    /// The queues to a peer that have not stopped and have not answered all requests. The default has none.
    fn unanswered(&self, peer: GlobalRank) -> Vec<UnansweredQueue> {
        let _ = peer;
        Vec::new()
    }

    /// What a fault record means whose `phase` is of this transport's device code; `expected` and `seen` are the record's. `None`, the
    /// default, for phases that are not its own.
    fn explain(&self, phase: u32, peer: GlobalRank, expected: u64, seen: u64) -> Option<Explanation> {
        let _ = (phase, peer, expected, seen);
        None
    }

    /// Gives back what the transport itself holds (queues, sessions), after all opened memory was dropped. Doing it again does nothing.
    fn close(&mut self);

    /// In the place of [`Self::close`] when kernels may be in flight that never end: stops what can be stopped, and keeps for good what
    /// they may still read or write (rings, words, registrations). The default keeps nothing but opened memory, which its owner keeps.
    fn abandon(&mut self) {}
}

/// A queue of a transport that does nothing any more.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoppedQueue {
    /// The peer it leads to.
    pub peer: GlobalRank,
    /// Which queue it is and why it stopped, with the device's own status in words.
    pub words: String,
    /// Whether all that is known here is that something else failed before, which the peer may know.
    pub is_consequence: bool,
}

/// Requests of a queue that were not answered yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnansweredQueue {
    /// The oldest request, by the queue's number and the request's position there, of which some bits are counted. Equal at two looks: it
    /// was not answered between them.
    pub oldest: (u32, u64),
    /// Which queue.
    pub queue: String,
    /// How many requests, and the oldest one.
    pub words: String,
}

impl fmt::Display for UnansweredQueue {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{} does not answer: {}", self.queue, self.words)
    }
}

/// What a fault record of a transport's device code means.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Explanation {
    /// For people.
    pub words: String,
    /// Whether a queue has failed, perhaps because of its peer.
    pub has_stopped: bool,
}

/// Memory that requests may name as their local side. Dropping it ends that.
pub trait LocalMemory: fmt::Debug + Send + Sync {}

/// A range of this rank's device memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Region {
    /// Its first byte, as a number.
    pub address: u64,
    /// Bytes.
    pub bytes: u64,
}

/// Who is going to open an offer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Audience {
    /// Only threads of this process: addresses will do.
    ThisProcess,
    /// Other processes of this host too: the memory has to be shareable.
    ThisHost,
}

/// That a peer can be reached, and how.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reach {
    /// The mechanism.
    pub origin: Origin,
    /// The same with its evidence, for people.
    pub reason: String,
}

/// Where a mapped address comes from, which decides how it is given back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Origin {
    /// This rank's own memory.
    Own,
    /// Memory of another rank of this process, at the address that it has there. Nothing to close.
    SameProcess,
    /// Memory of another process, mapped by handle.
    Ipc,
    /// Physical memory of another rank, mapped into addresses that this rank reserved.
    Virtual,
    /// Memory of another rank that a NIC reaches and loads and stores do not: its address means something to the NIC alone.
    Remote,
}

/// A peer's memory, opened. Dropping it closes the mapping.
pub trait PeerMemory: fmt::Debug + Send + Sync {
    /// Where kernels of this rank find it; of [`Origin::Remote`], where the peer's NIC does.
    fn address(&self) -> u64;

    /// Bytes that may be accessed from there on.
    fn bytes(&self) -> u64;

    /// Where the address comes from.
    fn origin(&self) -> Origin;
}
