//! What the plan says of ranks on several nodes: which configurations it refuses, what it keeps for them, and which copies go where.

use anabranch_ranks::{Across, GroupRank, Nodes};

use super::{EpConfig, Plan};
use crate::codec::CombineCodec;
use crate::error::Result;
use crate::mask::OnTimeout;
use crate::nodes::AcrossError;
use crate::payload::Payload;
use crate::room::Mode;

/// Rows of a slot's windows that there are only across nodes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct AcrossRows {
    /// Of what this rank stages for others.
    pub(super) staged: u64,
    /// Of what it forwards.
    pub(super) relayed: u64,
    /// Of what comes back to it.
    pub(super) returned: u64,
}

impl AcrossRows {
    pub(super) fn in_all(self) -> u128 {
        [self.staged, self.relayed, self.returned].into_iter().map(u128::from).sum()
    }
}

impl EpConfig {
    /// Sets which node each rank of the group is on.
    #[must_use]
    pub fn nodes(mut self, value: Nodes) -> Self {
        self.nodes = Some(value);
        self
    }

    /// Sets by which way rows go to other nodes.
    #[must_use]
    pub fn across(mut self, value: Across) -> Self {
        self.across = value;
        self
    }

    /// Across nodes, [`Mode::Auto`] is the mode that is there.
    pub(super) fn planned_mode(&self) -> Mode {
        if self.mode == Mode::Auto && self.way().is_some() { Mode::Slotted } else { self.mode }
    }

    pub(super) fn across_rows(&self, rows: u64) -> AcrossRows {
        let (Some(way), Some(nodes)) = (self.way(), &self.nodes) else { return AcrossRows::default() };
        let max_tokens = u64::from(self.max_tokens);
        if way == Across::Direct {
            return AcrossRows { staged: rows, relayed: 0, returned: rows };
        }
        let staged = u64::from(nodes.count()) * max_tokens;
        AcrossRows { staged, relayed: u64::from(nodes.relay_slots()) * max_tokens, returned: rows }
    }

    pub(super) fn check_across(&self, ranks: u32, mode: Mode) -> Result<()> {
        let Some(nodes) = &self.nodes else { return Ok(()) };
        if nodes.size() != ranks {
            return Err(AcrossError::Ranks { given: nodes.size(), ranks }.into());
        }
        if self.way().is_none() {
            return Ok(());
        }
        let refused = |field, given: String, allowed, why| {
            Err(AcrossError::Setting { nodes: nodes.count(), field, given, allowed, why }.into())
        };
        if mode != Mode::Slotted {
            let why = "in other modes the rows for a rank do not lie in one piece whose place is known before the counts";
            return refused("mode", mode.to_string(), Mode::Slotted.name(), why);
        }
        if self.on_timeout != OnTimeout::Fault {
            let why = "a NIC may still write for a rank that was masked";
            return refused("on_timeout", self.on_timeout.to_string(), "fault", why);
        }
        if self.combine_codec != CombineCodec::None {
            let why = "rows of other nodes come as they are, so that all ranks' rows are summed alike";
            return refused("combine_codec", self.combine_codec.to_string(), CombineCodec::None.name(), why);
        }
        if self.combine_weights {
            let why = "combined weights are pulled or pushed by kernels beside the rows";
            return refused("combine_weights", "true".to_owned(), "false", why);
        }
        if self.payload != Payload::Kernels {
            let why = "copy engines do not reach other nodes";
            return refused("payload", self.payload.to_string(), Payload::Kernels.name(), why);
        }
        Ok(())
    }
}

/// A copy of a token's row on its way to a rank that owns some of its experts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Hop {
    /// The rank whose token it is.
    pub source: GroupRank,
    /// The token.
    pub token: u32,
    /// Who sends.
    pub from: GroupRank,
    /// Who receives.
    pub to: GroupRank,
    /// Whether it is there: else `to` forwards it.
    pub arrives: bool,
}

impl Plan {
    /// Which node each rank is on, and by which way rows go to others: [`Across::Direct`] or [`Across::Node`]. `None` where all ranks are
    /// on one node.
    pub fn across(&self) -> Option<(&Nodes, Across)> {
        Some((self.config.nodes.as_ref()?, self.config.way()?))
    }

    /// Whether tokens go once to each node.
    pub(crate) fn is_by_node(&self) -> bool {
        self.config.way() == Some(Across::Node)
    }

    /// Every copy of one rank's rows that a dispatch makes between ranks, or to the rank itself, for ids `[tokens][top_k]`; as if every
    /// rank had room.
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

    /// Who forwards a source's rows for a rank of another node.
    fn relay_between(&self, source: GroupRank, to: GroupRank) -> Option<GroupRank> {
        let nodes = self.config.nodes.as_ref().filter(|_| self.is_by_node())?;
        if nodes.are_together(source, to) { None } else { nodes.relay(source, nodes.node_of(to)?) }
    }

    /// Local memory of a dispatch block for what goes to nodes.
    pub(super) fn relay_local_bytes(&self) -> u32 {
        self.across().map_or(0, |(nodes, _)| nodes.count() * 4)
    }

    /// Words that a slot keeps of its own for each node.
    #[doc(hidden)]
    pub fn relayed_words(&self) -> u64 {
        if self.is_by_node() { self.across().map_or(0, |(nodes, _)| u64::from(nodes.count())) } else { 0 }
    }

    /// Words that a slot keeps of its own for each source that it may forward, and each rank.
    #[doc(hidden)]
    pub fn forwarded_words(&self) -> u64 {
        let places = self.across().map_or(0, |(nodes, _)| u64::from(nodes.relay_slots()));
        if self.is_by_node() { places * u64::from(self.ranks) } else { 0 }
    }

    /// Words of the table that kernels read, the same on all ranks: the node of each rank, relays and places for each node, tellers, and
    /// sources.
    #[doc(hidden)]
    pub fn node_table_words(&self) -> usize {
        self.across()
            .map_or(0, |(nodes, _)| (2 * nodes.size() + 2 * nodes.count() + nodes.relay_slots()) as usize)
    }

    /// Those words for a rank, and how many sources there are.
    #[doc(hidden)]
    pub fn node_table(&self, rank: GroupRank) -> (Vec<u32>, u32) {
        let Some((nodes, _)) = self.across() else { return (Vec::new(), 0) };
        let all = || 0..nodes.count();
        let other = |node: &u32| nodes.node_of(rank) != Some(*node);
        let relays =
            all().map(|node| nodes.relay(rank, node).filter(|_| other(&node)).map_or(0, GroupRank::get));
        let places = all().map(|node| nodes.relay_slot(rank, node).filter(|_| other(&node)).unwrap_or(0));
        let sources = nodes.relayed_by(rank);
        let teller =
            |source| nodes.node_of(rank).and_then(|node| nodes.relay(source, node)).unwrap_or(source);
        let near = |source| nodes.are_together(source, rank);
        let tellers = nodes.ranks();
        let tellers = tellers.map(|one| if near(one) { one.get() } else { teller(one).get() });
        let words = nodes.numbers().iter().copied().chain(relays).chain(places).chain(tellers);
        let mut words: Vec<_> = words.chain(sources.iter().map(|source| source.get())).collect();
        words.resize(self.node_table_words(), 0);
        (words, sources.len() as u32)
    }
}
