//! Combine from the caller's buffer: checks and launch.

use anabranch_hip::Stream;

use super::{COMBINE, Dispatched, ExpertParallel, pointer};
use crate::args::CombinePushArgs;
use crate::error::{Error, Result};
use crate::plan::FLAG_STRIDE;
use crate::tensor::DeviceSlice;

impl ExpertParallel {
    pub(super) fn push(
        &self,
        stream: &Stream,
        rows: DeviceSlice,
        dispatched: Dispatched,
        output: DeviceSlice,
    ) -> Result<()> {
        let unit = self.push.as_ref().ok_or_else(|| self.wrong_source("a buffer"))?;
        let _launching = self.world.launching(stream)?;
        let Dispatched { mut slot, tokens, .. } = dispatched;
        if !slot.belongs_to(&self.pool) {
            return Err(Error::ForeignHandle);
        }
        let (ranks, config, what) = (self.plan.ranks(), self.plan.config(), "the experts' output");
        let needed = ranks as usize * config.max_tokens as usize * self.plan.combine_row_bytes() as usize;
        rows.check(what, needed, 16, || {
            format!(
                "[{ranks} ranks][{} max_tokens][{} hidden] {}",
                config.max_tokens, config.hidden, config.combine_type
            )
        })?;
        if slot.get().overlaps(rows.address(), needed as u64) {
            return Err(Error::InOwnWindows { what, address: rows.address().0 });
        }
        let geometry = self.plan.combine_push_geometry(tokens, &self.limits);
        slot.order_behind(stream)?;
        let (layout, start) = (self.plan.layout(), slot.get().heap_offset());
        let args = CombinePushArgs {
            team: self.team.view(),
            rows: pointer(rows.address()),
            output: pointer(output.address()),
            send_map: pointer(slot.get().send_map()),
            offsets: pointer(slot.get().offsets()),
            state: pointer(slot.get().state()),
            meta_offset: start + layout.meta,
            push_offset: start + layout.combine_rows,
            flags_offset: start + layout.combine_flags,
            token_count: tokens,
            max_tokens: config.max_tokens,
            row_stride: config.max_tokens,
            fan_out: self.plan.fan_out(),
            hidden: config.hidden,
            wire_bytes: self.plan.combine_wire_bytes(),
            meta_bytes: self.plan.meta_bytes(),
            segments: geometry.segments,
            push_segments: self.plan.push_segments(&self.limits),
            flag_stride: FLAG_STRIDE,
            operation: COMBINE.0,
            reserved: 0,
        };
        let kernel = unit.kernel("anabranch_ep_combine_push")?;
        // SAFETY: the argument struct is the kernel's own; its windows and words belong to the slot, which the ticket keeps until
        // here, and those that it writes at peers to the same operation of theirs; `rows` holds every received row, and
        // `output` every token's, as was checked.
        unsafe {
            kernel.launch(geometry.blocks, geometry.block_threads, geometry.local_bytes, stream, &args)?;
        }
        slot.used_on(stream)?;
        slot.give_back();
        Ok(())
    }
}
