//! `anabranch bench ccl`: collectives over a group, compared with NCCL with `--compare`. Sizes, bandwidths and in-place forms are
//! counted as nccl-tests counts them. Every result is compared bit by bit with the oracle before and after the timing.
//!
//! A sample is several operations back to back between two stamps of the device's clock, after a barrier; its time is
//! the interval divided by the number of operations, of the slowest rank. With `--graph` these operations are captured once and the
//! graph is replayed. Peers are timed by the same code in the same process, on the same stream and, but for NCCL's symmetric
//! windows, on the same buffers; the contenders alternate.

pub(super) mod arguments;
mod check;
pub(super) mod collective;
pub(super) mod contender;
mod fit;
mod judge;
mod member;
mod memory;
pub(super) mod nccl;
mod ours;
pub(crate) mod overlap;
mod plot;
mod reference;
mod report;
pub(super) mod sizes;
pub(super) mod timing;
pub(crate) mod tune;

use std::collections::{BTreeMap, BTreeSet};

use anabranch::{Config, Environment, Error, Group, GroupRank, RuntimeKind, World};
use anabranch_ccl::Shape;
use anabranch_ccl::{Check, LocationKind};
use anabranch_hip_jit::KernelSpec;
use anyhow::{Context as _, bail};
use serde_json::Value;

use super::device;
use super::link;
use super::row::{self, Row};
use crate::ranks::RankContext;
use arguments::{MemoryKind, Operator, Peer};
use collective::Collective;
use contender::{Case, Contender};
use member::Member;
use nccl::{Nccl, NcclLibrary};
use ours::{Memory, Ours};
use timing::Timing;

pub(crate) use arguments::CclArgs;
pub(crate) use nccl::NcclError;

/// What a run launches.
pub(crate) fn needed_kernels(arguments: &CclArgs, ranks: u32) -> Vec<KernelSpec> {
    let mut all = vec![KernelSpec::new(&anabranch_shmem::TEAM_BARRIER_UNIT)];
    if arguments.check {
        all.extend(check::kernels());
        return all;
    }
    all.extend(device::kernels());
    all.extend(ours::kernels(arguments.dtype, ranks));
    all
}

/// The checks of the starting process, before it starts ranks.
///
/// # Errors
/// The first argument that cannot be used.
pub(crate) fn check(arguments: &CclArgs, config: &Config, ranks: u32) -> anyhow::Result<()> {
    if arguments.check {
        return Ok(());
    }
    let runtime = config.device.runtime;
    if !arguments.compare.is_empty() {
        if runtime != RuntimeKind::Nvidia {
            bail!(
                "--compare: NCCL runs on NVIDIA GPUs, and device.runtime is {runtime}; take --runtime nvidia, or omit --compare"
            );
        }
        NcclLibrary::open(arguments.nccl_library.as_deref(), &Environment::of_process())?;
    }
    let world = Group::world(ranks)?;
    let run = Run::new(arguments, &world, runtime == RuntimeKind::Host)?;
    run.check_algorithm(config)?;
    let needed = run.largest()?;
    let heap = config.heap.most_bytes();
    if arguments.memory == MemoryKind::Symmetric && needed > heap {
        bail!(
            "input and output of the largest operation need {needed} bytes of the symmetric heap, and heap.bytes is \
             {heap}: set heap.bytes, or take smaller --sizes or --memory local"
        );
    }
    Ok(())
}

/// Measures on one rank.
///
/// # Errors
/// Errors of a contender; a fault of the world; a result that differs from the oracle.
pub(crate) fn measure(context: &RankContext<'_>, arguments: &CclArgs) -> anyhow::Result<()> {
    if arguments.check {
        return check::run(context, arguments.replays);
    }
    let world = context.world;
    let host = world.device().runtime().kind() == RuntimeKind::Host;
    let run = Run::new(arguments, world.group(), host)?;
    let library = (!arguments.compare.is_empty())
        .then(|| NcclLibrary::open(arguments.nccl_library.as_deref(), &Environment::of_process()))
        .transpose()?;
    context.progress.say("link speed");
    // The speed of all ranks at once; it does not apply to smaller groups.
    let link = if run.group.size() == world.size() { link::speed(world)? } else { None };
    let memory = run.me(context).map(|_| run.memory(world)).transpose()?;
    let mut member = match run.me(context).zip(memory.as_ref()) {
        Some((me, memory)) => Some(run.member(context, me, memory, library.as_ref())?),
        None => None,
    };
    let samples = arguments.bench.iters.unwrap_or(if host { 5 } else { 50 });
    let mut rows = Vec::new();
    for collective in &run.collectives {
        let mut of_collective = Vec::new();
        for bytes in &run.sizes {
            context.progress.say(&format!("{collective}, {bytes} bytes"));
            // Idle ranks need no place of their own: sizes do not depend on it.
            let case = run.case(*collective, *bytes, run.me(context).unwrap_or(GroupRank::new(0)))?;
            let timing = Timing::new(case.bytes(), samples, arguments.graph, host);
            let findings = match &mut member {
                Some(member) => member.measure(&case, timing)?,
                None => Vec::new(),
            };
            let results = report::collect(world, &run.group, &findings)?;
            let mut settings = run.settings(context, *collective, library.as_ref());
            settings.insert("operations", timing.operations.into());
            let facts = report::Facts {
                op: collective.to_string(),
                runtime: world.device().runtime().kind().to_string(),
                ranks: run.group.size(),
                dtype: arguments.dtype.to_string(),
                bytes: case.bytes(),
                bus_factor: collective.bus_factor(run.group.size()),
                link,
                compiled: context.compiled()?,
                settings: &settings,
            };
            of_collective.push(report::row(&facts, &results)?);
        }
        context.progress.clear();
        if context.is_root() {
            row::print_rows(&of_collective, context.json)?;
        }
        rows.append(&mut of_collective);
    }
    member.map(Member::finish).transpose()?;
    memory.map(Memory::free).transpose()?;
    if let Some(path) = arguments.plot.as_ref().filter(|_| context.is_root()) {
        plot::write(path, &run.title(context), &rows)?;
    }
    verdict(&rows)
}

fn verdict(rows: &[Row]) -> anyhow::Result<()> {
    if rows.iter().all(|row| row.verified) {
        Ok(())
    } else {
        bail!("results differ from the oracle; see `verified`")
    }
}

/// The arguments, checked against the world.
struct Run<'a> {
    arguments: &'a CclArgs,
    group: Group,
    /// Ranks of the world.
    world: u32,
    root: GroupRank,
    collectives: Vec<Collective>,
    sizes: Vec<u64>,
}

impl<'a> Run<'a> {
    fn new(arguments: &'a CclArgs, world: &Group, host: bool) -> anyhow::Result<Self> {
        let group = if arguments.group.is_empty() {
            world.clone()
        } else {
            let members: Vec<_> = arguments.group.iter().map(|rank| GroupRank::new(*rank)).collect();
            world.subset(&members).with_context(|| format!("--group {:?}", arguments.group))?
        };
        if arguments.root >= group.size() {
            bail!("--root {}: the group has the ranks 0 to {}", arguments.root, group.size() - 1);
        }
        let collectives = match arguments.collectives.as_slice() {
            [] => Collective::DEFAULT.to_vec(),
            given => given.to_vec(),
        };
        let Operator(reduce) = arguments.reduce;
        for collective in &collectives {
            if collective.reduces() {
                reduce.check(arguments.dtype)?;
            }
            if arguments.in_place && !collective.can_be_in_place() {
                bail!("--in-place: {collective} has no such form; leave it out of --op");
            }
            if !arguments.compare.is_empty() {
                nccl::check(*collective, arguments.dtype, reduce)?;
            }
        }
        ours::check_algorithm(arguments.algorithm())?;
        let sizes = arguments.sizes.all(host)?;
        let root = GroupRank::new(arguments.root);
        let run = Self { arguments, group, world: world.size(), root, collectives, sizes };
        run.check_transport()?;
        run.largest()?;
        Ok(run)
    }

    /// Refuses collectives that the transport asked for does not do.
    fn check_transport(&self) -> anyhow::Result<()> {
        let Some(transport) = self.arguments.transport else { return Ok(()) };
        for collective in &self.collectives {
            let allowed = transport.algorithm().allows(&self.shape(*collective));
            allowed.map_err(|reason| {
                anyhow::anyhow!("--transport {}: {collective} does not go by it: {reason}", transport.name())
            })?;
        }
        Ok(())
    }

    /// Refuses collectives that the algorithm asked for does not do, and what several machines do not have.
    fn check_algorithm(&self, config: &Config) -> anyhow::Result<()> {
        let given = ours::algorithm(self.arguments.algorithm())?;
        // What the user wrote, to be named.
        let (asked, by) = match (self.arguments.transport, given, config.ccl.algorithm) {
            (Some(transport), given, _) => (given, format!("--transport {}", transport.name())),
            (None, Some(given), _) => (Some(given), format!("--algorithm {given}")),
            (None, None, configured) => {
                (configured, configured.map(|name| format!("ccl.algorithm {name}")).unwrap_or_default())
            }
        };
        if let Some(nodes) = self.nodes_of_group() {
            if config.ccl.check == Check::Fingerprint {
                bail!(
                    "ccl.check = \"fingerprint\" is for members of one machine, and the group is on {nodes}: set ccl.check to off"
                );
            }
            if asked.is_some() {
                bail!(
                    "{by}: the group is on {nodes} machines, between which there are other algorithms: leave it out, and say \
                     ccl.across"
                );
            }
        }
        let Some(asked) = asked else { return Ok(()) };
        for collective in &self.collectives {
            asked
                .allows(&self.shape(*collective))
                .map_err(|reason| anyhow::anyhow!("{by}: {collective} does not go by it: {reason}"))?;
        }
        Ok(())
    }

    /// How many of the machines that `--nodes` makes the group is on, where it is on several.
    fn nodes_of_group(&self) -> Option<u32> {
        let ranks = self.world;
        let nodes = self.arguments.bench.ranks.several_nodes(ranks)?;
        let of_members =
            self.group.members().iter().map(|member| nodes.node_of(GroupRank::new(member.get())));
        let distinct: BTreeSet<_> = of_members.collect();
        (distinct.len() > 1).then_some(distinct.len() as u32)
    }

    fn shape(&self, collective: Collective) -> Shape {
        let location = match self.arguments.memory {
            MemoryKind::Symmetric => LocationKind::Symmetric,
            MemoryKind::Local => LocationKind::Local,
        };
        Shape {
            norm_row: None,
            collective: collective.library(),
            data_type: self.arguments.dtype,
            op: collective.reduces().then_some(self.arguments.reduce.0),
            members: self.group.size(),
            count: 1,
            uneven: false,
            root: collective.has_root().then_some(self.root),
            input: location,
            output: location,
        }
    }

    /// This rank's place in the group.
    fn me(&self, context: &RankContext<'_>) -> Option<GroupRank> {
        self.group.rank_of(context.world.rank())
    }

    fn case(&self, collective: Collective, bytes: u64, me: GroupRank) -> anyhow::Result<Case> {
        let element = u64::from(self.arguments.dtype.bytes());
        Ok(Case {
            collective,
            data_type: self.arguments.dtype,
            reduce: self.arguments.reduce.0,
            elements: collective
                .elements(bytes, element, self.group.size())
                .with_context(|| format!("--sizes: {collective}"))?,
            in_place: self.arguments.in_place,
            root: self.root,
            group: self.group.clone(),
            me,
        })
    }

    /// Bytes of memory that every case fits, on every rank.
    fn largest(&self) -> anyhow::Result<u64> {
        let mut largest = 0;
        for collective in &self.collectives {
            for bytes in &self.sizes {
                if *bytes > MOST_BYTES {
                    bail!("--sizes: {bytes} bytes; allowed are up to {MOST_BYTES}");
                }
                largest = largest.max(self.case(*collective, *bytes, GroupRank::new(0))?.places().end);
            }
        }
        Ok(largest)
    }

    /// What all contenders work on. Collective over the group.
    fn memory(&self, world: &World) -> anyhow::Result<Memory> {
        Memory::allocate(world, &self.group, self.arguments.memory, self.largest()?)
    }

    /// Collective over the group.
    fn member<'w>(
        &self,
        context: &RankContext<'w>,
        me: GroupRank,
        memory: &'w Memory,
        library: Option<&NcclLibrary>,
    ) -> anyhow::Result<Member<'w>> {
        let world = context.world;
        let team = world.team(&self.group).map_err(Error::from)?;
        let stream = world.device().create_stream().map_err(Error::from)?;
        let ours = Ours::new(
            world,
            &self.group,
            anabranch::ccl_config(context.config)?,
            self.arguments.algorithm(),
            memory,
        )?;
        let mut contenders: Vec<Box<dyn Contender + 'w>> = vec![Box::new(ours)];
        for peer in &self.arguments.compare {
            let library = library.cloned().context("NCCL was not opened")?;
            context.progress.say("NCCL's communicator");
            contenders.push(Box::new(match peer {
                Peer::Nccl => Nccl::on(world, &self.group, me, library, memory.area())?,
                Peer::NcclSymmetric => Nccl::symmetric(world, &self.group, me, library, memory.area().bytes)?,
            }));
        }
        Ok(Member { world, team, stream, contenders })
    }

    /// What stands in every row of a collective.
    fn settings(
        &self,
        context: &RankContext<'_>,
        collective: Collective,
        library: Option<&NcclLibrary>,
    ) -> BTreeMap<&'static str, Value> {
        let arguments = self.arguments;
        let mut settings = BTreeMap::from([
            ("mode", Value::from(if arguments.graph { "graph" } else { "eager" })),
            ("memory", arguments.memory.name().into()),
        ]);
        if arguments.in_place {
            settings.insert("in_place", true.into());
        }
        if let Some(transport) = arguments.transport {
            settings.insert("transport", transport.name().into());
        }
        if collective.reduces() {
            settings.insert("reduce", arguments.reduce.to_string().into());
        }
        if collective.has_root() {
            settings.insert("root", arguments.root.into());
        }
        if !arguments.group.is_empty() {
            let members: Vec<_> = arguments.group.iter().map(u32::to_string).collect();
            settings.insert("group", members.join(",").into());
        }
        if let Some(library) = library {
            let environment = Environment::of_process();
            settings.insert("nccl", library.version().to_string().into());
            settings.insert("nvls", nccl::nvls(&environment, context.world.device()).into());
            let set = environment.to_vec().into_iter().filter(|(name, _)| name.starts_with("NCCL_"));
            let set: Vec<_> = set.map(|(name, value)| format!("{name}={value}")).collect();
            if !set.is_empty() {
                settings.insert("nccl_settings", set.join(" ").into());
            }
        }
        settings
    }

    fn title(&self, context: &RankContext<'_>) -> String {
        format!(
            "{} ranks, {}, {} runtime{}",
            self.group.size(),
            self.arguments.dtype,
            context.world.device().runtime().kind(),
            if self.arguments.graph { ", graph replay" } else { "" },
        )
    }
}

/// So that sums of sizes stay far below 64 bits; more than the memory of any GPU.
const MOST_BYTES: u64 = 1 << 44;
