//! What each member does for a call across machines, as steps. Pure arithmetic.
//!
//! A message goes in chunks: chunk c of a lane is piece `c * lanes + lane` of `piece_bytes` bytes of whatever a step moves. At time t a lane
//! does, step by step in the order of the list, chunk `t - lag` of each step that has such a chunk. A step takes a chunk from each of its
//! sources and gives one to each of its targets: its own tensors, or *links*.
//!
//! A link goes from one member to another and is a queue of [`DEPTH`] chunks; between any two members there are [`STREAMS`] each way. A
//! taker waits for a chunk and a giver for room, nobody for anything else. So the members are sequential processes joined by
//! bounded queues: whether they come to their end, and with what result, does not depend on who is fast (Kahn, 1974). The tests run every
//! form so, once, with queues of this depth: that is the proof that nobody waits in a circle, and that each byte is where it belongs.
//! `lag`s are as large as the queues allow: of a link that takes m chunks at one time, the taker is `(DEPTH - 1) / m` behind the giver.

use anabranch_ranks::Nodes;

use super::{direct, hierarchical};
use crate::types::Collective;

/// Chunks that a link has room for: `LINK_DEPTH` in `ccl/links.h`.
pub(crate) const DEPTH: u32 = 4;
/// Links from one member to another: what goes one hop, and what is handed on.
pub(crate) const STREAMS: u32 = 2;
/// What goes one hop: contributions, and unrounded sums.
pub(super) const FIRST: u32 = 0;
/// Results, and what is handed on.
pub(super) const SECOND: u32 = 1;

/// How far a taker is behind the giver of a link that takes so many chunks at one time.
pub(super) const fn behind(chunks: u32) -> u32 {
    (DEPTH - 1) / chunks
}

/// Where a chunk comes from or goes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Port {
    /// This rank's input, so many bytes from its start.
    Input {
        /// Bytes.
        offset: u64,
    },
    /// This rank's output.
    Output {
        /// Bytes.
        offset: u64,
    },
    /// The link from a member, for a source, or to it, for a target.
    Link {
        /// The member, by its rank in the group.
        peer: u32,
        /// Which of the links.
        stream: u32,
    },
}

/// One thing that a member does for every chunk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    /// One where bytes move; the contributions in group-rank order where they are reduced; the pieces where they are packed.
    pub sources: Vec<Port>,
    /// Where it goes.
    pub targets: Vec<Port>,
    /// Bytes of all chunks of all lanes, as they lie in tensors; of each piece where they are packed.
    pub bytes: u64,
    /// The time of chunk 0.
    pub lag: u32,
    /// What is done.
    pub work: Work,
}

/// What is done with a step's sources.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Work {
    /// The one source goes to all targets.
    Moves,
    /// Sources are reduced.
    Sums {
        /// The first source is the sum of the members before, not rounded.
        takes_unrounded: bool,
        /// The sum goes on as it is, not rounded.
        gives_unrounded: bool,
    },
    /// A piece from each of several sources, in their order, becomes one chunk for the one target, which is a link.
    Packs,
    /// The one source is a link with such chunks; each of several targets gets its piece.
    Unpacks,
    /// A chunk without bytes is taken from all sources and given to all targets, once, by lane 0.
    Meets,
}

impl Step {
    pub(super) fn moves(source: Port, targets: Vec<Port>, bytes: u64, lag: u32) -> Self {
        Self { sources: vec![source], targets, bytes, lag, work: Work::Moves }
    }

    pub(super) fn sums(sources: Vec<Port>, targets: Vec<Port>, bytes: u64, lag: u32) -> Self {
        let work = Work::Sums { takes_unrounded: false, gives_unrounded: false };
        Self { sources, targets, bytes, lag, work }
    }

    pub(super) fn packs(sources: Vec<Port>, target: Port, bytes: u64, lag: u32) -> Self {
        let work = if sources.len() == 1 { Work::Moves } else { Work::Packs };
        Self { sources, targets: vec![target], bytes, lag, work }
    }

    pub(super) fn unpacks(source: Port, targets: Vec<Port>, bytes: u64, lag: u32) -> Self {
        let work = if targets.len() == 1 { Work::Moves } else { Work::Unpacks };
        Self { sources: vec![source], targets, bytes, lag, work }
    }

    pub(super) fn meets(sources: Vec<Port>, targets: Vec<Port>) -> Self {
        Self { sources, targets, bytes: 0, lag: 0, work: Work::Meets }
    }

    /// Whether the first source is a sum that is not rounded.
    pub fn takes_unrounded(&self) -> bool {
        matches!(self.work, Work::Sums { takes_unrounded: true, .. })
    }

    /// Whether the targets get the sum unrounded.
    pub fn gives_unrounded(&self) -> bool {
        matches!(self.work, Work::Sums { gives_unrounded: true, .. })
    }

    /// Pieces of a chunk of the first source: more than one where it is taken apart.
    pub fn pieces_taken(&self) -> u64 {
        if self.work == Work::Unpacks { self.targets.len() as u64 } else { 1 }
    }

    /// Pieces of a chunk of the targets: more than one where they are packed.
    pub fn pieces_given(&self) -> u64 {
        if self.work == Work::Packs { self.sources.len() as u64 } else { 1 }
    }

    /// Chunks of a lane, out of so many.
    pub fn chunks(&self, piece_bytes: u64, lane: u32, lanes: u32) -> u64 {
        if self.work == Work::Meets && lane == 0 {
            return 1;
        }
        let pieces = self.bytes.div_ceil(piece_bytes);
        pieces.saturating_sub(u64::from(lane)).div_ceil(u64::from(lanes))
    }
}

/// A call without its addresses, from one member's point of view; bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Exchange {
    /// Every member gets all inputs, in group order.
    AllGather {
        /// Of each member.
        bytes: Vec<u64>,
    },
    /// Part j of the input goes to member j.
    AllToAll {
        /// To each member; parts lie one after the other.
        sent: Vec<u64>,
        /// From each member.
        received: Vec<u64>,
    },
    /// Every member gets the root's tensor.
    Broadcast {
        /// Of the tensor.
        bytes: u64,
        /// Whose.
        root: u32,
    },
    /// The root gets all inputs.
    Gather {
        /// Of each input.
        bytes: u64,
        /// Who gets them.
        root: u32,
    },
    /// Member j gets part j of the root's input.
    Scatter {
        /// Of each part.
        bytes: u64,
        /// Whose.
        root: u32,
    },
    /// Every member gets the reduction.
    AllReduce {
        /// Of the message.
        bytes: u64,
    },
    /// Member j gets part j of the reduction.
    ReduceScatter {
        /// Of each part.
        bytes: u64,
    },
    /// The root gets the reduction.
    Reduce {
        /// Of the message.
        bytes: u64,
        /// Who gets it.
        root: u32,
    },
    /// All members meet.
    Barrier,
}

impl Exchange {
    /// Which collective it is.
    pub const fn collective(&self) -> Collective {
        match self {
            Self::AllGather { .. } => Collective::AllGather,
            Self::AllToAll { .. } => Collective::AllToAll,
            Self::Broadcast { .. } => Collective::Broadcast,
            Self::Gather { .. } => Collective::Gather,
            Self::Scatter { .. } => Collective::Scatter,
            Self::AllReduce { .. } => Collective::AllReduce,
            Self::ReduceScatter { .. } => Collective::ReduceScatter,
            Self::Reduce { .. } => Collective::Reduce,
            Self::Barrier => Collective::Barrier,
        }
    }
}

/// The steps of one member, in which every chunk goes straight to whom it concerns.
pub fn direct(members: u32, me: u32, exchange: &Exchange) -> Vec<Step> {
    direct::steps(members, me, exchange)
}

/// Whether a collective can go by node among these machines.
///
/// # Errors
/// Why it cannot.
pub(crate) fn allows(nodes: &Nodes, collective: Collective) -> Result<(), &'static str> {
    hierarchical::allows(nodes, collective)
}

/// The steps of one member, in which what concerns several members of a machine goes there once, or packed.
///
/// # Errors
/// Why these machines, this collective, or these counts cannot do so.
pub fn by_node(nodes: &Nodes, me: u32, exchange: &Exchange) -> Result<Vec<Step>, &'static str> {
    hierarchical::allows(nodes, exchange.collective())?;
    hierarchical::steps(nodes, me, exchange)
}

/// Pieces that a chunk of this collective holds at most when it goes by node, at any member: 1 where nothing is packed.
pub(crate) fn most_packed(nodes: &Nodes, collective: Collective) -> u64 {
    if collective == Collective::AllToAll { nodes.largest_size().max(1).into() } else { 1 }
}

/// Bytes from one piece of a packed chunk to the next, of pieces of so many bytes.
pub(crate) const fn packed_stride(bytes: u64) -> u64 {
    bytes.next_multiple_of(16)
}

/// The times that a lane goes through: until the last chunk of the last step. Of lane 0, which has the most.
pub(crate) fn times(steps: &[Step], piece_bytes: u64, lanes: u32) -> u64 {
    let end = |step: &Step| match step.chunks(piece_bytes, 0, lanes) {
        0 => 0,
        chunks => chunks + u64::from(step.lag),
    };
    steps.iter().map(end).max().unwrap_or(0)
}

/// Bytes of member `index`'s part of a message that is cut among so many, and where it starts. Parts start at multiples of 16.
pub(super) fn part(bytes: u64, members: u32, index: u32) -> (u64, u64) {
    let whole = bytes.div_ceil(u64::from(members)).next_multiple_of(16);
    let first = whole * u64::from(index);
    (bytes.saturating_sub(first).min(whole), first)
}

/// Members from the one behind `me` on, without it, so that not all begin with the same.
pub(super) fn others(me: u32, members: u32) -> impl Iterator<Item = u32> + Clone {
    (1..members).map(move |by| (me + by) % members)
}

/// Where each of these starts when they lie one after the other.
pub(super) fn starts(bytes: &[u64]) -> Vec<u64> {
    let ends = bytes.iter().scan(0, |end, bytes| {
        *end += bytes;
        Some(*end - bytes)
    });
    ends.collect()
}
