//! Dispatch and combine whose ranks are on several nodes: what a plan keeps for it, and the launches.

use std::sync::Arc;

use anabranch_hip::{Device, DeviceAddress, DeviceBuffer, Stream};
use anabranch_hip_jit::{KernelSpec, LoadedUnit, bytemuck};
use anabranch_ranks::{Across, Group, GroupRank, Nodes};
use anabranch_shmem::World;
use anabranch_transport::{Operation, Scope, Support};

use super::residency::LaunchedUnit;
use super::{COMBINE, CombineOutput, CombineSent, Dispatched, ExpertOutput, ExpertParallel, calls, pointer};
use crate::args::{CombineNodesArgs, DispatchNodesArgs, MaskView, NodesView};
use crate::error::{Error, Result};
use crate::kernels;
use crate::nodes::AcrossError;
use crate::plan::{EpConfig, FLAG_STRIDE, Geometry, Plan};
use crate::slot::{Slot, SlotTicket};
use crate::tensor::{DeviceSlice, Tokens};

/// The kernels.
#[derive(Debug)]
pub(super) struct NodeUnits {
    dispatch: Arc<LoadedUnit>,
    /// Where tokens go once to each node.
    relay: Option<Arc<LoadedUnit>>,
    combine: Arc<LoadedUnit>,
}

impl NodeUnits {
    pub(super) fn load(world: &World, plan: &Plan) -> Result<Self> {
        let config = plan.config();
        let load = |spec| {
            let spec = if config.device_token_count { kernels::with_device_count(spec) } else { spec };
            world.jit().load(world.device(), &spec)
        };
        let by_node = plan.is_by_node();
        let dispatch = world.kernel(&kernels::DISPATCH_NODES);
        let relay = by_node.then(|| {
            let spec = kernels::dispatch_relay(KernelSpec::new(&kernels::DISPATCH_RELAY));
            world.jit().load(world.device(), &spec)
        });
        Ok(Self {
            dispatch: load(kernels::dispatch_nodes(
                dispatch,
                config.cast_from,
                config.dispatch_cast,
                by_node,
            ))?,
            relay: relay.transpose()?,
            combine: load(kernels::combine_nodes(
                world.kernel(&kernels::COMBINE_NODES),
                config.combine_type,
            ))?,
        })
    }

    pub(super) fn launched(&self) -> impl Iterator<Item = LaunchedUnit<'_>> {
        let relay = self.relay.as_deref().map(|unit| (unit, kernels::DISPATCH_RELAY.entries));
        [(&*self.dispatch, kernels::DISPATCH_NODES.entries), (&*self.combine, kernels::COMBINE_NODES.entries)]
            .into_iter()
            .chain(relay)
    }
}

/// What a plan across nodes has besides.
#[derive(Debug)]
pub(super) struct NodeLaunches {
    units: NodeUnits,
    #[expect(dead_code, reason = "held: kernels read it")]
    table: DeviceBuffer,
    view: NodesView,
}

impl NodeLaunches {
    pub(super) fn new(device: &Device, plan: &Plan, rank: GroupRank, units: NodeUnits) -> Result<Self> {
        let (words, source_count) = plan.node_table(rank);
        let mut table = device.allocate(words.len() * 4)?;
        table.copy_from_host(0, bytemuck::cast_slice(&words))?;
        let count = plan.across().map_or(0, |(nodes, _)| nodes.count());
        let at = |words: u32| pointer(table.address().offset(u64::from(words) * 4));
        let view = NodesView {
            node_of: at(0),
            relays: at(plan.ranks()),
            places: at(plan.ranks() + count),
            tellers: at(plan.ranks() + 2 * count),
            sources: at(2 * plan.ranks() + 2 * count),
            count,
            node: words.get(rank.index()).copied().unwrap_or(0),
            source_count,
            reserved: 0,
        };
        Ok(Self { units, table, view })
    }
}

/// The configuration with the nodes of the group's members, where they are to be found out: some member cannot be reached by loads and
/// stores, or a way across is asked for.
pub(super) fn located(world: &World, group: &Group, mut config: EpConfig) -> EpConfig {
    let unmapped = || group.members().iter().any(|member| world.peer_base(*member).is_none());
    if config.nodes.is_none() && (config.across != Across::Auto || unmapped()) {
        let host = |info: &anabranch_transport::PeerInfo| info.host.clone();
        let hosts: Vec<_> =
            group.members().iter().map(|member| world.peers().get(member.index()).map(host)).collect();
        config.nodes = Some(Nodes::new(&hosts));
    }
    config
}

/// Every member is reached as the plan needs it: on this node by loads and stores, on others by puts of kernels.
pub(super) fn check_reach(world: &World, group: &Group, plan: &Plan) -> Result<()> {
    let me = group.rank_of(world.rank());
    for (rank, member) in group.iter() {
        let is_near = match (plan.across(), me) {
            (Some((nodes, _)), Some(me)) => nodes.are_together(rank, me),
            _ => true,
        };
        if is_near {
            if world.peer_base(member).is_none() {
                let route = world.routes().get(member.index());
                let route = route.map_or_else(
                    || "there is no route to it".to_owned(),
                    |route| format!("its route is {} ({})", route.kind, route.reason),
                );
                return Err(Error::Unreachable { peer: member, route });
            }
            continue;
        }
        // A flag of two halves, as engines write it, would be taken for another.
        let route = world.routes().get(member.index()).map(|route| route.kind);
        let puts = world.support(member, Operation::PutSignal, Scope::Wave) != Support::Unsupported;
        if !puts || route == Some(anabranch_transport::TransportKind::Sdma) {
            let route = route.map_or_else(|| "none".to_owned(), |kind| kind.to_string());
            return Err(AcrossError::Route { peer: member, route }.into());
        }
    }
    Ok(())
}

impl ExpertParallel {
    /// A whole dispatch.
    pub(super) fn dispatch_across(
        &self,
        nodes: &NodeLaunches,
        stream: &Stream,
        tokens: &Tokens,
    ) -> Result<Dispatched> {
        let entry = match nodes.units.relay {
            None => "anabranch_ep_dispatch_nodes",
            Some(_) => "anabranch_ep_dispatch_nodes_send",
        };
        let (slot, tokens) = self.send_across(nodes, stream, tokens, entry)?;
        if nodes.units.relay.is_some() {
            let _launching = self.world.launching(stream)?;
            self.receive_across(nodes, stream, slot.get(), tokens)?;
            let mut slot = slot;
            self.used(&mut slot, stream, &calls::DISPATCH_RECV)?;
            return Ok(Dispatched { slot, tokens });
        }
        Ok(Dispatched { slot, tokens })
    }

    /// The first half of a dispatch, or all of a direct one.
    pub(super) fn send_across(
        &self,
        nodes: &NodeLaunches,
        stream: &Stream,
        tokens: &Tokens,
        entry: &str,
    ) -> Result<(SlotTicket, u32)> {
        let _launching = self.world.launching(stream)?;
        self.check_tokens(tokens)?;
        let count = tokens.count as u32;
        let geometry = self.plan.dispatch_geometry(count, &self.limits)?;
        let mut slot = self.pool.take(stream)?;
        let args = self.dispatch_nodes_args(nodes, slot.get(), Some(tokens), count, &geometry);
        let kernel = nodes.units.dispatch.kernel(entry)?;
        let Geometry { blocks, block_threads, local_bytes, .. } = geometry;
        // SAFETY: as for dispatch; the staging and the relay window are the slot's.
        unsafe { kernel.launch(blocks, block_threads, local_bytes, stream, &args)? };
        self.used(&mut slot, stream, &calls::DISPATCH)?;
        Ok((slot, count))
    }

    /// The second half of a dispatch. The stream is behind the first.
    pub(super) fn receive_across(
        &self,
        nodes: &NodeLaunches,
        stream: &Stream,
        slot: &Slot,
        tokens: u32,
    ) -> Result<()> {
        // As many blocks as the most tokens ask for: how many come is for others to say.
        let (unit, entry, geometry) = match &nodes.units.relay {
            None => {
                let geometry = self.plan.receive_geometry(&self.limits);
                (&nodes.units.dispatch, "anabranch_ep_dispatch_nodes_recv", geometry)
            }
            Some(relay) => {
                let geometry = self.plan.dispatch_geometry(self.plan.config().max_tokens, &self.limits)?;
                (relay, "anabranch_ep_dispatch_relay", geometry)
            }
        };
        let args = self.dispatch_nodes_args(nodes, slot, None, tokens, &geometry);
        let kernel = unit.kernel(entry)?;
        let Geometry { blocks, block_threads, local_bytes, .. } = geometry;
        // SAFETY: as for the first half; of the tokens only the number is read.
        unsafe { kernel.launch(blocks, block_threads, local_bytes, stream, &args)? };
        Ok(())
    }

    /// A whole combine.
    pub(super) fn combine_across(
        &self,
        nodes: &NodeLaunches,
        stream: &Stream,
        experts: ExpertOutput,
        dispatched: Dispatched,
        output: &CombineOutput,
    ) -> Result<()> {
        let _launching = self.world.launching(stream)?;
        let Dispatched { mut slot, tokens } = dispatched;
        self.check_slot(&slot)?;
        let rows = self.rows_across(experts, slot.get())?;
        let geometry = self.send_geometry(rows, tokens, self.plan.combine_geometry(tokens, &self.limits));
        slot.order_behind(stream)?;
        let args = self.combine_nodes_args(nodes, slot.get(), rows, tokens, Some(output), geometry.segments);
        let kernel = nodes.units.combine.kernel("anabranch_ep_combine_nodes")?;
        let Geometry { blocks, block_threads, local_bytes, .. } = geometry;
        // SAFETY: as for combine; the rows were checked, or are the slot's window.
        unsafe { kernel.launch(blocks, block_threads, local_bytes, stream, &args)? };
        self.used(&mut slot, stream, &calls::COMBINE)?;
        slot.give_back();
        Ok(())
    }

    /// A slot is given back without a result.
    pub(super) fn release_across(
        &self,
        nodes: &NodeLaunches,
        stream: &Stream,
        mut slot: SlotTicket,
    ) -> Result<()> {
        let _launching = self.world.launching(stream)?;
        self.check_slot(&slot)?;
        slot.order_behind(stream)?;
        let Geometry { block_threads, local_bytes, .. } = self.plan.combine_geometry(0, &self.limits);
        let args = CombineNodesArgs {
            releases: 1,
            ..self.combine_nodes_args(nodes, slot.get(), DeviceAddress::NULL, 0, None, 1)
        };
        let kernel = nodes.units.combine.kernel("anabranch_ep_combine_nodes")?;
        // SAFETY: as for combine; no row is read or written.
        unsafe { kernel.launch(1, block_threads, local_bytes, stream, &args)? };
        self.used(&mut slot, stream, &calls::RELEASE)?;
        slot.give_back();
        Ok(())
    }

    /// The first half of a combine.
    pub(super) fn combine_send_across(
        &self,
        nodes: &NodeLaunches,
        stream: &Stream,
        experts: ExpertOutput,
        dispatched: Dispatched,
    ) -> Result<CombineSent> {
        let _launching = self.world.launching(stream)?;
        let Dispatched { mut slot, tokens } = dispatched;
        self.check_slot(&slot)?;
        let rows = self.rows_across(experts, slot.get())?;
        let one = Geometry { blocks: 1, ..self.plan.combine_geometry(tokens, &self.limits) };
        let geometry = self.send_geometry(rows, tokens, one);
        slot.order_behind(stream)?;
        let args = self.combine_nodes_args(nodes, slot.get(), rows, tokens, None, geometry.segments);
        let kernel = nodes.units.combine.kernel("anabranch_ep_combine_nodes_send")?;
        let Geometry { blocks, block_threads, local_bytes, .. } = geometry;
        // SAFETY: as for the whole; nothing is written to an output.
        unsafe { kernel.launch(blocks, block_threads, local_bytes, stream, &args)? };
        self.used(&mut slot, stream, &calls::COMBINE_SEND)?;
        Ok(CombineSent::in_window(slot, tokens))
    }

    /// The second half of a combine. The stream is behind the first.
    pub(super) fn sum_across(
        &self,
        nodes: &NodeLaunches,
        stream: &Stream,
        slot: &Slot,
        tokens: u32,
        output: &CombineOutput,
    ) -> Result<()> {
        let geometry = self.plan.combine_geometry(tokens, &self.limits);
        let args = self.combine_nodes_args(
            nodes,
            slot,
            DeviceAddress::NULL,
            tokens,
            Some(output),
            geometry.segments,
        );
        let kernel = nodes.units.combine.kernel("anabranch_ep_combine_nodes_recv")?;
        let Geometry { blocks, block_threads, local_bytes, .. } = geometry;
        // SAFETY: as for the whole.
        unsafe { kernel.launch(blocks, block_threads, local_bytes, stream, &args)? };
        Ok(())
    }

    /// Completes what was put to other nodes, behind all that the plan has launched. The slots' memory may go then.
    pub(super) fn complete_puts(&self, nodes: &NodeLaunches) -> Result<()> {
        let Some(slot) = self.pool.slots().first() else { return Ok(()) };
        let stream = self.world.device().create_stream()?;
        let geometry = self.plan.receive_geometry(&self.limits);
        let args = self.dispatch_nodes_args(nodes, slot, None, 0, &geometry);
        let kernel = nodes.units.dispatch.kernel("anabranch_ep_dispatch_nodes_drain")?;
        let _launching = self.world.launching(&stream)?;
        let Geometry { blocks, block_threads, local_bytes, .. } = geometry;
        // SAFETY: the argument struct is the kernel's own; it touches the routes' queues alone.
        unsafe { kernel.launch(blocks, block_threads, local_bytes, &stream, &args)? };
        let event = Arc::new(stream.device().create_event()?);
        stream.record(&event)?;
        self.pool.used_unheld(slot, event);
        Ok(())
    }

    /// The buffer from which a combine brings rows to its window; null where they are there.
    fn rows_across(&self, experts: ExpertOutput, slot: &Slot) -> Result<DeviceAddress> {
        match experts {
            ExpertOutput::Staged(rows) => {
                self.check_pushed(&rows, slot)?;
                Ok(rows.address())
            }
            ExpertOutput::InWindow if !self.plan.config().combine_source.pulls() => {
                Err(self.wrong_source("the combine window"))
            }
            ExpertOutput::InWindow => Ok(DeviceAddress::NULL),
        }
    }

    /// The whole grid where rows are brought to the window: others decide how many there are.
    fn send_geometry(&self, rows: DeviceAddress, tokens: u32, in_window: Geometry) -> Geometry {
        if rows.is_null() { in_window } else { self.plan.combine_push_geometry(tokens, &self.limits) }
    }

    fn dispatch_nodes_args(
        &self,
        nodes: &NodeLaunches,
        slot: &Slot,
        tokens: Option<&Tokens>,
        count: u32,
        geometry: &Geometry,
    ) -> DispatchNodesArgs {
        let (layout, at) = (self.plan.layout(), slot.heap_offset());
        DispatchNodesArgs {
            dispatch: self.dispatch_args(slot, tokens, count, geometry),
            nodes: nodes.view,
            staged_rows: pointer(slot.staged_rows()),
            staged_meta: pointer(slot.staged_meta()),
            relayed: pointer(slot.relayed()),
            forwarded: pointer(slot.forwarded()),
            relay_rows_offset: at + layout.relay_rows,
            relay_meta_offset: at + layout.relay_meta,
            relay_flags_offset: at + layout.relay_flags,
            max_tokens: self.plan.config().max_tokens,
            reserved: 0,
        }
    }

    fn combine_nodes_args(
        &self,
        nodes: &NodeLaunches,
        slot: &Slot,
        rows: DeviceAddress,
        tokens: u32,
        output: Option<&CombineOutput>,
        segments: u32,
    ) -> CombineNodesArgs {
        let (layout, at) = (self.plan.layout(), slot.heap_offset());
        CombineNodesArgs {
            team: self.team.view(),
            nodes: nodes.view,
            rows: pointer(rows),
            counts: pointer(slot.counts()),
            output: pointer(output.map_or(DeviceAddress::NULL, |output| DeviceSlice::address(&output.rows))),
            send_map: pointer(slot.send_map()),
            state: pointer(slot.state()),
            rows_offset: at + layout.combine_rows,
            returned_offset: at + layout.returned_rows,
            flags_offset: at + layout.combine_flags,
            token_count: tokens,
            fan_out: self.plan.fan_out(),
            row_bytes: self.plan.combine_row_bytes(),
            row_stride: self.plan.row_stride(),
            segments,
            flag_stride: FLAG_STRIDE,
            operation: COMBINE.0,
            releases: 0,
            mask: MaskView::NONE,
        }
    }
}
