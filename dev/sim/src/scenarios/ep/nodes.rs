//! Plans whose ranks are on several nodes: dispatch and combine whole on even ranks, in halves on odd ones; staged, from a buffer. Every
//! rank reaches every other, and kernels put to those of other nodes as they do over any route.

use anabranch_ep::{Across, Nodes};
use anabranch_hip_jit::KernelSpec;
use anabranch_ranks::GroupRank;

use super::{
    DataType, DeviceAddress, Ep, Grid, Kernels, NodesView, ScenarioError, SeededKernel, WAVE, kernels,
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
}

impl NodeKernels {
    pub(super) fn load(kernels: &mut Kernels<'_>, case: &Case) -> Result<Self, ScenarioError> {
        let by_node = case.protocol == Protocol::EpRelay;
        let none = anabranch_ep::DispatchCast::None;
        // Tiles of one wave, as for all of this scenario.
        let dispatch = || {
            let spec = KernelSpec::new(&kernels::DISPATCH_NODES_UNIT);
            kernels::dispatch_nodes(spec, DataType::F32, none, by_node).with("EP_TILE", WAVE)
        };
        let combine = || {
            kernels::combine_nodes(KernelSpec::new(&kernels::COMBINE_NODES_UNIT), DataType::F32)
                .with("EP_TILE", WAVE)
        };
        let relay = || kernels::dispatch_relay().with("EP_TILE", WAVE);
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
        })
    }
}

impl Ep {
    /// Writes the rank's table of nodes.
    pub(super) fn prepare_nodes(&mut self, rank: u32) -> Result<(), Failure> {
        let own = self.bench.ranks[rank as usize].own;
        let words = NodesView::table(&self.plan, GroupRank::new(rank));
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
        let own = self.bench.ranks[rank as usize].own.address();
        let view = NodesView::new(&self.plan, GroupRank::new(rank), DeviceAddress(own + self.own.nodes));
        let (slot, arguments, count) = (self.slot(rank), self.arguments(team), self.case.tokens);
        let (tokens, output) = (self.tokens(rank, epoch), self.output(rank, epoch));
        let dispatch = arguments.dispatch_nodes(&slot, view, Some(&tokens), count, &self.sending);
        let receive = arguments.dispatch_nodes(&slot, view, None, count, &self.sending);
        let staged = DeviceAddress(self.memory[rank as usize].staged.address());
        let rows = if self.case.staged { staged } else { DeviceAddress::NULL };
        let combined =
            |rows, output| arguments.combine_nodes(&slot, view, rows, count, output, self.summing.segments);
        let combine = combined(rows, Some(&output));
        let [offer, sum] = [combined(rows, None), combined(DeviceAddress::NULL, Some(&output))];
        // Rows in the window need one block that reports them.
        let offering = if self.case.staged { summing } else { Grid { blocks: 1, ..summing } };
        let receiving = if nodes.whole.is_some() { Grid { blocks: 1, ..sending } } else { sending };
        let expert = self.expert_args(rank);
        match &nodes.whole {
            Some(whole) if rank.is_multiple_of(2) => self.bench.launch(rank, whole, sending, &dispatch)?,
            _ => {
                self.bench.launch(rank, &nodes.send, sending, &dispatch)?;
                self.bench.launch(rank, &nodes.receive, receiving, &receive)?;
            }
        }
        self.bench.launch(rank, &self.expert, Grid { local_bytes: 0, ..summing }, &expert)?;
        if rank.is_multiple_of(2) {
            self.bench.launch(rank, &nodes.combine, summing, &combine)?;
        } else {
            self.bench.launch(rank, &nodes.offer, offering, &offer)?;
            self.bench.launch(rank, &nodes.sum, summing, &sum)?;
        }
        Ok(())
    }
}
