//! Lowering: from a planned call and its buffers to kernels and their arguments. Pure arithmetic. Public only for the seeded tests, which
//! launch without a world.

pub(crate) mod engine;
pub(crate) mod launch;
pub(crate) mod many;
pub(crate) mod messages;
pub(crate) mod norm;

use std::fmt::Debug;

use anabranch_hip::LaunchShape;
use anabranch_hip_jit::bytemuck::Zeroable;
use anabranch_hip_jit::{DevicePointer, DeviceStruct, Kernel};
use anabranch_ranks::GroupRank;
use anabranch_shmem::PeerCopy;

use crate::device::args::{
    BufferView, CommView, GatherManyArgs, MOST_UNEVEN, MOVE_ALL, MOVE_NONE, MoveArgs, REDUCE_ALL, ReduceArgs,
    Reduction,
};
use crate::device::kernels;
use crate::device::uneven::{MoveEntry, ReducePart, UnevenArgs, UnevenReduceArgs};
use crate::lower::engine::{EngineStep, Gathered};
use crate::lower::launch::{Launch, Stage};
use crate::lower::norm::Norm;
use crate::plan::Plan;
use crate::recipes::{Kernels, LaunchSize};
use crate::types::{Collective, DataType, Error, ReduceOp, Result, Shape};

/// `LOCAL_TABLES` in `ccl/channel.h`.
const LOCAL_TABLES: u32 = 40;

/// Local memory of a block: the channel's words, then three tables of addresses.
pub const fn local_bytes(members: u32) -> u32 {
    LOCAL_TABLES + 3 * 8 * members
}

/// A planned call: everything that its launches depend on.
#[derive(Clone, Copy, Debug)]
pub struct Job<'a> {
    /// The memory of the communicator, as the kernels of this rank see it.
    pub comm: &'a CommView,
    /// The call without its addresses.
    pub shape: &'a Shape,
    /// The plan.
    pub plan: &'a Plan,
    /// Its tensors.
    pub tensors: Tensors<'a>,
    /// Further inputs of copies by engine. Unused by other algorithms.
    pub engine: Engine<'a>,
    /// The norm that follows the sum.
    pub norm: Option<Norm<'a>>,
}

/// The buffers of a call.
#[derive(Clone, Copy, Debug)]
pub enum Tensors<'a> {
    /// One input, one output, and the elements exchanged with each member.
    One(&'a Buffers, Counts<'a>),
    /// Several tensors, gathered by a kernel.
    Many(&'a GatherManyArgs),
    /// Several tensors, gathered by copy engines.
    Copied(&'a [Gathered]),
}

/// Inputs of copies by engine.
#[derive(Clone, Copy, Debug, Default)]
pub struct Engine<'a> {
    /// Channels of the communicator. One call uses the staging of all channels.
    pub channels: u32,
    /// Threads per block of barrier kernels.
    pub barrier_threads: u32,
    /// Start of the heap of each member, in group order. Unused where nothing is reduced.
    pub heaps: &'a [u64],
    /// Start of the output of each member, in group order. Unused by a reduce_scatter.
    pub outputs: &'a [u64],
}

/// The stages of a call between members whose memory is mapped, in stream order.
///
/// # Errors
/// [`Error::Algorithm`] for the plan of another collective, of sends and receives, or of an internode call.
pub fn lowered(job: &Job<'_>) -> Result<Vec<Stage>> {
    let (collective, recipe) = (job.shape.collective, job.plan.recipe);
    let is_its = recipe.collectives.contains(&collective);
    let stages = match &job.norm {
        _ if !is_its => Err(recipe.is_for),
        None => stages(job),
        Some(norm) => norm::stages(job, norm),
    };
    stages.map_err(|reason| Error::Algorithm { collective, algorithm: recipe.algorithm, reason })
}

/// A result whose error is the reason why the algorithm cannot run the call.
type Reasoned<T> = std::result::Result<T, &'static str>;

fn stages(job: &Job<'_>) -> Reasoned<Vec<Stage>> {
    Ok(match job.plan.recipe.kernels {
        Kernels::Moves { even, uneven, many } => vec![Stage::Kernel(moves(even, uneven, many, job)?)],
        Kernels::TwoHops(kernel) => vec![Stage::Kernel(job.launch(kernel, two_hops(job)?))],
        Kernels::ToRoot(_, kernel) if job.plan.phased && job.shape.members > 1 => {
            vec![Stage::Kernel(job.launch(kernel, to_root(job)?))]
        }
        Kernels::Reduces(kernel) | Kernels::ToRoot(kernel, _) => {
            vec![Stage::Kernel(job.launch(kernel, sums(job)?))]
        }
        Kernels::Scatters(even, uneven) => vec![Stage::Kernel(match uneven_parts(job) {
            None => job.launch(even, sums(job)?),
            Some(parts) => job.launch(uneven, UnevenReduceArgs { reduce: sums(job)?, parts }),
        })],
        Kernels::Copies => vec![job.barrier(), Stage::Copies(copies(job)?), job.barrier()],
        Kernels::CopiesAndSums(kernel) => {
            let Engine { channels, heaps, outputs, .. } = job.engine;
            let element_bytes = job.shape.data_type.bytes().into();
            let parts = uneven_parts(job);
            let steps = engine::reduces(
                (&sums(job)?, parts.as_ref().map(<[_; _]>::as_slice)),
                channels,
                element_bytes,
                heaps,
                outputs,
            );
            let stage = |step| match step {
                EngineStep::Barrier => job.barrier(),
                EngineStep::Copies(copies) => Stage::Copies(copies),
                EngineStep::Reduce(args) => Stage::Kernel(job.launch(kernel, *args)),
            };
            steps.into_iter().map(stage).collect()
        }
        Kernels::Pipes | Kernels::Internode => return Err(job.plan.recipe.is_for),
    })
}

impl Job<'_> {
    fn launch<A: DeviceStruct + Debug + Send + Sync>(&self, kernel: Kernel<A>, arguments: A) -> Launch {
        let Plan { blocks, threads, .. } = *self.plan;
        let local_bytes = local_bytes(self.shape.members);
        let shape = LaunchShape { grid_blocks: blocks, block_threads: threads, local_bytes };
        Launch::new(kernel, arguments, self.shape.data_type, shape)
    }

    /// A barrier kernel of one block.
    fn barrier(&self) -> Stage {
        let (input, output) = (Buffers::NOWHERE, Buffers::NOWHERE);
        let arguments = MoveArgs { comm: *self.comm, input, output, ..MoveArgs::zeroed() };
        let mut launch = self.launch(kernels::BARRIER, arguments);
        launch.shape.grid_blocks = 1;
        launch.shape.block_threads = self.engine.barrier_threads;
        Stage::Barrier(launch)
    }
}

const ONE_TENSOR: &str = "it is for one input and one output";

fn moves(
    kernel: Kernel<MoveArgs>,
    of_uneven: Option<Kernel<UnevenArgs>>,
    of_many: Option<Kernel<GatherManyArgs>>,
    job: &Job<'_>,
) -> Reasoned<Launch> {
    let even = |buffers| even(job.comm, job.shape, job.plan, buffers);
    Ok(match job.tensors {
        Tensors::One(buffers, Counts::Even) => job.launch(kernel, even(buffers)),
        Tensors::One(buffers, counts) => {
            let kernel = of_uneven.ok_or("it is for equal counts")?;
            job.launch(kernel, uneven(even(buffers), job.shape.data_type, job.plan, counts))
        }
        Tensors::Many(args) => job.launch(of_many.ok_or(ONE_TENSOR)?, *args),
        Tensors::Copied(_) => return Err(ONE_TENSOR),
    })
}

/// The arguments of a broadcast in two hops.
fn two_hops(job: &Job<'_>) -> Reasoned<MoveArgs> {
    let Tensors::One(buffers, Counts::Even) = job.tensors else { return Err(ONE_TENSOR) };
    let part = hop_part(job.shape);
    let most = if job.shape.output.is_reached() { u64::MAX } else { job.comm.staging_bytes };
    Ok(MoveArgs {
        piece_bytes: hop_piece(part, job.plan, most),
        send_stride: part,
        receive_stride: part,
        remote_stride: part,
        ..even(job.comm, job.shape, job.plan, buffers)
    })
}

fn copies(job: &Job<'_>) -> Reasoned<Vec<PeerCopy>> {
    let outputs = job.engine.outputs;
    Ok(match job.tensors {
        Tensors::One(buffers, counts) => {
            let even = even(job.comm, job.shape, job.plan, buffers);
            match counts {
                Counts::Even => engine::moves(&even, outputs),
                _ => engine::uneven_gather(&uneven(even, job.shape.data_type, job.plan, counts), outputs),
            }
        }
        Tensors::Copied(tensors) => engine::gathers(job.comm.team.rank, tensors),
        Tensors::Many(_) => return Err(ONE_TENSOR),
    })
}

fn sums(job: &Job<'_>) -> Reasoned<ReduceArgs> {
    match (job.tensors, job.shape.op) {
        (Tensors::One(buffers, _), Some(op)) => {
            Ok(reduce(job.comm, job.shape, job.plan, op, buffers, uneven_parts(job).as_ref()))
        }
        _ => Err(ONE_TENSOR),
    }
}

/// The arguments of a reduction to a root that has no part.
fn to_root(job: &Job<'_>) -> Reasoned<ReduceArgs> {
    let part = hop_part(job.shape);
    let most = job.comm.staging_bytes.min(SCATTERED_AT_ONCE);
    // The kernel finds the own part itself, and the others.
    let none = ReduceArgs { own_start: 0, own_bytes: 0, part_units: 0, ..sums(job)? };
    Ok(ReduceArgs { part_bytes: part, piece_bytes: hop_piece(part, job.plan, most), ..none })
}

/// The parts of a reduce_scatter with different counts.
fn uneven_parts(job: &Job<'_>) -> Option<[ReducePart; MOST_UNEVEN]> {
    let Tensors::One(_, Counts::ReduceScatter(counts)) = job.tensors else { return None };
    let (mut parts, mut start) = ([ReducePart::zeroed(); MOST_UNEVEN], 0);
    for (part, count) in parts.iter_mut().zip(counts) {
        *part = ReducePart { start, bytes: count * u64::from(job.shape.data_type.bytes()) };
        start += part.bytes;
    }
    Some(parts)
}

/// The input and the output of a call.
#[derive(Clone, Copy, Debug)]
pub struct Buffers {
    /// The input; [`NOWHERE`](Self::NOWHERE) for none.
    pub input: BufferView,
    /// The output.
    pub output: BufferView,
    /// The largest power of two, at most 16, that divides all addresses of both buffers.
    pub alignment: u64,
}

impl Buffers {
    /// No buffer.
    pub const NOWHERE: BufferView = BufferView { bases: DevicePointer::NULL, offset: 0, own: 0 };
}

/// Elements exchanged with each member.
#[derive(Clone, Copy, Debug)]
pub enum Counts<'a> {
    /// The same number with every member.
    Even,
    /// The length of the input of each member, in group order.
    AllGather(&'a [u64]),
    /// The length of the part of each member, in group order.
    ReduceScatter(&'a [u64]),
    /// Different lengths for each pair.
    AllToAll {
        /// Elements sent to each member.
        input_splits: &'a [u64],
        /// Elements received from each member.
        output_splits: &'a [u64],
    },
}

/// Bytes that a packet carries: `PAYLOAD` in `ccl/packets.h`.
const PAYLOAD: u64 = 8;
/// The most bytes of a part that a channel handles in one step unless the staging limits it. With 256 threads, each thread makes four loads
/// of 16 bytes per member in plain sums, two of them at once, and eight at once where bytes only move.
const REDUCED_AT_ONCE: u64 = 16 << 10;
const MOVED_AT_ONCE: u64 = 32 << 10;
/// The limit for parts that pass the staging and stay with their owner. Larger pieces would leave the caches before the owner reduces them.
const SCATTERED_AT_ONCE: u64 = 128 << 10;

/// The most steps of a part in two hops, and the least bytes of a channel in each. On four H200 (2026-11-28) 16 steps of a reduce of 256 MiB
/// were 8 % faster than 8 and 17 % faster than 4, and 8 steps of 21 KiB of one of 64 MiB as fast as or faster than 10 of 17 KiB.
const HOP_STEPS: u64 = 16;
const HOP_LEAST: u64 = 20 << 10;

/// The share of `bytes` of each channel: a multiple of 16, at most `most`.
fn piece(bytes: u64, plan: &Plan, most: u64) -> u64 {
    bytes.div_ceil(u64::from(plan.blocks)).next_multiple_of(16).clamp(16, most)
}

/// The operator as the kernels see it.
pub(crate) fn reduction(shape: &Shape, op: ReduceOp) -> Reduction {
    let scalar_at = op.device_scalar().map_or(0, |scalar| scalar.address().0);
    let scalar = op.scalar_bits(shape.data_type);
    Reduction { op: op.torch_value(), size: shape.members, scalar, scalar_at }
}

fn reduce(
    comm: &CommView,
    shape: &Shape,
    plan: &Plan,
    op: ReduceOp,
    buffers: &Buffers,
    uneven: Option<&[ReducePart; MOST_UNEVEN]>,
) -> ReduceArgs {
    let is_scatter = shape.collective == Collective::ReduceScatter;
    let members = u64::from(shape.members);
    // The longest part stands for all: every member takes part in its steps.
    let longest = uneven.into_iter().flatten().map(|part| part.bytes).max();
    let bytes = longest.unwrap_or(shape.bytes());
    let part_bytes = if is_scatter { bytes } else { part_of(shape) };
    let (own_start, total) =
        (u64::from(comm.team.rank) * part_bytes, if is_scatter { bytes * members } else { bytes });
    let own = ReducePart { start: own_start, bytes: part_bytes.min(total.saturating_sub(own_start)) };
    let own = uneven.map_or(own, |parts| parts[comm.team.rank as usize]);
    let is_aligned = match uneven {
        Some(parts) => parts.iter().all(|part| part.start.is_multiple_of(16)),
        None => part_bytes.is_multiple_of(16),
    };
    let units = bytes.div_ceil(PAYLOAD);
    let part_units = if is_scatter { units } else { units.div_ceil(members) };
    let shared = if plan.recipe.size == LaunchSize::SharedPackets { part_units } else { units };
    let most = match (plan.recipe.is_staged(), is_scatter) {
        // A member alone stages nothing.
        _ if members == 1 => u64::MAX,
        (true, true) => comm.staging_bytes.min(SCATTERED_AT_ONCE),
        (true, false) => comm.staging_bytes,
        (false, _) => REDUCED_AT_ONCE,
    };
    ReduceArgs {
        comm: *comm,
        input: buffers.input,
        output: buffers.output,
        reduction: reduction(shape, op),
        count: bytes / u64::from(shape.data_type.bytes()),
        part_units,
        channel_units: shared.div_ceil(u64::from(plan.blocks)),
        part_bytes,
        piece_bytes: piece(part_bytes, plan, most),
        root: shape.root.map_or(REDUCE_ALL, GroupRank::get),
        is_scatter: u32::from(is_scatter),
        is_aligned: u32::from(buffers.alignment == 16 && is_aligned),
        is_phased: u32::from(plan.phased),
        own_start: own.start,
        own_bytes: own.bytes,
    }
}

/// Bytes of each part of a message that is divided among the members; a multiple of 16.
fn part_of(shape: &Shape) -> u64 {
    shape.bytes().div_ceil(u64::from(shape.members)).next_multiple_of(16)
}

/// Bytes of each part of a message that is divided among all members but the root (`ccl/hops.h`); a multiple of 16.
fn hop_part(shape: &Shape) -> u64 {
    shape.bytes().div_ceil(u64::from(shape.members - 1).max(1)).next_multiple_of(16)
}

/// The bytes of a part that a channel handles in one step of two hops, at most `most`. Several steps, in which both hops run at once, unless
/// they would be short beside their barriers.
fn hop_piece(part: u64, plan: &Plan, most: u64) -> u64 {
    let share = part.div_ceil(u64::from(plan.blocks));
    share.div_ceil((share / HOP_LEAST).clamp(1, HOP_STEPS)).next_multiple_of(16).clamp(16, most)
}

fn even(comm: &CommView, shape: &Shape, plan: &Plan, buffers: &Buffers) -> MoveArgs {
    let bytes = shape.bytes();
    let most = if plan.recipe.is_staged() { comm.staging_bytes } else { MOVED_AT_ONCE };
    let even = MoveArgs {
        comm: *comm,
        input: buffers.input,
        output: buffers.output,
        bytes,
        most_bytes: bytes,
        channel_units: channel_units(bytes, plan),
        channel_bytes: piece(bytes, plan, u64::MAX),
        piece_bytes: piece(bytes, plan, most),
        send_stride: 0,
        receive_stride: bytes,
        remote_stride: bytes,
        send_to: MOVE_ALL,
        receive_from: MOVE_ALL,
    };
    let root = shape.root.map_or(MOVE_NONE, GroupRank::get);
    let is_root = root == comm.team.rank;
    let at_root = if is_root { MOVE_ALL } else { MOVE_NONE };
    match shape.collective {
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
        Collective::AllReduce
        | Collective::ReduceScatter
        | Collective::AllGather
        | Collective::Reduce
        | Collective::Barrier
        | Collective::SendReceive => even,
    }
}

/// Packets that a channel sends to each member. At least one, because the packet protocol needs one packet per epoch from every member
/// (`ccl/packets.h`).
fn channel_units(most_bytes: u64, plan: &Plan) -> u64 {
    most_bytes.div_ceil(PAYLOAD).div_ceil(u64::from(plan.blocks)).max(1)
}

fn uneven(even: MoveArgs, data_type: DataType, plan: &Plan, counts: Counts<'_>) -> UnevenArgs {
    let size = u64::from(data_type.bytes());
    let mut entries = [MoveEntry::zeroed(); MOST_UNEVEN];
    match counts {
        Counts::Even | Counts::ReduceScatter(_) => {}
        Counts::AllGather(counts) => {
            let mine = counts[even.comm.team.rank as usize] * size;
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
    let most = entries.iter().map(|entry| entry.send_bytes.max(entry.receive_bytes)).fold(0, u64::max);
    let own = entries[even.comm.team.rank as usize].send_bytes;
    let even = MoveArgs {
        most_bytes: most,
        channel_units: channel_units(most, plan),
        channel_bytes: piece(own, plan, u64::MAX),
        piece_bytes: MOVED_AT_ONCE,
        ..even
    };
    UnevenArgs { even, entries }
}
