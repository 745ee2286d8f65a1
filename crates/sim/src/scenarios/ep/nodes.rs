//! Plans whose ranks are on several nodes: dispatch and combine whole on even ranks, in halves on odd ones; staged, from a buffer. Every
//! rank reaches every other, and kernels put to those of other nodes as they do over any route.

use anabranch_ep::args::{CombineNodesArgs, DispatchNodesArgs, MaskView, NodesView};
use anabranch_ep::plan::Plan;
use anabranch_ep::{Across, Nodes};
use anabranch_hip_jit::{DevicePointer, KernelSpec};
use anabranch_ranks::GroupRank;

use super::{
    COMBINE, DataType, Ep, FLAG_STRIDE, Grid, Kernels, ScenarioError, SeededKernel, TeamView, WAVE, at,
    kernels,
};
use crate::{Case, Failure, Protocol};

/// Which way the protocol goes across nodes.
pub(super) fn way(protocol: Protocol) -> Option<Across> {
    match protocol {
        Protocol::EpNodes => Some(Across::Direct),
        Protocol::EpRelay => Some(Across::Node),
        _ => None,
    }
}

/// Two nodes, or three from five ranks on; uneven where the ranks are odd.
pub(super) fn map(ranks: u32) -> Nodes {
    let nodes = if ranks < 5 { 2 } else { 3 };
    let node_of: Vec<_> = (0..ranks).map(|rank| rank * nodes / ranks.max(1)).collect();
    Nodes::new(&node_of)
}

/// What the ranks run.
#[derive(Debug)]
pub(super) struct NodeKernels {
    /// Of rows that go direct.
    whole: Option<SeededKernel>,
    send: SeededKernel,
    receive: SeededKernel,
    combine: SeededKernel,
    offer: SeededKernel,
    sum: SeededKernel,
    /// The sources of the way that forwards.
    sources: Vec<u32>,
}

impl NodeKernels {
    pub(super) fn load(kernels: &mut Kernels<'_>, case: &Case, plan: &Plan) -> Result<Self, ScenarioError> {
        let by_node = case.protocol == Protocol::EpRelay;
        let none = anabranch_ep::DispatchCast::None;
        // Tiles of one wave, as for all of this scenario.
        let dispatch = || {
            let spec = KernelSpec::new(&kernels::DISPATCH_NODES);
            kernels::dispatch_nodes(spec, DataType::F32, none, by_node).with("EP_TILE", WAVE)
        };
        let combine = || {
            kernels::combine_nodes(KernelSpec::new(&kernels::COMBINE_NODES), DataType::F32)
                .with("EP_TILE", WAVE)
        };
        let relay =
            || kernels::dispatch_relay(KernelSpec::new(&kernels::DISPATCH_RELAY)).with("EP_TILE", WAVE);
        Ok(Self {
            whole: if by_node {
                None
            } else {
                Some(kernels.load(dispatch(), "anabranch_ep_dispatch_nodes")?)
            },
            send: kernels.load(dispatch(), "anabranch_ep_dispatch_nodes_send")?,
            receive: if by_node {
                kernels.load(relay(), "anabranch_ep_dispatch_relay")?
            } else {
                kernels.load(dispatch(), "anabranch_ep_dispatch_nodes_recv")?
            },
            combine: kernels.load(combine(), "anabranch_ep_combine_nodes")?,
            offer: kernels.load(combine(), "anabranch_ep_combine_nodes_send")?,
            sum: kernels.load(combine(), "anabranch_ep_combine_nodes_recv")?,
            sources: (0..case.ranks).map(|rank| plan.node_table(GroupRank::new(rank)).1).collect(),
        })
    }
}

/// Bytes of a rank's own memory for it: the table, and the words of a slot.
pub(super) fn own_bytes(plan: &Plan) -> u64 {
    plan.node_table_words() as u64 * 4 + (plan.relayed_words() + plan.forwarded_words()) * 4
}

impl Ep {
    /// Writes the rank's table of nodes.
    pub(super) fn prepare_nodes(&mut self, rank: u32) -> Result<(), Failure> {
        let own = self.bench.ranks[rank as usize].own;
        let (words, _) = self.plan.node_table(GroupRank::new(rank));
        if words.is_empty() { Ok(()) } else { Ok(self.bench.put(own, self.own.nodes, &words)?) }
    }

    /// Puts the operations of an epoch on the rank's stream.
    pub(super) fn queue_nodes(
        &mut self,
        rank: u32,
        epoch: u32,
        sending: Grid,
        summing: Grid,
    ) -> Result<(), Failure> {
        let Some(nodes) = &self.nodes else { return Ok(()) };
        let team = self.bench.team(rank);
        let view = self.nodes_view(rank, nodes.sources[rank as usize]);
        let dispatch = self.dispatch_nodes_args(team, view, rank, epoch);
        let combine = self.combine_nodes_args(team, view, rank, epoch);
        // Rows in the window need one block that tells so.
        let offering = if self.case.staged { summing } else { Grid { blocks: 1, ..summing } };
        let receiving = if nodes.whole.is_some() { Grid { blocks: 1, ..sending } } else { sending };
        let expert = self.expert_args(rank);
        match &nodes.whole {
            Some(whole) if rank.is_multiple_of(2) => self.bench.launch(rank, whole, sending, &dispatch)?,
            _ => {
                self.bench.launch(rank, &nodes.send, sending, &dispatch)?;
                self.bench.launch(rank, &nodes.receive, receiving, &dispatch)?;
            }
        }
        self.bench.launch(rank, &self.expert, Grid { local_bytes: 0, ..summing }, &expert)?;
        if rank.is_multiple_of(2) {
            self.bench.launch(rank, &nodes.combine, summing, &combine)?;
        } else {
            self.bench.launch(rank, &nodes.offer, offering, &combine)?;
            self.bench.launch(rank, &nodes.sum, summing, &combine)?;
        }
        Ok(())
    }

    fn nodes_view(&self, rank: u32, source_count: u32) -> NodesView {
        let own = self.bench.ranks[rank as usize].own;
        let map = map(self.case.ranks);
        let word = |words: u32| at(own, self.own.nodes + u64::from(words) * 4);
        NodesView {
            node_of: word(0),
            relays: word(self.case.ranks),
            places: word(self.case.ranks + map.count()),
            tellers: word(self.case.ranks + 2 * map.count()),
            sources: word(2 * self.case.ranks + 2 * map.count()),
            count: map.count(),
            node: map.node_of(GroupRank::new(rank)).unwrap_or(0),
            source_count,
            reserved: 0,
        }
    }

    fn dispatch_nodes_args(
        &self,
        team: TeamView,
        nodes: NodesView,
        rank: u32,
        epoch: u32,
    ) -> DispatchNodesArgs {
        let (layout, memory) = (self.plan.layout(), self.bench.ranks[rank as usize]);
        let relayed = self.own.nodes + self.plan.node_table_words() as u64 * 4;
        DispatchNodesArgs {
            dispatch: self.dispatch_args(team, rank, epoch),
            nodes,
            staged_rows: at(memory.heap, layout.staged_rows),
            staged_meta: at(memory.heap, layout.staged_meta),
            relayed: at(memory.own, relayed),
            forwarded: at(memory.own, relayed + self.plan.relayed_words() * 4),
            relay_rows_offset: layout.relay_rows,
            relay_meta_offset: layout.relay_meta,
            relay_flags_offset: layout.relay_flags,
            max_tokens: self.case.tokens,
            reserved: 0,
        }
    }

    fn combine_nodes_args(
        &self,
        team: TeamView,
        nodes: NodesView,
        rank: u32,
        epoch: u32,
    ) -> CombineNodesArgs {
        let (plan, layout, own) = (&self.plan, self.plan.layout(), self.bench.ranks[rank as usize].own);
        let memory = &self.memory[rank as usize];
        CombineNodesArgs {
            team,
            nodes,
            rows: if self.case.staged { at(memory.staged, 0) } else { DevicePointer::NULL },
            counts: at(own, self.own.counts),
            output: at(memory.inputs[epoch as usize].output, 0),
            send_map: at(own, self.own.send_map),
            state: at(own, self.own.state),
            rows_offset: layout.combine_rows,
            returned_offset: layout.returned_rows,
            flags_offset: layout.combine_flags,
            token_count: self.case.tokens,
            fan_out: plan.fan_out(),
            row_bytes: plan.combine_row_bytes(),
            row_stride: plan.row_stride(),
            segments: self.summing.segments,
            flag_stride: FLAG_STRIDE,
            operation: COMBINE.0,
            releases: 0,
            mask: MaskView::NONE,
        }
    }
}
