//! Ranks on several nodes: who is where, and by which way rows go between them.

use std::fmt;
use std::hash::Hash;
use std::str::FromStr;
use std::sync::Arc;

use anabranch_ranks::{GlobalRank, GroupRank};
use serde::{Deserialize, Serialize};

/// Most tokens a rank for which [`Across::Auto`] is direct: the batches of decoding, for which other libraries' low-latency kernels
/// are direct, too (`DeepEP`, `mori`: 128 tokens).
pub const MOST_DIRECT: u32 = 128;

/// By which way a dispatch's rows go to ranks of other nodes. Results are the same, bit by bit; those of combine come back straight
/// from the ranks that computed them, because a sum of a node's rows, rounded or not, would be added in another order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum Across {
    /// Direct up to 128 tokens a rank ([`MOST_DIRECT`]), and where no other node has more than one rank; else by node.
    #[default]
    Auto,
    /// Every row straight to its rank: the fewest steps. A token crosses to a node as often as it has ranks there.
    Direct,
    /// Every token once to each node, to the rank there that forwards it inside: the fewest bytes between nodes, one more step.
    Node,
}

impl Across {
    /// All ways.
    pub const ALL: [Self; 3] = [Self::Auto, Self::Direct, Self::Node];

    /// Its name in configurations and reports.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Direct => "direct",
            Self::Node => "node",
        }
    }

    /// The way for this many tokens a rank over these nodes; `None` where all ranks are on one. Never [`Self::Auto`].
    #[must_use]
    pub fn chosen(self, nodes: &NodeMap, max_tokens: u32) -> Option<Self> {
        if nodes.count() < 2 {
            return None;
        }
        Some(match self {
            Self::Auto if max_tokens <= MOST_DIRECT || nodes.most_members() == 1 => Self::Direct,
            Self::Auto => Self::Node,
            given => given,
        })
    }
}

impl fmt::Display for Across {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A word that names none.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{given:?} is no way across nodes; allowed are {}", Across::ALL.map(Across::name).join(", "))]
pub struct UnknownAcross {
    /// The word given.
    pub given: String,
}

impl FromStr for Across {
    type Err = UnknownAcross;

    fn from_str(text: &str) -> Result<Self, UnknownAcross> {
        let found = Self::ALL.into_iter().find(|way| way.name() == text);
        found.ok_or_else(|| UnknownAcross { given: text.to_owned() })
    }
}

/// Which node each rank of a group is on. Nodes are numbered in the order in which they first occur, and may differ in size.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeMap {
    node_of: Arc<[u32]>,
    members: Arc<[Vec<GroupRank>]>,
}

impl NodeMap {
    /// Of a group whose members, in group order, are on these nodes: any values that tell nodes apart (host identities, say).
    pub fn new<N: Eq + Hash>(nodes: &[N]) -> Self {
        let mut numbers = std::collections::HashMap::new();
        let mut members: Vec<Vec<GroupRank>> = Vec::new();
        let number_of = |(node, rank)| {
            let number = *numbers.entry(node).or_insert(members.len());
            if number == members.len() {
                members.push(Vec::new());
            }
            members[number].push(GroupRank::new(rank));
            number as u32
        };
        let node_of: Vec<_> = nodes.iter().zip(0..).map(number_of).collect();
        Self { node_of: node_of.into(), members: members.into() }
    }

    /// Ranks of the group.
    pub fn ranks(&self) -> u32 {
        self.node_of.len() as u32
    }

    /// Nodes.
    pub fn count(&self) -> u32 {
        self.members.len() as u32
    }

    /// The node of each rank, in group order.
    pub fn nodes(&self) -> &[u32] {
        &self.node_of
    }

    /// The node of a rank of the group.
    pub fn node_of(&self, rank: GroupRank) -> Option<u32> {
        self.node_of.get(rank.index()).copied()
    }

    /// Whether both are on one node; false for a rank that the group has not.
    pub fn is_near(&self, one: GroupRank, other: GroupRank) -> bool {
        self.node_of(one).is_some() && self.node_of(one) == self.node_of(other)
    }

    /// The ranks of a node, ascending.
    pub fn members(&self, node: u32) -> &[GroupRank] {
        self.members.get(node as usize).map_or(&[], Vec::as_slice)
    }

    /// Ranks of the largest node.
    pub fn most_members(&self) -> u32 {
        self.members.iter().map(|members| members.len() as u32).max().unwrap_or(0)
    }

    /// The rank of a node that forwards what `source`, on another node, sends there: the one with the same index among the ranks of
    /// its node, or, where the node has fewer, with that index modulo its size.
    pub fn relay(&self, source: GroupRank, node: u32) -> Option<GroupRank> {
        let own = self.members(self.node_of(source)?);
        let index = own.iter().position(|member| *member == source)?;
        let there = self.members(node);
        there.get(index.checked_rem(there.len())?).copied()
    }

    /// The ranks of other nodes for which a rank forwards, ascending. A source's place in this list is that of its rows in the rank's
    /// relay window.
    pub fn relayed_by(&self, rank: GroupRank) -> Vec<GroupRank> {
        let Some(node) = self.node_of(rank) else { return Vec::new() };
        let sources = (0..self.ranks()).map(GroupRank::new);
        sources
            .filter(|source| !self.is_near(*source, rank) && self.relay(*source, node) == Some(rank))
            .collect()
    }

    /// The place of a source's rows in the relay window of the rank that forwards them on a node.
    pub fn relay_slot(&self, source: GroupRank, node: u32) -> Option<u32> {
        let sources = self.relayed_by(self.relay(source, node)?);
        sources.iter().position(|other| *other == source).map(|slot| slot as u32)
    }

    /// Places in a relay window: the most sources for which one rank forwards.
    pub fn relay_slots(&self) -> u32 {
        let ranks = (0..self.ranks()).map(GroupRank::new);
        ranks.map(|rank| self.relayed_by(rank).len() as u32).max().unwrap_or(0)
    }
}

/// As configurations of ranks are compared: the node of each rank.
impl fmt::Display for NodeMap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let nodes: Vec<_> = self.node_of.iter().map(ToString::to_string).collect();
        f.write_str(&nodes.join("+"))
    }
}

/// Why a plan cannot go across nodes.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum AcrossError {
    /// The map is of another group.
    #[error("the map of nodes has {given} ranks, and the group has {ranks}")]
    Ranks {
        /// Ranks of the map.
        given: u32,
        /// Ranks of the group.
        ranks: u32,
    },
    /// A setting that is for ranks of one node.
    #[error("{nodes} nodes, and {field} is {given}; allowed across nodes is {allowed}: {why}")]
    Setting {
        /// Nodes of the group.
        nodes: u32,
        /// The field.
        field: &'static str,
        /// What it was.
        given: String,
        /// What is allowed.
        allowed: &'static str,
        /// Why nothing else is.
        why: &'static str,
    },
    /// Kernels cannot put to a rank of another node.
    #[error("kernels cannot send to {peer} on another node, whose route is {route}; p2p and rdma can")]
    Route {
        /// The peer.
        peer: GlobalRank,
        /// Its route.
        route: String,
    },
}
