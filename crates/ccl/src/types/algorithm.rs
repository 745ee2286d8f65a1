//! Algorithms of collectives and their names.

use std::fmt;
use std::str::FromStr;

use anabranch_ranks::UnknownWord;
use serde::{Deserialize, Serialize};

/// An algorithm of collectives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Algorithm {
    /// Packets with flags inside, one hop: every member sends its data to each member that needs it. In reductions, every member that gets
    /// the result reduces.
    Packets,
    /// Packets with flags inside, two hops: member j reduces part j and sends the result to all. `all_reduce` and `reduce`.
    TwoShotPackets,
    /// Through the staging of the peers, with a barrier after each step. Moves bytes between buffers that are not mapped at peers.
    Staged,
    /// Directly into the outputs of the peers, between two barriers. Moves bytes.
    Direct,
    /// Each member reads its part from all inputs and writes the result to all outputs, between two barriers.
    Pull,
    /// Each member writes parts to their owners' staging; the owners reduce them and write the results to those that need them.
    Push,
    /// Broadcast in two hops, directly into outputs or through the staging: the root sends each other member one part, and each of
    /// these sends its part to the others.
    TwoHop,
    /// By copy engines, one copy to each member at a time, between two barriers: compute units stay free for other work, and small messages
    /// take longer than by kernels. Reductions copy contributions to the staging of their owners, and a kernel reduces. Used only if the
    /// configuration, a [`Choice`](crate::Choice) or a table selects it.
    CopyEngine,
    /// Through a ring of slots for each pair: the algorithm of all sends and receives. Cannot be requested.
    Pipes,
    /// Internode collectives in chunks over links, each sent directly to every member that needs it
    /// ([`Across::Direct`](crate::Across::Direct)). For groups on several nodes. The configuration selects it by `ccl.across`, a
    /// [`Choice`](crate::Choice) by this name.
    NetworkDirect,
    /// As [`Self::NetworkDirect`], but data for several members of a node is sent there once, or packed
    /// ([`Across::Node`](crate::Across::Node)).
    NetworkByNode,
}

impl Algorithm {
    /// The algorithms that `ccl.algorithm` can name.
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

    /// Name in configurations and reports.
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

    /// Whether the algorithm uses packets with flags inside.
    pub const fn is_packets(self) -> bool {
        matches!(self, Self::Packets | Self::TwoShotPackets)
    }
}

impl fmt::Display for Algorithm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Algorithm {
    type Err = UnknownWord;

    fn from_str(text: &str) -> Result<Self, UnknownWord> {
        UnknownWord::find(text, "algorithm", &Self::ALL, Self::name)
    }
}
