//! The arguments of every launch, from a plan, a slot and the tensors of a call.

use anabranch_hip::DeviceAddress;
use anabranch_hip_jit::DevicePointer;
use anabranch_hip_jit::bytemuck::Zeroable;
use anabranch_shmem::TeamView;

use super::{COMBINE, COUNT, DISPATCH};
use crate::args::{
    CombineArgs, CombinePushArgs, CountArgs, DispatchArgs, DispatchExpertsArgs, DispatchReplayArgs,
    ExpertExpandArgs, FillWeightsArgs, LateWeightsArgs, MaskView, PlacementView, ReceivedView,
    SaveRoutingArgs, SavedRouting,
};
use crate::options::Mode;
use crate::plan::{DeviceLimits, FLAG_STRIDE, Geometry, Plan, RoutingLayout};
use crate::slot::SlotAddresses;
use crate::tensor::{CombineOutput, DeviceSlice, Tokens};

#[cfg(feature = "rdma")]
mod nodes;

pub(crate) fn pointer<T>(address: DeviceAddress) -> DevicePointer<T> {
    DevicePointer::new(address)
}

/// The common part of all launch arguments of a rank.
#[derive(Clone, Copy, Debug)]
pub struct RankArguments<'a> {
    /// The plan.
    pub plan: &'a Plan,
    /// The limits of launches on the device.
    pub limits: &'a DeviceLimits,
    /// The group.
    pub team: TeamView,
    /// The ranks of each expert.
    pub placement: PlacementView,
}

/// The buffers of a launch of the combine that pushes.
#[derive(Clone, Copy, Debug)]
pub struct Push<'a> {
    /// The experts' output; null in the receive.
    pub rows: DeviceAddress,
    /// Tokens of the dispatch.
    pub tokens: u32,
    /// `None` in the send.
    pub output: Option<&'a CombineOutput>,
}

impl RankArguments<'_> {
    /// Arguments of the count before a compact dispatch.
    pub fn count(&self, slot: &SlotAddresses, tokens: &Tokens) -> CountArgs {
        let (plan, config) = (self.plan, self.plan.config());
        CountArgs {
            team: self.team,
            placement: self.placement,
            ids: pointer(tokens.ids.address()),
            tally: pointer(slot.tally()),
            bases: pointer(slot.bases()),
            capacity: pointer(slot.capacity()),
            state: pointer(slot.state()),
            matrix_offset: slot.heap_offset() + plan.layout().count_matrix,
            token_count: tokens.count as u32,
            top_k: config.top_k,
            experts: config.experts,
            rows: plan.rows() as u32,
            matrix_stride: plan.layout().count_stride as u32,
            operation: COUNT.0,
            device_count: pointer(DeviceSlice::address_of(tokens.device_count)),
        }
    }

    /// Arguments of a dispatch kernel; without tokens for the receive.
    pub fn dispatch(
        &self,
        slot: &SlotAddresses,
        tokens: Option<&Tokens>,
        count: u32,
        geometry: &Geometry,
        mask: MaskView,
    ) -> DispatchArgs {
        let (layout, config, start) = (self.plan.layout(), self.plan.config(), slot.heap_offset());
        let address =
            |part: fn(&Tokens) -> Option<DeviceSlice>| DeviceSlice::address_of(tokens.and_then(part));
        let is_counted = self.plan.mode() == Mode::Compact && config.device_token_count;
        DispatchArgs {
            team: self.team,
            placement: self.placement,
            tokens: pointer(address(|tokens| Some(tokens.rows))),
            ids: pointer(address(|tokens| Some(tokens.ids))),
            weights: pointer(address(|tokens| tokens.weights)),
            scales: pointer(address(|tokens| tokens.scales)),
            send_map: pointer(slot.send_map()),
            routed: pointer(slot.routed()),
            bases: pointer(slot.bases()),
            capacity: pointer(slot.capacity()),
            counts: pointer(slot.counts()),
            offsets: pointer(slot.offsets()),
            state: pointer(slot.state()),
            rows_offset: start + layout.rows,
            meta_offset: start + layout.meta,
            flags_offset: start + layout.dispatch_flags,
            token_count: count,
            row_stride: self.plan.row_stride(),
            top_k: config.top_k,
            experts: config.experts,
            fan_out: self.plan.fan_out(),
            row_bytes: self.plan.row_bytes(),
            meta_bytes: self.plan.meta_bytes(),
            scale_bytes: config.given_scale_bytes(),
            parts: geometry.parts,
            segments: geometry.segments,
            flag_stride: FLAG_STRIDE,
            operation: DISPATCH.0,
            // The count of a compact dispatch has read the caller's word.
            device_count: if is_counted {
                pointer(slot.token_count())
            } else {
                pointer(address(|tokens| tokens.device_count))
            },
            mask,
        }
    }

    /// Arguments of a dispatch that expands.
    pub fn dispatch_experts(
        &self,
        slot: &SlotAddresses,
        dispatch: DispatchArgs,
        experts: ExpertExpandArgs,
    ) -> DispatchExpertsArgs {
        DispatchExpertsArgs {
            dispatch,
            experts,
            totals_offset: slot.heap_offset() + self.plan.layout().pair_totals,
            totals_stride: self.plan.pair_totals_stride(),
            numbers_word: self.plan.numbers_word(),
            copies: self.plan.expert_copies(),
            reserved: 0,
        }
    }

    /// Arguments of a dispatch with a saved routing, whose weights it uses if the call has none.
    pub fn replay(
        &self,
        slot: &SlotAddresses,
        tokens: &Tokens,
        geometry: &Geometry,
        mask: MaskView,
        saved: SavedRouting,
    ) -> DispatchReplayArgs {
        let mut dispatch = self.dispatch(slot, Some(tokens), tokens.count as u32, geometry, mask);
        if tokens.weights.is_none() {
            dispatch.weights = saved.weights;
        }
        DispatchReplayArgs { dispatch, saved }
    }

    /// Arguments of the kernel that saves the routing of a dispatch of `tokens`.
    pub fn save(&self, slot: &SlotAddresses, tokens: u32, saved: SavedRouting) -> SaveRoutingArgs {
        SaveRoutingArgs {
            team: self.team,
            saved,
            send_map: pointer(slot.send_map()),
            routed: pointer(slot.routed()),
            capacity: pointer(slot.capacity()),
            counts: pointer(slot.counts()),
            state: pointer(slot.state()),
            meta_offset: slot.heap_offset() + self.plan.layout().meta,
            token_count: tokens,
            row_stride: self.plan.row_stride(),
            top_k: self.plan.config().top_k,
            fan_out: self.plan.fan_out(),
            meta_bytes: self.plan.meta_bytes(),
            slot: slot.number(),
        }
    }

    /// Arguments of the kernel that fills the weight window after a dispatch.
    pub fn fill(&self, slot: &SlotAddresses) -> FillWeightsArgs {
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
        FillWeightsArgs { received, window: pointer(slot.combine_weights()) }
    }

    /// Arguments of the kernel that sends weights after a dispatch of `tokens`.
    pub fn late_weights(
        &self,
        slot: &SlotAddresses,
        tokens: u32,
        weights: DeviceSlice,
        mask: MaskView,
    ) -> LateWeightsArgs {
        let (plan, start) = (self.plan, slot.heap_offset());
        LateWeightsArgs {
            team: self.team,
            weights: pointer(weights.address()),
            send_map: pointer(slot.send_map()),
            state: pointer(slot.state()),
            window_offset: start + plan.layout().late_weights,
            flags_offset: start + plan.layout().late_flags,
            token_count: tokens,
            fan_out: plan.fan_out(),
            top_k: plan.config().top_k,
            flag_stride: FLAG_STRIDE,
            operation: COMBINE.0,
            reserved: 0,
            mask,
        }
    }

    /// Arguments of a combine that pulls; without an output for the send.
    pub fn pull(
        &self,
        slot: &SlotAddresses,
        tokens: u32,
        output: Option<&CombineOutput>,
        segments: u32,
        mask: MaskView,
    ) -> CombineArgs {
        let (plan, start) = (self.plan, slot.heap_offset());
        CombineArgs {
            team: self.team,
            output: pointer(output.map_or(DeviceAddress::NULL, |output| output.rows.address())),
            send_map: pointer(slot.send_map()),
            state: pointer(slot.state()),
            rows_offset: start + plan.layout().combine_rows,
            flags_offset: start + plan.layout().combine_flags,
            token_count: tokens,
            fan_out: plan.fan_out(),
            row_bytes: plan.combine_row_bytes(),
            segments,
            flag_stride: FLAG_STRIDE,
            operation: COMBINE.0,
            weights: pointer(output.map_or(DeviceAddress::NULL, CombineOutput::weights_address)),
            weights_offset: start + plan.layout().combine_weights,
            top_k: plan.config().top_k,
            reserved: 0,
            mask,
        }
    }

    /// Arguments of a combine that pushes.
    pub fn push(
        &self,
        slot: &SlotAddresses,
        push: Push<'_>,
        geometry: &Geometry,
        mask: MaskView,
    ) -> CombinePushArgs {
        let (plan, start) = (self.plan, slot.heap_offset());
        let (layout, config) = (plan.layout(), plan.config());
        CombinePushArgs {
            team: self.team,
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
            row_stride: plan.row_stride(),
            fan_out: plan.fan_out(),
            hidden: config.hidden,
            wire_bytes: plan.combine_wire_bytes(),
            meta_bytes: plan.meta_bytes(),
            segments: geometry.segments,
            push_segments: plan.push_segments(push.tokens, self.limits),
            flag_stride: FLAG_STRIDE,
            operation: COMBINE.0,
            top_k: config.top_k,
            weights: pointer(push.output.map_or(DeviceAddress::NULL, CombineOutput::weights_address)),
            weights_offset: start + layout.combine_weights,
            pushed_weights_offset: start + layout.pushed_weights,
            mask,
        }
    }
}

impl SavedRouting {
    /// Bytes of a saved routing.
    pub fn bytes(plan: &Plan) -> u64 {
        RoutingLayout::of(plan).bytes
    }

    /// A routing saved at an address.
    pub fn new(plan: &Plan, address: DeviceAddress) -> Self {
        let layout = RoutingLayout::of(plan);
        let at = |offset| address.offset(offset);
        Self {
            head: pointer(at(layout.head)),
            sent: pointer(at(layout.sent)),
            counts: pointer(at(layout.counts)),
            send_map: pointer(at(layout.send_map)),
            ids: pointer(at(layout.ids)),
            weights: pointer(at(layout.weights)),
        }
    }
}
