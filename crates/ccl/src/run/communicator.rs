//! Collectives on a group: owns the channels' memory, launches kernels.

mod prepare;

use std::collections::HashMap;
use std::sync::{Arc, Once};

use anabranch_hip::{RuntimeKind, Stream};
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
use crate::lower::{Plan, local_bytes};
use crate::network::LinkLayout;
use crate::plan::tuning::Table;
use crate::plan::{Choice, Limits};
use crate::run::checker::{CHECK_OPERATION, Checking, watch_channels};
use crate::run::config::{CclConfig, Check, Meetings};
use crate::run::internode;
use crate::run::internode::Crossing;
use crate::run::prepared::Prepared;
use crate::run::sizes::{Layouts, speeds, threads, wanted_channels};
use crate::run::work::{EventPool, Work};
use crate::types::{Collective, DataType, Error, Result, Shape};

/// Collectives in fault records.
pub const OPERATION: OperationCode = OperationCode(0x200);
const NAME: OperationName = OperationName { name: "ccl", phases: PHASES };
/// `Phase` in `ccl/channel.h`.
pub(crate) const PHASES: &[&str] = &[
    "start",
    "packets of a peer",
    "meeting",
    "fingerprint",
    "overlap with an earlier call",
    "chunk of a message between machines from the peer",
    "room for a chunk at the peer",
];

/// Sends and receives in fault records.
pub const MESSAGE_OPERATION: OperationCode = OperationCode(0x201);

/// What kernels of a collective report.
const COLLECTIVES: [OperationCode; 6] = [
    OPERATION,
    CHECK_OPERATION,
    OperationCode::STREAM_BARRIER,
    OperationCode::ENGINE_COPY,
    OperationCode::NIC_COPY,
    OperationCode::NIC_SIGNAL,
];
/// What kernels of messages report.
const MESSAGES: [OperationCode; 2] = [MESSAGE_OPERATION, OperationCode::ENGINE_COPY];
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

/// Loaded units, by name and element type.
type Units = HashMap<(&'static str, Option<DataType>), Arc<LoadedUnit>>;

fn key(unit: &'static KernelUnit, data_type: DataType) -> (&'static str, Option<DataType>) {
    (unit.name, kernels::is_typed(unit).then_some(data_type))
}

/// Collectives over a group, on one rank.
///
/// Made collectively by all members with equal configurations. Its collectives are one sequence, the same on
/// all members; of sends and receives only the two members of a pair have to agree on the order, among themselves and beside the
/// collectives: a send that waits for its receive (see [`Call::Send`]) must not have a collective between the two on one side
/// only. One call is in flight at a time; calls on several streams run in the order in which they were made. For what is to run
/// at once make several communicators, and give each a share of the device with [`CclConfig::max_blocks`]: the first takes most
/// of a large GPU otherwise.
#[derive(Debug)]
pub struct Communicator {
    world: World,
    team: Team,
    memory: SymmetricMemory,
    comm: CommView,
    pipe_layout: PipeLayout,
    pipes: Pipes,
    config: CclConfig,
    limits: Limits,
    /// What was measured on devices of this kind.
    table: Option<Arc<Table>>,
    units: Units,
    events: Arc<EventPool>,
    /// For reports.
    name: Arc<str>,
    launches: u64,
    message_launches: u64,
    checking: Option<Checking>,
    /// Where streams meet around copies by engine.
    meeting: Option<StreamBarrier>,
    /// Where members are on several machines: the way of all calls then.
    crossing: Option<Crossing>,
}

impl Communicator {
    /// Makes a communicator: compares the configuration among the members, allocates the channels' memory in the symmetric heap,
    /// loads the kernels that move bytes, and takes a share of the device for its blocks, all of which wait for peers.
    /// Collective over `group`. Where members are on several machines all calls go between them as `across` in the configuration says; sends
    /// and receives, comparisons of calls, and algorithms that were asked for are errors there.
    ///
    /// # Errors
    /// [`Error::Config`], [`Error::Unmapped`], configurations that differ, heap exhaustion, a device that is taken, compiler
    /// errors. A failure on one member is an error on all.
    pub fn new(world: &World, group: &Group, config: CclConfig) -> Result<Self> {
        config.check()?;
        let nodes = internode::nodes_of(world, group, &config)?;
        let prepared = Self::reserve(world, group, &config, nodes.is_some());
        let table = config.table.clone().or_else(|| known_table(world));
        let mut fields = config.fields();
        fields.push((
            "ccl.table".to_owned(),
            table.as_deref().map_or_else(|| "none".to_owned(), Table::digest),
        ));
        let speeds = speeds(world, &config);
        fields.push(("links".to_owned(), LinkSettings::from(speeds).to_string()));
        // What plans depend on: devices of one kind, whole or in parts, may differ in it.
        let limits = threads(world);
        fields.push((
            "threads of a block".to_owned(),
            format!("{} and {}", limits.packet_threads, limits.bulk_threads),
        ));
        let machines = nodes.as_ref().map_or(&[][..], Nodes::numbers);
        fields.push(("machines of the members".to_owned(), format!("{machines:?}")));
        world.compare(group, "ccl configuration", fields)?;
        agree(world, group, "ccl plan", &prepared)?;
        let (units, permit) = prepared?;
        // Members may have got unequal shares; the smallest fits all.
        let said = world.exchange(group, "ccl channels", &permit.blocks().to_le_bytes())?;
        let mut channels = permit.blocks();
        for (bytes, rank) in said.iter().zip(group.members()) {
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
        let Layouts { comm: layout, pipes: pipe_layout, links, end } = layouts;
        let mut memory = world.allocate(group, end, ALIGNMENT, "ccl channels")?;
        let links = links.map(|layout| layout.links(team.view(), &memory, OPERATION.0));
        let crossing =
            nodes.zip(links).map(|(nodes, links)| Crossing::new(nodes, links, config.across, speeds));
        let pipes = pipe_layout.pipes(team.view(), &memory, MESSAGE_OPERATION.0);
        let comm = layout.comm(team.view(), &memory, OPERATION.0);
        team.hold(permit);
        let limits = Limits { channels, ..threads(world) };
        let checking = match (config.check, units.get(&key(kernels::FINGERPRINT.unit(), DataType::U8))) {
            (Check::Fingerprint, Some(unit)) => {
                let (threads, local) = (limits.packet_threads, local_bytes(group.size()));
                let checking = Checking::new(world, &team, unit, (threads, local), |check| {
                    watch_channels(&mut memory, layout.channels, channels)?;
                    watch_channels(check, ChannelLayout::of_check(group.size()).channels, 1)
                });
                Some(checking?)
            }
            _ => None,
        };
        let meeting = if by_stream(&team, config.meetings) { Some(team.stream_barrier()?) } else { None };
        let name = world.name_in_group("communicator", group).into();
        let (world, events) = (world.clone(), Arc::default());
        Ok(Self {
            world,
            team,
            memory,
            comm,
            pipe_layout,
            pipes,
            config,
            limits,
            table,
            units,
            events,
            name,
            launches: 0,
            message_launches: 0,
            checking,
            meeting,
            crossing,
        })
    }

    fn reserve(
        world: &World,
        group: &Group,
        config: &CclConfig,
        is_crossing: bool,
    ) -> Result<(Units, anabranch_shmem::ResidencyPermit)> {
        let device = world.device();
        // The kernel of most blocks.
        let unit = if is_crossing { kernels::NETWORK_MOVE.unit() } else { kernels::MOVE_DIRECT.unit() };
        let local = if is_crossing {
            LinkLayout::local_bytes(group.size())
        } else {
            local_bytes(group.size()).max(PIPE_LOCAL_BYTES)
        };
        let limit =
            (device.properties().shared_memory_per_block() as u32).saturating_sub(LOCAL_RESERVED_BYTES);
        if local > limit {
            let allowed = "as many members as have their addresses in a block's local memory";
            return Err(Error::Config { field: "the group's size", given: u64::from(group.size()), allowed });
        }
        let loaded = world.jit().load(device, &kernels::spec_in(world, unit, DataType::U8))?;
        let limits = threads(world);
        let most_threads = limits.packet_threads.max(limits.bulk_threads);
        let local = local + LOCAL_RESERVED_BYTES;
        let resident = if is_crossing {
            world.max_resident_blocks(loaded.get(kernels::NETWORK_MOVE)?.raw(), most_threads, local)?
        } else {
            world.max_resident_blocks(loaded.get(kernels::MOVE_DIRECT)?.raw(), most_threads, local)?
        };
        let wanted = wanted_channels(world, group.size(), config, is_crossing);
        let mut units = Units::from([(key(unit, DataType::U8), loaded)]);
        if config.check == Check::Fingerprint {
            // Its one block runs before a call's kernel, never beside it: their share of the device is one.
            let unit = kernels::FINGERPRINT.unit();
            let loaded = world.jit().load(device, &kernels::spec(unit, DataType::U8))?;
            loaded.get(kernels::FINGERPRINT)?;
            units.insert(key(unit, DataType::U8), loaded);
        }
        Ok((units, world.reserve_residency_up_to(1, wanted, resident)?))
    }

    /// Bytes of the symmetric heap that its channels, staging and pipes take.
    pub fn heap_bytes(&self) -> u64 {
        self.memory.bytes()
    }

    /// What reports call it: its number among the communicators of its group, and the group's ranks (`communicator 2 of ranks 0, 1`).
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

    /// What it was made with.
    pub fn config(&self) -> &CclConfig {
        &self.config
    }

    /// The most blocks of a launch.
    pub fn channels(&self) -> u32 {
        self.limits.channels
    }

    /// What plans depend on besides the call.
    pub const fn limits(&self) -> &Limits {
        &self.limits
    }

    /// What was measured on devices of this kind, where it was.
    pub fn table(&self) -> Option<&Table> {
        self.table.as_deref()
    }

    /// What would be done for a call of this shape.
    ///
    /// # Errors
    /// [`Error::Algorithm`] when the algorithm that the configuration asks for cannot do it.
    pub fn explain(&self, shape: &Shape) -> Result<Plan> {
        self.explain_as(shape, Choice { algorithm: self.config.algorithm, ..Choice::default() })
    }

    /// What would be done for a call of this shape with this choice in place of the configuration's, as with [`Self::prepare_as`].
    ///
    /// # Errors
    /// [`Error::Algorithm`] when the algorithm that was chosen cannot do it here, [`Error::Unmapped`] for messages between machines,
    /// [`Error::Config`] for blocks that are not within 1 and [`Self::channels`].
    pub fn explain_as(&self, shape: &Shape, choice: Choice) -> Result<Plan> {
        match &self.crossing {
            Some(crossing) if shape.collective == Collective::SendReceive => Err(crossing.refuse_messages()),
            Some(crossing) => crossing.plan(shape, &self.limits, choice),
            None => Plan::chosen(shape, &self.limits, self.table.as_deref(), choice),
        }
    }

    /// Whether members are on several machines, so that all calls go by [`Algorithm::NetworkDirect`](crate::Algorithm::NetworkDirect) or
    /// [`Algorithm::NetworkByNode`](crate::Algorithm::NetworkByNode), and messages do not exist.
    pub const fn is_across_machines(&self) -> bool {
        self.crossing.is_some()
    }

    /// Puts a prepared call on the stream: one kernel, or by [`Algorithm::CopyEngine`](crate::Algorithm::CopyEngine) kernels that meet and copies on streams that fork from
    /// it and join it again; with [`Check::Fingerprint`] a kernel before a collective's. Every member
    /// launches the same collectives in the same order, and the two of a pair their messages. May be captured into a graph, which
    /// all members replay in the same order with each other and with other launches of this communicator; whoever replays it
    /// keeps that order, and keeps the tensors. A list that a captured launch reads stays as long as the communicator. Where streams meet
    /// ([`Meetings`]), all members launch a call by copy engine, or all replay it.
    ///
    /// # Errors
    /// [`Error::Foreign`]; what made the world fail, [`Error::Mismatch`] where calls are compared and differed; the launch's.
    pub fn launch(&mut self, prepared: &Prepared, stream: &Stream) -> Result<Work> {
        if prepared.comm != self.comm.channels {
            return Err(Error::Foreign { what: "a prepared call" });
        }
        let event = self.events.take(self.world.device())?;
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
                // SAFETY: the channels' memory and the tensors in the heap are tracked as used; other tensors' callers promised that
                // they stay (`Tensor::local`, `Tensor::registered`).
                let enqueued = unsafe { step.enqueue(&self.team, self.meeting.as_mut(), stream) };
                if let Err(error) = enqueued {
                    // Peers would take the next call's meeting for the last of this one.
                    if number > 0 && !stream.is_capturing().unwrap_or(false) {
                        let why = format!("{} broke off at step {number}: {error}", prepared.description);
                        self.world.poison(&why);
                    }
                    return Err(error);
                }
            }
            Ok(())
        });
        launched.map_err(|error| match &checker {
            Some(checker) => checker.explain(error),
            None => error.into(),
        })?;
        Work::record(&event, stream)?;
        // Members agree on the number of collectives only.
        let is_message = prepared.shape.collective == Collective::SendReceive;
        let launches = if is_message { &mut self.message_launches } else { &mut self.launches };
        *launches += 1;
        let sequence = *launches;
        tracing::trace!(sequence, description = %prepared.description, "launched");
        let (kind, operations): (_, &[OperationCode]) =
            if is_message { ("message", &MESSAGES) } else { ("call", &COLLECTIVES) };
        let (of, what) = (Arc::clone(&self.name), NoteText::Shared(Arc::clone(&prepared.description)));
        let noted =
            self.team.note_launch(stream, LaunchNote { of, kind, number: sequence, what, operations });
        Ok(Work::new(&self.world, event, (sequence, noted), &prepared.description, checker))
    }

    /// [`Self::prepare`], then [`Self::launch`]. The first call of a collective and type loads its kernels, which a capture does not
    /// allow: prepare it before.
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
        // Kernels of a call across machines end when their chunks are in slots, taken or not: NICs may still read and write the slots and
        // counters of this rank and of its peers, which must not be anybody else's before.
        if self.crossing.is_some()
            && let Err(error) = self.team.complete_by_nic(&[self.memory.usage()])
            // To leave completes what was put, with all ranks.
            && !matches!(error, anabranch_shmem::Error::Left)
        {
            tracing::warn!(%error, "what a communicator has put to other machines may still be under way while it is dropped");
        }
        // Kernels in flight run code of these units.
        for (_, unit) in std::mem::take(&mut self.units) {
            self.team.hold(unit);
        }
        // Streams may still wait in it, watched.
        if let Some(meeting) = self.meeting.take() {
            self.team.hold(meeting);
        }
    }
}

/// Whether members meet by their streams around copies by engine, which all members that are mapped can.
fn by_stream(team: &Team, meetings: Meetings) -> bool {
    let world = team.world();
    match meetings {
        Meetings::Auto => {
            let is_nvidia = world.device().runtime().kind() == RuntimeKind::Nvidia;
            is_nvidia && team.is_mapped() && world.has_stream_barriers()
        }
        Meetings::Kernel => false,
        Meetings::Stream => true,
    }
}

/// The table for the world's device; that there is none is said once.
fn known_table(world: &World) -> Option<Arc<Table>> {
    static SAID: Once = Once::new();
    let device = world.device().name();
    let table = Table::embedded(&device);
    if table.is_none() {
        SAID.call_once(|| {
            tracing::warn!(
                "no collectives were measured on {device:?}: algorithms are chosen as on other machines. `anabranch tune` measures \
                 and writes a table, which ccl.table names"
            );
        });
    }
    table
}

/// Ends a step that each member does for itself: its own error where it failed, an error that names the first such member
/// elsewhere.
pub(crate) fn agree<T>(world: &World, group: &Group, step: &str, outcome: &Result<T>) -> Result<()> {
    let failure = outcome.as_ref().err().map(|error| error as &(dyn std::error::Error + 'static));
    match world.agree_outcome(group, step, failure) {
        Err(_) if outcome.is_err() => Ok(()), // the caller returns its own, which says more
        agreed => Ok(agreed?),
    }
}
