//! The collectives, and what is known of a call without its addresses.

use std::fmt;

use anabranch_ranks::GroupRank;
use serde::{Deserialize, Serialize};

use super::{DataType, ReduceOp};

/// The collectives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Collective {
    /// Every member gets the reduction of all inputs.
    AllReduce,
    /// Member j gets part j of the reduction.
    ReduceScatter,
    /// Every member gets all inputs, in group order.
    AllGather,
    /// Member j gets part j of every input.
    AllToAll,
    /// Every member gets the root's tensor.
    Broadcast,
    /// The root gets the reduction.
    Reduce,
    /// The root gets all inputs.
    Gather,
    /// Member j gets part j of the root's input.
    Scatter,
    /// All members meet.
    Barrier,
    /// Messages between pairs of members. Not collective: only the two members of a pair call.
    SendReceive,
}

impl Collective {
    /// All in which every member takes part.
    pub const ALL: [Self; 9] = [
        Self::AllReduce,
        Self::ReduceScatter,
        Self::AllGather,
        Self::AllToAll,
        Self::Broadcast,
        Self::Reduce,
        Self::Gather,
        Self::Scatter,
        Self::Barrier,
    ];

    /// Its name, as torch.distributed has it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::AllReduce => "all_reduce",
            Self::ReduceScatter => "reduce_scatter",
            Self::AllGather => "all_gather",
            Self::AllToAll => "all_to_all",
            Self::Broadcast => "broadcast",
            Self::Reduce => "reduce",
            Self::Gather => "gather",
            Self::Scatter => "scatter",
            Self::Barrier => "barrier",
            Self::SendReceive => "send_receive",
        }
    }

    /// Whether contributions are reduced.
    pub const fn reduces(self) -> bool {
        matches!(self, Self::AllReduce | Self::ReduceScatter | Self::Reduce)
    }
}

impl fmt::Display for Collective {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// What is known of a call without its addresses: what the plan depends on. Equal on all members.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Shape {
    /// Which collective.
    pub collective: Collective,
    /// Type of the elements; u8 for a barrier.
    pub data_type: DataType,
    /// The operator of a reduction.
    pub op: Option<ReduceOp>,
    /// Members of the group.
    pub members: u32,
    /// Elements: of a whole message (all_reduce, broadcast, reduce), or of one member's part.
    pub count: u64,
    /// Whether counts differ between members; then `count` is the mean of this rank's parts, which no other member knows.
    pub uneven: bool,
    /// The root.
    pub root: Option<GroupRank>,
    /// Kind of the inputs.
    pub input: LocationKind,
    /// Kind of the outputs.
    pub output: LocationKind,
}

impl Shape {
    /// Of `count` bytes in memory that peers do not reach.
    pub const fn of_bytes(collective: Collective, members: u32, count: u64) -> Self {
        Self {
            collective,
            data_type: DataType::U8,
            op: None,
            members,
            count,
            uneven: false,
            root: None,
            input: LocationKind::Local,
            output: LocationKind::Local,
        }
    }

    /// Bytes of `count` elements.
    pub const fn bytes(&self) -> u64 {
        self.count * self.data_type.bytes() as u64
    }

    /// Bytes by which benchmarks name the call: of the whole message, or of all parts together.
    pub const fn message_bytes(&self) -> u64 {
        match self.collective {
            Collective::AllReduce | Collective::Broadcast | Collective::Reduce => self.bytes(),
            _ => self.bytes() * self.members as u64,
        }
    }
}

/// What the choice of an algorithm knows of a location: equal on all members.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LocationKind {
    /// Memory that only this rank reaches.
    Local,
    /// The symmetric heap, at the same offset on all members.
    Symmetric,
    /// Memory that was registered; members' addresses may differ.
    Registered,
}

impl LocationKind {
    /// Whether peers reach it.
    pub const fn is_reached(self) -> bool {
        !matches!(self, Self::Local)
    }
}
