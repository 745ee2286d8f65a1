//! Argument structs of kernels, shared between host and device. Public only for the seeded tests, which launch without a world.

use anabranch_hip_jit::{DevicePointer, device_struct};
use anabranch_shmem::TeamView;

device_struct! {
    /// Counters of one channel, in the memory of this rank. Initially zero. Only the block of the channel writes them.
    pub struct ChannelState {
        /// Epochs of its packets.
        pub epoch: u64,
        /// Its barriers.
        pub meets: u64,
        /// Uses of its staging.
        pub uses: u64,
        /// Whether launches count themselves in `inside`. The host sets it before the first launch.
        pub is_watched: u32,
        /// Launches in progress on the channel. More than one is an overlap.
        pub inside: u32,
    }
}

device_struct! {
    /// The memory of one communicator, as kernels see it. Offsets are bytes from the start of the heap, equal on all members.
    pub struct CommView {
        /// The group.
        pub team: TeamView,
        /// `[channels]`.
        pub channels: DevicePointer<ChannelState>,
        /// Flags of barriers: `[channels][members]`, 64 bytes each.
        pub flags: u64,
        /// `[channels][2 parities][2 stages][members][packet_units]` packets of 16 bytes.
        pub packets: u64,
        /// `[channels][2 halves][members][staging_bytes]`.
        pub staging: u64,
        /// Bytes of the part of one source in one half, a multiple of 16.
        pub staging_bytes: u64,
        /// Address of the heap of this rank.
        pub heap: u64,
        /// Packets of one source, stage and parity.
        pub packet_units: u32,
        /// The operation's code in fault records.
        pub operation: u32,
    }
}

device_struct! {
    /// A buffer of all members.
    pub struct BufferView {
        /// Base address of the memory of each member, in group order; null for a buffer that is not mapped at peers.
        pub bases: DevicePointer<u64>,
        /// Offset from the base, equal on all members; the address for a buffer that is not mapped at peers.
        pub offset: u64,
        /// Address on this rank, so that no lookup in the table is needed.
        pub own: u64,
    }
}

/// Value of [`MoveArgs::send_to`] and [`MoveArgs::receive_from`]: every member.
pub(crate) const MOVE_ALL: u32 = u32::MAX;
/// Value of [`MoveArgs::send_to`] and [`MoveArgs::receive_from`]: no member.
pub(crate) const MOVE_NONE: u32 = u32::MAX - 1;
/// Value of [`ReduceArgs::root`]: every member gets the result.
pub(crate) const REDUCE_ALL: u32 = u32::MAX;

device_struct! {
    /// Arguments of the kernels that move bytes (`kernels/move.hip`, `kernels/two_hop.hip`).
    pub struct MoveArgs {
        /// The communicator.
        pub comm: CommView,
        /// The input.
        pub input: BufferView,
        /// The output.
        pub output: BufferView,
        /// Bytes to and from each member in `send_to` and `receive_from`.
        pub bytes: u64,
        /// The most bytes between any two members; of this rank, if only pairs know their counts.
        pub most_bytes: u64,
        /// Packets that a channel sends to each member, at least 1: a share of `most_bytes`.
        pub channel_units: u64,
        /// Bytes that a channel copies from the input to the output of this rank, a multiple of 16.
        pub channel_bytes: u64,
        /// Bytes to each member that a channel moves in one step; a multiple of 16. Through the staging at most the capacity of a half;
        /// unused there if only pairs know their counts. In two hops: of each part.
        pub piece_bytes: u64,
        /// Bytes between the data for two consecutive members in the input; in two hops, of a part.
        pub send_stride: u64,
        /// Bytes between the data from two consecutive members in the output.
        pub receive_stride: u64,
        /// Bytes between the data that two consecutive members write into one output.
        pub remote_stride: u64,
        /// The destination: a member, [`MOVE_ALL`] or [`MOVE_NONE`].
        pub send_to: u32,
        /// The source: a member, [`MOVE_ALL`] or [`MOVE_NONE`].
        pub receive_from: u32,
    }
}

/// The most members of a group with different counts: the arguments of a launch hold this many entries.
pub(crate) const MOST_UNEVEN: usize = 64;

device_struct! {
    /// The operator.
    pub struct Reduction {
        /// [`ReduceOp::torch_value`](crate::types::ReduceOp::torch_value).
        pub op: u32,
        /// Number of contributions: the size of the group.
        pub size: u32,
        /// The scalar of `premul_sum`: the bits of an f32 in the low half, of an f64 for f64, an integer modulo 2^64.
        pub scalar: u64,
        /// Address of the scalar, an element of the type of the call, if it is in device memory; else 0.
        pub scalar_at: u64,
    }
}

device_struct! {
    /// Arguments of the kernels that reduce (`kernels/packet_reduce.hip`, `kernels/bulk_reduce.hip`,
    /// `kernels/push_to_root.hip`).
    pub struct ReduceArgs {
        /// The communicator.
        pub comm: CommView,
        /// The contributions.
        pub input: BufferView,
        /// The results.
        pub output: BufferView,
        /// The operator.
        pub reduction: Reduction,
        /// Elements of the whole message, or of the part of each member if `is_scatter` is set.
        pub count: u64,
        /// Packets of the part of one member.
        pub part_units: u64,
        /// Packets of the message, or of each part, that a channel handles.
        pub channel_units: u64,
        /// Bytes of the part of one member. A multiple of 16 if parts are cut from one message.
        pub part_bytes: u64,
        /// Bytes of each part that a channel handles in one step, a multiple of 16; in `push` at most the capacity of the staging.
        pub piece_bytes: u64,
        /// The destination: a member or [`REDUCE_ALL`].
        pub root: u32,
        /// Whether only member j keeps part j.
        pub is_scatter: u32,
        /// Whether all addresses and strides of the call are multiples of 16 bytes.
        pub is_aligned: u32,
        /// Whether members write to one peer at a time, with barriers in between (`push` of large messages, but for reduce).
        pub is_phased: u32,
        /// Offset of the part of this rank in the inputs.
        pub own_start: u64,
        /// Bytes of the part of this rank.
        pub own_bytes: u64,
    }
}

device_struct! {
    /// Arguments of the kernel that reduces contributions moved by copy engines (`kernels/bulk_reduce.hip`): one round.
    pub struct EngineReduceArgs {
        /// The call. Input and output are the part of this rank in this round. `staging_bytes` is the capacity per member if one call uses
        /// the whole staging.
        pub reduce: ReduceArgs,
        /// Bytes of the part of this rank in this round.
        pub bytes: u64,
        /// The half of the staging.
        pub half: u32,
        /// Whether a barrier follows the reduction.
        pub ends_with_barrier: u32,
    }
}

/// Value of a word of a [`Fingerprint`] that does not apply, or need not be equal.
pub(crate) const NOTHING: u64 = u64::MAX;

device_struct! {
    /// The properties of a call that have to be equal on all members, one word each.
    pub struct Fingerprint {
        /// Sequence number of the call on its communicator.
        pub sequence: u64,
        /// The collective: index in [`Collective::ALL`](crate::types::Collective::ALL).
        pub collective: u64,
        /// Index in [`DATA_TYPES`](crate::types::DATA_TYPES).
        pub data_type: u64,
        /// [`ReduceOp::torch_value`](crate::types::ReduceOp::torch_value), or [`NOTHING`].
        pub op: u64,
        /// The scalar of the operator, as in [`Reduction`]; [`NOTHING`] for one in device memory.
        pub scalar: u64,
        /// Elements, as in [`Shape::count`](crate::types::Shape::count); [`NOTHING`] for different counts.
        pub count: u64,
        /// The root, or [`NOTHING`].
        pub root: u64,
        /// Whether a row of splits follows.
        pub uneven: u64,
        /// Memory of the input: 0 local, 1 symmetric, 2 registered.
        pub input_kind: u64,
        /// Number of the registration if peers read inputs, else [`NOTHING`].
        pub input_registration: u64,
        /// Offset in the heap or registration if peers read inputs, else [`NOTHING`].
        pub input_offset: u64,
        /// Memory of the output, likewise.
        pub output_kind: u64,
        /// Number of the registration if peers write outputs, else [`NOTHING`].
        pub output_registration: u64,
        /// Offset in the heap or registration if peers write outputs, else [`NOTHING`].
        pub output_offset: u64,
        /// Index in [`Algorithm::ALL`](crate::Algorithm::ALL).
        pub algorithm: u64,
        /// Blocks of the launch.
        pub blocks: u64,
        /// Whether `push` has phases.
        pub phased: u64,
        /// Number of tensors of a list, or [`NOTHING`] if the call has none.
        pub tensors: u64,
        /// Digest of the list, or [`NOTHING`].
        pub list: u64,
        /// Elements of a row of the norm that follows, or [`NOTHING`].
        pub norm_row: u64,
    }
}

device_struct! {
    /// Elements exchanged between this rank and another, with different counts.
    #[derive(PartialEq, Eq)]
    pub struct Split {
        /// Elements sent to the other rank.
        pub sent: u64,
        /// Elements expected from the other rank.
        pub expected: u64,
    }
}

device_struct! {
    /// The properties of one tensor of a list that have to be equal on all members.
    #[derive(PartialEq, Eq)]
    pub struct ListedTensor {
        /// Index in [`DATA_TYPES`](crate::types::DATA_TYPES).
        pub data_type: u64,
        /// Elements of the input of one member.
        pub count: u64,
        /// Number of the registration of the output if peers write it, else [`NOTHING`].
        pub registration: u64,
        /// Offset of the output in the heap or registration if peers write it, else [`NOTHING`].
        pub offset: u64,
    }
}

/// Words of the row after a fingerprint: a split with each member, or the first tensors of a list.
pub const ROW_WORDS: usize = MOST_UNEVEN * size_of::<Split>() / 8;
/// Tensors of a list that a row holds.
pub(crate) const MOST_LISTED: usize = ROW_WORDS * 8 / size_of::<ListedTensor>();

device_struct! {
    /// Arguments of the kernel that compares calls (`kernels/fingerprint.hip`).
    pub struct FingerprintArgs {
        /// The memory of the check: one channel, whose staging holds a fingerprint and a row of each member.
        pub comm: CommView,
        /// The call of this rank.
        pub mine: Fingerprint,
        /// The row: a [`Split`] with each member if `mine.uneven` is set, or [`ListedTensor`]s if `mine.tensors` is set. Splits are
        /// compared. Tensors are only for the error text, as `mine.list` is compared.
        pub row: [u64; ROW_WORDS],
        /// Words of the row in use.
        pub row_words: u64,
    }
}

device_struct! {
    /// Counters of one pipe between this rank and one peer, in the memory of this rank. Initially zero.
    pub struct PipeState {
        /// Chunks sent to the peer.
        pub sent: u64,
        /// Chunks received from it.
        pub received: u64,
    }
}

device_struct! {
    /// The pipes of one communicator (`device/ccl/pipe.h`). Offsets are bytes from the start of the heap, equal on all members.
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
        /// The least bytes of a chunk that is not the last of its message; at most `slot_bytes`, a multiple of 256.
        pub least_bytes: u32,
        /// The operation's code in fault records.
        pub operation: u32,
    }
}

device_struct! {
    /// One message to or from a peer.
    pub struct Transfer {
        /// Address of the tensor of this rank.
        pub address: u64,
        /// Bytes of the message.
        pub bytes: u64,
        /// The peer.
        pub peer: u32,
        /// Index of the next message of the same peer and direction, or `u32::MAX`.
        pub next: u32,
    }
}

/// Messages that the arguments of a launch hold; longer lists are in device memory.
pub const MOST_TRANSFERS: usize = 64;

device_struct! {
    /// Arguments of `kernels/pipes.hip`.
    pub struct PipesArgs {
        /// The communicator's pipes.
        pub pipes: Pipes,
        /// All messages if they do not fit into `transfers`, else null.
        pub table: DevicePointer<Transfer>,
        /// Number of lists of messages: one for each peer and direction in use. The first message of list i is message i.
        pub lists: u32,
        /// Number of lists of receives, which come first.
        pub receive_lists: u32,
        /// The most pipes that one message of this launch needs.
        pub used_pipes: u32,
        /// Zero.
        pub reserved: u32,
        /// The messages.
        pub transfers: [Transfer; MOST_TRANSFERS],
    }
}

device_struct! {
    /// One of several tensors of an all_gather.
    pub struct Segment {
        /// Address of the input of this rank.
        pub input: u64,
        /// The outputs, which hold the inputs of all members in group order.
        pub output: BufferView,
        /// Bytes of one input.
        pub bytes: u64,
        /// Offset of the input in the message: inputs are laid out one after the other, each at a multiple of 16.
        pub start: u64,
    }
}

/// Segments that the arguments of a launch hold; longer lists are in device memory.
pub const MOST_SEGMENTS: usize = 64;

device_struct! {
    /// Arguments of `kernels/gather_many.hip`.
    pub struct GatherManyArgs {
        /// The communicator.
        pub comm: CommView,
        /// All segments if they do not fit into `segments`, else null.
        pub table: DevicePointer<Segment>,
        /// Bytes of the message.
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
    /// Counters of one link in each direction between this rank and one peer, in the memory of this rank. Initially zero.
    pub struct LinkState {
        /// Chunks sent to the peer.
        pub given: u64,
        /// Chunks received from it.
        pub taken: u64,
    }
}

device_struct! {
    /// The links of one communicator (`device/ccl/links.h`). Offsets are bytes from the start of the heap, equal on all members.
    pub struct Links {
        /// The group.
        pub team: TeamView,
        /// `[channels][streams][members]`.
        pub states: DevicePointer<LinkState>,
        /// Address of the heap of this rank.
        pub heap: u64,
        /// `[channels][streams][members as sources]`, 64 bytes each: chunks that have arrived.
        pub arrived: u64,
        /// `[channels][streams][members as targets]`, 64 bytes each: chunks that the target has received.
        pub consumed: u64,
        /// `[channels][streams][members as sources][depth][slot_bytes]`.
        pub incoming: u64,
        /// `[channels][streams][members as targets][depth][slot_bytes]`: send buffers of internode chunks.
        pub outgoing: u64,
        /// Bytes of a slot, a multiple of 256.
        pub slot_bytes: u64,
        /// The operation's code in fault records.
        pub operation: u32,
        /// Zero.
        pub reserved: u32,
    }
}

device_struct! {
    /// A source or a target of a step.
    #[derive(PartialEq, Eq)]
    pub struct LinkPort {
        /// Address in the memory of this rank, or the stream of the link.
        pub address: u64,
        /// The member at the other end of the link.
        pub peer: u32,
        /// `PORT_LINK` and `PORT_INTERNODE` of `network/lower.rs`.
        pub flags: u32,
    }
}

device_struct! {
    /// One step that a channel runs for each chunk of a message (`Step` of `network/schedule.rs`).
    pub struct LinkStep {
        /// Bytes of all chunks in tensors; of each piece if chunks are packed.
        pub bytes: u64,
        /// Index of its first port. Sources precede targets.
        pub first_port: u32,
        /// Number of sources.
        pub sources: u32,
        /// Number of targets.
        pub targets: u32,
        /// The time at which chunk 0 is handled.
        pub lag: u32,
        /// `STEP_REDUCES` and so on.
        pub flags: u32,
        /// Zero.
        pub reserved: u32,
    }
}

/// Words of steps and ports that the arguments of a launch hold: enough for any call of 20 members. Longer lists are in device memory.
pub(crate) const MOST_STEP_WORDS: usize = 448;

device_struct! {
    /// Arguments of `kernels/network_move.hip` and `kernels/network_reduce.hip`.
    pub struct NetworkArgs {
        /// The communicator's links.
        pub links: Links,
        /// The operator, if the call reduces.
        pub reduction: Reduction,
        /// The steps ([`LinkStep`]) in order, then their ports ([`LinkPort`]), if they do not fit into `words`, else null.
        pub table: DevicePointer<u64>,
        /// Bytes of a chunk in tensors; a multiple of 16.
        pub piece_bytes: u64,
        /// Number of times that a channel iterates.
        pub times: u64,
        /// Number of steps.
        pub step_count: u32,
        /// Zero.
        pub reserved: u32,
        /// The steps and their ports.
        pub words: [u64; MOST_STEP_WORDS],
    }
}
