//! The names of the ways in which a collective can be done.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// How a collective is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Algorithm {
    /// Flags inside the data, one hop: every member sends what it has to whom it concerns. Reductions are done by every member
    /// that gets the result.
    Packets,
    /// Flags inside the data, two hops: member j reduces part j and sends the result to all. `all_reduce` and `reduce`.
    TwoShotPackets,
    /// Through the peers' staging, with a barrier after each step. Moves bytes between buffers that peers do not reach.
    Staged,
    /// Straight into the peers' outputs, between two barriers. Moves bytes.
    Direct,
    /// Each member reads its part from all inputs and writes the result to all outputs, between two barriers.
    Pull,
    /// Each member writes parts to their owners' staging; the owners reduce them and write the results to all.
    Push,
    /// Straight into the peers' outputs or through their staging, in two hops: the root sends each member one part, which sends it
    /// to the others. `broadcast`.
    TwoHop,
    /// By copy engines, one copy to each member at a time, between two one-block barrier kernels: compute units stay free for other
    /// work, and small messages take longer than by kernels. Reductions go through the owners' staging, and a kernel sums. Chosen only
    /// by configuration, a [`Choice`](crate::Choice) or a measured table.
    CopyEngine,
    /// Through a ring of slots for each pair: all sends and receives, and nothing else. It cannot be asked for.
    Pipes,
    /// Chunks over links to whom they concern, also between nodes ([`Across::Direct`](crate::Across::Direct)). For communicators whose
    /// members are on several nodes; configurations ask for it by `ccl.across`, a [`Choice`](crate::Choice) also by this name.
    NetworkDirect,
    /// As [`Self::NetworkDirect`], but what concerns several members of a node goes there once, or packed
    /// ([`Across::Node`](crate::Across::Node)).
    NetworkByNode,
}

impl Algorithm {
    /// Those that a configuration can ask for.
    pub const ALL: [Self; 8] = [
        Self::Packets,
        Self::TwoShotPackets,
        Self::Staged,
        Self::Direct,
        Self::Pull,
        Self::Push,
        Self::TwoHop,
        Self::CopyEngine,
    ];

    /// Its name in configurations and reports.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Packets => "packets",
            Self::TwoShotPackets => "two-shot-packets",
            Self::Staged => "staged",
            Self::Direct => "direct",
            Self::Pull => "pull",
            Self::Push => "push",
            Self::TwoHop => "two-hop",
            Self::CopyEngine => "copy-engine",
            Self::Pipes => "pipes",
            Self::NetworkDirect => "network-direct",
            Self::NetworkByNode => "network-by-node",
        }
    }

    /// Whether flags are inside the data.
    pub const fn is_packets(self) -> bool {
        matches!(self, Self::Packets | Self::TwoShotPackets)
    }
}

impl fmt::Display for Algorithm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A word that names no algorithm.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{given:?} is no algorithm; allowed are {}", Algorithm::ALL.map(Algorithm::name).join(", "))]
pub struct UnknownAlgorithm {
    /// The word given.
    pub given: String,
}

impl FromStr for Algorithm {
    type Err = UnknownAlgorithm;

    fn from_str(text: &str) -> Result<Self, UnknownAlgorithm> {
        let found = Self::ALL.into_iter().find(|algorithm| algorithm.name() == text);
        found.ok_or_else(|| UnknownAlgorithm { given: text.to_owned() })
    }
}
