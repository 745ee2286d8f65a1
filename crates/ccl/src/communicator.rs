//! Collectives on a group: owns the lanes' memory, prepares calls, launches kernels.

use std::collections::HashMap;
use std::sync::Arc;

use anabranch_hip::Stream;
use anabranch_hip_jit::bytemuck::Zeroable;
use anabranch_hip_jit::{DevicePointer, KernelSpec, LOCAL_RESERVED_BYTES, LoadedUnit, TypedKernel};
use anabranch_ranks::{Group, GroupRank};
use anabranch_shmem::{MemoryUse, OperationCode, OperationName, SymmetricMemory, Team, TeamTable, World};

use crate::PointToPoint;
use crate::args::{
    Channel, GatherManyArgs, MOST_UNEVEN, MOVE_ALL, MOVE_NONE, MoveArgs, MoveEntry, Pipes, PipesArgs, Place,
    REDUCE_ALL, ReduceArgs, Reduction, UnevenArgs,
};
use crate::call::{Call, Collective, Shape};
use crate::channel::{ALIGNMENT, ChannelLayout, PIPE_LOCAL_BYTES, PipeLayout};
use crate::config::CclConfig;
use crate::error::{Error, Result};
use crate::kernels::{self, entry};
use crate::message::{self, TransferLists};
use crate::plan::{Algorithm, Limits, Plan};
use crate::tensor::Tensor;
use crate::work::{EventPool, Work};
use crate::{DataType, in_place, many};

/// Collectives in fault records.
pub const OPERATION: OperationCode = OperationCode(0x200);
const NAME: OperationName = OperationName {
    name: "ccl",
    phases: &["start", "packets of a peer", "meeting", "fingerprint", "overlap with an earlier call"],
};

/// Sends and receives in fault records.
pub const MESSAGE_OPERATION: OperationCode = OperationCode(0x201);
/// The phases of `PipePhase` in `ccl/pipe.h`.
const MESSAGE_NAME: OperationName = OperationName {
    name: "ccl send and receive",
    phases: &[
        "start",
        "room for a message to the peer",
        "message from the peer",
        "bytes of the message from the peer",
    ],
};

/// Packets of one source, stage and parity of a lane.
const PACKET_UNITS: u32 = 512;
/// Lanes on a large GPU: one a multiprocessor, as a power of two.
const DEFAULT_LANES: u32 = 128;
/// `LOCAL_TABLES` in `ccl/lane.h`.
const LOCAL_TABLES: u32 = 32;

/// Collectives over a group, on one rank.
///
/// Made collectively by all members with equal configurations. It is one channel: its collectives are one sequence, the same on
/// all members; sends and receives stand anywhere in it, and only the two members of a pair have to agree on their order. One
/// call is in flight at a time; calls on several streams run in the order in which they were made. For what is to run at once
/// make several communicators.
#[derive(Debug)]
pub struct Communicator {
    world: World,
    team: Team,
    memory: SymmetricMemory,
    channel: Channel,
    pipe_layout: PipeLayout,
    pipes: Pipes,
    config: CclConfig,
    limits: Limits,
    units: HashMap<Unit, Arc<LoadedUnit>>,
    events: Arc<EventPool>,
    launches: u64,
    message_launches: u64,
}

/// Which kernels a call needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Unit {
    Move,
    GatherMany,
    Pipes,
    PacketReduce(DataType),
    BulkReduce(DataType),
}

impl Unit {
    fn spec(self) -> KernelSpec {
        match self {
            Self::Move => kernels::move_bytes(),
            Self::GatherMany => kernels::gather_many(),
            Self::Pipes => kernels::pipes(),
            Self::PacketReduce(element) => kernels::packet_reduce(element),
            Self::BulkReduce(element) => kernels::bulk_reduce(element),
        }
    }
}

#[derive(Clone, Debug)]
enum Arguments {
    Move(MoveArgs),
    Uneven(Box<UnevenArgs>),
    Reduce(ReduceArgs),
    GatherMany(Box<GatherManyArgs>),
    Pipes(Box<PipesArgs>),
}

/// A call that was checked and planned: a launch of it costs little, allocates nothing and may be captured. Its tensors have
/// to stay as long as it is launched.
#[derive(Debug)]
pub struct Prepared {
    plan: Plan,
    shape: Shape,
    kernel: TypedKernel,
    arguments: Arguments,
    local_bytes: u32,
    channel: DevicePointer<crate::args::LaneState>,
    /// What the arguments point to.
    table: Option<Arc<TeamTable>>,
    uses: Vec<MemoryUse>,
    description: Arc<str>,
}

impl Prepared {
    /// How it is done.
    pub const fn plan(&self) -> &Plan {
        &self.plan
    }

    /// The algorithm.
    pub const fn algorithm(&self) -> Algorithm {
        self.plan.algorithm
    }

    /// Blocks of the launch.
    pub const fn blocks(&self) -> u32 {
        self.plan.blocks
    }

    /// The call without its addresses.
    pub const fn shape(&self) -> &Shape {
        &self.shape
    }

    /// What runs, and how.
    pub fn describe(&self) -> &str {
        &self.description
    }
}

impl Communicator {
    /// Makes a communicator: compares the configuration among the members, allocates the lanes' memory in the symmetric heap,
    /// loads the kernels that move bytes, and takes a share of the device for its blocks, all of which wait for peers.
    /// Collective over `group`.
    ///
    /// # Errors
    /// [`Error::Config`], [`Error::Unreachable`], configurations that differ, heap exhaustion, a device that is taken, compiler
    /// errors. A failure on one member is an error on all.
    pub fn new(world: &World, group: &Group, config: CclConfig) -> Result<Self> {
        let prepared = Self::reserve(world, group, &config);
        world.compare(group, "ccl configuration", config.fields())?;
        agree(world, group, "ccl plan", &prepared)?;
        let (unit, permit) = prepared?;
        // Members may have got unequal shares; the smallest fits all.
        let said = world.exchange(group, "ccl lanes", &permit.blocks().to_le_bytes())?;
        let counts =
            said.iter().filter_map(|bytes| Some(u32::from_le_bytes(bytes.as_slice().try_into().ok()?)));
        let lanes = counts.min().unwrap_or(1);
        world.name_operation(OPERATION, NAME);
        world.name_operation(MESSAGE_OPERATION, MESSAGE_NAME);
        let team = world.team(group)?;
        let (staging, pipe_bytes) = memory_sizes(world, &config);
        let layout = ChannelLayout::new(group.size(), lanes, PACKET_UNITS, staging);
        let pipe_layout = PipeLayout::new(layout.bytes, group.size(), lanes, pipe_bytes);
        let memory = world.allocate(group, pipe_layout.end, ALIGNMENT, "ccl lanes")?;
        let channel = layout.channel(team.view(), &memory, OPERATION.0);
        let pipes = pipe_layout.pipes(team.view(), &memory, MESSAGE_OPERATION.0);
        team.hold(permit);
        let limits = Limits { lanes, ..threads(world) };
        let units = HashMap::from([(Unit::Move, unit)]);
        let (world, events) = (world.clone(), Arc::default());
        Ok(Self {
            world,
            team,
            memory,
            channel,
            pipe_layout,
            pipes,
            config,
            limits,
            units,
            events,
            launches: 0,
            message_launches: 0,
        })
    }

    fn reserve(
        world: &World,
        group: &Group,
        config: &CclConfig,
    ) -> Result<(Arc<LoadedUnit>, anabranch_shmem::ResidencyPermit)> {
        config.check()?;
        let unreachable = group.members().iter().find(|member| world.peer_base(**member).is_none());
        if let Some(peer) = unreachable {
            return Err(Error::Unreachable { peer: *peer });
        }
        let device = world.device();
        let local = local_bytes(group.size()).max(PIPE_LOCAL_BYTES);
        let limit =
            (device.properties().shared_memory_per_block() as u32).saturating_sub(LOCAL_RESERVED_BYTES);
        if local > limit {
            let allowed = "as many members as have their addresses in a block's local memory";
            return Err(Error::Config { field: "the group's size", given: u64::from(group.size()), allowed });
        }
        let unit = world.jit().load(device, &kernels::move_bytes())?;
        let limits = threads(world);
        let most_threads = limits.packet_threads.max(limits.bulk_threads);
        let kernel = unit.kernel(entry::MOVE_DIRECT)?;
        let resident = world.max_resident_blocks(kernel.raw(), most_threads, local + LOCAL_RESERVED_BYTES)?;
        let wanted = match config.max_blocks {
            0 => device.multiprocessors().min(DEFAULT_LANES),
            blocks => blocks,
        };
        Ok((unit, world.reserve_residency_up_to(1, wanted, resident)?))
    }

    /// The group.
    pub fn group(&self) -> &Group {
        self.team.group()
    }

    /// This rank in the group.
    pub fn rank(&self) -> GroupRank {
        self.team.rank()
    }

    /// Members of the group.
    pub fn size(&self) -> u32 {
        self.team.size()
    }

    /// The world.
    pub fn world(&self) -> &World {
        &self.world
    }

    /// The most blocks of a launch.
    pub fn lanes(&self) -> u32 {
        self.limits.lanes
    }

    /// What would be done for a call of this shape.
    ///
    /// # Errors
    /// [`Error::Algorithm`] when the algorithm that the configuration asks for cannot do it.
    pub fn explain(&self, shape: &Shape) -> Result<Plan> {
        Plan::new(shape, &self.limits, self.config.algorithm)
    }

    /// Checks a call and chooses how it is done. Loads its kernels, so that nothing is loaded while others are in flight: prepare
    /// before the first launch. Not collective: every member prepares the same call for itself, and nothing is exchanged.
    ///
    /// # Errors
    /// Whatever is wrong with the call ([`Call::shape`], [`Error::Overlap`], [`Error::Alignment`], [`Error::Algorithm`]); a kernel
    /// that does not compile.
    pub fn prepare(&mut self, call: &Call<'_>) -> Result<Prepared> {
        let shape = call.shape(self.size(), self.rank())?;
        if let Some(messages) = call.messages() {
            return self.prepare_messages(call, shape, &messages);
        }
        if shape.uneven && self.size() as usize > MOST_UNEVEN {
            let allowed = "at most 64 where counts differ";
            return Err(Error::Config { field: "the group's size", given: self.size().into(), allowed });
        }
        let plan = Plan::new(&shape, &self.limits, self.config.algorithm)?;
        let (output, input) = call.tensors();
        in_place::check(call, &shape, &self.team)?;
        let (mut unit, mut entry) = kernel_of(&shape, &plan);
        let mut table = None;
        let arguments = match (shape.op, &input, &output) {
            (Some(op), Some(input), Some(output)) => {
                Arguments::Reduce(self.reduce_args(&shape, &plan, op, input, output))
            }
            _ if let Call::AllGatherMany(pairs) = call => {
                many::check(pairs, &self.team)?;
                (unit, entry) = (Unit::GatherMany, gather_many_entry(&plan));
                let (args, list) = many::arguments(pairs, &self.team, self.channel)?;
                table = list.map(Arc::new);
                Arguments::GatherMany(args)
            }
            _ if shape.uneven => Arguments::Uneven(self.uneven_args(&shape, call)),
            _ => Arguments::Move(self.move_args(&shape, call)),
        };
        let kernel = self.unit(unit)?.kernel(entry)?.clone();
        let description = match call {
            Call::AllGatherMany(pairs) => format!("{} tensors: {}", pairs.len(), describe(&shape, &plan)),
            _ => describe(&shape, &plan),
        };
        let description = description.into();
        let local_bytes = local_bytes(self.size());
        let (uses, channel) = (self.uses(call), self.channel.lanes);
        Ok(Prepared { plan, shape, kernel, arguments, local_bytes, channel, table, uses, description })
    }

    fn uses(&self, call: &Call<'_>) -> Vec<MemoryUse> {
        call.all_tensors().iter().filter_map(Tensor::usage).chain([self.memory.usage()]).collect()
    }

    fn prepare_messages(
        &mut self,
        call: &Call<'_>,
        shape: Shape,
        messages: &[PointToPoint<'_>],
    ) -> Result<Prepared> {
        message::check(messages, &self.team)?;
        let lists = TransferLists::new(messages, &self.team, &self.pipe_layout)?;
        let served = lists.lists * lists.used_pipes;
        let mut plan = Plan::new(&shape, &self.limits, None)?;
        plan.blocks = served.clamp(1, self.limits.lanes);
        let local_bytes = PipeLayout::local_bytes(served, plan.blocks);
        let (args, table) = message::arguments(&lists, &self.team, self.pipes)?;
        let arguments = Arguments::Pipes(args);
        let kernel = self.unit(Unit::Pipes)?.kernel(entry::PIPES)?.clone();
        let description = message::describe(messages, &plan).into();
        let (uses, channel, table) = (self.uses(call), self.channel.lanes, table.map(Arc::new));
        Ok(Prepared { plan, shape, kernel, arguments, local_bytes, channel, table, uses, description })
    }

    fn unit(&mut self, unit: Unit) -> Result<&Arc<LoadedUnit>> {
        use std::collections::hash_map::Entry;
        match self.units.entry(unit) {
            Entry::Occupied(known) => Ok(known.into_mut()),
            Entry::Vacant(place) => {
                let loaded = self.world.jit().load(self.world.device(), &unit.spec())?;
                Ok(place.insert(loaded))
            }
        }
    }

    fn place(&self, tensor: Option<&Tensor<'_>>) -> Place {
        tensor.map_or(Place { bases: DevicePointer::NULL, offset: 0 }, |tensor| tensor.place(&self.team))
    }

    fn reduce_args(
        &self,
        shape: &Shape,
        plan: &Plan,
        op: crate::ReduceOp,
        input: &Tensor<'_>,
        output: &Tensor<'_>,
    ) -> ReduceArgs {
        let is_scatter = shape.collective == Collective::ReduceScatter;
        let stride = if is_scatter { shape.bytes() } else { 0 };
        let alignment = input.alignment(&self.team).min(output.alignment(&self.team));
        ReduceArgs {
            channel: self.channel,
            input: self.place(Some(input)),
            output: self.place(Some(output)),
            reduction: Reduction {
                op: op.torch_value(),
                size: shape.members,
                scalar: op.scalar_bits(shape.data_type),
            },
            count: shape.count,
            root: shape.root.map_or(REDUCE_ALL, GroupRank::get),
            is_scatter: u32::from(is_scatter),
            is_aligned: u32::from(alignment == 16 && stride.is_multiple_of(16)),
            is_phased: u32::from(plan.phased),
        }
    }

    fn move_args(&self, shape: &Shape, call: &Call<'_>) -> MoveArgs {
        let (output, input) = call.tensors();
        let bytes = shape.bytes();
        let me = self.rank();
        let even = MoveArgs {
            channel: self.channel,
            input: self.place(input.as_ref()),
            output: self.place(output.as_ref()),
            bytes,
            most_bytes: bytes,
            send_stride: 0,
            receive_stride: bytes,
            remote_stride: bytes,
            send_to: MOVE_ALL,
            receive_from: MOVE_ALL,
        };
        let root = shape.root.map_or(MOVE_NONE, GroupRank::get);
        let is_root = root == me.get();
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
            _ => even,
        }
    }

    fn uneven_args(&self, shape: &Shape, call: &Call<'_>) -> Box<UnevenArgs> {
        let size = u64::from(shape.data_type.bytes());
        let mut args = Box::new(UnevenArgs { even: self.move_args(shape, call), ..UnevenArgs::zeroed() });
        let mut most = 0;
        match *call {
            Call::AllGatherUneven { counts, .. } => {
                let mine = counts.get(self.rank().index()).copied().unwrap_or(0) * size;
                let mut offset = 0;
                for (entry, count) in args.entries.iter_mut().zip(counts) {
                    let bytes = count * size;
                    *entry = MoveEntry {
                        send_offset: 0,
                        send_bytes: mine,
                        receive_offset: offset,
                        receive_bytes: bytes,
                    };
                    offset += bytes;
                    most = most.max(bytes);
                }
            }
            Call::AllToAllUneven { output_splits, input_splits, .. } => {
                let (mut sent, mut received) = (0, 0);
                let splits = input_splits.iter().zip(output_splits);
                for (entry, (to, from)) in args.entries.iter_mut().zip(splits) {
                    let (to, from) = (to * size, from * size);
                    *entry = MoveEntry {
                        send_offset: sent,
                        send_bytes: to,
                        receive_offset: received,
                        receive_bytes: from,
                    };
                    sent += to;
                    received += from;
                    most = most.max(to).max(from);
                }
            }
            _ => {}
        }
        args.even.most_bytes = most;
        args
    }

    /// Puts a prepared call on the stream: one kernel. Every member launches the same collectives in the same order, and the two
    /// of a pair their messages. May be captured into a graph, which all members replay in the same order with each other and
    /// with other launches of this communicator; whoever replays it keeps that order, and keeps the tensors. A list that a
    /// captured launch reads stays as long as the communicator.
    ///
    /// # Errors
    /// [`Error::Foreign`]; what made the world fail; the launch's.
    pub fn launch(&mut self, prepared: &Prepared, stream: &Stream) -> Result<Work> {
        if prepared.channel != self.channel.lanes {
            return Err(Error::Foreign { what: "a prepared call" });
        }
        let event = self.events.take(self.world.device())?;
        let Plan { blocks, threads, .. } = prepared.plan;
        if let Some(table) = &prepared.table
            && stream.is_capturing()?
        {
            self.team.hold(Arc::clone(table));
        }
        self.team.launch_in_order(stream, &prepared.uses, || {
            // SAFETY: the argument structs are the kernels' own. The lanes' memory and the tensors in the heap are tracked as used;
            // other tensors' callers promised that they stay (`Tensor::local`, `Tensor::registered`).
            unsafe {
                match &prepared.arguments {
                    Arguments::Move(args) => {
                        prepared.kernel.launch(blocks, threads, prepared.local_bytes, stream, args)?;
                    }
                    Arguments::Uneven(args) => {
                        prepared.kernel.launch(blocks, threads, prepared.local_bytes, stream, &**args)?;
                    }
                    Arguments::Reduce(args) => {
                        prepared.kernel.launch(blocks, threads, prepared.local_bytes, stream, args)?;
                    }
                    Arguments::GatherMany(args) => {
                        prepared.kernel.launch(blocks, threads, prepared.local_bytes, stream, &**args)?;
                    }
                    Arguments::Pipes(args) => {
                        prepared.kernel.launch(blocks, threads, prepared.local_bytes, stream, &**args)?;
                    }
                }
            }
            Ok(())
        })?;
        Work::record(&event, stream)?;
        // Members agree on the number of collectives only.
        let is_message = prepared.shape.collective == Collective::SendReceive;
        let launches = if is_message { &mut self.message_launches } else { &mut self.launches };
        *launches += 1;
        let sequence = *launches;
        tracing::trace!(sequence, description = %prepared.description, "launched");
        Ok(Work::new(&self.world, event, sequence, &prepared.description))
    }

    /// [`Self::prepare`], then [`Self::launch`].
    ///
    /// # Errors
    /// Those of both.
    pub fn run(&mut self, call: &Call<'_>, stream: &Stream) -> Result<Work> {
        let prepared = self.prepare(call)?;
        self.launch(&prepared, stream)
    }
}

impl Drop for Communicator {
    fn drop(&mut self) {
        // Kernels in flight run code of these units.
        for (_, unit) in std::mem::take(&mut self.units) {
            self.team.hold(unit);
        }
    }
}

/// Local memory of a block: the lane's words, then three tables of addresses.
const fn local_bytes(members: u32) -> u32 {
    LOCAL_TABLES + 3 * 8 * members
}

/// Threads of blocks on this device. On a machine of CPU threads lanes are coroutines: few, with more to do each.
fn threads(world: &World) -> Limits {
    let device = world.device();
    let wave = device.wave_size();
    let (packet, bulk) = if is_large(world) { (256, 512) } else { (wave, wave) };
    let whole = |threads: u32| threads.next_multiple_of(wave);
    Limits { lanes: 1, packet_threads: whole(packet), bulk_threads: whole(bulk) }
}

/// Bytes for staging and for pipes: as configured, or chosen.
fn memory_sizes(world: &World, config: &CclConfig) -> (u64, u64) {
    let chosen = |given: u64, share: u64, most: u64, small: u64| match given {
        0 if is_large(world) => (world.config().heap_bytes / share).min(most),
        0 => small,
        bytes => bytes,
    };
    (chosen(config.staging_bytes, 8, 128 << 20, 4 << 20), chosen(config.pipe_bytes, 32, 32 << 20, 1 << 20))
}

/// Whether the device is a large GPU, and not a machine of a few CPU threads.
fn is_large(world: &World) -> bool {
    world.device().multiprocessors() >= 32
}

fn kernel_of(shape: &Shape, plan: &Plan) -> (Unit, &'static str) {
    let packet = Unit::PacketReduce(shape.data_type);
    let bulk = Unit::BulkReduce(shape.data_type);
    let reduces = shape.collective.reduces();
    match plan.algorithm {
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
        Algorithm::Pipes => (Unit::Pipes, entry::PIPES),
    }
}

fn gather_many_entry(plan: &Plan) -> &'static str {
    match plan.algorithm {
        Algorithm::Packets => entry::GATHER_MANY_PACKETS,
        Algorithm::Direct => entry::GATHER_MANY_DIRECT,
        _ => entry::GATHER_MANY_STAGED,
    }
}

fn describe(shape: &Shape, plan: &Plan) -> String {
    let op = shape.op.map_or_else(String::new, |op| format!(" {}", op.name()));
    format!(
        "{} {}{op} {} elements over {} ranks: {}, {} blocks of {} threads",
        shape.collective,
        shape.data_type,
        shape.count,
        shape.members,
        plan.algorithm,
        plan.blocks,
        plan.threads
    )
}

/// Ends a step that each member does for itself: its own error where it failed, an error that names the first such member
/// elsewhere.
fn agree<T>(world: &World, group: &Group, step: &str, outcome: &Result<T>) -> Result<()> {
    let failure = outcome.as_ref().err().map(|error| error as &(dyn std::error::Error + 'static));
    match world.agree_outcome(group, step, failure) {
        Err(_) if outcome.is_err() => Ok(()), // the caller returns its own, which says more
        agreed => Ok(agreed?),
    }
}
