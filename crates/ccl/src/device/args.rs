//! The structs that cross to the kernels, declared once. Public for the seeded tests only, which launch without a world.

use anabranch_hip_jit::{DevicePointer, device_struct};
use anabranch_shmem::TeamView;

device_struct! {
    /// The counters of one channel, in this rank's memory, zero at the start. Written by its own block only.
    pub struct ChannelState {
        /// Uses of its packets.
        pub epoch: u64,
        /// Its meetings.
        pub meets: u64,
        /// Uses of its staging.
        pub uses: u64,
        /// Whether launches count themselves in `inside`; set by the host before the first.
        pub is_watched: u32,
        /// Launches that have begun on it and not ended: more than one overlap.
        pub inside: u32,
    }
}

device_struct! {
    /// What the kernels of one communicator share. Offsets are bytes from the heap's start, equal on all members.
    pub struct CommView {
        /// The group.
        pub team: TeamView,
        /// `[channels]`.
        pub channels: DevicePointer<ChannelState>,
        /// Words of meetings: `[channels][members]`, 64 bytes each.
        pub flags: u64,
        /// `[channels][2 parities][2 stages][members][packet_units]` packets of 16 bytes.
        pub packets: u64,
        /// `[channels][2 halves][members][staging_bytes]`.
        pub staging: u64,
        /// Bytes of one source's part of one half, a multiple of 16.
        pub staging_bytes: u64,
        /// Where this rank's heap starts.
        pub heap: u64,
        /// Packets of one source, stage and parity.
        pub packet_units: u32,
        /// The operation's code in fault records.
        pub operation: u32,
    }
}

device_struct! {
    /// Where a buffer is.
    pub struct BufferView {
        /// Where each member's memory starts, in group order; null for a buffer that peers do not reach.
        pub bases: DevicePointer<u64>,
        /// Bytes from there, the same for all; of a buffer that peers do not reach, its address.
        pub offset: u64,
        /// The address of this rank's own: what it needs first needs no look at the table.
        pub own: u64,
    }
}

/// In [`MoveArgs::send_to`] and [`MoveArgs::receive_from`]: every member.
pub(crate) const MOVE_ALL: u32 = u32::MAX;
/// ... and no member.
pub(crate) const MOVE_NONE: u32 = u32::MAX - 1;
/// In [`ReduceArgs::root`]: every member gets the result.
pub(crate) const REDUCE_ALL: u32 = u32::MAX;

device_struct! {
    /// What is exchanged with one member, where counts differ. Bytes; offsets from the buffers' starts.
    pub struct MoveEntry {
        /// Where its bytes start in the input.
        pub send_offset: u64,
        /// How many go to it.
        pub send_bytes: u64,
        /// Where those from it go in the output.
        pub receive_offset: u64,
        /// How many come.
        pub receive_bytes: u64,
    }
}

device_struct! {
    /// Arguments of the kernels that move bytes (`kernels/move.hip`, `kernels/two_hop.hip`).
    pub struct MoveArgs {
        /// The communicator.
        pub comm: CommView,
        /// Where bytes come from.
        pub input: BufferView,
        /// Where they go.
        pub output: BufferView,
        /// Bytes to and from each member that is named.
        pub bytes: u64,
        /// The most bytes between any two members; with counts that only pairs know, of this rank's.
        pub most_bytes: u64,
        /// Packets that a channel sends to each member, at least 1: a share of `most_bytes`.
        pub channel_units: u64,
        /// Bytes that a channel copies of what this rank has for itself, a multiple of 16.
        pub channel_bytes: u64,
        /// Bytes to each member that a channel moves in one step; a multiple of 16. Through the staging at most what it holds, and
        /// not looked at where only pairs know their counts. In two hops, of each part.
        pub piece_bytes: u64,
        /// Bytes between what goes to two members; in two hops, of a part.
        pub send_stride: u64,
        /// Bytes between what comes from two members.
        pub receive_stride: u64,
        /// Bytes between what two members write into one output.
        pub remote_stride: u64,
        /// Who gets bytes of this rank: a member, [`MOVE_ALL`] or [`MOVE_NONE`].
        pub send_to: u32,
        /// Whose bytes this rank gets, likewise.
        pub receive_from: u32,
    }
}

/// The most members of a group whose counts differ: what the arguments of a launch have room for.
pub(crate) const MOST_UNEVEN: usize = 64;

device_struct! {
    /// Arguments of the kernels for counts that differ.
    pub struct UnevenArgs {
        /// CommView, places and `most_bytes`; the rest is not looked at.
        pub even: MoveArgs,
        /// What is exchanged with each member.
        pub entries: [MoveEntry; MOST_UNEVEN],
    }
}

device_struct! {
    /// How contributions become one.
    pub struct Reduction {
        /// [`ReduceOp::torch_value`](crate::types::ReduceOp::torch_value).
        pub op: u32,
        /// Contributions: the group's size.
        pub size: u32,
        /// Of `premul_sum`: the bits of an f32 in the low half, or of an f64 for f64.
        pub scalar: u64,
    }
}

device_struct! {
    /// Arguments of the kernels that reduce (`kernels/packet_reduce.hip`, `kernels/bulk_reduce.hip`).
    pub struct ReduceArgs {
        /// The communicator.
        pub comm: CommView,
        /// The contributions.
        pub input: BufferView,
        /// The results.
        pub output: BufferView,
        /// The operator.
        pub reduction: Reduction,
        /// Elements: of the whole message, or of each member's part where `is_scatter` is set.
        pub count: u64,
        /// Packets of one member's part.
        pub part_units: u64,
        /// Packets that a channel handles: of the message, or of each part.
        pub channel_units: u64,
        /// Bytes of one member's part. A multiple of 16 where parts are cut from one message.
        pub part_bytes: u64,
        /// Bytes of each part that a channel handles in one step, a multiple of 16; in `push` at most what the staging holds.
        pub piece_bytes: u64,
        /// Who gets the result: a member or [`REDUCE_ALL`].
        pub root: u32,
        /// Whether member j keeps part j alone.
        pub is_scatter: u32,
        /// Whether all addresses and strides of the call are multiples of 16 bytes.
        pub is_aligned: u32,
        /// Whether members write to one peer each at a time, with a meeting in between (`push` of large messages).
        pub is_phased: u32,
    }
}

device_struct! {
    /// Arguments of the kernel that reduces what copy engines have brought (`kernels/bulk_reduce.hip`): one round.
    pub struct EngineReduceArgs {
        /// The call. Input and output are this rank's part of this round; `staging_bytes` is what the staging takes of each member
        /// when the whole of it serves one call.
        pub reduce: ReduceArgs,
        /// Bytes of this rank's part in this round.
        pub bytes: u64,
        /// The half of the staging.
        pub half: u32,
        /// Whether all members meet once more, behind the reduction.
        pub meets_behind: u32,
    }
}

/// In a word of a [`Fingerprint`]: there is no such thing, or it need not be equal.
pub(crate) const NOTHING: u64 = u64::MAX;

device_struct! {
    /// A call, as far as all members have to make the same: one number for each thing that may differ.
    pub struct Fingerprint {
        /// The number of the call on its communicator.
        pub sequence: u64,
        /// Which collective: its place in [`Collective::ALL`](crate::types::Collective::ALL).
        pub collective: u64,
        /// Place in [`DATA_TYPES`](crate::types::DATA_TYPES).
        pub data_type: u64,
        /// [`ReduceOp::torch_value`](crate::types::ReduceOp::torch_value), or [`NOTHING`].
        pub op: u64,
        /// The operator's scalar, as in [`Reduction`].
        pub scalar: u64,
        /// Elements, as [`Shape::count`](crate::types::Shape::count) counts them; [`NOTHING`] where counts differ.
        pub count: u64,
        /// The root, or [`NOTHING`].
        pub root: u64,
        /// Whether a row of splits follows.
        pub uneven: u64,
        /// Where inputs are: 0 local, 1 symmetric, 2 registered.
        pub input_kind: u64,
        /// Which registration, where peers read inputs; otherwise [`NOTHING`].
        pub input_registration: u64,
        /// The offset in the heap or registration, where peers read inputs; otherwise [`NOTHING`].
        pub input_offset: u64,
        /// Where outputs are.
        pub output_kind: u64,
        /// Which registration, where peers write outputs.
        pub output_registration: u64,
        /// The offset, where peers write outputs.
        pub output_offset: u64,
        /// Place in [`Algorithm::ALL`](crate::Algorithm::ALL).
        pub algorithm: u64,
        /// Blocks of the launch.
        pub blocks: u64,
        /// Whether `push` goes in phases.
        pub phased: u64,
        /// Tensors of a list, or [`NOTHING`] where the call has none.
        pub tensors: u64,
        /// A digest of them all, in their order, or [`NOTHING`].
        pub list: u64,
    }
}

device_struct! {
    /// Elements between this rank and another, where counts differ.
    #[derive(PartialEq, Eq)]
    pub struct Split {
        /// How many this rank sends to it.
        pub sent: u64,
        /// How many this rank expects from it.
        pub expected: u64,
    }
}

device_struct! {
    /// One tensor of a list, as far as all members have to give the same.
    #[derive(PartialEq, Eq)]
    pub struct ListedTensor {
        /// Place in [`DATA_TYPES`](crate::types::DATA_TYPES).
        pub data_type: u64,
        /// Elements of one member's input.
        pub count: u64,
        /// Which registration the output is in, where peers write it; otherwise [`NOTHING`].
        pub registration: u64,
        /// The output's offset in the heap or registration, where peers write it; otherwise [`NOTHING`].
        pub offset: u64,
    }
}

/// Words of the row behind a fingerprint: splits with as many members as can be, or the first tensors of a list.
pub const ROW_WORDS: usize = MOST_UNEVEN * size_of::<Split>() / 8;
/// Tensors of a list that a row has room for.
pub(crate) const MOST_LISTED: usize = ROW_WORDS * 8 / size_of::<ListedTensor>();

device_struct! {
    /// Arguments of the kernel that compares calls (`kernels/fingerprint.hip`).
    pub struct FingerprintArgs {
        /// The check's own: one channel; its staging takes a fingerprint and a row of each member.
        pub comm: CommView,
        /// This rank's call.
        pub mine: Fingerprint,
        /// What is told beside it: a [`Split`] with each member, where `mine.uneven` is set, or [`ListedTensor`]s, where
        /// `mine.tensors` says so. Splits are compared; tensors are for the error alone, as `mine.list` is compared.
        pub row: [u64; ROW_WORDS],
        /// Words of the row that are told.
        pub row_words: u64,
    }
}

device_struct! {
    /// The counters of the pipes between this rank and one peer, in this rank's memory, zero at the start.
    pub struct PipeState {
        /// Chunks sent to the peer.
        pub sent: u64,
        /// Chunks received from it.
        pub received: u64,
    }
}

device_struct! {
    /// The pipes of one communicator (`device/ccl/pipe.h`). Offsets are bytes from the heap's start, equal on all members.
    pub struct Pipes {
        /// The group.
        pub team: TeamView,
        /// `[members][width]`.
        pub states: DevicePointer<PipeState>,
        /// `[members as sources][width]`, 64 bytes each: chunks that have arrived, then the headers of the slots.
        pub arrived: u64,
        /// `[members as targets][width]`, 64 bytes each: chunks that the target has read.
        pub consumed: u64,
        /// `[members as sources][width][depth][slot_bytes]`.
        pub slots: u64,
        /// Bytes of a slot, a multiple of 256.
        pub slot_bytes: u64,
        /// Pipes from one member to another.
        pub width: u32,
        /// Slots of a pipe, at most 7.
        pub depth: u32,
        /// Bytes that a chunk has at least, unless it is the message's last; at most `slot_bytes`, a multiple of 256.
        pub least_bytes: u32,
        /// The operation's code in fault records.
        pub operation: u32,
    }
}

device_struct! {
    /// One message to or from a peer.
    pub struct Transfer {
        /// This rank's tensor.
        pub address: u64,
        /// Bytes of the message.
        pub bytes: u64,
        /// The peer.
        pub peer: u32,
        /// The next message of the same peer and direction, or `u32::MAX`.
        pub next: u32,
    }
}

/// Messages that the arguments of a launch have room for; more are listed in memory.
pub const MOST_TRANSFERS: usize = 64;

device_struct! {
    /// Arguments of `kernels/pipes.hip`.
    pub struct PipesArgs {
        /// The communicator's pipes.
        pub pipes: Pipes,
        /// All messages, when there are more than fit here; else null.
        pub table: DevicePointer<Transfer>,
        /// Lists of messages: one for each peer and direction that has any. The first message of list i is message i.
        pub lists: u32,
        /// Lists of messages to receive; they come first.
        pub receive_lists: u32,
        /// The most pipes that a message of this launch needs.
        pub used_pipes: u32,
        /// Zero.
        pub reserved: u32,
        /// The messages.
        pub transfers: [Transfer; MOST_TRANSFERS],
    }
}

device_struct! {
    /// One of several tensors that are gathered together.
    pub struct Segment {
        /// This rank's input.
        pub input: u64,
        /// The outputs: inputs of all members, in group order.
        pub output: BufferView,
        /// Bytes of one input.
        pub bytes: u64,
        /// Where it starts when the inputs are laid out one after the other, each from a multiple of 16 on.
        pub start: u64,
    }
}

/// Segments that the arguments of a launch have room for; more are listed in memory.
pub const MOST_SEGMENTS: usize = 64;

device_struct! {
    /// Arguments of `kernels/gather_many.hip`.
    pub struct GatherManyArgs {
        /// The communicator.
        pub comm: CommView,
        /// All segments, when there are more than fit here; else null.
        pub table: DevicePointer<Segment>,
        /// Bytes of all inputs laid out.
        pub total: u64,
        /// Number of segments.
        pub count: u32,
        /// Whether all addresses and lengths are multiples of 8.
        pub is_wide: u32,
        /// The segments.
        pub segments: [Segment; MOST_SEGMENTS],
    }
}

device_struct! {
    /// The counters of the links between this rank and one peer, in this rank's memory, zero at the start.
    pub struct LinkState {
        /// Chunks given to the peer.
        pub given: u64,
        /// Chunks taken from it.
        pub taken: u64,
    }
}

device_struct! {
    /// The links of one communicator (`device/ccl/links.h`). Offsets are bytes from the heap's start, equal on all members.
    pub struct Links {
        /// The group.
        pub team: TeamView,
        /// `[channels][streams][members]`.
        pub states: DevicePointer<LinkState>,
        /// Where this rank's heap starts.
        pub heap: u64,
        /// `[channels][streams][members as sources]`, 64 bytes each: chunks that have arrived.
        pub arrived: u64,
        /// `[channels][streams][members as targets]`, 64 bytes each: chunks that the target has taken.
        pub consumed: u64,
        /// `[channels][streams][members as sources][depth][slot_bytes]`.
        pub incoming: u64,
        /// `[channels][streams][members as targets][depth][slot_bytes]`: what goes to members on other machines lies here first.
        pub outgoing: u64,
        /// Bytes of a slot, a multiple of 256.
        pub slot_bytes: u64,
        /// The operation's code in fault records.
        pub operation: u32,
        /// Zero.
        pub reserved: u32,
    }
}

/// In [`LinkPort::flags`]: it is a link, and no memory.
pub(crate) const PORT_LINK: u32 = 1;
/// ... to or from a member on another machine.
pub(crate) const PORT_ACROSS: u32 = 2;

device_struct! {
    /// A source or a target of a step.
    #[derive(PartialEq, Eq)]
    pub struct LinkPort {
        /// This rank's memory, or which of the links.
        pub address: u64,
        /// The member at the link's other end.
        pub peer: u32,
        /// [`PORT_LINK`], [`PORT_ACROSS`].
        pub flags: u32,
    }
}

/// In [`LinkStep::flags`]: its sources are reduced; otherwise there is one, whose bytes move.
pub(crate) const STEP_REDUCES: u32 = 1;
/// ... its first source is a sum that is not rounded.
pub(crate) const STEP_TAKES_UNROUNDED: u32 = 2;
/// ... its targets get the sum unrounded.
pub(crate) const STEP_GIVES_UNROUNDED: u32 = 4;
/// ... channel 0 does it once, without bytes.
pub(crate) const STEP_IS_TOKEN: u32 = 8;
/// ... its sources lie one behind the other in its one target.
pub(crate) const STEP_PACKS: u32 = 16;
/// ... its targets lie one behind the other in its one source.
pub(crate) const STEP_UNPACKS: u32 = 32;

device_struct! {
    /// What a channel does for each chunk of a message ([`Step`](crate::network::schedule::Step)).
    pub struct LinkStep {
        /// Bytes of all chunks, as they lie in tensors; of each piece where they are packed.
        pub bytes: u64,
        /// Its first port: sources, then targets.
        pub first_port: u32,
        /// How many sources.
        pub sources: u32,
        /// How many targets.
        pub targets: u32,
        /// The time of chunk 0.
        pub lag: u32,
        /// [`STEP_REDUCES`] and so on.
        pub flags: u32,
        /// Zero.
        pub reserved: u32,
    }
}

/// Words of steps and ports that the arguments of a launch have room for, which is enough for any call of 20 members; more lie in memory.
pub(crate) const MOST_STEP_WORDS: usize = 448;

device_struct! {
    /// Arguments of `kernels/network_move.hip` and `kernels/network_reduce.hip`.
    pub struct NetworkArgs {
        /// The communicator's links.
        pub links: Links,
        /// The operator, where anything is reduced.
        pub reduction: Reduction,
        /// The steps ([`LinkStep`]) in their order, then their ports ([`LinkPort`]), when there are more than fit here; else null.
        pub table: DevicePointer<u64>,
        /// Bytes of a chunk, as they lie in tensors; a multiple of 16.
        pub piece_bytes: u64,
        /// Times that a channel goes through.
        pub times: u64,
        /// How many steps.
        pub step_count: u32,
        /// Zero.
        pub reserved: u32,
        /// The steps and their ports.
        pub words: [u64; MOST_STEP_WORDS],
    }
}
