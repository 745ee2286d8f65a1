//! The copies that a dispatch dropped.

use anabranch_hip::Stream;
use anabranch_ranks::GroupRank;

use super::{Dispatched, ExpertParallel};
use crate::error::Result;
use crate::plan::DROPPED;

/// A copy of a token that was not sent because it did not fit at its destination.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct DroppedCopy {
    /// The token's number on this rank.
    pub token: u32,
    /// The rank for which the copy was.
    pub destination: GroupRank,
}

impl ExpertParallel {
    /// The copies of this rank's tokens that a dispatch dropped, by token and then destination. Waits for the stream, which must
    /// be the dispatch's or ordered after it. Not collective. If a rank was masked while the dispatch ran, the list may include
    /// copies for it that the handle counts as masked.
    ///
    /// # Errors
    /// [`Error::ForeignHandle`](crate::Error::ForeignHandle); a fault of the world; the error of a copy from the device.
    pub fn dropped(&self, stream: &Stream, dispatched: &Dispatched) -> Result<Vec<DroppedCopy>> {
        self.context.check_slot(&dispatched.slot)?;
        self.context.world.synchronize(stream)?;
        let fan_out = self.context.plan.fan_out() as usize;
        let slot = dispatched.slot.get();
        // Beyond the device token count the map has entries of earlier operations.
        let kept = self.context.plan.config().device_token_count;
        let tokens = if kept { slot.read_state()?.token_count } else { dispatched.tokens };
        let map = slot.read_send_map(tokens as usize * fan_out)?;
        let dropped = map.iter().enumerate().filter(|(_, entry)| *entry & DROPPED != 0);
        let copy = |(place, entry): (usize, &u64)| DroppedCopy {
            token: (place / fan_out) as u32,
            destination: GroupRank::new((entry >> 32) as u32 - 1),
        };
        Ok(dropped.map(copy).collect())
    }
}
