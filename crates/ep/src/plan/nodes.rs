//! Plans for ranks on several nodes: their tables, and the hops of each copy.

use anabranch_ranks::{Across, GroupRank, Nodes};

use super::route::NodesOptions;
use super::{EpConfig, Plan};
use crate::options::Mode;

impl EpConfig {
    /// Across nodes, [`Mode::Auto`] is the mode that is there.
    pub(super) fn planned_mode(&self) -> Mode {
        if self.mode == Mode::Auto && self.way().is_some() { Mode::Slotted } else { self.mode }
    }
}

/// A copy of a token's row on its way to a rank that owns some of its experts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Hop {
    /// The rank whose token it is.
    pub source: GroupRank,
    /// The token.
    pub token: u32,
    /// The sender.
    pub from: GroupRank,
    /// The receiver.
    pub to: GroupRank,
    /// Whether `to` is the destination; else `to` forwards the copy.
    pub arrives: bool,
}

impl Plan {
    /// The node of each rank and the way of rows between nodes, [`Across::Direct`] or [`Across::Node`]; `None` where all ranks are on one
    /// node.
    pub fn across(&self) -> Option<(&Nodes, Across)> {
        let NodesOptions { nodes, by_node } = self.route.nodes()?;
        Some((nodes, if *by_node { Across::Node } else { Across::Direct }))
    }

    /// Whether tokens go once to each node.
    pub(crate) fn is_by_node(&self) -> bool {
        self.route.nodes().is_some_and(|options| options.by_node)
    }

    /// Every copy of one rank's rows that a dispatch makes, also to the rank itself, for ids `[tokens][top_k]`. Copies that would be dropped
    /// are included.
    pub fn hops(&self, source: GroupRank, ids: &[i32]) -> Vec<Hop> {
        let mut hops = Vec::new();
        for (ids, token) in ids.chunks_exact(self.config.top_k as usize).zip(0..) {
            let owner = |id: &i32| self.owner(u32::try_from(*id).ok()?, source, token);
            let ranks: std::collections::BTreeSet<_> = ids.iter().filter_map(owner).collect();
            let mut relays = std::collections::BTreeSet::new();
            for to in ranks {
                let relay = self.relay_between(source, to);
                let hop = |from, to, arrives| Hop { source, token, from, to, arrives };
                if let Some(relay) = relay
                    && relays.insert(relay)
                {
                    hops.push(hop(source, relay, false));
                }
                hops.push(hop(relay.unwrap_or(source), to, true));
            }
        }
        hops
    }

    /// The rank that works on an expert for a token; `None` for no expert.
    fn owner(&self, expert: u32, source: GroupRank, token: u32) -> Option<GroupRank> {
        match &self.config.placement {
            _ if expert >= self.config.experts => None,
            Some(table) => table.destination(expert, source, token),
            None => self.placement.owner_of_id(expert as i32),
        }
    }

    /// The rank that forwards a source's rows to a rank of another node.
    fn relay_between(&self, source: GroupRank, to: GroupRank) -> Option<GroupRank> {
        let nodes = self.config.nodes.as_ref().filter(|_| self.is_by_node())?;
        if nodes.are_together(source, to) { None } else { nodes.relay(source, nodes.node_of(to)?) }
    }

    /// Local memory of a dispatch block for what goes to nodes.
    pub(super) fn relay_local_bytes(&self) -> u32 {
        self.across().map_or(0, |(nodes, _)| nodes.count() * 4)
    }

    /// Words in a slot's own memory for each node.
    pub(crate) fn relayed_words(&self) -> u64 {
        if self.is_by_node() { self.across().map_or(0, |(nodes, _)| u64::from(nodes.count())) } else { 0 }
    }

    /// Words in a slot's own memory for each source that it may forward, and each rank.
    pub(crate) fn forwarded_words(&self) -> u64 {
        let places = self.across().map_or(0, |(nodes, _)| u64::from(nodes.relay_slots()));
        if self.is_by_node() { places * u64::from(self.ranks) } else { 0 }
    }

    /// Words of the table that kernels read, the same on all ranks: the node of each rank, relays and places for each node, reporters, and
    /// sources.
    pub(super) fn node_table_words(&self) -> usize {
        self.across()
            .map_or(0, |(nodes, _)| (2 * nodes.size() + 2 * nodes.count() + nodes.relay_slots()) as usize)
    }

    /// The words of that table for a rank.
    #[cfg(feature = "rdma")]
    pub(crate) fn node_table(&self, rank: GroupRank) -> Vec<u32> {
        let Some((nodes, _)) = self.across() else { return Vec::new() };
        let all = || 0..nodes.count();
        let other = |node: &u32| nodes.node_of(rank) != Some(*node);
        let relays =
            all().map(|node| nodes.relay(rank, node).filter(|_| other(&node)).map_or(0, GroupRank::get));
        // Kernels do not read the entries of a rank's own node.
        let places = all().map(|node| nodes.relay_slot(rank, node).filter(|_| other(&node)).unwrap_or(0));
        let sources = nodes.relayed_by(rank);
        #[expect(clippy::expect_used, reason = "both are ranks of the group that the nodes were made for")]
        let reporter = |source| {
            nodes
                .node_of(rank)
                .and_then(|node| nodes.relay(source, node))
                .expect("a relay on this rank's node")
        };
        let near = |source| nodes.are_together(source, rank);
        let reporters = nodes.ranks();
        let reporters = reporters.map(|one| if near(one) { one.get() } else { reporter(one).get() });
        let words = nodes.numbers().iter().copied().chain(relays).chain(places).chain(reporters);
        let mut words: Vec<_> = words.chain(sources.iter().map(|source| source.get())).collect();
        words.resize(self.node_table_words(), 0);
        words
    }
}
