//! Why a plan cannot go across nodes.

use anabranch_ranks::GlobalRank;

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
