//! The arguments of internode launches.

use anabranch_hip::DeviceAddress;
use anabranch_hip_jit::bytemuck::Zeroable;
use anabranch_ranks::GroupRank;

use super::{RankArguments, pointer};
use crate::args::{CombineNodesArgs, DispatchNodesArgs, MaskView, NodesView};
use crate::plan::{FLAG_STRIDE, Geometry, Plan};
use crate::route::COMBINE;
use crate::slot::SlotAddresses;
use crate::tensor::{CombineOutput, Tokens};

impl RankArguments<'_> {
    /// Arguments of an internode dispatch; without tokens for the receive.
    pub fn dispatch_nodes(
        &self,
        slot: &SlotAddresses,
        nodes: NodesView,
        tokens: Option<&Tokens>,
        count: u32,
        geometry: &Geometry,
    ) -> DispatchNodesArgs {
        let (layout, start) = (self.plan.layout(), slot.heap_offset());
        DispatchNodesArgs {
            dispatch: self.dispatch(slot, tokens, count, geometry, MaskView::NONE),
            nodes,
            staged_rows: pointer(slot.staged_rows()),
            staged_meta: pointer(slot.staged_meta()),
            relayed: pointer(slot.relayed()),
            forwarded: pointer(slot.forwarded()),
            relay_rows_offset: start + layout.relay_rows,
            relay_meta_offset: start + layout.relay_meta,
            relay_flags_offset: start + layout.relay_flags,
            max_tokens: self.plan.config().max_tokens,
            reserved: 0,
        }
    }

    /// Arguments of an internode combine; `rows` is null for rows in the combine window.
    pub fn combine_nodes(
        &self,
        slot: &SlotAddresses,
        nodes: NodesView,
        rows: DeviceAddress,
        tokens: u32,
        output: Option<&CombineOutput>,
        segments: u32,
    ) -> CombineNodesArgs {
        let (plan, start) = (self.plan, slot.heap_offset());
        let layout = plan.layout();
        CombineNodesArgs {
            team: self.team,
            nodes,
            rows: pointer(rows),
            counts: pointer(slot.counts()),
            output: pointer(output.map_or(DeviceAddress::NULL, |output| output.rows.address())),
            send_map: pointer(slot.send_map()),
            state: pointer(slot.state()),
            rows_offset: start + layout.combine_rows,
            returned_offset: start + layout.returned_rows,
            flags_offset: start + layout.combine_flags,
            token_count: tokens,
            fan_out: plan.fan_out(),
            row_bytes: plan.combine_row_bytes(),
            row_stride: plan.row_stride(),
            segments,
            flag_stride: FLAG_STRIDE,
            operation: COMBINE.0,
            releases: 0,
            mask: MaskView::NONE,
        }
    }
}

impl NodesView {
    /// The words of [`Self::new`] for a rank; none where all ranks are on one node.
    pub fn table(plan: &Plan, rank: GroupRank) -> Vec<u32> {
        plan.node_table(rank)
    }

    /// A rank's view of its table at an address.
    pub fn new(plan: &Plan, rank: GroupRank, table: DeviceAddress) -> Self {
        let Some((nodes, _)) = plan.across() else { return Self::zeroed() };
        let (count, ranks) = (nodes.count(), plan.ranks());
        let at = |words: u32| pointer(table.offset(u64::from(words) * 4));
        Self {
            node_of: at(0),
            relays: at(ranks),
            places: at(ranks + count),
            reporters: at(ranks + 2 * count),
            sources: at(2 * ranks + 2 * count),
            count,
            node: nodes.numbers()[rank.index()],
            source_count: nodes.relayed_by(rank).len() as u32,
            reserved: 0,
        }
    }
}
