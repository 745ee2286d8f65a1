//! Combined weights: what the plan adds to a dispatch and to a combine.

use anabranch_hip::{DeviceAddress, Stream};
use anabranch_hip_jit::{DevicePointer, bytemuck::Zeroable};

use super::{ExpertParallel, calls, pointer};
use crate::args::FillWeightsArgs;
use crate::error::{Error, Result};
use crate::expert_major::args::ReceivedView;
use crate::slot::{Slot, SlotTicket};
use crate::tensor::DeviceSlice;

/// Where combine writes. A [`DeviceSlice`] is one of rows alone.
#[derive(Clone, Copy, Debug)]
pub struct CombineOutput {
    /// `[tokens][hidden]` of the combine type, 16-byte aligned.
    pub rows: DeviceSlice,
    /// `[tokens][top_k]` f32, 4-byte aligned: for each token and each of its k the sum, in group-rank order in f32, of what is in
    /// the weight windows of the ranks that took it in; 0 for a token that none did. Given exactly where the plan combines weights
    /// ([`EpConfig::combine_weights`](crate::EpConfig::combine_weights)).
    pub weights: Option<DeviceSlice>,
}

impl From<DeviceSlice> for CombineOutput {
    fn from(rows: DeviceSlice) -> Self {
        Self { rows, weights: None }
    }
}

impl CombineOutput {
    /// Where the kernel writes weights, or null.
    pub(super) fn weights_address(&self) -> DeviceAddress {
        self.weights.map_or(DeviceAddress::NULL, |weights| weights.address())
    }
}

impl ExpertParallel {
    /// Ends the launches of a dispatch that has received: fills the weight window, where there is one, and notes that the slot was
    /// used on the stream.
    pub(super) fn deliver(&self, stream: &Stream, slot: &mut SlotTicket) -> Result<()> {
        let filled = self.fill_weights(stream, slot.get());
        self.used(slot, stream, &calls::DISPATCH_RECV)?;
        filled
    }

    fn fill_weights(&self, stream: &Stream, slot: &Slot) -> Result<()> {
        let Some(unit) = &self.fill else { return Ok(()) };
        let received = ReceivedView {
            rows: pointer(slot.rows()),
            meta: pointer(slot.meta()),
            offsets: pointer(slot.offsets()),
            ranks: self.plan.ranks(),
            row_stride: self.plan.row_stride(),
            top_k: self.plan.config().top_k,
            meta_bytes: self.plan.meta_bytes(),
            ..ReceivedView::zeroed()
        };
        let window: DevicePointer<f32> = pointer(slot.combine_weights());
        let geometry = self.plan.local_geometry(self.plan.rows(), &self.limits);
        let kernel = unit.kernel("anabranch_ep_fill_weights")?;
        let args = FillWeightsArgs { received, window };
        // SAFETY: the argument struct is the kernel's own; the windows belong to the slot, which the ticket keeps.
        unsafe {
            kernel.launch(geometry.blocks, geometry.block_threads, geometry.local_bytes, stream, &args)?;
        }
        Ok(())
    }

    /// The weights' place: there exactly where the plan combines them, of its shape and alignment.
    pub(super) fn check_weights(&self, tokens: u32, output: &CombineOutput) -> Result<()> {
        let config = self.plan.config();
        if output.weights.is_some() != config.combine_weights {
            return Err(Error::CombineWeights { planned: config.combine_weights });
        }
        let Some(weights) = output.weights else { return Ok(()) };
        weights.check("the combined weights", tokens as usize * config.top_k as usize * 4, 4, || {
            format!("[{tokens} tokens][{} top_k] f32", config.top_k)
        })
    }
}
