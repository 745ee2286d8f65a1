//! Combine: checks and launch.

use anabranch_hip::{DeviceAddress, Stream};

use super::{COMBINE, Dispatched, ExpertParallel, pointer};
use crate::args::CombineArgs;
use crate::error::{Error, Result};
use crate::plan::FLAG_STRIDE;
use crate::slot::Slot;
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
        let tokens = dispatched.tokens;
        self.check_output(tokens, &output)?;
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
        let staged = self.staged_rows(&experts)?;
        let mut geometry = self.plan.combine_geometry(tokens, &self.limits);
        if !staged.is_null() {
            geometry.blocks = geometry.blocks.max(self.plan.staging_blocks(&self.limits));
        }
        slot.order_behind(stream)?;
        let args = self.combine_args(slot.get(), staged, tokens, output.address(), geometry.segments);
        let kernel = self.combine.kernel("anabranch_ep_combine")?;
        // SAFETY: as for dispatch; the rows that it reads at peers belong to the same operation of their slots.
        unsafe {
            kernel.launch(geometry.blocks, geometry.block_threads, geometry.local_bytes, stream, &args)?;
        }
        slot.used_on(stream)?;
        slot.give_back();
        Ok(())
    }

    /// The output's shape and alignment.
    pub(super) fn check_output(&self, tokens: u32, output: &DeviceSlice) -> Result<()> {
        let row = self.plan.combine_row_bytes() as usize;
        output.check("the combine output", tokens as usize * row, 16, || {
            format!(
                "[{tokens} tokens][{} hidden] {}",
                self.plan.config().hidden,
                self.plan.config().combine_type
            )
        })
    }

    /// Where the rows to stage are; null when they are in the window.
    pub(super) fn staged_rows(&self, experts: &ExpertOutput) -> Result<DeviceAddress> {
        match experts {
            ExpertOutput::InWindow => Ok(DeviceAddress::NULL),
            ExpertOutput::Staged(rows) => {
                let (window, config) = (self.plan.rows(), self.plan.config());
                let needed = window as usize * self.plan.combine_row_bytes() as usize;
                rows.check("the experts' output", needed, 16, || {
                    format!("[{window} rows][{} hidden] {}", config.hidden, config.combine_type)
                })?;
                Ok(rows.address())
            }
        }
    }

    /// Arguments of a combine kernel.
    pub(super) fn combine_args(
        &self,
        slot: &Slot,
        staged: DeviceAddress,
        tokens: u32,
        output: DeviceAddress,
        segments: u32,
    ) -> CombineArgs {
        let layout = self.plan.layout();
        CombineArgs {
            team: self.team.view(),
            staged: pointer(staged),
            output: pointer(output),
            send_map: pointer(slot.send_map()),
            counts: pointer(slot.counts()),
            offsets: pointer(slot.offsets()),
            state: pointer(slot.state()),
            rows_offset: slot.heap_offset() + layout.combine_rows,
            flags_offset: slot.heap_offset() + layout.combine_flags,
            token_count: tokens,
            row_stride: self.plan.row_stride(),
            fan_out: self.plan.fan_out(),
            row_bytes: self.plan.combine_row_bytes(),
            segments,
            flag_stride: FLAG_STRIDE,
            operation: COMBINE.0,
            reserved: 0,
        }
    }
}
