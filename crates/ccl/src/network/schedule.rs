//! The schedule of an internode call: the steps of each member. Pure arithmetic.
//!
//! A message is cut into chunks: chunk c of a channel is piece `c * channels + channel` of `piece_bytes` bytes of the data of a step. At
//! time t a channel runs, step by step in list order, chunk `t - lag` of each step that has such a chunk. A step takes one chunk from each
//! of its sources and gives one to each of its targets. Sources and targets are tensors of the member, or *links*.
//!
//! A link is a queue of [`DEPTH`] chunks from one member to another. Between any two members there are [`STREAMS`](super::layout::STREAMS) links in each direction.
//! A receiver waits for a chunk and a sender for a free slot; there are no other waits. So members are sequential processes connected by
//! bounded queues, and neither their termination nor their result depends on timing (Kahn, 1974). The tests run every form once with queues
//! of this depth, which proves that no wait is circular and that each byte arrives where it belongs. `lag`s are as large as the queues
//! allow: on a link with m chunks per time, the receiver lags `(DEPTH - 1) / m` behind the sender.

use anabranch_ranks::Nodes;

use super::layout::DEPTH;
use super::{direct, hierarchical};
use crate::types::Collective;

/// The stream of data of one hop: contributions, and unrounded sums.
pub(super) const FIRST: u32 = 0;
/// The stream of results and of forwarded data.
pub(super) const SECOND: u32 = 1;

/// The lag of the receiver of a link with `chunks` chunks per time.
pub(super) const fn receiver_lag(chunks: u32) -> u32 {
    (DEPTH - 1) / chunks
}

/// A source or target of chunks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Port {
    /// The input of this rank.
    Input {
        /// Offset, bytes.
        offset: u64,
    },
    /// The output of this rank.
    Output {
        /// Offset, bytes.
        offset: u64,
    },
    /// A link: from the member for a source, to the member for a target.
    Link {
        /// The member, a group rank.
        peer: u32,
        /// The stream.
        stream: u32,
    },
}

/// One step, which a member runs for every chunk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    /// One source if bytes move; the contributions in group-rank order if they are reduced; the pieces if they are packed.
    pub sources: Vec<Port>,
    /// The targets.
    pub targets: Vec<Port>,
    /// Bytes of all chunks of all channels in tensors; of each piece if they are packed.
    pub bytes: u64,
    /// The time at which chunk 0 is handled.
    pub lag: u32,
    /// The operation.
    pub work: Work,
}

/// The operation of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Work {
    /// Copies the one source to all targets.
    Moves,
    /// Reduces the sources.
    Sums {
        /// The first source is the unrounded sum of the previous nodes.
        takes_unrounded: bool,
        /// The targets get the unrounded sum.
        gives_unrounded: bool,
    },
    /// Packs one piece of each source, in order, into one chunk for the one target, which is a link.
    Packs,
    /// Unpacks chunks of the one source, which is a link: each target gets its piece.
    Unpacks,
    /// Receives a chunk without bytes from all sources and sends one to all targets, once, on channel 0.
    Barrier,
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

    pub(super) fn barrier(sources: Vec<Port>, targets: Vec<Port>) -> Self {
        Self { sources, targets, bytes: 0, lag: 0, work: Work::Barrier }
    }

    /// Whether the first source is an unrounded sum.
    pub(crate) fn takes_unrounded(&self) -> bool {
        matches!(self.work, Work::Sums { takes_unrounded: true, .. })
    }

    /// Whether the targets get the unrounded sum.
    pub(crate) fn gives_unrounded(&self) -> bool {
        matches!(self.work, Work::Sums { gives_unrounded: true, .. })
    }

    /// Pieces of a chunk of the first source: more than one if the step unpacks.
    #[cfg(any(test, feature = "model"))]
    pub(crate) fn pieces_taken(&self) -> u64 {
        if self.work == Work::Unpacks { self.targets.len() as u64 } else { 1 }
    }

    /// Pieces of a chunk of the targets: more than one if the step packs.
    #[cfg(any(test, feature = "model"))]
    pub(crate) fn pieces_given(&self) -> u64 {
        if self.work == Work::Packs { self.sources.len() as u64 } else { 1 }
    }

    /// Chunks of one channel, of `channels` channels.
    pub fn chunks(&self, piece_bytes: u64, channel: u32, channels: u32) -> u64 {
        if self.work == Work::Barrier && channel == 0 {
            return 1;
        }
        let pieces = self.bytes.div_ceil(piece_bytes);
        pieces.saturating_sub(u64::from(channel)).div_ceil(u64::from(channels))
    }
}

/// A call without addresses, as seen by one member. Lengths are bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Exchange {
    /// Every member gets all inputs, in group order.
    AllGather {
        /// Of each input.
        bytes: Vec<u64>,
    },
    /// Part j of the input goes to member j.
    AllToAll {
        /// To each member; parts are concatenated.
        sent: Vec<u64>,
        /// From each member.
        received: Vec<u64>,
    },
    /// Every member gets the root's tensor.
    Broadcast {
        /// Of the tensor.
        bytes: u64,
        /// The source.
        root: u32,
    },
    /// The root gets all inputs.
    Gather {
        /// Of each input.
        bytes: u64,
        /// The destination.
        root: u32,
    },
    /// Member j gets part j of the root's input.
    Scatter {
        /// Of each part.
        bytes: u64,
        /// The source.
        root: u32,
    },
    /// Every member gets the reduction.
    AllReduce {
        /// Of the message.
        bytes: u64,
    },
    /// Member j gets part j of the reduction.
    ReduceScatter {
        /// Of each part; parts are concatenated.
        bytes: Vec<u64>,
    },
    /// The root gets the reduction.
    Reduce {
        /// Of the message.
        bytes: u64,
        /// The destination.
        root: u32,
    },
    /// A barrier.
    Barrier,
}

impl Exchange {
    /// The collective.
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

/// The steps of one member in the direct form.
pub fn direct(members: u32, me: u32, exchange: &Exchange) -> Vec<Step> {
    direct::steps(members, me, exchange)
}

/// Whether a collective can run by node on these nodes.
///
/// # Errors
/// The reason why it cannot.
pub(crate) fn allows(nodes: &Nodes, collective: Collective) -> Result<(), &'static str> {
    hierarchical::allows(nodes, collective)
}

/// The steps of one member in the form by node.
///
/// # Errors
/// The reason why the nodes, the collective, or the counts do not allow it.
pub fn by_node(nodes: &Nodes, me: u32, exchange: &Exchange) -> Result<Vec<Step>, &'static str> {
    hierarchical::allows(nodes, exchange.collective())?;
    hierarchical::steps(nodes, me, exchange)
}

/// The most pieces of a chunk of this collective by node, over all members: 1 if nothing is packed.
pub(crate) fn most_packed(nodes: &Nodes, collective: Collective) -> u64 {
    if collective == Collective::AllToAll { nodes.largest_size().max(1).into() } else { 1 }
}

/// Bytes from one piece of a packed chunk to the next, for pieces of `bytes` bytes.
#[cfg(feature = "model")]
pub(crate) const fn packed_stride(bytes: u64) -> u64 {
    bytes.next_multiple_of(16)
}

/// The number of times that a channel iterates, up to the last chunk of the last step. Of channel 0, which has the most chunks.
pub(crate) fn times(steps: &[Step], piece_bytes: u64, channels: u32) -> u64 {
    let end = |step: &Step| match step.chunks(piece_bytes, 0, channels) {
        0 => 0,
        chunks => chunks + u64::from(step.lag),
    };
    steps.iter().map(end).max().unwrap_or(0)
}

/// Bytes and offset of part `index` of a message divided among `members` members. Offsets are multiples of 16.
pub(super) fn part(bytes: u64, members: u32, index: u32) -> (u64, u64) {
    let whole = bytes.div_ceil(u64::from(members)).next_multiple_of(16);
    let first = whole * u64::from(index);
    (bytes.saturating_sub(first).min(whole), first)
}

/// All members but `me`, starting with the next one, so that not all start with the same member.
pub(super) fn others(me: u32, members: u32) -> impl Iterator<Item = u32> + Clone {
    (1..members).map(move |by| (me + by) % members)
}

/// The offset of each entry when they are concatenated.
pub(super) fn starts(bytes: &[u64]) -> Vec<u64> {
    let ends = bytes.iter().scan(0, |end, bytes| {
        *end += bytes;
        Some(*end - bytes)
    });
    ends.collect()
}
