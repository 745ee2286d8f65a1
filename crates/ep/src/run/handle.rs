//! What a dispatch hands back, and combine takes.

use anabranch_hip::DeviceAddress;

use crate::slot::SlotTicket;

/// A dispatch whose combine has not been given yet. Holds the slot; give it to [`ExpertParallel::combine`](crate::ExpertParallel::combine) or
/// [`ExpertParallel::release`](crate::ExpertParallel::release), which every member must do in the same order.
#[derive(Debug)]
#[must_use = "the slot stays busy until the handle is combined or released"]
pub struct Dispatched {
    pub(crate) slot: SlotTicket,
    pub(super) tokens: u32,
}

impl Dispatched {
    /// Tokens that this rank dispatched; where their number was in device memory, the most that it may have.
    pub fn tokens(&self) -> u32 {
        self.tokens
    }

    /// Rows received: `[rows][hidden]` of the dispatch type. Rank s's rows are `counts[s]` rows in the order of its tokens, from
    /// `s * `[`Plan::row_stride`](crate::Plan::row_stride) on, or, when that is 0 (compact), from `offsets[s]` on. The rest is
    /// undefined.
    pub fn rows(&self) -> DeviceAddress {
        self.slot.get().rows()
    }

    /// Meta records of the rows: `[rows][meta_bytes]`, each `{token u32, place u32, ids i32[K],
    /// weights f32[K], scales}`; `place` is this copy's among those of the token that were sent, ascending by rank, or, where
    /// ranks may be masked ([`OnTimeout::Mask`](crate::OnTimeout::Mask)), this rank.
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

    /// Tokens that this rank really dispatched, one u32, in plans whose number of tokens may be in device memory
    /// ([`EpConfig::device_token_count`](crate::EpConfig::device_token_count)); 0 in others.
    pub fn token_count(&self) -> DeviceAddress {
        self.slot.get().token_count()
    }

    /// Copies of this rank's tokens that were not sent for lack of room at their destinations, one u32.
    /// [`ExpertParallel::dropped`](crate::ExpertParallel::dropped) lists them.
    pub fn dropped_count(&self) -> DeviceAddress {
        self.slot.get().dropped_count()
    }

    /// Copies of this rank's tokens that went nowhere because their destinations are masked, one u32; 0 in a plan that masks
    /// no rank. They are not among the dropped ones.
    pub fn masked_count(&self) -> DeviceAddress {
        self.slot.get().masked_count()
    }

    /// The weight window, where the plan combines weights ([`EpConfig::combine_weights`](crate::EpConfig::combine_weights)), else
    /// null: `[rows][top_k]` f32, each row's at the place of the row it came from. After the dispatch it holds the weights that were
    /// dispatched; experts may write others of the received rows before combine, which sums what is there, wherever the rows lie.
    pub fn combine_weights(&self) -> DeviceAddress {
        self.slot.get().combine_weights()
    }

    /// The combine window: `[rows][hidden]` of the combine type, each row at the place of the row it came from, for experts that
    /// write their output here. Null where the plan has none ([`CombineSource::Buffer`](crate::CombineSource::Buffer)). Where a
    /// plan has both ways ([`CombineSource::Any`](crate::CombineSource::Any)), no expert writes here in an operation whose combine
    /// gets another buffer: peers push into the same memory (unless ranks may be masked). Where ranks may be masked, experts write the rows of the sources'
    /// counts and no others: a rank that was masked by then may still be reading its own.
    pub fn combine_rows(&self) -> DeviceAddress {
        self.slot.get().combine_rows()
    }
}
