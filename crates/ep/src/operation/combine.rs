//! Combine: checks and launch.

use anabranch_hip::{DeviceAddress, Stream};

use super::{COMBINE, CombineOutput, Dispatched, ExpertParallel, calls, pointer};
use crate::args::CombineArgs;
use crate::error::{Error, Result};
use crate::plan::FLAG_STRIDE;
use crate::slot::{Slot, SlotTicket};
use crate::tensor::DeviceSlice;

/// Where combine finds the experts' output: the same on every rank of an operation.
#[derive(Clone, Copy, Debug)]
pub enum ExpertOutput {
    /// In the slot's combine window ([`Dispatched::combine_rows`]), from which peers pull it.
    InWindow,
    /// In another buffer of the window's shape, `[rows][hidden]` of the combine type, 16-byte aligned. The received rows are
    /// pushed to their origins, in the form of the plan's codec.
    Staged(DeviceSlice),
}

impl ExpertParallel {
    /// Sums, for each token of the dispatch, the rows of all ranks it went to, in group-rank order. Collective: every
    /// member combines the same dispatch. It puts one kernel on the stream and returns; the slot is free for the next
    /// dispatch, in stream order.
    ///
    /// `output` is `[tokens][hidden]` of the combine type, 16-byte aligned; with room for weights where the plan combines
    /// them ([`CombineOutput`]).
    ///
    /// # Errors
    /// Before anything moves: [`Error::ForeignHandle`], [`Error::Source`], [`Error::Shape`], [`Error::Alignment`],
    /// [`Error::InOwnWindows`], [`Error::CombineWeights`], or a fault that the world has had. A rank whose output lies elsewhere than a peer's (one in the
    /// window, one in a buffer) is a fault of the world. The handle is used up in any case, and after an error its slot is lost.
    pub fn combine(
        &self,
        stream: &Stream,
        experts: ExpertOutput,
        dispatched: Dispatched,
        output: impl Into<CombineOutput>,
    ) -> Result<()> {
        let output = output.into();
        let tokens = dispatched.tokens;
        self.check_output(tokens, &output)?;
        if let Some(nodes) = &self.nodes {
            return self.combine_across(nodes, stream, experts, dispatched, &output);
        }
        if self.engine.is_some() {
            let sent = self.combine_send(stream, experts, dispatched)?;
            return self.combine_recv(stream, sent, output);
        }
        let slot = dispatched.slot;
        match experts {
            ExpertOutput::InWindow if !self.plan.config().combine_source.pulls() => {
                Err(self.wrong_source("the combine window"))
            }
            ExpertOutput::InWindow => self.pull(stream, slot, tokens, output),
            ExpertOutput::Staged(rows) => self.push(stream, rows, slot, tokens, output),
        }
    }

    /// The experts' output is where the plan does not look for it.
    pub(super) fn wrong_source(&self, given: &'static str) -> Error {
        Error::Source { given, planned: self.plan.config().combine_source }
    }

    /// Gives the slot of a dispatch back without a combine. Collective, like combine: all members release the operation, or all
    /// combine it. A member that combines from its window what another releases sums undefined rows of that one.
    ///
    /// # Errors
    /// As [`Self::combine`].
    pub fn release(&self, stream: &Stream, dispatched: Dispatched) -> Result<()> {
        if let Some(nodes) = &self.nodes {
            return self.release_across(nodes, stream, dispatched.slot);
        }
        // SAFETY: nothing of a null range is read or written when no token is summed.
        let nothing = unsafe { DeviceSlice::from_raw(DeviceAddress::NULL, 0) };
        self.pull(stream, dispatched.slot, 0, nothing.into())
    }

    fn pull(&self, stream: &Stream, mut slot: SlotTicket, tokens: u32, output: CombineOutput) -> Result<()> {
        let _launching = self.world.launching(stream)?;
        if !slot.belongs_to(&self.pool) {
            return Err(Error::ForeignHandle);
        }
        let geometry = self.plan.combine_geometry(tokens, &self.limits);
        slot.order_behind(stream)?;
        let args = self.combine_args(slot.get(), tokens, Some(&output), geometry.segments);
        let kernel = self.combine.kernel("anabranch_ep_combine")?;
        // SAFETY: as for dispatch; the rows that it reads at peers belong to the same operation of their slots.
        unsafe {
            kernel.launch(geometry.blocks, geometry.block_threads, geometry.local_bytes, stream, &args)?;
        }
        self.used(&mut slot, stream, &calls::COMBINE)?;
        slot.give_back();
        Ok(())
    }

    /// The output's shape and alignment.
    pub(super) fn check_output(&self, tokens: u32, output: &CombineOutput) -> Result<()> {
        self.check_weights(tokens, output)?;
        let row = self.plan.combine_row_bytes() as usize;
        output.rows.check("the combine output", tokens as usize * row, 16, || {
            format!(
                "[{tokens} tokens][{} hidden] {}",
                self.plan.config().hidden,
                self.plan.config().combine_type
            )
        })
    }

    /// Arguments of a kernel of the combine that pulls; of the half that offers, without an output.
    pub(super) fn combine_args(
        &self,
        slot: &Slot,
        tokens: u32,
        output: Option<&CombineOutput>,
        segments: u32,
    ) -> CombineArgs {
        let layout = self.plan.layout();
        CombineArgs {
            team: self.team.view(),
            output: pointer(output.map_or(DeviceAddress::NULL, |output| output.rows.address())),
            send_map: pointer(slot.send_map()),
            state: pointer(slot.state()),
            rows_offset: slot.heap_offset() + layout.combine_rows,
            flags_offset: slot.heap_offset() + layout.combine_flags,
            token_count: tokens,
            fan_out: self.plan.fan_out(),
            row_bytes: self.plan.combine_row_bytes(),
            segments,
            flag_stride: FLAG_STRIDE,
            operation: COMBINE.0,
            weights: pointer(output.map_or(DeviceAddress::NULL, CombineOutput::weights_address)),
            weights_offset: slot.heap_offset() + layout.combine_weights,
            top_k: self.plan.config().top_k,
            reserved: 0,
            mask: self.mask_view(slot),
        }
    }
}
