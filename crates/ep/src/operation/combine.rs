//! Combine: checks and launch.

use anabranch_hip::{DeviceAddress, Stream};

use super::{COMBINE, Dispatched, ExpertParallel, pointer};
use crate::args::CombineArgs;
use crate::error::{Error, Result};
use crate::plan::FLAG_STRIDE;
use crate::tensor::DeviceSlice;

/// Where combine finds the experts' output.
#[derive(Clone, Copy, Debug)]
pub enum ExpertOutput {
    /// In the slot's combine window ([`Dispatched::combine_rows`]), where peers pull it without a copy.
    InWindow,
    /// In another buffer of the window's shape, `[rows][hidden]` of the combine type, 16-byte aligned; the
    /// kernel copies the received rows into the window first.
    Staged(DeviceSlice),
}

impl ExpertParallel {
    /// Sums, for each token of the dispatch, the rows of all ranks it went to, in group-rank order. Collective: every
    /// member combines the same dispatch. It puts one kernel on the stream and returns; the slot is free for the next
    /// dispatch, in stream order.
    ///
    /// `output` is `[tokens][hidden]` of the combine type, 16-byte aligned.
    ///
    /// # Errors
    /// Before anything moves: [`Error::ForeignHandle`], [`Error::Shape`], [`Error::Alignment`], or a fault that the
    /// world has had. The handle is used up in any case, and after an error its slot is lost.
    pub fn combine(
        &self,
        stream: &Stream,
        experts: ExpertOutput,
        dispatched: Dispatched,
        output: DeviceSlice,
    ) -> Result<()> {
        let row = self.plan.combine_row_bytes() as usize;
        let tokens = dispatched.tokens;
        output.check("the combine output", tokens as usize * row, 16, || {
            format!(
                "[{tokens} tokens][{} hidden] {}",
                self.plan.config().hidden,
                self.plan.config().combine_type
            )
        })?;
        self.launch_combine(stream, experts, dispatched, tokens, output)
    }

    /// Gives the slot of a dispatch back without a combine. Collective, like combine.
    ///
    /// # Errors
    /// As [`Self::combine`].
    pub fn release(&self, stream: &Stream, dispatched: Dispatched) -> Result<()> {
        // SAFETY: nothing of a null range is read or written when no token is summed.
        let nothing = unsafe { DeviceSlice::from_raw(DeviceAddress::NULL, 0) };
        self.launch_combine(stream, ExpertOutput::InWindow, dispatched, 0, nothing)
    }

    fn launch_combine(
        &self,
        stream: &Stream,
        experts: ExpertOutput,
        dispatched: Dispatched,
        tokens: u32,
        output: DeviceSlice,
    ) -> Result<()> {
        let _launching = self.world.launching(stream)?;
        let mut slot = dispatched.slot;
        if !slot.belongs_to(&self.pool) {
            return Err(Error::ForeignHandle);
        }
        let staged = match experts {
            ExpertOutput::InWindow => DeviceAddress::NULL,
            ExpertOutput::Staged(rows) => {
                let (window, config) = (self.plan.rows(), self.plan.config());
                let needed = window as usize * self.plan.combine_row_bytes() as usize;
                rows.check("the experts' output", needed, 16, || {
                    format!("[{window} rows][{} hidden] {}", config.hidden, config.combine_type)
                })?;
                rows.address()
            }
        };
        let mut geometry = self.plan.combine_geometry(tokens, &self.limits);
        if !staged.is_null() {
            geometry.blocks = geometry.blocks.max(self.plan.staging_blocks(&self.limits));
        }
        slot.order_behind(stream)?;
        let layout = self.plan.layout();
        let args = CombineArgs {
            team: self.team.view(),
            staged: pointer(staged),
            output: pointer(output.address()),
            send_map: pointer(slot.get().send_map()),
            counts: pointer(slot.get().counts()),
            offsets: pointer(slot.get().offsets()),
            state: pointer(slot.get().state()),
            rows_offset: slot.get().heap_offset() + layout.combine_rows,
            flags_offset: slot.get().heap_offset() + layout.combine_flags,
            token_count: tokens,
            row_stride: self.plan.row_stride(),
            fan_out: self.plan.fan_out(),
            row_bytes: self.plan.combine_row_bytes(),
            segments: geometry.segments,
            flag_stride: FLAG_STRIDE,
            operation: COMBINE.0,
            reserved: 0,
        };
        let kernel = self.combine.kernel("anabranch_ep_combine")?;
        // SAFETY: as for dispatch; the rows that it reads at peers belong to the same operation of their slots.
        unsafe {
            kernel.launch(geometry.blocks, geometry.block_threads, geometry.local_bytes, stream, &args)?;
        }
        slot.used_on(stream)?;
        slot.give_back();
        Ok(())
    }
}
