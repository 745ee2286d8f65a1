//! Queue pairs that do nothing any more.

use std::sync::PoisonError;

use anabranch_ranks::GlobalRank;

use super::RdmaTransport;

impl RdmaTransport {
    /// The first queue pair that has stopped, in the order of ranks, of those to ranks that are not left out: whose it is, and in words
    /// which and why. Looks at all of them, and makes no words for those that go on.
    pub fn first_stopped(&self, is_left_out: impl Fn(GlobalRank) -> bool) -> Option<(GlobalRank, String)> {
        let made = self.made.lock().unwrap_or_else(PoisonError::into_inner);
        let channels = &made.as_ref()?.channels;
        let peers = (0..self.ranks).map(GlobalRank::new).filter(|peer| !is_left_out(*peer));
        let mut all = peers.filter_map(|peer| Some((peer, channels.get(&peer)?)));
        all.find_map(|(peer, channels)| {
            let stopped = |queue: &dyn crate::NicQueue| {
                let why = queue.stopped()?;
                Some(format!("{} has stopped: {why}", queue.describe()))
            };
            let words = channels.iter().find_map(|channel| stopped(channel.queue.as_ref()))?;
            Some((peer, words))
        })
    }
}
