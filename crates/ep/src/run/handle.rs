//! The handle of a dispatch, which combine takes.

use anabranch_hip::DeviceAddress;

use crate::slot::SlotTicket;

/// A dispatch before its combine. Holds the slot; pass it to [`ExpertParallel::combine`](crate::ExpertParallel::combine) or
/// [`ExpertParallel::release`](crate::ExpertParallel::release), which every member must do in the same order.
#[derive(Debug)]
#[must_use = "the slot stays busy until the handle is combined or released"]
pub struct Dispatched {
    pub(crate) slot: SlotTicket,
    pub(super) tokens: u32,
    /// Whether its weights were sent after it.
    pub(super) has_late_weights: bool,
}

impl Dispatched {
    pub(super) fn new(slot: SlotTicket, tokens: u32) -> Self {
        Self { slot, tokens, has_late_weights: false }
    }

    /// Tokens that this rank dispatched; with a device token count, its upper bound.
    pub fn tokens(&self) -> u32 {
        self.tokens
    }

    /// Received rows: `[rows][hidden]` of the dispatch type. The rows of rank s are `counts[s]` rows in the order of its tokens, from row
    /// `s * `[`Plan::row_stride`](crate::Plan::row_stride) on, or, when that is 0 (compact), from row `offsets[s]` on. Other rows are
    /// undefined.
    pub fn rows(&self) -> DeviceAddress {
        self.slot.get().rows()
    }

    /// Meta records of the rows, at the same indices: `[rows][meta_bytes]`, each `{token u32, place u32, ids i32[K],
    /// weights f32[K], scales}`. `place` is the index of this copy among the sent copies of its token, ascending by rank, or, where
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

    /// Address of the number of tokens that this rank dispatched, one u32, in plans with
    /// [`EpConfig::device_token_count`](crate::EpConfig::device_token_count); the word is 0 in others.
    pub fn token_count(&self) -> DeviceAddress {
        self.slot.get().token_count()
    }

    /// Copies of this rank's tokens that were not sent because they did not fit at their destinations, one u32.
    /// [`ExpertParallel::dropped`](crate::ExpertParallel::dropped) lists them.
    pub fn dropped_count(&self) -> DeviceAddress {
        self.slot.get().dropped_count()
    }

    /// Copies of this rank's tokens that are left out of the result because their destinations are masked, one u32; 0 in a plan without
    /// masks. Some may have been sent, if the rank was masked during the dispatch. `dropped_count` does not include them.
    pub fn masked_count(&self) -> DeviceAddress {
        self.slot.get().masked_count()
    }

    /// The weight window, where the plan combines weights ([`EpConfig::combine_weights`](crate::EpConfig::combine_weights)), else
    /// null: `[rows][top_k]` f32, at the indices of the received rows. After the dispatch it holds the dispatched weights; experts may
    /// overwrite the weights of received rows before combine, which sums them whether it pulls or pushes.
    pub fn combine_weights(&self) -> DeviceAddress {
        self.slot.get().combine_weights()
    }

    /// The late weights of the received rows, `[rows][top_k]` f32 at their indices, once
    /// [`ExpertParallel::send_weights`](crate::ExpertParallel::send_weights) has sent them; else null. Valid until the combine, in stream order.
    pub fn late_weights(&self) -> DeviceAddress {
        if self.has_late_weights { self.slot.get().late_weights() } else { DeviceAddress::NULL }
    }

    /// The combine window: `[rows][hidden]` of the combine type, at the indices of the received rows, for the experts' output. Null
    /// where the plan has none ([`CombineSource::Buffer`](crate::CombineSource::Buffer)).
    ///
    /// Write here in work that follows the dispatch, or its receive, on the stream. After a fault the counts are zero: kernels that write
    /// rows beyond each source's count may then change rows that a peer still reads for the operation before.
    ///
    /// With [`CombineSource::Any`](crate::CombineSource::Any) and no masks, do not write here in an operation whose combine gets another
    /// buffer: peers push into the same memory. Where ranks may be masked, write only the rows within each source's count: a masked
    /// rank may still read its rows of an earlier operation.
    pub fn combine_rows(&self) -> DeviceAddress {
        self.slot.get().combine_rows()
    }
}
