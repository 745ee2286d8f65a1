//! Communicators: the memory of channels, and launches.

mod prepare;

use std::collections::HashMap;
use std::sync::{Arc, Once};

use anabranch_hip::{HostCall, RuntimeKind, Stream};
use anabranch_hip_jit::{KernelUnit, LOCAL_RESERVED_BYTES, LoadedUnit};
use anabranch_ranks::{Group, GroupRank, LinkSettings, Nodes};
use anabranch_shmem::{
    LaunchNote, NoteText, OperationCode, OperationName, StreamBarrier, SymmetricMemory, Team, World,
};

use crate::call::Call;
use crate::device::args::{CommView, Pipes};
use crate::device::channel::{ALIGNMENT, ChannelLayout};
use crate::device::kernels;
use crate::device::pipes::{PIPE_LOCAL_BYTES, PipeLayout};
use crate::lower::local_bytes;
use crate::network::LinkLayout;
use crate::plan::{Choice, Limits, Plan};
use crate::planner::tuning::Table;
use crate::run::checker::{CHECK_OPERATION, Checking, watch_channels};
use crate::run::config::{BarrierMode, CclConfig, Check};
#[cfg(feature = "rdma")]
use crate::run::internode::Internode;
use crate::run::nodes;
#[cfg(not(feature = "rdma"))]
use crate::run::nodes::Internode;
use crate::run::prepared::Prepared;
use crate::run::sizes::{Layouts, local_memory, row_bytes, speeds, threads, wanted_channels};
use crate::run::work::Work;
use crate::types::{Collective, DataType, Error, Result, Shape};

/// Operation code of collectives in fault records.
pub const OPERATION: OperationCode = OperationCode(0x200);
const NAME: OperationName = OperationName { name: "ccl", phases: PHASES };
/// `Phase` in `ccl/channel.h`.
pub(crate) const PHASES: &[&str] = &[
    "start",
    "packets of a peer",
    "barrier",
    "fingerprint",
    "overlap with an earlier call",
    "internode chunk from the peer",
    "free slot for an internode chunk at the peer",
];

/// Operation code of sends and receives in fault records.
pub const MESSAGE_OPERATION: OperationCode = OperationCode(0x201);

/// The operation codes that launches of a collective report.
const COLLECTIVES: [OperationCode; 6] = [
    OPERATION,
    CHECK_OPERATION,
    OperationCode::STREAM_BARRIER,
    OperationCode::ENGINE_COPY,
    OperationCode::NIC_COPY,
    OperationCode::NIC_SIGNAL,
];
/// The operation codes that launches of messages report.
const MESSAGES: [OperationCode; 2] = [MESSAGE_OPERATION, OperationCode::ENGINE_COPY];
/// The phases of `PipePhase` in `ccl/pipe.h`.
const MESSAGE_NAME: OperationName = OperationName {
    name: "ccl send and receive",
    phases: &[
        "start",
        "free slot for a message to the peer",
        "message from the peer",
        "bytes of the message from the peer",
    ],
};

/// Loaded kernel units, by name and element type.
type Units = HashMap<(&'static str, Option<DataType>), Arc<LoadedUnit>>;

fn key(unit: &'static KernelUnit, data_type: DataType) -> (&'static str, Option<DataType>) {
    (unit.name, kernels::is_typed(unit).then_some(data_type))
}

/// What a communicator takes before its memory: kernels, and blocks of the device with the right to launch them.
struct Reserved {
    units: Units,
    blocks: u32,
    permit: Option<anabranch_shmem::ResidencyPermit>,
}

/// A communicator: the collectives of one group on one rank.
///
/// All members construct it together, with equal configurations. Its collectives are one sequence, the same on all members. Sends and
/// receives need the same order only on the two members of a pair, relative to each other and to the collectives: a send that waits for its
/// receive (see [`Call::Send`]) must not have a collective between the two on one side only. One call is in flight at a time; calls on
/// several streams run in the order in which they were made. For concurrent collectives construct several communicators, and limit the
/// blocks of each with [`CclConfig::max_blocks`] or [`CclConfig::shared_blocks`]: by default the first one reserves up to 128, about half of
/// an H200.
#[derive(Debug)]
pub struct Communicator {
    world: World,
    team: Team,
    memory: SymmetricMemory,
    comm: CommView,
    /// The channels of calls that sum and norm rows in one kernel.
    rows: CommView,
    pipe_layout: PipeLayout,
    pipes: Pipes,
    config: CclConfig,
    limits: Limits,
    /// Measured algorithms of this kind of device.
    table: Option<Arc<Table>>,
    units: Units,
    /// Name in reports.
    name: Arc<str>,
    launches: u64,
    message_launches: u64,
    checking: Option<Checking>,
    /// The barrier of streams around copies by engine.
    stream_barrier: Option<StreamBarrier>,
    /// Present if members are on several nodes. All calls are internode calls then.
    internode: Option<Internode>,
}

impl Communicator {
    /// Constructs a communicator. Collective over `group`. Compares the configuration between members, allocates memory in the symmetric
    /// heap, loads the kernels that move bytes, and reserves resident blocks of the device, because all blocks of a collective wait for
    /// peers (not in a group of one member): with [`CclConfig::max_blocks`] 0 only some of those that are free, for later communicators. With
    /// members on several nodes all collectives are internode, in the form that [`CclConfig::across`] selects. Sends and receives,
    /// [`Check::Fingerprint`] and intranode algorithms are errors there.
    ///
    /// # Errors
    /// [`Error::Config`], [`Error::Unmapped`], different configurations, an exhausted heap, too few free blocks on the device, compiler
    /// errors. A failure on one member is an error on all.
    pub fn new(world: &World, group: &Group, config: CclConfig) -> Result<Self> {
        config.check()?;
        let nodes = nodes::nodes_of(world, group, &config)?;
        let prepared = Self::reserve(world, group, &config, nodes.is_some());
        let table = config.table.clone().or_else(|| known_table(world));
        let mut fields = config.fields();
        fields.push(("shared_blocks".to_owned(), config.shared_blocks.to_string()));
        fields.push((
            "ccl.table".to_owned(),
            table.as_deref().map_or_else(|| "none".to_owned(), Table::digest),
        ));
        let speeds = speeds(world, &config);
        fields.push(("links".to_owned(), LinkSettings::from(speeds).to_string()));
        // Inputs of plans. They can differ between devices of one kind, whole or partitioned.
        let limits = threads(world);
        fields.push(("threads of a block".to_owned(), limits.block_threads.to_string()));
        fields.push(("local memory of a block".to_owned(), local_memory(world).to_string()));
        let machines = nodes.as_ref().map_or(&[][..], Nodes::numbers);
        fields.push(("machines of the members".to_owned(), format!("{machines:?}")));
        world.compare(group, "ccl configuration", fields)?;
        agree(world, group, "ccl plan", &prepared)?;
        let Reserved { units, blocks, permit } = prepared?;
        // Members can get different numbers of blocks; all use the smallest.
        let reports = world.exchange(group, "ccl channels", &blocks.to_le_bytes())?;
        let mut channels = blocks;
        for (bytes, rank) in reports.iter().zip(group.members()) {
            let count = bytes.as_slice().try_into().map_err(|_| anabranch_shmem::Error::Malformed {
                step: "ccl channels".to_owned(),
                rank: *rank,
                problem: format!("{} bytes; expected are 4", bytes.len()),
            })?;
            channels = channels.min(u32::from_le_bytes(count));
        }
        world.name_operation(OPERATION, NAME);
        world.name_operation(MESSAGE_OPERATION, MESSAGE_NAME);
        let team = world.team(group)?;
        let layouts = Layouts::new(world, group.size(), channels, &config, nodes.is_some());
        let Layouts { comm: layout, pipes: pipe_layout, links, end, .. } = layouts;
        let mut memory = world.allocate(group, end, ALIGNMENT, "ccl channels")?;
        let links = links.map(|layout| layout.links(team.view(), &memory, OPERATION.0));
        #[cfg(feature = "rdma")]
        let internode =
            nodes.zip(links).map(|(nodes, links)| Internode::new(nodes, links, config.across, speeds));
        #[cfg(not(feature = "rdma"))]
        let (internode, _) = (None, links);
        let pipes = pipe_layout.pipes(team.view(), &memory, MESSAGE_OPERATION.0);
        let comm = layout.comm(team.view(), &memory, OPERATION.0);
        team.hold(permit);
        let (rows_at, row_layout) = layouts.rows;
        let rows = row_layout.view_at(
            team.view(),
            memory.offset() + rows_at,
            memory.address().offset(rows_at),
            OPERATION.0,
        );
        let row_channels = layouts.row_channels;
        let row_bytes = row_bytes(world, group.size());
        let limits = Limits { channels, row_channels, row_bytes, ..threads(world) };
        let checking = match (config.check, units.get(&key(kernels::FINGERPRINT.unit(), DataType::U8))) {
            (Check::Fingerprint, Some(unit)) => {
                let (threads, local) = (limits.block_threads, local_bytes(group.size()));
                let checking = Checking::new(world, &team, unit, (threads, local), |check| {
                    watch_channels(&mut memory, layout.channels, channels)?;
                    watch_channels(&mut memory, rows_at + row_layout.channels, row_channels)?;
                    watch_channels(check, ChannelLayout::of_check(group.size()).channels, 1)
                });
                Some(checking?)
            }
            _ => None,
        };
        let stream_barrier =
            if by_stream(&team, config.barriers) { Some(team.stream_barrier()?) } else { None };
        let name = world.name_in_group("communicator", group).into();
        let world = world.clone();
        Ok(Self {
            world,
            team,
            memory,
            comm,
            rows,
            pipe_layout,
            pipes,
            config,
            limits,
            table,
            units,
            name,
            launches: 0,
            message_launches: 0,
            checking,
            stream_barrier,
            internode,
        })
    }

    fn reserve(world: &World, group: &Group, config: &CclConfig, is_internode: bool) -> Result<Reserved> {
        let device = world.device();
        // It has the most blocks and stands for all kernels. Others may use more registers, but never more than their launch bounds allow,
        // 512 threads or more: blocks of half as many threads fit twice. So no more are counted.
        let unit = if is_internode { kernels::NETWORK_MOVE.unit() } else { kernels::MOVE_DIRECT.unit() };
        let local = if is_internode {
            LinkLayout::local_bytes(group.size())
        } else {
            local_bytes(group.size()).max(PIPE_LOCAL_BYTES)
        };
        if local > local_memory(world) {
            let allowed = "groups whose addresses fit into the local memory of a block";
            return Err(Error::Config { field: "the group's size", given: u64::from(group.size()), allowed });
        }
        let loaded = world.jit().load(device, &kernels::spec_in(world, group.size(), unit, DataType::U8))?;
        let block_threads = threads(world).block_threads;
        let local = local + LOCAL_RESERVED_BYTES;
        let (network, direct);
        let kernel = if is_internode {
            network = loaded.get(kernels::NETWORK_MOVE)?;
            network.raw()
        } else {
            direct = loaded.get(kernels::MOVE_DIRECT)?;
            direct.raw()
        };
        let promised = (kernel.max_block_threads()? / block_threads).max(1) * world.multiprocessors();
        let resident = world.max_resident_blocks(kernel, block_threads, local)?.min(promised);
        let wanted = wanted_channels(world, group.size(), config, is_internode);
        let mut units = Units::from([(key(unit, DataType::U8), loaded)]);
        if config.check == Check::Fingerprint {
            // Its one block runs before the kernel of a call, never beside it: both use one reservation.
            let unit = kernels::FINGERPRINT.unit();
            let loaded =
                world.jit().load(device, &kernels::spec_in(world, group.size(), unit, DataType::U8))?;
            loaded.get(kernels::FINGERPRINT)?;
            units.insert(key(unit, DataType::U8), loaded);
        }
        if group.size() == 1 {
            // No block waits for a peer or for another block: messages to itself run in one block (`prepare_messages`).
            return Ok(Reserved { units, blocks: wanted.clamp(1, resident.max(1)), permit: None });
        }
        let share = world.residency_share();
        let free = share.free_blocks(resident);
        // The rest is for later communicators.
        let wanted = match (config.max_blocks, config.shared_blocks) {
            // If two of full width fit, the first has its full width.
            (0, 0) => wanted.min(free.saturating_mul(5).div_ceil(8)),
            (0, _) => wanted.min(free.div_ceil(3)),
            _ => wanted,
        };
        let permit = share.reserve_up_to(1, wanted, resident)?;
        Ok(Reserved { units, blocks: permit.blocks(), permit: Some(permit) })
    }

    /// Bytes of the symmetric heap that channels, staging and pipes take on each member.
    pub fn heap_bytes(&self) -> u64 {
        self.memory.bytes()
    }

    /// Name in reports: its number among the communicators of its group, and the ranks (`communicator 2 of ranks 0, 1`).
    pub fn name(&self) -> &str {
        &self.name
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

    /// The configuration.
    pub fn config(&self) -> &CclConfig {
        &self.config
    }

    /// The most blocks of a launch. Equal on all members.
    pub fn channels(&self) -> u32 {
        self.limits.channels
    }

    /// The inputs of plans besides the call.
    pub const fn limits(&self) -> &Limits {
        &self.limits
    }

    /// The table of measured algorithms; `None` if there is none for this device.
    pub fn table(&self) -> Option<&Table> {
        self.table.as_deref()
    }

    /// The plan of a call of this shape with the configured algorithm. Not collective; launches nothing.
    ///
    /// # Errors
    /// [`Error::Algorithm`] if the configured algorithm cannot run the call; [`Error::Unmapped`] for sends and receives between nodes.
    pub fn explain(&self, shape: &Shape) -> Result<Plan> {
        self.explain_as(shape, Choice { algorithm: self.config.algorithm, ..Choice::default() })
    }

    /// The plan of a call of this shape with `choice` instead of the configured algorithm, as [`Self::prepare_as`] makes it. Not
    /// collective; launches nothing.
    ///
    /// # Errors
    /// [`Error::Algorithm`] if the chosen algorithm cannot run the call; [`Error::Unmapped`] for sends and receives between nodes;
    /// [`Error::Config`] for blocks outside 1 to [`Self::channels`].
    pub fn explain_as(&self, shape: &Shape, choice: Choice) -> Result<Plan> {
        match &self.internode {
            Some(internode) if shape.collective == Collective::SendReceive => {
                Err(internode.refuse_messages())
            }
            Some(internode) => internode.plan(shape, &self.limits, choice),
            None => Plan::chosen(shape, &self.limits, self.table.as_deref(), choice),
        }
    }

    /// Whether members are on several nodes. All calls then use [`Algorithm::NetworkDirect`](crate::Algorithm::NetworkDirect) or
    /// [`Algorithm::NetworkByNode`](crate::Algorithm::NetworkByNode), and sends and receives are errors.
    pub const fn is_internode(&self) -> bool {
        self.internode.is_some()
    }

    /// Enqueues a prepared call on `stream` and returns without waiting: one kernel, or two for long messages with a norm; with
    /// [`Algorithm::CopyEngine`](crate::Algorithm::CopyEngine) barriers, and copies on streams that fork from `stream` and join it; with
    /// [`Check::Fingerprint`] one kernel more before a collective. Every member launches the same collectives in the same order, and the
    /// two members of a pair their messages.
    ///
    /// The launch may be captured into a graph. All members replay the graph in the same order relative to each other and to other launches
    /// of this communicator. The caller keeps that order, and keeps the tensors as long as the graph is replayed. The communicator keeps
    /// lists that captured launches read. With barriers of streams ([`BarrierMode::Stream`]), either all members launch a call by copy
    /// engine directly, or all replay it.
    ///
    /// # Errors
    /// [`Error::Foreign`] for a prepared call of another communicator; the failure of the world; [`Error::Mismatch`] if calls are compared
    /// and differ; errors of the launch. After an error of the world or the launch the communicator is unusable.
    pub fn launch(&mut self, prepared: &Prepared, stream: &Stream) -> Result<Work> {
        if prepared.comm != self.comm.channels {
            return Err(Error::Foreign { what: "a prepared call" });
        }
        // Only collectives have the same number on all members.
        let is_message = prepared.shape.collective == Collective::SendReceive;
        let sequence = 1 + if is_message { self.message_launches } else { self.launches };
        let (name, bytes) = (prepared.shape.collective.name(), prepared.shape.bytes() as usize);
        let _call = self.world.device().record_call(|| HostCall {
            sequence: Some(sequence),
            ..HostCall::on(name, Arc::clone(&self.name), Some(bytes))
        });
        if let Some(table) = &prepared.table
            && stream.is_capturing()?
        {
            self.team.hold(Arc::clone(table));
        }
        let checker = self.checking.as_ref().map(|checking| Arc::clone(&checking.checker));
        let launched = self.team.launch_in_order(stream, &prepared.uses, || {
            if let (Some(checking), Some(arguments)) = (&mut self.checking, &prepared.fingerprint) {
                checking.launch(arguments, stream)?;
            }
            for (number, step) in prepared.steps.iter().enumerate() {
                // SAFETY: the memory of the channels and the tensors in the heap are tracked as used. The constructors of other tensors
                // require that they stay allocated (`Tensor::local`, `Tensor::registered`).
                let enqueued = unsafe { step.enqueue(&self.team, self.stream_barrier.as_mut(), stream) };
                if let Err(error) = enqueued {
                    // Peers would mistake the barrier of the next call for the last one of this call.
                    if number > 0 && !stream.is_capturing().unwrap_or(false) {
                        let why = format!("{} failed at step {number}: {error}", prepared.description);
                        self.world.poison(&why);
                    }
                    return Err(error);
                }
            }
            Ok(())
        });
        let event = launched.map_err(|error| match &checker {
            Some(checker) => checker.explain(error),
            None => error.into(),
        })?;
        *(if is_message { &mut self.message_launches } else { &mut self.launches }) = sequence;
        tracing::trace!(sequence, description = %prepared.description, "launched");
        let (kind, operations): (_, &[OperationCode]) =
            if is_message { ("message", &MESSAGES) } else { ("call", &COLLECTIVES) };
        let (of, what) = (Arc::clone(&self.name), NoteText::Shared(Arc::clone(&prepared.description)));
        let noted =
            self.team.note_launch(stream, LaunchNote { of, kind, number: sequence, what, operations });
        Ok(Work::new(&self.world, event, (sequence, noted), &prepared.description, checker))
    }

    /// [`Self::prepare`], then [`Self::launch`]. The first call of a collective and element type loads its kernels, which a capture does
    /// not allow: prepare the call before.
    ///
    /// # Errors
    /// As [`Self::prepare`] and [`Self::launch`].
    pub fn run(&mut self, call: &Call<'_>, stream: &Stream) -> Result<Work> {
        let prepared = self.prepare(call)?;
        self.launch(&prepared, stream)
    }
}

impl Drop for Communicator {
    fn drop(&mut self) {
        // Kernels of an internode call end when their chunks are in slots, received or not. NICs may still access the slots and counters of
        // this rank and of its peers, which must not be freed before.
        if self.internode.is_some()
            && let Err(error) = self.team.complete_by_nic(&[self.memory.usage()])
            // `leave` completes all puts, with all ranks.
            && !matches!(error, anabranch_shmem::Error::Left)
        {
            tracing::warn!(%error, "internode puts of a communicator may still be in flight while it is dropped");
        }
        // Kernels in flight use the code of these units.
        for (_, unit) in std::mem::take(&mut self.units) {
            self.team.hold(unit);
        }
        // Streams may still wait in it.
        if let Some(barrier) = self.stream_barrier.take() {
            self.team.hold(barrier);
        }
    }
}

/// Whether streams do the barriers around copies by engine. All members with mapped memory support it.
fn by_stream(team: &Team, barriers: BarrierMode) -> bool {
    let world = team.world();
    match barriers {
        BarrierMode::Auto => {
            let is_nvidia = world.device().runtime().kind() == RuntimeKind::Nvidia;
            is_nvidia && team.is_mapped() && world.has_stream_barriers()
        }
        BarrierMode::Kernel => false,
        BarrierMode::Stream => true,
    }
}

/// The embedded table for the device. Warns once per process if there is none.
fn known_table(world: &World) -> Option<Arc<Table>> {
    static WARNED: Once = Once::new();
    let device = world.device().name();
    let table = Table::embedded(&device);
    if table.is_none() {
        WARNED.call_once(|| {
            tracing::warn!(
                "no measured algorithms of collectives for {device:?}: thresholds measured on other devices are used. `anabranch tune` \
                 measures and writes a table for ccl.table"
            );
        });
    }
    table
}

/// Ends a step that each member runs by itself. Returns an error that names the first failed member, but `Ok` on members where `outcome` is
/// an error, which the caller returns.
pub(crate) fn agree<T>(world: &World, group: &Group, step: &str, outcome: &Result<T>) -> Result<()> {
    let failure = outcome.as_ref().err().map(|error| error as &(dyn std::error::Error + 'static));
    match world.agree_outcome(group, step, failure) {
        Err(_) if outcome.is_err() => Ok(()),
        agreed => Ok(agreed?),
    }
}
