//! Collectives on a group: owns the lanes' memory, prepares calls, launches kernels.

use std::collections::HashMap;
use std::sync::{Arc, Once};

use anabranch_hip::{RuntimeKind, Stream};
use anabranch_hip_jit::{LOCAL_RESERVED_BYTES, LoadedUnit};
use anabranch_ranks::{Group, GroupRank};
use anabranch_shmem::{MemoryUse, OperationCode, OperationName, StreamMeeting, SymmetricMemory, Team, World};

use crate::args::{Channel, MOST_UNEVEN, Pipes, Place};
use crate::call::{Call, Collective, Shape};
use crate::channel::{ALIGNMENT, ChannelLayout};
use crate::checker::{Checking, watch_lanes};
use crate::config::{CclConfig, Check, Meetings};
use crate::crossing::{self, Crossing};
use crate::engine::EngineStep;
use crate::error::{Error, Result};
use crate::kernels::{self, entry};
use crate::lower::{Arguments, Buffers, Counts, Unit, gather_many_kernel, kernel_of, local_bytes};
use crate::message::{self, PointToPoint, TransferLists};
use crate::network::{LinkLayout, Nodes};
use crate::pipes::{PIPE_LOCAL_BYTES, PipeLayout};
use crate::plan::{Algorithm, Choice, Limits, Plan};
use crate::prepared::{Prepared, describe};
use crate::sizes::{Layouts, threads, wanted_lanes};
use crate::steps::{self, Launch, Step};
use crate::tensor::Tensor;
use crate::tuning::Table;
use crate::work::{EventPool, Work};
use crate::{in_place, many};

/// Collectives in fault records.
pub const OPERATION: OperationCode = OperationCode(0x200);
const NAME: OperationName = OperationName { name: "ccl", phases: PHASES };
/// `Phase` in `ccl/lane.h`.
pub(crate) const PHASES: &[&str] = &[
    "start",
    "packets of a peer",
    "meeting",
    "fingerprint",
    "overlap with an earlier call",
    "chunk from the member before",
    "room at the next member",
    "chunk of a message between machines from the peer",
    "room for a chunk at the peer",
];

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
pub(crate) const PACKET_UNITS: u32 = 512;

/// Collectives over a group, on one rank.
///
/// Made collectively by all members with equal configurations. It is one channel: its collectives are one sequence, the same on
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
    channel: Channel,
    pipe_layout: PipeLayout,
    pipes: Pipes,
    config: CclConfig,
    limits: Limits,
    /// What was measured on devices of this kind.
    table: Option<Arc<Table>>,
    units: HashMap<Unit, Arc<LoadedUnit>>,
    events: Arc<EventPool>,
    launches: u64,
    message_launches: u64,
    checking: Option<Checking>,
    /// Where streams meet around copies by engine.
    meeting: Option<StreamMeeting>,
    /// Where members are on several machines: the way of all calls then.
    crossing: Option<Crossing>,
}

impl Communicator {
    /// Makes a communicator: compares the configuration among the members, allocates the lanes' memory in the symmetric heap,
    /// loads the kernels that move bytes, and takes a share of the device for its blocks, all of which wait for peers.
    /// Collective over `group`. Where members are on several machines all calls go between them as `across` in the configuration says; sends
    /// and receives, comparisons of calls, and algorithms that were asked for are errors there.
    ///
    /// # Errors
    /// [`Error::Config`], [`Error::Unmapped`], configurations that differ, heap exhaustion, a device that is taken, compiler
    /// errors. A failure on one member is an error on all.
    pub fn new(world: &World, group: &Group, config: CclConfig) -> Result<Self> {
        config.check()?;
        let nodes = crossing::nodes_of(world, group, &config)?;
        let prepared = Self::reserve(world, group, &config, nodes.is_some());
        let table = config.table.clone().or_else(|| known_table(world));
        let mut fields = config.fields();
        fields.push((
            "ccl.table".to_owned(),
            table.as_deref().map_or_else(|| "none".to_owned(), Table::digest),
        ));
        // What plans depend on: devices of one kind, whole or in parts, may differ in it.
        let limits = threads(world);
        fields.push((
            "threads of a block".to_owned(),
            format!("{} and {}", limits.packet_threads, limits.bulk_threads),
        ));
        let machines = nodes.as_ref().map_or(&[][..], Nodes::machines);
        fields.push(("machines of the members".to_owned(), format!("{machines:?}")));
        world.compare(group, "ccl configuration", fields)?;
        agree(world, group, "ccl plan", &prepared)?;
        let (units, permit) = prepared?;
        // Members may have got unequal shares; the smallest fits all.
        let said = world.exchange(group, "ccl lanes", &permit.blocks().to_le_bytes())?;
        let counts =
            said.iter().filter_map(|bytes| Some(u32::from_le_bytes(bytes.as_slice().try_into().ok()?)));
        let lanes = counts.min().unwrap_or(1);
        world.name_operation(OPERATION, NAME);
        world.name_operation(MESSAGE_OPERATION, MESSAGE_NAME);
        let team = world.team(group)?;
        let layouts = Layouts::new(world, group.size(), lanes, &config, nodes.is_some());
        let Layouts { channel: layout, pipes: pipe_layout, links, end } = layouts;
        let mut memory = world.allocate(group, end, ALIGNMENT, "ccl lanes")?;
        let links = links.map(|layout| layout.links(team.view(), &memory, OPERATION.0));
        let crossing = nodes.zip(links).map(|(nodes, links)| Crossing::new(nodes, links, config.across));
        let pipes = pipe_layout.pipes(team.view(), &memory, MESSAGE_OPERATION.0);
        let channel = layout.channel(team.view(), &memory, OPERATION.0);
        team.hold(permit);
        let limits = Limits { lanes, ..threads(world) };
        let checking = match (config.check, units.get(&Unit::Fingerprint)) {
            (Check::Fingerprint, Some(unit)) => {
                let (threads, local) = (limits.packet_threads, local_bytes(group.size()));
                let checking = Checking::new(world, &team, unit, (threads, local), |check| {
                    watch_lanes(&mut memory, layout.lanes, lanes)?;
                    watch_lanes(check, ChannelLayout::of_check(group.size()).lanes, 1)
                });
                Some(checking?)
            }
            _ => None,
        };
        let meeting = if by_stream(world, config.meetings) { Some(team.stream_meeting()?) } else { None };
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
            table,
            units,
            events,
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
    ) -> Result<(HashMap<Unit, Arc<LoadedUnit>>, anabranch_shmem::ResidencyPermit)> {
        let device = world.device();
        let (of_bytes, entry) = match is_crossing {
            true => (Unit::NetworkMove, entry::NETWORK_MOVE),
            false => (Unit::Move, entry::MOVE_DIRECT),
        };
        let local = match is_crossing {
            true => LinkLayout::local_bytes(group.size()),
            false => local_bytes(group.size()).max(PIPE_LOCAL_BYTES),
        };
        let limit =
            (device.properties().shared_memory_per_block() as u32).saturating_sub(LOCAL_RESERVED_BYTES);
        if local > limit {
            let allowed = "as many members as have their addresses in a block's local memory";
            return Err(Error::Config { field: "the group's size", given: u64::from(group.size()), allowed });
        }
        let unit = world.jit().load(device, &of_bytes.spec_in(world))?;
        let limits = threads(world);
        let most_threads = limits.packet_threads.max(limits.bulk_threads);
        let kernel = unit.kernel(entry)?;
        let resident = world.max_resident_blocks(kernel.raw(), most_threads, local + LOCAL_RESERVED_BYTES)?;
        let wanted = wanted_lanes(world, config, is_crossing);
        let mut units = HashMap::from([(of_bytes, unit)]);
        if config.check == Check::Fingerprint {
            // Its one block runs before a call's kernel, never beside it: their share of the device is one.
            let unit = world.jit().load(device, &kernels::fingerprint())?;
            unit.kernel(entry::FINGERPRINT)?;
            units.insert(Unit::Fingerprint, unit);
        }
        Ok((units, world.reserve_residency_up_to(1, wanted, resident)?))
    }

    /// Bytes of the symmetric heap that its lanes, staging and pipes take.
    pub fn heap_bytes(&self) -> u64 {
        self.memory.bytes()
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
    pub fn lanes(&self) -> u32 {
        self.limits.lanes
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
        if let Some(crossing) = &self.crossing {
            let choice = Choice { algorithm: self.config.algorithm, ..Choice::default() };
            return crossing.plan(shape, &self.limits, choice);
        }
        Plan::new(shape, &self.limits, self.table.as_deref(), self.config.algorithm)
    }

    /// Checks a call and chooses how it is done. Loads its kernels, so that nothing is loaded while others are in flight: prepare
    /// before the first launch. Not collective: every member prepares the same call for itself, and nothing is exchanged.
    ///
    /// # Errors
    /// Whatever is wrong with the call ([`Call::shape`], [`Error::Overlap`], [`Error::Alignment`], [`Error::Algorithm`]); a kernel
    /// that does not compile.
    pub fn prepare(&mut self, call: &Call<'_>) -> Result<Prepared> {
        let choice = Choice { algorithm: self.config.algorithm, ..Choice::default() };
        self.prepare_as(call, choice)
    }

    /// [`Self::prepare`] with this choice in place of the configuration's and the plan's: for tuning, and for tests. All members
    /// give the same, or their kernels do not meet.
    ///
    /// # Errors
    /// Those of [`Self::prepare`]; [`Error::Config`] for blocks that are not within 1 and [`Self::lanes`].
    pub fn prepare_as(&mut self, call: &Call<'_>, choice: Choice) -> Result<Prepared> {
        let shape = call.shape(self.size(), self.rank())?;
        if self.crossing.is_some() {
            return self.prepare_across(call, shape, choice);
        }
        if let Some(messages) = call.messages() {
            return self.prepare_messages(call, shape, &messages);
        }
        if shape.uneven && self.size() as usize > MOST_UNEVEN {
            let allowed = "at most 64 where counts differ";
            return Err(Error::Config { field: "the group's size", given: self.size().into(), allowed });
        }
        let table = self.table.as_deref();
        let plan = match call {
            Call::AllGatherMany(_) => many::plan(&shape, &self.limits, table, choice)?,
            _ => Plan::chosen(&shape, &self.limits, table, choice)?,
        };
        let (output, input) = call.tensors();
        in_place::check(call, &shape, &self.team)?;
        let counts = counts_of(call);
        let alignment = [&output, &input].into_iter().flatten().map(|tensor| tensor.alignment(&self.team));
        let buffers = Buffers {
            input: self.place(input.as_ref()),
            output: self.place(output.as_ref()),
            alignment: alignment.min().unwrap_or(1),
        };
        let mut table = None;
        if let Call::AllGatherMany(pairs) = call {
            many::check(pairs, &self.team)?;
        }
        let steps = match call {
            _ if plan.algorithm == Algorithm::CopyEngine => {
                let of_call = (&self.channel, self.limits.lanes);
                let steps = steps::by_engine(&self.team, of_call, call, (&shape, &plan), (&buffers, counts))?;
                self.team.prepare_legs(self.config.copy_streams)?;
                self.with_kernels(steps, &shape, &plan)?
            }
            Call::AllGatherMany(pairs) => {
                let (args, listed) = many::arguments(pairs, &self.team, self.channel)?;
                table = listed.map(Arc::new);
                vec![self.step(gather_many_kernel(plan.algorithm), Arguments::GatherMany(args), &plan)?]
            }
            _ => {
                let arguments = Arguments::new(&self.channel, &shape, &plan, &buffers, counts);
                vec![self.step(kernel_of(&shape, plan.algorithm), arguments, &plan)?]
            }
        };
        let description = match call {
            Call::AllGatherMany(pairs) => format!("{} tensors: {}", pairs.len(), describe(&shape, &plan)),
            _ => describe(&shape, &plan),
        };
        Ok(Prepared {
            plan,
            shape,
            steps,
            channel: self.channel.lanes,
            table,
            uses: self.uses(call),
            description: description.into(),
            fingerprint: self.checking.as_ref().map(|checking| checking.arguments(call, &shape, &plan)),
        })
    }

    /// A kernel with the plan's launch shape.
    fn step(&mut self, (unit, entry): (Unit, &str), arguments: Arguments, plan: &Plan) -> Result<Step> {
        let (blocks, threads, local_bytes) = (plan.blocks, plan.threads, local_bytes(self.size()));
        let kernel = self.unit(unit)?.kernel(entry)?.clone();
        Ok(Step::Kernel(Box::new(Launch { kernel, arguments, blocks, threads, local_bytes })))
    }

    /// The steps of a call by copy engine, with their kernels.
    fn with_kernels(&mut self, steps: Vec<EngineStep>, shape: &Shape, plan: &Plan) -> Result<Vec<Step>> {
        let meeting = Plan { blocks: 1, threads: self.limits.meeting_threads, ..*plan };
        let with_kernel = |step| match step {
            EngineStep::Legs(legs) => Ok(Step::Legs(legs)),
            EngineStep::Meeting => {
                let kernel = (Unit::Move, entry::BARRIER);
                self.step(kernel, Arguments::meeting(&self.channel), &meeting).map(Step::into_meeting)
            }
            EngineStep::Reduce(args) => {
                self.step(kernel_of(shape, plan.algorithm), Arguments::EngineReduce(args), plan)
            }
        };
        steps.into_iter().map(with_kernel).collect()
    }

    /// A call whose members are on several machines.
    fn prepare_across(&mut self, call: &Call<'_>, shape: Shape, choice: Choice) -> Result<Prepared> {
        let Some(crossing) = &self.crossing else {
            return Err(Error::Foreign { what: "a call across machines" });
        };
        if call.messages().is_some() {
            return Err(crossing.refuse("a message between two members", "exchange it by a collective"));
        }
        let plan = crossing.plan(&shape, &self.limits, choice)?;
        match call {
            Call::AllGatherMany(pairs) => many::check(pairs, &self.team)?,
            _ => in_place::check(call, &shape, &self.team)?,
        }
        let (all, table) = crossing.arguments(&self.team, call, (&shape, &plan, counts_of(call)))?;
        let (unit, entry) = kernel_of(&shape, plan.algorithm);
        let local_bytes = LinkLayout::local_bytes(self.size());
        let kernel = self.unit(unit)?.kernel(entry)?.clone();
        let Plan { blocks, threads, .. } = plan;
        let launch = |args| {
            let (kernel, arguments) = (kernel.clone(), Arguments::Network(args));
            Step::Kernel(Box::new(Launch { kernel, arguments, blocks, threads, local_bytes }))
        };
        Ok(Prepared {
            plan,
            shape,
            steps: all.into_iter().map(launch).collect(),
            channel: self.channel.lanes,
            table: table.map(Arc::new),
            uses: self.uses(call),
            description: describe(&shape, &plan).into(),
            fingerprint: None,
        })
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
        let mut plan = Plan::new(&shape, &self.limits, None, None)?;
        plan.blocks = served.clamp(1, self.limits.lanes);
        let (args, table) = message::arguments(&lists, &self.team, self.pipes)?;
        let step = Step::Kernel(Box::new(Launch {
            kernel: self.unit(Unit::Pipes)?.kernel(entry::PIPES)?.clone(),
            arguments: Arguments::Pipes(args),
            blocks: plan.blocks,
            threads: plan.threads,
            local_bytes: PipeLayout::local_bytes(served, plan.blocks),
        }));
        Ok(Prepared {
            plan,
            shape,
            steps: vec![step],
            channel: self.channel.lanes,
            table: table.map(Arc::new),
            uses: self.uses(call),
            description: message::describe(messages, &plan).into(),
            // Others have no part in it.
            fingerprint: None,
        })
    }

    fn uses(&self, call: &Call<'_>) -> Vec<MemoryUse> {
        let check = self.checking.as_ref().map(|checking| checking.checker.usage());
        let meeting = self.meeting.as_ref().map(StreamMeeting::usage);
        let own = [self.memory.usage()].into_iter().chain(check).chain(meeting);
        call.all_tensors().iter().filter_map(Tensor::usage).chain(own).collect()
    }

    fn unit(&mut self, unit: Unit) -> Result<&Arc<LoadedUnit>> {
        use std::collections::hash_map::Entry;
        match self.units.entry(unit) {
            Entry::Occupied(known) => Ok(known.into_mut()),
            Entry::Vacant(place) => {
                let loaded = self.world.jit().load(self.world.device(), &unit.spec_in(&self.world))?;
                Ok(place.insert(loaded))
            }
        }
    }

    fn place(&self, tensor: Option<&Tensor<'_>>) -> Place {
        tensor.map_or(Buffers::NOWHERE, |tensor| tensor.place(&self.team))
    }

    /// Puts a prepared call on the stream: one kernel, or by [`Algorithm::CopyEngine`] kernels that meet and copies on streams that fork from
    /// it and join it again; with [`Check::Fingerprint`] a kernel before a collective's. Every member
    /// launches the same collectives in the same order, and the two of a pair their messages. May be captured into a graph, which
    /// all members replay in the same order with each other and with other launches of this communicator; whoever replays it
    /// keeps that order, and keeps the tensors. A list that a captured launch reads stays as long as the communicator. Where streams meet
    /// ([`Meetings`]), all members launch a call by copy engine, or all replay it.
    ///
    /// # Errors
    /// [`Error::Foreign`]; what made the world fail, [`Error::Mismatch`] where calls are compared and differed; the launch's.
    pub fn launch(&mut self, prepared: &Prepared, stream: &Stream) -> Result<Work> {
        if prepared.channel != self.channel.lanes {
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
                // SAFETY: the lanes' memory and the tensors in the heap are tracked as used; other tensors' callers promised that
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
        Ok(Work::new(&self.world, event, sequence, &prepared.description, checker))
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

/// Elements that are exchanged with each member, where the call has counts that differ.
const fn counts_of<'a>(call: &Call<'a>) -> Counts<'a> {
    match *call {
        Call::AllGatherUneven { counts, .. } => Counts::AllGather(counts),
        Call::AllToAllUneven { output_splits, input_splits, .. } => {
            Counts::AllToAll { input_splits, output_splits }
        }
        _ => Counts::Even,
    }
}

/// Whether members meet by their streams around copies by engine.
fn by_stream(world: &World, meetings: Meetings) -> bool {
    match meetings {
        Meetings::Auto => {
            world.device().runtime().kind() == RuntimeKind::Nvidia && world.has_stream_meetings()
        }
        Meetings::Kernel => false,
        Meetings::Stream => true,
    }
}

/// The table for the world's device; that there is none is said once.
fn known_table(world: &World) -> Option<Arc<Table>> {
    static SAID: Once = Once::new();
    let device = world.device().properties().name();
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
