//! Queue pairs that do nothing any more.

use std::sync::PoisonError;

use anabranch_ranks::GlobalRank;

use super::RdmaTransport;
use crate::NicQueue;

/// A queue pair that does nothing any more.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoppedQueue {
    /// Whom it goes to.
    pub peer: GlobalRank,
    /// Which it is and why it stopped, with the NIC's syndrome in words.
    pub words: String,
    /// Whether something else had failed before, which the peer may know ([`NicQueue::is_consequence`]).
    pub is_consequence: bool,
}

impl RdmaTransport {
    /// The first queue pair that has stopped, in the order of ranks, of those to ranks that are not left out, and sooner one that stopped
    /// by itself than a consequence. Looks at all of them, and makes no words for those that go on.
    pub fn first_stopped(&self, is_left_out: impl Fn(GlobalRank) -> bool) -> Option<StoppedQueue> {
        let made = self.made.lock().unwrap_or_else(PoisonError::into_inner);
        let channels = &made.as_ref()?.channels;
        let peers = (0..self.ranks).map(GlobalRank::new).filter(|peer| !is_left_out(*peer));
        let all =
            peers.flat_map(|peer| channels.get(&peer).into_iter().flatten().map(move |one| (peer, one)));
        let mut consequence = None;
        for stopped in all.filter_map(|(peer, channel)| stopped(peer, channel.queue.as_ref())) {
            if !stopped.is_consequence {
                return Some(stopped);
            }
            consequence.get_or_insert(stopped);
        }
        consequence
    }
}

fn stopped(peer: GlobalRank, queue: &dyn NicQueue) -> Option<StoppedQueue> {
    let why = queue.stopped()?;
    let words = format!("{} has stopped: {why}", queue.describe());
    Some(StoppedQueue { peer, words, is_consequence: queue.is_consequence() })
}
