//! What a kernel gets for a call: from its shape and where its buffers are to the entry point and its arguments. Pure arithmetic,
//! public for the seeded tests only, which launch without a world.

pub(crate) mod engine;
pub(crate) mod launch;
pub(crate) mod many;
pub(crate) mod messages;
pub(crate) mod recipes;

use std::fmt::Debug;

use anabranch_hip::LaunchShape;
use anabranch_hip_jit::bytemuck::Zeroable;
use anabranch_hip_jit::{DevicePointer, DeviceStruct, Kernel};
use anabranch_ranks::GroupRank;
use anabranch_shmem::PeerCopy;

use crate::device::args::{
    BufferView, CommView, GatherManyArgs, MOST_UNEVEN, MOVE_ALL, MOVE_NONE, MoveArgs, MoveEntry, REDUCE_ALL,
    ReduceArgs, Reduction, UnevenArgs,
};
use crate::device::kernels;
use crate::lower::engine::{EngineStep, Gathered};
use crate::lower::launch::{Launch, Stage};
use crate::lower::recipes::Kernels;
use crate::types::{Algorithm, Collective, DataType, Error, ReduceOp, Result, Shape};

/// `LOCAL_TABLES` in `ccl/channel.h`.
const LOCAL_TABLES: u32 = 40;

/// Local memory of a block: the channel's words, then three tables of addresses.
pub const fn local_bytes(members: u32) -> u32 {
    LOCAL_TABLES + 3 * 8 * members
}

/// How one call is done. Chosen by [`Plan::new`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Plan {
    /// How.
    pub algorithm: Algorithm,
    /// Blocks of the launch, each a channel.
    pub blocks: u32,
    /// Threads of a block.
    pub threads: u32,
    /// Whether `push` writes to one peer at a time, all members to different ones, with meetings in between: links are fuller
    /// then, which pays for the meetings when messages are large.
    pub phased: bool,
}

/// A call that was planned: all that its launches depend on.
#[derive(Clone, Copy, Debug)]
pub struct Job<'a> {
    /// The communicator's memory, as this rank's kernels get it.
    pub comm: &'a CommView,
    /// The call without its addresses.
    pub shape: &'a Shape,
    /// How it is done.
    pub plan: &'a Plan,
    /// Where its tensors are.
    pub tensors: Tensors<'a>,
    /// What copies by engine depend on besides; nothing looks at it otherwise.
    pub engine: Engine<'a>,
}

/// Where the tensors of a call are.
#[derive(Clone, Copy, Debug)]
pub enum Tensors<'a> {
    /// An input, an output, and what is exchanged with each member.
    One(&'a Buffers, Counts<'a>),
    /// Many that are gathered, by a kernel.
    Many(&'a GatherManyArgs),
    /// Many that are gathered, by copy engine.
    Copied(&'a [Gathered]),
}

/// What copies by engine depend on.
#[derive(Clone, Copy, Debug, Default)]
pub struct Engine<'a> {
    /// Channels of the communicator, whose staging serves one call.
    pub channels: u32,
    /// Threads of a block of the kernels that only meet.
    pub barrier_threads: u32,
    /// Where each member's heap starts, in group order.
    pub heaps: &'a [u64],
    /// Where each member's output starts; of a scatter nothing.
    pub outputs: &'a [u64],
}

/// What goes onto the stream for a call whose members' memory is mapped.
///
/// # Errors
/// [`Error::Algorithm`] for a plan that is not for this call.
pub fn lowered(job: &Job<'_>) -> Result<Vec<Stage>> {
    let (collective, algorithm) = (job.shape.collective, job.plan.algorithm);
    recipes::find(algorithm, job.shape)
        .and_then(|recipe| stages(recipe.kernels, job))
        .map_err(|reason| Error::Algorithm { collective, algorithm, reason })
}

/// Stages, or why the algorithm does not do the call.
type Reasoned<T> = std::result::Result<T, &'static str>;

fn stages(kernels: Kernels, job: &Job<'_>) -> Reasoned<Vec<Stage>> {
    Ok(match kernels {
        Kernels::Moves { even, uneven, many } => vec![Stage::Kernel(moves(even, uneven, many, job)?)],
        Kernels::Reduces(kernel) => vec![Stage::Kernel(job.launch(kernel, sums(job)?))],
        Kernels::Copies => vec![job.barrier(), Stage::Copies(copies(job)?), job.barrier()],
        Kernels::CopiesAndSums(kernel) => {
            let Engine { channels, heaps, outputs, .. } = job.engine;
            let element_bytes = job.shape.data_type.bytes().into();
            let steps = engine::reduces(&sums(job)?, channels, element_bytes, heaps, outputs);
            let stage = |step| match step {
                EngineStep::Barrier => job.barrier(),
                EngineStep::Copies(legs) => Stage::Copies(legs),
                EngineStep::Reduce(args) => Stage::Kernel(job.launch(kernel, *args)),
            };
            steps.into_iter().map(stage).collect()
        }
    })
}

impl Job<'_> {
    fn launch<A: DeviceStruct + Debug + Send + Sync>(&self, kernel: Kernel<A>, arguments: A) -> Launch {
        let Plan { blocks, threads, .. } = *self.plan;
        let local_bytes = local_bytes(self.shape.members);
        let shape = LaunchShape { grid_blocks: blocks, block_threads: threads, local_bytes };
        Launch::new(kernel, arguments, self.shape.data_type, shape)
    }

    /// One block in which all members meet.
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
        (Tensors::One(buffers, _), Some(op)) => Ok(reduce(job.comm, job.shape, job.plan, op, buffers)),
        _ => Err(ONE_TENSOR),
    }
}

/// Where the buffers of a call are.
#[derive(Clone, Copy, Debug)]
pub struct Buffers {
    /// The input; [`NOWHERE`](Self::NOWHERE) for none.
    pub input: BufferView,
    /// The output.
    pub output: BufferView,
    /// What all their addresses are multiples of, at most 16.
    pub alignment: u64,
}

impl Buffers {
    /// No buffer.
    pub const NOWHERE: BufferView = BufferView { bases: DevicePointer::NULL, offset: 0, own: 0 };
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

/// Bytes that a packet carries: `PAYLOAD` in `ccl/packets.h`.
const PAYLOAD: u64 = 8;
/// The most bytes of a part that a channel handles in one go where nothing else bounds it: with 512 threads a thread has two pieces
/// of 16 bytes of each member under way in plain sums, and four of one where bytes only move.
const REDUCED_AT_ONCE: u64 = 16 << 10;
const MOVED_AT_ONCE: u64 = 32 << 10;
/// The same for parts that go through the staging and stay with their owner: more would have left its caches when it is reduced.
const SCATTERED_AT_ONCE: u64 = 128 << 10;

/// A share of `bytes` for each channel, in whole pieces of 16 bytes, and at most `most`.
fn piece(bytes: u64, plan: &Plan, most: u64) -> u64 {
    bytes.div_ceil(u64::from(plan.blocks)).next_multiple_of(16).clamp(16, most)
}

/// How contributions become one.
pub(crate) fn reduction(shape: &Shape, op: ReduceOp) -> Reduction {
    let scalar = op.scalar_bits(shape.data_type);
    Reduction { op: op.torch_value(), size: shape.members, scalar }
}

fn reduce(comm: &CommView, shape: &Shape, plan: &Plan, op: ReduceOp, buffers: &Buffers) -> ReduceArgs {
    let is_scatter = shape.collective == Collective::ReduceScatter;
    let stride = if is_scatter { shape.bytes() } else { 0 };
    let members = u64::from(shape.members);
    let part_bytes = if is_scatter { shape.bytes() } else { part_of(shape) };
    let units = shape.bytes().div_ceil(PAYLOAD);
    let part_units = if is_scatter { units } else { units.div_ceil(members) };
    let shared = if plan.algorithm == Algorithm::TwoShotPackets { part_units } else { units };
    let most = match (plan.algorithm, is_scatter) {
        (Algorithm::Push, true) => comm.staging_bytes.min(SCATTERED_AT_ONCE),
        (Algorithm::Push, false) => comm.staging_bytes,
        _ => REDUCED_AT_ONCE,
    };
    ReduceArgs {
        comm: *comm,
        input: buffers.input,
        output: buffers.output,
        reduction: reduction(shape, op),
        count: shape.count,
        part_units,
        channel_units: shared.div_ceil(u64::from(plan.blocks)),
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

fn even(comm: &CommView, shape: &Shape, plan: &Plan, buffers: &Buffers) -> MoveArgs {
    let bytes = shape.bytes();
    let even = MoveArgs {
        comm: *comm,
        input: buffers.input,
        output: buffers.output,
        bytes,
        most_bytes: bytes,
        channel_units: channel_units(bytes, plan),
        channel_bytes: piece(bytes, plan, u64::MAX),
        piece_bytes: piece(bytes, plan, at_once(comm, plan)),
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
        Collective::Broadcast if plan.algorithm == Algorithm::TwoHop => {
            let part = part_of(shape);
            // Where outputs are reached each channel's share is one piece: a meeting follows each.
            let most = if shape.output.is_reached() { u64::MAX } else { comm.staging_bytes };
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

/// Packets to each member that a channel sends: at least one, so that all members hear of each other.
fn channel_units(most_bytes: u64, plan: &Plan) -> u64 {
    most_bytes.div_ceil(PAYLOAD).div_ceil(u64::from(plan.blocks)).max(1)
}

const fn at_once(comm: &CommView, plan: &Plan) -> u64 {
    match plan.algorithm {
        Algorithm::Staged => comm.staging_bytes,
        _ => MOVED_AT_ONCE,
    }
}

fn uneven(even: MoveArgs, data_type: DataType, plan: &Plan, counts: Counts<'_>) -> UnevenArgs {
    let size = u64::from(data_type.bytes());
    let mut entries = [MoveEntry::zeroed(); MOST_UNEVEN];
    match counts {
        Counts::Even => {}
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
