//! Combine from the caller's buffer: checks and launches, whole or in halves.

use anabranch_hip::{DeviceAddress, Stream};

use super::{COMBINE, CombineOutput, ExpertParallel, calls, pointer};
use crate::args::CombinePushArgs;
use crate::error::{Error, Result};
use crate::plan::{FLAG_STRIDE, Geometry};
use crate::slot::{Slot, SlotTicket};
use crate::tensor::DeviceSlice;

/// What a launch of the combine that pushes reads and writes.
#[derive(Clone, Copy)]
pub(super) struct Push {
    /// The experts' output; null in the half that sums.
    pub(super) rows: DeviceAddress,
    pub(super) tokens: u32,
    /// `None` in the half that sends.
    pub(super) output: Option<CombineOutput>,
}

impl ExpertParallel {
    pub(super) fn push(
        &self,
        stream: &Stream,
        rows: DeviceSlice,
        mut slot: SlotTicket,
        tokens: u32,
        output: CombineOutput,
    ) -> Result<()> {
        let _launching = self.world.launching(stream)?;
        if !slot.belongs_to(&self.pool) {
            return Err(Error::ForeignHandle);
        }
        self.check_pushed(&rows, slot.get())?;
        let push = Push { rows: rows.address(), tokens, output: Some(output) };
        self.launch_push(stream, &mut slot, "anabranch_ep_combine_push", push)?;
        slot.give_back();
        Ok(())
    }

    /// The plan pushes, and the buffer has the rows and is none of the slot's.
    pub(super) fn check_pushed(&self, rows: &DeviceSlice, slot: &Slot) -> Result<()> {
        if !self.plan.config().combine_source.pushes() {
            return Err(self.wrong_source("a buffer"));
        }
        let (window, config, what) = (self.plan.rows(), self.plan.config(), "the experts' output");
        let needed = window as usize * self.plan.combine_row_bytes() as usize;
        rows.check(what, needed, 16, || {
            format!("[{window} rows][{} hidden] {}", config.hidden, config.combine_type)
        })?;
        if slot.overlaps(rows.address(), needed as u64) {
            return Err(Error::InOwnWindows { what, address: rows.address().0 });
        }
        Ok(())
    }

    /// Launches a kernel of the combine that pushes, behind the slot's last launch.
    pub(super) fn launch_push(
        &self,
        stream: &Stream,
        slot: &mut SlotTicket,
        entry: &str,
        push: Push,
    ) -> Result<()> {
        let unit = self.push.as_ref().ok_or_else(|| self.wrong_source("a buffer"))?;
        let geometry = self.plan.combine_push_geometry(push.tokens, &self.limits);
        slot.order_behind(stream)?;
        let args = self.push_args(slot.get(), push, &geometry);
        let kernel = unit.kernel(entry)?;
        // SAFETY: the argument struct is the kernel's own; its windows and words belong to the slot, which the ticket keeps, and
        // those that it writes at peers to the same operation of theirs; `rows` holds every received row, and `output` every
        // token's, as was checked, where the kernel reads or writes them.
        unsafe {
            kernel.launch(geometry.blocks, geometry.block_threads, geometry.local_bytes, stream, &args)?;
        }
        self.used(slot, stream, &calls::COMBINE)
    }

    fn push_args(&self, slot: &Slot, push: Push, geometry: &Geometry) -> CombinePushArgs {
        let (layout, start, config) = (self.plan.layout(), slot.heap_offset(), self.plan.config());
        CombinePushArgs {
            team: self.team.view(),
            rows: pointer(push.rows),
            output: pointer(push.output.map_or(DeviceAddress::NULL, |output| output.rows.address())),
            send_map: pointer(slot.send_map()),
            offsets: pointer(slot.offsets()),
            state: pointer(slot.state()),
            meta_offset: start + layout.meta,
            push_offset: start + layout.push_rows,
            flags_offset: start + layout.combine_flags,
            token_count: push.tokens,
            max_tokens: config.max_tokens,
            row_stride: self.plan.row_stride(),
            fan_out: self.plan.fan_out(),
            hidden: config.hidden,
            wire_bytes: self.plan.combine_wire_bytes(),
            meta_bytes: self.plan.meta_bytes(),
            segments: geometry.segments,
            push_segments: self.plan.push_segments(push.tokens, &self.limits),
            flag_stride: FLAG_STRIDE,
            operation: COMBINE.0,
            top_k: config.top_k,
            weights: pointer(push.output.map_or(DeviceAddress::NULL, |output| output.weights_address())),
            weights_offset: start + layout.combine_weights,
            pushed_weights_offset: start + layout.pushed_weights,
            mask: self.mask_view(slot),
        }
    }
}
