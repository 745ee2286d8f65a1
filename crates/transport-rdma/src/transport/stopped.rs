//! Queue pairs that do nothing any more, or do not answer.

use std::sync::{Arc, PoisonError};

use anabranch_ranks::GlobalRank;
use anabranch_transport::{StoppedQueue, UnansweredQueue};

use super::RdmaTransport;
use crate::NicQueue;

impl RdmaTransport {
    /// The queue pairs to a peer that have not stopped and have not answered what they were given ([`NicQueue::unanswered`]).
    pub(super) fn unanswered_to(&self, peer: GlobalRank) -> Vec<UnansweredQueue> {
        let unanswered = |queue: Arc<dyn NicQueue>| {
            let requests = queue.unanswered()?;
            let oldest = (queue.words().number, requests.oldest);
            Some(UnansweredQueue { oldest, queue: queue.describe(), words: requests.words })
        };
        self.queues_to([peer]).into_iter().filter_map(|(_, queue)| unanswered(queue)).collect()
    }

    /// The queue pairs to peers, which are asked without the lock: some drivers ask their NIC, which may take long.
    pub(super) fn queues_to(
        &self,
        peers: impl IntoIterator<Item = GlobalRank>,
    ) -> Vec<(GlobalRank, Arc<dyn NicQueue>)> {
        let made = self.made.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(made) = made.as_ref() else { return Vec::new() };
        let of = |peer| {
            let channels = made.channels.get(&peer).into_iter().flatten();
            channels.map(move |channel| (peer, Arc::clone(&channel.queue)))
        };
        peers.into_iter().flat_map(of).collect()
    }

    /// The first queue pair that has stopped, in the order of ranks, of those to ranks that are not left out, and sooner one that stopped
    /// by itself than a consequence. Looks at all of them, and makes no words for those that go on.
    pub(super) fn stopped_to(&self, is_left_out: &dyn Fn(GlobalRank) -> bool) -> Option<StoppedQueue> {
        let peers = (0..self.ranks).map(GlobalRank::new).filter(|peer| !is_left_out(*peer));
        let mut consequence = None;
        let queues = self.queues_to(peers).into_iter();
        for stopped in queues.filter_map(|(peer, queue)| stopped(peer, queue.as_ref())) {
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
