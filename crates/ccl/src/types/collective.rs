//! Collectives, and the shape of a call: everything but addresses.

use std::fmt;

use anabranch_ranks::GroupRank;
use serde::{Deserialize, Serialize};

use super::{DataType, ReduceOp};

/// A collective.
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
    /// A barrier on the streams of all members.
    Barrier,
    /// Sends and receives. Not collective: only the two members of a pair call.
    SendReceive,
}

impl Collective {
    /// All collectives in which every member takes part.
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

    /// Name as in torch.distributed.
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

    /// Whether the collective reduces contributions.
    pub const fn reduces(self) -> bool {
        matches!(self, Self::AllReduce | Self::ReduceScatter | Self::Reduce)
    }
}

impl fmt::Display for Collective {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A call without addresses: the input of the plan. Equal on all members, except `count` where noted.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Shape {
    /// The collective.
    pub collective: Collective,
    /// Element type; u8 for a barrier.
    pub data_type: DataType,
    /// The operator; `None` without a reduction.
    pub op: Option<ReduceOp>,
    /// Members of the group.
    pub members: u32,
    /// Elements of the whole message for all_reduce, broadcast and reduce; of the part of one member for all others.
    pub count: u64,
    /// Whether counts differ between members. `count` is then the longest part of a reduce_scatter, else the mean over the parts of this
    /// rank, which with all_to_all can differ between members.
    pub uneven: bool,
    /// The root; `None` for collectives without a root.
    pub root: Option<GroupRank>,
    /// Kind of memory of the inputs.
    pub input: LocationKind,
    /// Kind of memory of the outputs.
    pub output: LocationKind,
    /// Elements of a row, for an all_reduce that an RMSNorm of rows follows.
    pub norm_row: Option<u64>,
}

impl Shape {
    /// A call on `count` bytes (`u8` elements) in local memory, without operator and root.
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
            norm_row: None,
        }
    }

    /// Bytes of [`Self::count`] elements.
    pub const fn bytes(&self) -> u64 {
        self.count * self.data_type.bytes() as u64
    }

    /// Message size in benchmarks, bytes: of the whole message for all_reduce, broadcast and reduce; of all parts together for all others.
    pub const fn message_bytes(&self) -> u64 {
        match self.collective {
            Collective::AllReduce | Collective::Broadcast | Collective::Reduce => self.bytes(),
            _ => self.bytes() * self.members as u64,
        }
    }
}

/// Kind of memory of a tensor, as the choice of an algorithm sees it. Equal on all members.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LocationKind {
    /// Device memory of this rank that is not mapped at peers.
    Local,
    /// The symmetric heap, at the same offset on all members.
    Symmetric,
    /// Registered memory. The addresses of members can differ.
    Registered,
}

impl LocationKind {
    /// Whether the memory is mapped at peers.
    pub const fn is_reached(self) -> bool {
        !matches!(self, Self::Local)
    }
}
