//! Which copies a dispatch had no room for.

use anabranch_hip::Stream;
use anabranch_ranks::GroupRank;

use super::{Dispatched, ExpertParallel};
use crate::error::Result;
use crate::plan::DROPPED;

/// A copy of a token that was not sent, because its destination has no room for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct DroppedCopy {
    /// The token's number on this rank.
    pub token: u32,
    /// Where it would have gone.
    pub destination: GroupRank,
}

impl ExpertParallel {
    /// The copies of this rank's tokens that a dispatch dropped, by token and then destination. Waits for the stream, which must
    /// be the dispatch's or ordered after it. Not collective. Where a rank was masked while the dispatch ran, copies for it may be among
    /// them that the handle counts as masked.
    ///
    /// # Errors
    /// [`Error::ForeignHandle`](crate::Error::ForeignHandle); a fault of the world; the code of a copy.
    pub fn dropped(&self, stream: &Stream, dispatched: &Dispatched) -> Result<Vec<DroppedCopy>> {
        self.context.check_slot(&dispatched.slot)?;
        self.context.world.synchronize(stream)?;
        let fan_out = self.context.plan.fan_out() as usize;
        let slot = dispatched.slot.get();
        // After the tokens that a device value left of those given, the map is of earlier operations.
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
