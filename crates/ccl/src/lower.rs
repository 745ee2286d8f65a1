//! What a kernel gets for a call: from its shape and where its buffers are to the entry point and its arguments. Pure arithmetic,
//! public for the seeded tests only, which launch without a world.

use anabranch_hip_jit::bytemuck::Zeroable;
use anabranch_hip_jit::{DevicePointer, KernelSpec};
use anabranch_ranks::GroupRank;
use anabranch_shmem::World;

use crate::args::{
    Channel, EngineReduceArgs, GatherManyArgs, MOST_UNEVEN, MOVE_ALL, MOVE_NONE, MoveArgs, MoveEntry,
    NetworkArgs, PipesArgs, Place, REDUCE_ALL, ReduceArgs, Reduction, UnevenArgs,
};
use crate::call::{Collective, Shape};
use crate::kernels::{self, entry};
use crate::plan::{Algorithm, Plan};
use crate::{DataType, ReduceOp};

/// `LOCAL_TABLES` in `ccl/lane.h`.
const LOCAL_TABLES: u32 = 40;

/// Local memory of a block: the lane's words, then three tables of addresses.
pub const fn local_bytes(members: u32) -> u32 {
    LOCAL_TABLES + 3 * 8 * members
}

/// Which kernels a call needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Unit {
    /// `kernels/fingerprint.hip`: before the kernel of any call, where calls are compared.
    Fingerprint,
    /// `kernels/move.hip`.
    Move,
    /// `kernels/gather_many.hip`.
    GatherMany,
    /// `kernels/pipes.hip`.
    Pipes,
    /// `kernels/two_hop.hip`.
    TwoHop,
    /// `kernels/ring.hip`.
    Ring,
    /// `kernels/ring_reduce.hip`.
    RingReduce(DataType),
    /// `kernels/packet_reduce.hip`.
    PacketReduce(DataType),
    /// `kernels/bulk_reduce.hip`.
    BulkReduce(DataType),
    /// `kernels/network_move.hip`.
    NetworkMove,
    /// `kernels/network_reduce.hip`.
    NetworkReduce(DataType),
}

impl Unit {
    /// What is compiled.
    pub fn spec(self) -> KernelSpec {
        match self {
            Self::Fingerprint => kernels::fingerprint(),
            Self::Move => kernels::move_bytes(),
            Self::GatherMany => kernels::gather_many(),
            Self::Pipes => kernels::pipes(),
            Self::TwoHop => kernels::two_hop(),
            Self::Ring => kernels::ring(),
            Self::RingReduce(element) => kernels::ring_reduce(element),
            Self::PacketReduce(element) => kernels::packet_reduce(element),
            Self::BulkReduce(element) => kernels::bulk_reduce(element),
            Self::NetworkMove => kernels::network_move(),
            Self::NetworkReduce(element) => kernels::network_reduce(element),
        }
    }

    /// The same as the world's routes need it, for kernels that use the device functions of the heap.
    pub(crate) fn spec_in(self, world: &World) -> KernelSpec {
        match self {
            Self::NetworkMove => world.kernel(&kernels::NETWORK_MOVE),
            Self::NetworkReduce(element) => {
                world.kernel(&kernels::NETWORK_REDUCE).with("CCL_ELEMENT", element.device_name())
            }
            other => other.spec(),
        }
    }
}

/// The unit and the entry point for a call.
pub fn kernel_of(shape: &Shape, algorithm: Algorithm) -> (Unit, &'static str) {
    let packet = Unit::PacketReduce(shape.data_type);
    let bulk = Unit::BulkReduce(shape.data_type);
    let reduces = shape.collective.reduces();
    match algorithm {
        Algorithm::NetworkDirect | Algorithm::NetworkByNode if reduces => {
            (Unit::NetworkReduce(shape.data_type), entry::NETWORK_REDUCE)
        }
        Algorithm::NetworkDirect | Algorithm::NetworkByNode => (Unit::NetworkMove, entry::NETWORK_MOVE),
        // One meeting, whatever is asked for: there is nothing to move, and what came before it has to be visible behind it.
        _ if shape.collective == Collective::Barrier => (Unit::Move, entry::BARRIER),
        Algorithm::Packets if shape.collective == Collective::ReduceScatter => {
            (packet, entry::SCATTER_PACKETS)
        }
        Algorithm::Packets if reduces => (packet, entry::ONE_SHOT),
        Algorithm::Packets if shape.uneven => (Unit::Move, entry::UNEVEN_PACKETS),
        Algorithm::Staged if shape.uneven => (Unit::Move, entry::UNEVEN_STAGED),
        Algorithm::Direct if shape.uneven => (Unit::Move, entry::UNEVEN_DIRECT),
        Algorithm::Packets => (Unit::Move, entry::MOVE_PACKETS),
        Algorithm::TwoShotPackets => (packet, entry::TWO_SHOT),
        Algorithm::Staged => (Unit::Move, entry::MOVE_STAGED),
        Algorithm::Direct => (Unit::Move, entry::MOVE_DIRECT),
        Algorithm::Pull => (bulk, entry::PULL),
        Algorithm::Push => (bulk, entry::PUSH),
        Algorithm::TwoHop => (Unit::TwoHop, entry::TWO_HOP),
        Algorithm::Ring if reduces => (Unit::RingReduce(shape.data_type), entry::RING_REDUCE),
        Algorithm::Ring => (Unit::Ring, entry::RING_MOVE),
        Algorithm::CopyEngine if reduces => (bulk, entry::ENGINE_REDUCE),
        // Engines move the bytes.
        Algorithm::CopyEngine => (Unit::Move, entry::BARRIER),
        Algorithm::Pipes => (Unit::Pipes, entry::PIPES),
    }
}

/// The same for many tensors gathered.
pub const fn gather_many_kernel(algorithm: Algorithm) -> (Unit, &'static str) {
    let entry = match algorithm {
        Algorithm::Packets => entry::GATHER_MANY_PACKETS,
        Algorithm::Direct => entry::GATHER_MANY_DIRECT,
        _ => entry::GATHER_MANY_STAGED,
    };
    (Unit::GatherMany, entry)
}

/// Where the buffers of a call are.
#[derive(Clone, Copy, Debug)]
pub struct Buffers {
    /// The input; [`NOWHERE`](Self::NOWHERE) for none.
    pub input: Place,
    /// The output.
    pub output: Place,
    /// What all their addresses are multiples of, at most 16.
    pub alignment: u64,
}

impl Buffers {
    /// No buffer.
    pub const NOWHERE: Place = Place { bases: DevicePointer::NULL, offset: 0, own: 0 };
}

/// Elements that are exchanged with each member, where counts differ.
#[derive(Clone, Copy, Debug)]
pub enum Counts<'a> {
    /// They do not.
    Even,
    /// Of each member's input.
    AllGather(&'a [u64]),
    /// To and from each member.
    AllToAll {
        /// What goes to each.
        input_splits: &'a [u64],
        /// What comes from each.
        output_splits: &'a [u64],
    },
}

/// The arguments of a launch.
#[derive(Clone, Debug)]
pub enum Arguments {
    /// Of the kernels that move bytes, and of the barrier.
    Move(MoveArgs),
    /// ... with counts that differ.
    Uneven(Box<UnevenArgs>),
    /// Of the kernels that reduce.
    Reduce(ReduceArgs),
    /// Of the kernel that reduces what copy engines have brought.
    EngineReduce(Box<EngineReduceArgs>),
    /// Of the kernels that gather many tensors.
    GatherMany(Box<GatherManyArgs>),
    /// Of the kernel that sends and receives.
    Pipes(Box<PipesArgs>),
    /// Of the kernels that do steps across machines.
    Network(Box<NetworkArgs>),
}

impl Arguments {
    /// Of the kernel that only meets.
    pub fn meeting(channel: &Channel) -> Self {
        Self::Move(MoveArgs {
            channel: *channel,
            input: Buffers::NOWHERE,
            output: Buffers::NOWHERE,
            ..MoveArgs::zeroed()
        })
    }

    /// Those of a call of this shape, by the member that the channel's team names.
    pub fn new(channel: &Channel, shape: &Shape, plan: &Plan, buffers: &Buffers, counts: Counts<'_>) -> Self {
        match (shape.op, counts) {
            (Some(op), _) => Self::Reduce(reduce(channel, shape, plan, op, buffers)),
            (None, Counts::Even) => Self::Move(even(channel, shape, plan, buffers)),
            (None, counts) => {
                let even = even(channel, shape, plan, buffers);
                Self::Uneven(Box::new(uneven(even, shape.data_type, plan, counts)))
            }
        }
    }
}

/// Bytes that a packet carries: `PAYLOAD` in `ccl/packets.h`.
const PAYLOAD: u64 = 8;
/// The most bytes of a part that a lane handles in one go where nothing else bounds it: with 512 threads a thread has two pieces
/// of 16 bytes of each member under way in plain sums, and four of one where bytes only move.
const REDUCED_AT_ONCE: u64 = 16 << 10;
const MOVED_AT_ONCE: u64 = 32 << 10;
/// The same for parts that go through the staging and stay with their owner: more would have left its caches when it is reduced.
const SCATTERED_AT_ONCE: u64 = 128 << 10;

/// A share of `bytes` for each lane, in whole pieces of 16 bytes, and at most `most`.
fn piece(bytes: u64, plan: &Plan, most: u64) -> u64 {
    bytes.div_ceil(u64::from(plan.blocks)).next_multiple_of(16).clamp(16, most)
}

/// How contributions become one.
pub(crate) fn reduction(shape: &Shape, op: ReduceOp) -> Reduction {
    let scalar = op.scalar_bits(shape.data_type);
    Reduction { op: op.torch_value(), size: shape.members, scalar }
}

fn reduce(channel: &Channel, shape: &Shape, plan: &Plan, op: ReduceOp, buffers: &Buffers) -> ReduceArgs {
    let is_scatter = shape.collective == Collective::ReduceScatter;
    let stride = if is_scatter { shape.bytes() } else { 0 };
    let members = u64::from(shape.members);
    // In the ring all members reduce all of it.
    let is_cut = !is_scatter && plan.algorithm != Algorithm::Ring;
    let part_bytes = if is_cut { part_of(shape) } else { shape.bytes() };
    let units = shape.bytes().div_ceil(PAYLOAD);
    let part_units = if is_scatter { units } else { units.div_ceil(members) };
    let shared = if plan.algorithm == Algorithm::TwoShotPackets { part_units } else { units };
    let most = match (plan.algorithm, is_scatter) {
        (Algorithm::Push, true) => channel.staging_bytes.min(SCATTERED_AT_ONCE),
        (Algorithm::Push, false) => channel.staging_bytes,
        (Algorithm::Ring, _) => unrounded_at_once(channel, shape.data_type),
        _ => REDUCED_AT_ONCE,
    };
    ReduceArgs {
        channel: *channel,
        input: buffers.input,
        output: buffers.output,
        reduction: reduction(shape, op),
        count: shape.count,
        part_units,
        lane_units: shared.div_ceil(u64::from(plan.blocks)),
        part_bytes,
        piece_bytes: piece(part_bytes, plan, most),
        root: shape.root.map_or(REDUCE_ALL, GroupRank::get),
        is_scatter: u32::from(is_scatter),
        is_aligned: u32::from(buffers.alignment == 16 && stride.is_multiple_of(16)),
        is_phased: u32::from(plan.phased),
    }
}

/// Bytes of a member's part of a message that is cut among the members.
fn part_of(shape: &Shape) -> u64 {
    shape.bytes().div_ceil(u64::from(shape.members)).next_multiple_of(16)
}

/// Bytes of elements whose sums fill a slot of the ring: they travel in the accumulation type. A multiple of 16 where the
/// staging's parts are of 64.
fn unrounded_at_once(channel: &Channel, data_type: DataType) -> u64 {
    let size = u64::from(data_type.bytes());
    let travelling = if data_type.is_float() { size.max(4) } else { size };
    channel.staging_bytes.min(MOVED_AT_ONCE) / travelling * size
}

fn even(channel: &Channel, shape: &Shape, plan: &Plan, buffers: &Buffers) -> MoveArgs {
    let bytes = shape.bytes();
    let even = MoveArgs {
        channel: *channel,
        input: buffers.input,
        output: buffers.output,
        bytes,
        most_bytes: bytes,
        lane_units: lane_units(bytes, plan),
        lane_bytes: piece(bytes, plan, u64::MAX),
        piece_bytes: piece(bytes, plan, at_once(channel, plan)),
        send_stride: 0,
        receive_stride: bytes,
        remote_stride: bytes,
        send_to: MOVE_ALL,
        receive_from: MOVE_ALL,
    };
    let root = shape.root.map_or(MOVE_NONE, GroupRank::get);
    let is_root = root == channel.team.rank;
    let at_root = if is_root { MOVE_ALL } else { MOVE_NONE };
    match shape.collective {
        Collective::Broadcast if plan.algorithm == Algorithm::TwoHop => {
            let part = part_of(shape);
            // Where outputs are reached each lane's share is one piece: a meeting follows each.
            let most = if shape.output.is_reached() { u64::MAX } else { channel.staging_bytes };
            MoveArgs {
                piece_bytes: piece(part, plan, most),
                send_stride: part,
                receive_stride: part,
                remote_stride: part,
                send_to: at_root,
                receive_from: root,
                ..even
            }
        }
        Collective::AllToAll => MoveArgs { send_stride: bytes, ..even },
        Collective::Broadcast => {
            MoveArgs { receive_stride: 0, remote_stride: 0, send_to: at_root, receive_from: root, ..even }
        }
        Collective::Gather => MoveArgs { send_to: root, receive_from: at_root, ..even },
        Collective::Scatter => MoveArgs {
            send_stride: bytes,
            receive_stride: 0,
            remote_stride: 0,
            send_to: at_root,
            receive_from: root,
            ..even
        },
        _ => even,
    }
}

/// Packets to each member that a lane sends: at least one, so that all members hear of each other.
fn lane_units(most_bytes: u64, plan: &Plan) -> u64 {
    most_bytes.div_ceil(PAYLOAD).div_ceil(u64::from(plan.blocks)).max(1)
}

const fn at_once(channel: &Channel, plan: &Plan) -> u64 {
    match plan.algorithm {
        Algorithm::Staged => channel.staging_bytes,
        Algorithm::Ring if channel.staging_bytes < MOVED_AT_ONCE => channel.staging_bytes,
        _ => MOVED_AT_ONCE,
    }
}

fn uneven(even: MoveArgs, data_type: DataType, plan: &Plan, counts: Counts<'_>) -> UnevenArgs {
    let size = u64::from(data_type.bytes());
    let mut entries = [MoveEntry::zeroed(); MOST_UNEVEN];
    match counts {
        Counts::Even => {}
        Counts::AllGather(counts) => {
            let mine = counts.get(even.channel.team.rank as usize).copied().unwrap_or(0) * size;
            let mut offset = 0;
            for (entry, count) in entries.iter_mut().zip(counts) {
                let bytes = count * size;
                *entry = MoveEntry {
                    send_offset: 0,
                    send_bytes: mine,
                    receive_offset: offset,
                    receive_bytes: bytes,
                };
                offset += bytes;
            }
        }
        Counts::AllToAll { input_splits, output_splits } => {
            let (mut sent, mut received) = (0, 0);
            for (entry, (to, from)) in entries.iter_mut().zip(input_splits.iter().zip(output_splits)) {
                let (to, from) = (to * size, from * size);
                *entry = MoveEntry {
                    send_offset: sent,
                    send_bytes: to,
                    receive_offset: received,
                    receive_bytes: from,
                };
                sent += to;
                received += from;
            }
        }
    }
    let most = entries.iter().map(|entry| entry.send_bytes.max(entry.receive_bytes)).max().unwrap_or(0);
    let own = entries.get(even.channel.team.rank as usize).map_or(0, |entry| entry.send_bytes);
    let even = MoveArgs {
        most_bytes: most,
        lane_units: lane_units(most, plan),
        lane_bytes: piece(own, plan, u64::MAX),
        piece_bytes: MOVED_AT_ONCE,
        ..even
    };
    UnevenArgs { even, entries }
}
