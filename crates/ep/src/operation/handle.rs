//! What a dispatch hands back, and combine takes.

use anabranch_hip::DeviceAddress;

use crate::slot::SlotTicket;

/// A dispatch whose combine has not been given yet. Holds the slot; give it to [`ExpertParallel::combine`](crate::ExpertParallel::combine) or
/// [`ExpertParallel::release`](crate::ExpertParallel::release), which every member must do in the same order.
#[derive(Debug)]
#[must_use = "the slot stays busy until the handle is combined or released"]
pub struct Dispatched {
    pub(super) slot: SlotTicket,
    pub(super) tokens: u32,
}

impl Dispatched {
    /// Tokens that this rank dispatched.
    pub fn tokens(&self) -> u32 {
        self.tokens
    }

    /// Rows received: `[ranks][max_tokens][hidden]` of the dispatch type. Rank s's rows are the first `counts[s]` of its
    /// part, in the order of its tokens; the rest is undefined.
    pub fn rows(&self) -> DeviceAddress {
        self.slot.get().rows()
    }

    /// Meta records of the rows: `[ranks][max_tokens][meta_bytes]`, each `{token u32, place u32, ids i32[K],
    /// weights f32[K], scales}`; `place` is this copy's among the token's destinations, ascending by rank.
    pub fn meta(&self) -> DeviceAddress {
        self.slot.get().meta()
    }

    /// Rows received from each rank, `[ranks]` u32.
    pub fn counts(&self) -> DeviceAddress {
        self.slot.get().counts()
    }

    /// Running sum of the counts, `[ranks + 1]` u32; the last is the total.
    pub fn offsets(&self) -> DeviceAddress {
        self.slot.get().offsets()
    }

    /// The combine window: `[ranks][max_tokens][hidden]` of the combine type, each row at the place of the row it came from, for
    /// experts that write their output here. Null where the plan has none ([`CombineSource::Buffer`](crate::CombineSource::Buffer)).
    /// Where a plan has both ways ([`CombineSource::Any`](crate::CombineSource::Any)), nobody writes here in an operation whose
    /// combine gets another buffer: peers push into the same memory.
    pub fn combine_rows(&self) -> DeviceAddress {
        self.slot.get().combine_rows()
    }
}
