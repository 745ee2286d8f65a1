//! Dispatch: checks and launch.

use anabranch_hip::{DeviceAddress, Stream};
use anabranch_hip_jit::LoadedUnit;

use super::{COUNT, DISPATCH, Dispatched, ExpertParallel, calls, pointer};
use crate::args::{CountArgs, DispatchArgs};
use crate::cast::DispatchCast;
use crate::error::{Error, Result};
use crate::plan::{FLAG_STRIDE, Geometry};
use crate::slot::{Slot, SlotTicket};
use crate::tensor::{DeviceSlice, Tokens};

impl ExpertParallel {
    /// Sends every token to the ranks that own its experts, and takes in the rows for this rank's experts. Collective:
    /// every member calls it, also with 0 tokens. It puts one kernel on the stream, two in the compact mode, and one more where the
    /// plan combines weights, and returns.
    ///
    /// After it, in stream order, the handle's windows, counts and offsets are valid until its combine or release. Copies for
    /// which their destination has no room ([`EpConfig::max_recv`](crate::EpConfig::max_recv)) are dropped, always the same for
    /// the same routing; the handle counts them, [`Self::dropped`] lists them, and combine leaves them out. Copies for ranks that
    /// are masked ([`OnTimeout::Mask`](crate::OnTimeout::Mask)) are as if no token named their experts; the handle counts them apart.
    /// May be captured into a graph, which then uses this slot at every replay: whoever launches the graph keeps its
    /// replays in order with other operations on the slot. Eager ones wait only for each other. Within a capture the caller
    /// keeps operations that follow each other on one slot on one stream, or orders their streams.
    ///
    /// # Errors
    /// Before anything moves: [`Error::TooManyTokens`], [`Error::Shape`], [`Error::Alignment`], [`Error::Type`],
    /// [`Error::Scales`], [`Error::CastScales`], [`Error::NoDeviceCount`], [`Error::SlotsBusy`], or a fault that the world has had.
    pub fn dispatch(&self, stream: &Stream, tokens: &Tokens) -> Result<Dispatched> {
        if let Some(nodes) = &self.nodes {
            return self.dispatch_across(nodes, stream, tokens);
        }
        if self.engine.is_some() {
            let sent = self.dispatch_send(stream, tokens)?;
            return self.dispatch_recv(stream, sent);
        }
        let (mut slot, tokens) = self.send(stream, tokens, "anabranch_ep_dispatch")?;
        if self.fill.is_some() {
            let _launching = self.world.launching(stream)?;
            self.deliver(stream, &mut slot)?;
        }
        Ok(Dispatched { slot, tokens })
    }

    /// Checks the tokens, takes a slot, and launches the count, in the compact mode, and the kernel that sends the rows. Gives the
    /// slot and the number of tokens.
    pub(super) fn send(&self, stream: &Stream, tokens: &Tokens, entry: &str) -> Result<(SlotTicket, u32)> {
        let _launching = self.world.launching(stream)?;
        self.check_tokens(tokens)?;
        let count = tokens.count as u32;
        let geometry = self.plan.dispatch_geometry(count, &self.limits)?;
        let mut slot = self.pool.take(stream)?;
        if let Some(unit) = &self.count {
            self.launch_count(stream, unit, &slot, tokens)?;
        }
        let args = self.dispatch_args(slot.get(), Some(tokens), count, &geometry);
        let kernel = self.dispatch.kernel(entry)?;
        // SAFETY: the argument struct is the kernel's own; its windows and words belong to the slot, which the ticket
        // keeps until combine or release; the caller's tensors were checked against their shapes, and making their
        // `DeviceSlice`s promised that they stay valid.
        let launched = unsafe {
            kernel.launch(geometry.blocks, geometry.block_threads, geometry.local_bytes, stream, &args)
        };
        // Once the counts are told, peers know of the operation, whatever became of its second kernel.
        if launched.is_ok() || self.count.is_some() {
            self.used(&mut slot, stream, &calls::DISPATCH)?;
        }
        launched?;
        Ok((slot, count))
    }

    /// Arguments of a dispatch kernel; of one that only receives, without tokens.
    pub(super) fn dispatch_args(
        &self,
        slot: &Slot,
        tokens: Option<&Tokens>,
        count: u32,
        geometry: &Geometry,
    ) -> DispatchArgs {
        let layout = self.plan.layout();
        let address = |part: fn(&Tokens) -> Option<DeviceSlice>| {
            tokens.and_then(part).map_or(DeviceAddress::NULL, |slice| slice.address())
        };
        DispatchArgs {
            team: self.team.view(),
            placement: self.placement.view(),
            tokens: pointer(address(|tokens| Some(tokens.rows))),
            ids: pointer(address(|tokens| Some(tokens.ids))),
            weights: pointer(address(|tokens| tokens.weights)),
            scales: pointer(address(|tokens| tokens.scales)),
            send_map: pointer(slot.send_map()),
            routed: pointer(slot.routed()),
            bases: pointer(slot.bases()),
            room: pointer(slot.room()),
            counts: pointer(slot.counts()),
            offsets: pointer(slot.offsets()),
            state: pointer(slot.state()),
            rows_offset: slot.heap_offset() + layout.rows,
            meta_offset: slot.heap_offset() + layout.meta,
            flags_offset: slot.heap_offset() + layout.dispatch_flags,
            token_count: count,
            row_stride: self.plan.row_stride(),
            top_k: self.plan.config().top_k,
            experts: self.plan.config().experts,
            fan_out: self.plan.fan_out(),
            row_bytes: self.plan.row_bytes(),
            meta_bytes: self.plan.meta_bytes(),
            // Scales that a cast makes do not come from the caller.
            scale_bytes: if self.is_cast() { 0 } else { self.plan.config().scale_bytes },
            parts: geometry.parts,
            segments: geometry.segments,
            flag_stride: FLAG_STRIDE,
            operation: DISPATCH.0,
            device_count: if self.count.is_some() && self.plan.config().device_token_count {
                pointer(slot.token_count())
            } else {
                pointer(address(|tokens| tokens.device_count))
            },
            mask: self.mask_view(slot),
        }
    }

    fn is_cast(&self) -> bool {
        self.plan.config().dispatch_cast != DispatchCast::None
    }

    /// The first kernel of a compact dispatch.
    fn launch_count(
        &self,
        stream: &Stream,
        unit: &LoadedUnit,
        slot: &SlotTicket,
        tokens: &Tokens,
    ) -> Result<()> {
        let count = tokens.count as u32;
        let (layout, config) = (self.plan.layout(), self.plan.config());
        let geometry = self.plan.count_geometry(count, &self.limits);
        let args = CountArgs {
            team: self.team.view(),
            placement: self.placement.view(),
            ids: pointer(tokens.ids.address()),
            tally: pointer(slot.get().tally()),
            bases: pointer(slot.get().bases()),
            room: pointer(slot.get().room()),
            state: pointer(slot.get().state()),
            matrix_offset: slot.get().heap_offset() + layout.count_matrix,
            token_count: count,
            top_k: config.top_k,
            experts: config.experts,
            rows: self.plan.rows() as u32,
            matrix_stride: layout.count_stride as u32,
            operation: COUNT.0,
            device_count: pointer(tokens.device_count.map_or(DeviceAddress::NULL, |count| count.address())),
        };
        let kernel = unit.kernel("anabranch_ep_count")?;
        // SAFETY: as for the dispatch that follows.
        unsafe {
            kernel.launch(geometry.blocks, geometry.block_threads, geometry.local_bytes, stream, &args)?;
        }
        Ok(())
    }

    pub(super) fn check_tokens(&self, tokens: &Tokens) -> Result<()> {
        let config = self.plan.config();
        let count = tokens.count;
        if count > config.max_tokens as usize {
            return Err(Error::TooManyTokens { given: count, max_tokens: config.max_tokens });
        }
        let planned = config.token_type();
        if tokens.data_type != planned {
            return Err(Error::Type { what: "the token rows", given: tokens.data_type, planned });
        }
        match tokens.device_count {
            Some(_) if !config.device_token_count => return Err(Error::NoDeviceCount),
            Some(word) => word.check("the device token count", 4, 4, || "one u32".to_owned())?,
            None => {}
        }
        let top_k = config.top_k;
        tokens.rows.check("the token rows", count * self.plan.token_bytes() as usize, 16, || {
            format!("[{count} tokens][{} hidden] {planned}", config.hidden)
        })?;
        tokens.ids.check("the expert ids", count * top_k as usize * 4, 4, || {
            format!("[{count} tokens][{top_k} top_k] i32")
        })?;
        if let Some(weights) = tokens.weights {
            weights.check("the weights", count * top_k as usize * 4, 4, || {
                format!("[{count} tokens][{top_k} top_k] f32")
            })?;
        }
        let given = |scales: DeviceSlice| scales.len().checked_div(count).unwrap_or(0) as u32;
        match (tokens.scales, config.scale_bytes) {
            (None, 0) => Ok(()),
            (None, _) if self.is_cast() => Ok(()),
            (Some(scales), _) if self.is_cast() => {
                Err(Error::CastScales { given: given(scales), cast: config.dispatch_cast })
            }
            (Some(scales), planned) if planned > 0 => {
                scales.check("the scales", count * planned as usize, 4, || {
                    format!("[{count} tokens][{planned} bytes]")
                })
            }
            (scales, planned) => Err(Error::Scales { given: scales.map_or(0, given), planned }),
        }
    }
}
