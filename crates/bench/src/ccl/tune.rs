//! `anabranch tune`: which algorithm is fastest for each collective, size of message, size of group and kind of memory on this
//! machine, as a table that `ccl.table` names. All ways that can do a call are timed in turns, as `bench ccl` times contenders.

use std::cell::RefCell;
use std::collections::{BTreeSet, HashMap};
use std::path::{Path, PathBuf};
use std::rc::Rc;

use anabranch::{Config, Error, Group, GroupRank, RuntimeKind, World};
use anabranch_ccl::Shape;
use anabranch_ccl::plan::Limits;
use anabranch_ccl::tuning::{Choices, Table};
use anabranch_ccl::{Algorithm, Choice, Communicator, DataType, LocationKind, Plan, ReduceOp};
use anabranch_hip_jit::KernelSpec;
use anyhow::{Context as _, bail};
use clap::Args;
use serde::Serialize;

use super::arguments::MemoryKind;
use super::collective::Collective;
use super::contender::{Case, Contender};
use super::fit::{Candidate, Measured, steps};
use super::ours::{self, Memory, Ours};
use super::sizes::Size;
use super::timing::{self, Timing};
use crate::device;
use crate::print;
use crate::ranks::{RankArgs, RankContext};
use crate::statistics::{Samples, slowest_of_ranks};

/// `anabranch tune`.
#[derive(Clone, Debug, Args)]
pub(crate) struct TuneArgs {
    #[command(flatten)]
    pub(crate) ranks: RankArgs,
    /// Collectives [default: all].
    #[arg(long = "op", value_enum, value_delimiter = ',', value_name = "OP,...")]
    collectives: Vec<Collective>,
    /// Sizes of groups: the first so many ranks [default: 2 up to all].
    #[arg(long, value_delimiter = ',', value_name = "N,...")]
    members: Vec<u32>,
    /// The largest size, from 1 KiB on [default: the largest that the heap holds, up to 1 GiB on GPUs and 64 MiB without].
    #[arg(long, value_name = "SIZE")]
    max: Option<Size>,
    /// Each size is the one before times this [default: 2, and 4 without a GPU].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(2..=64))]
    factor: Option<u64>,
    /// Samples of each way at each size.
    #[arg(long, default_value_t = 15, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    samples: u32,
    /// Where the table goes, in place of standard output.
    #[arg(long, value_name = "FILE.toml")]
    output: Option<PathBuf>,
}

/// The smallest message.
const LEAST: u64 = 1 << 10;
/// Element type of what is measured.
const DATA_TYPE: DataType = DataType::Bf16;
/// For [`Candidate::block_bytes`]: all in one block.
const ONE_BLOCK: u64 = 1 << 40;
/// From this size on `push` in phases is tried.
const PHASED_FROM: u64 = 1 << 20;
/// What takes so many times longer is not tried with larger messages: packets than the fastest way, and a number of
/// blocks than the best one of the same algorithm.
const HOPELESS: f64 = 2.5;

/// What a run launches.
pub(crate) fn needed_kernels(ranks: u32) -> Vec<KernelSpec> {
    let mut all = vec![KernelSpec::new(&anabranch_shmem::TEAM_BARRIER_UNIT)];
    all.extend(device::kernels());
    all.extend(ours::kernels(DATA_TYPE, ranks));
    all
}

/// The checks of the starting process, before it starts ranks.
///
/// # Errors
/// The first argument that cannot be used.
pub(crate) fn check(arguments: &TuneArgs, config: &Config, ranks: u32) -> anyhow::Result<()> {
    if ranks < 2 {
        bail!("--ranks {ranks}: a group of one rank exchanges nothing; allowed are 2 and more");
    }
    if let Some(wrong) = arguments.members.iter().find(|members| !(2..=ranks).contains(members)) {
        bail!("--members {wrong}: allowed are 2 to {ranks}, the ranks");
    }
    if config.ccl.algorithm.is_some() {
        bail!("ccl.algorithm is set: it would be the only one; leave it \"auto\"");
    }
    arguments.sizes(config).map(|_| ())
}

impl TuneArgs {
    fn sizes(&self, config: &Config) -> anyhow::Result<Vec<u64>> {
        let host = config.device.runtime == RuntimeKind::Host;
        // Input and output, and as much again for staging and what else lies there.
        // A heap whose size the world chooses has at least this, on devices that are free.
        let heap = config.heap.bytes.map_or(256 << 20, anabranch::config::ByteSize::bytes);
        let fits = (heap / 4).checked_ilog2().map_or(0, |power| 1_u64 << power);
        let most = fits.min(if host { 64 << 20 } else { 1 << 30 });
        let largest = self.max.map_or(most, |size| size.0);
        if largest > fits || largest < LEAST {
            bail!("--max {largest}: with heap.bytes = {heap} sizes are from {LEAST} to {fits} bytes");
        }
        let factor = self.factor.unwrap_or(if host { 4 } else { 2 });
        Ok(std::iter::successors(Some(LEAST), |bytes| bytes.checked_mul(factor))
            .take_while(|bytes| *bytes <= largest)
            .collect())
    }
}

/// One measurement, for `--json`.
#[derive(Debug, Serialize)]
struct Row<'a> {
    op: String,
    members: u32,
    reached: bool,
    bytes: u64,
    algorithm: &'a str,
    blocks: u32,
    phased: bool,
    us_median: f64,
}

/// Measures on one rank. Collective over the world.
///
/// # Errors
/// What a call or the world fails with; a file that cannot be written.
pub(crate) fn run(context: &RankContext<'_>, arguments: &TuneArgs) -> anyhow::Result<()> {
    let world = context.world;
    let sizes = arguments.sizes(context.config)?;
    let groups: Vec<u32> = match arguments.members.as_slice() {
        [] => (2..=world.size()).collect(),
        given => given.iter().copied().collect::<BTreeSet<_>>().into_iter().collect(),
    };
    let mut table = Table { device: world.device().name(), choices: Vec::new() };
    // A file that cannot be written is an error before anything is measured.
    arguments.write(context, &table)?;
    for members in groups {
        for memory in [MemoryKind::Symmetric, MemoryKind::Local] {
            let group = world.group().subset(&(0..members).map(GroupRank::new).collect::<Vec<_>>())?;
            let mut tuned = Tuned::new(context, arguments, &group, memory, &sizes)?;
            for collective in arguments.all_collectives() {
                let steps = tuned.measure(collective, &sizes)?;
                table.choices.push(Choices {
                    collective: collective.library(),
                    members,
                    reached: memory == MemoryKind::Symmetric,
                    steps,
                });
                // What was measured stays if the rest is given up.
                arguments.write(context, &table)?;
            }
            tuned.finish()?;
        }
    }
    context.progress.clear();
    if !context.is_root() {
        return Ok(());
    }
    match &arguments.output {
        Some(path) => print::line(&format!("written to {}; ccl.table names it", path.display())),
        None if context.json => Ok(()),
        None => print::line(text_of(world, &table).trim_end()),
    }
}

fn text_of(world: &World, table: &Table) -> String {
    format!("# Measured by `anabranch tune` with {} ranks of {DATA_TYPE}.\n{table}", world.size())
}

impl TuneArgs {
    fn all_collectives(&self) -> Vec<Collective> {
        use clap::ValueEnum;
        // Each once, in one order.
        let asked = |one: &Collective| self.collectives.is_empty() || self.collectives.contains(one);
        Collective::value_variants().iter().copied().filter(asked).collect()
    }

    /// Writes what was measured so far, if a file was asked for and this rank writes it: whole, or not at all.
    fn write(&self, context: &RankContext<'_>, table: &Table) -> anyhow::Result<()> {
        let Some(path) = self.output.as_ref().filter(|_| context.is_root()) else { return Ok(()) };
        write_whole(path, &text_of(context.world, table))
            .with_context(|| format!("--output {}", path.display()))
    }
}

/// Writes a file whole, or not at all.
pub(crate) fn write_whole(path: &Path, text: &str) -> std::io::Result<()> {
    let mut beside = path.as_os_str().to_owned();
    beside.push(".part");
    std::fs::write(&beside, text)?;
    std::fs::rename(&beside, path)
}

/// One group with memory of one kind, on one rank; idle ranks have no place in it and only listen.
struct Tuned<'a> {
    context: &'a RankContext<'a>,
    arguments: &'a TuneArgs,
    group: Group,
    kind: MemoryKind,
    member: Option<Place>,
}

struct Place {
    me: GroupRank,
    team: anabranch_shmem::Team,
    stream: anabranch_hip::Stream,
    communicator: Rc<RefCell<Communicator>>,
    limits: Limits,
    memory: Memory,
}

impl<'a> Tuned<'a> {
    /// Collective over the world.
    fn new(
        context: &'a RankContext<'a>,
        arguments: &'a TuneArgs,
        group: &Group,
        kind: MemoryKind,
        sizes: &[u64],
    ) -> anyhow::Result<Self> {
        let world = context.world;
        let place = |me: GroupRank| -> anyhow::Result<Place> {
            let bytes = 2 * sizes.last().copied().unwrap_or(LEAST) + 8192;
            let memory = Memory::allocate(world, group, kind, bytes)?;
            let config = anabranch::ccl_config(context.config)?;
            let communicator = Communicator::new(world, group, config)?;
            Ok(Place {
                me,
                team: world.team(group).map_err(Error::from)?,
                stream: world.device().create_stream().map_err(Error::from)?,
                limits: *communicator.limits(),
                communicator: Rc::new(RefCell::new(communicator)),
                memory,
            })
        };
        let member = group.rank_of(world.rank()).map(place).transpose()?;
        Ok(Self { context, arguments, group: group.clone(), kind, member })
    }

    /// The steps of a collective. Collective over the world.
    fn measure(
        &mut self,
        collective: Collective,
        sizes: &[u64],
    ) -> anyhow::Result<Vec<anabranch_ccl::tuning::Step>> {
        let mut candidates = Vec::new();
        let mut measured = Vec::new();
        let mut hopeless = Vec::new();
        for bytes in sizes {
            self.context.progress.say(&format!(
                "{collective}, {bytes} bytes, {} ranks, {} memory",
                self.group.size(),
                self.kind.name()
            ));
            let me = self.member.as_ref().map_or(GroupRank::new(0), |place| place.me);
            let case = self.case(collective, *bytes, me)?;
            if candidates.is_empty()
                && let Some(place) = &self.member
            {
                candidates = candidates_of(&self.shape(&case), &place.limits);
                hopeless = vec![false; candidates.len()];
            }
            let plans = self.plans(&case, &candidates, &hopeless)?;
            let mine = match &self.member {
                Some(place) => place.time(self.context, self.arguments, &case, &plans)?,
                None => Vec::new(),
            };
            let medians = together(self.context.world, &self.group, &mine)?;
            let of_plan: HashMap<Plan, f64> = plans.iter().map(|(plan, _)| *plan).zip(medians).collect();
            let times = self.times(&case, &candidates, &of_plan)?;
            give_up(&candidates, &times, &mut hopeless);
            if self.context.is_root() && self.context.json {
                self.rows(&case, &of_plan)?;
            }
            measured.push(Measured { bytes: case.bytes(), times });
        }
        Ok(steps(&candidates, &measured))
    }

    fn rows(&self, case: &Case, times: &HashMap<Plan, f64>) -> anyhow::Result<()> {
        let mut times: Vec<_> = times.iter().collect();
        times.sort_by(|one, other| one.1.total_cmp(other.1));
        for (plan, time) in times {
            print::json(&Row {
                op: case.collective.to_string(),
                members: self.group.size(),
                reached: self.kind == MemoryKind::Symmetric,
                bytes: case.bytes(),
                algorithm: plan.algorithm.name(),
                blocks: plan.blocks,
                phased: plan.phased,
                us_median: *time,
            })?;
        }
        Ok(())
    }

    fn case(&self, collective: Collective, bytes: u64, me: GroupRank) -> anyhow::Result<Case> {
        Ok(Case {
            collective,
            data_type: DATA_TYPE,
            reduce: ReduceOp::Sum,
            elements: collective.elements(bytes, u64::from(DATA_TYPE.bytes()), self.group.size())?,
            in_place: false,
            root: GroupRank::new(0),
            group: self.group.clone(),
            me,
        })
    }

    fn shape(&self, case: &Case) -> Shape {
        let location = match self.kind {
            MemoryKind::Symmetric => LocationKind::Symmetric,
            MemoryKind::Local => LocationKind::Local,
        };
        let scatters = case.collective == Collective::Scatter;
        Shape {
            norm_row: None,
            collective: case.collective.library(),
            data_type: case.data_type,
            op: case.collective.reduces().then_some(case.reduce),
            members: self.group.size(),
            count: case.elements.count,
            uneven: false,
            root: case.collective.has_root().then_some(case.root),
            input: if scatters { LocationKind::Local } else { location },
            output: location,
        }
    }

    /// The plan of each candidate that is still worth a try; what comes to the same launch once.
    fn plans(
        &self,
        case: &Case,
        candidates: &[Candidate],
        hopeless: &[bool],
    ) -> anyhow::Result<Vec<(Plan, Choice)>> {
        let Some(place) = &self.member else { return Ok(Vec::new()) };
        let shape = self.shape(case);
        let mut plans: Vec<(Plan, Choice)> = Vec::new();
        for (candidate, hopeless) in candidates.iter().zip(hopeless) {
            let too_small = candidate.phased && shape.message_bytes() < PHASED_FROM;
            if too_small || *hopeless {
                continue;
            }
            let choice = choice_of(candidate);
            let plan = Plan::chosen(&shape, &place.limits, None, choice)?;
            if !plans.iter().any(|(other, _)| *other == plan) {
                plans.push((plan, choice));
            }
        }
        Ok(plans)
    }

    /// The time of each candidate.
    fn times(
        &self,
        case: &Case,
        candidates: &[Candidate],
        of_plan: &HashMap<Plan, f64>,
    ) -> anyhow::Result<Vec<Option<f64>>> {
        let Some(place) = &self.member else { return Ok(Vec::new()) };
        let shape = self.shape(case);
        let time = |candidate: &Candidate| -> anyhow::Result<Option<f64>> {
            let plan = Plan::chosen(&shape, &place.limits, None, choice_of(candidate))?;
            Ok(of_plan.get(&plan).copied())
        };
        candidates.iter().map(time).collect()
    }

    /// Collective over the world.
    fn finish(self) -> anyhow::Result<()> {
        match self.member {
            Some(place) => {
                drop(place.communicator);
                place.memory.free()
            }
            None => Ok(()),
        }
    }
}

impl Place {
    /// This rank's samples of each plan. Collective over the group.
    fn time(
        &self,
        context: &RankContext<'_>,
        arguments: &TuneArgs,
        case: &Case,
        plans: &[(Plan, Choice)],
    ) -> anyhow::Result<Vec<Vec<f64>>> {
        let host = context.world.device().runtime().kind() == RuntimeKind::Host;
        let mut contenders: Vec<Box<dyn Contender + '_>> = Vec::new();
        for (_, choice) in plans {
            let mut one = Ours::sharing(Rc::clone(&self.communicator), &self.memory, *choice);
            one.prepare(case)?;
            contenders.push(Box::new(one));
        }
        let timing = Timing::new(case.bytes(), arguments.samples, !host, host);
        timing::time(context.world, &self.team, &self.stream, &mut contenders, timing)
    }
}

const fn choice_of(candidate: &Candidate) -> Choice {
    Choice {
        algorithm: Some(candidate.algorithm),
        blocks: None,
        block_bytes: Some(candidate.block_bytes),
        phased: Some(candidate.phased),
    }
}

/// Every way of doing calls of this shape.
fn candidates_of(shape: &Shape, limits: &Limits) -> Vec<Candidate> {
    let expected = |algorithm| Some((algorithm, limits.block_bytes(shape, algorithm).ok()?));
    let mut all = Vec::new();
    for (algorithm, expected) in Algorithm::ALL.into_iter().filter_map(expected) {
        // What is expected to be right first: of equal plans the first one is taken.
        for block_bytes in [expected, expected * 4, expected / 4, ONE_BLOCK] {
            all.push(Candidate { algorithm, block_bytes, phased: false });
        }
        if algorithm == Algorithm::Push && shape.members > 2 {
            all.push(Candidate { algorithm, block_bytes: expected, phased: true });
        }
    }
    all
}

/// Marks what is not worth a try with larger messages.
fn give_up(candidates: &[Candidate], times: &[Option<f64>], hopeless: &mut [bool]) {
    let fastest_of = |fits: &dyn Fn(&Candidate) -> bool| {
        let timed = candidates.iter().zip(times).filter(|(candidate, _)| fits(candidate));
        timed.filter_map(|(_, time)| *time).fold(f64::INFINITY, f64::min)
    };
    let best = fastest_of(&|_| true);
    for ((candidate, time), hopeless) in candidates.iter().zip(times).zip(hopeless) {
        // Phases pay late: they are not compared with what has none.
        let own =
            fastest_of(&|other| (other.algorithm, other.phased) == (candidate.algorithm, candidate.phased));
        let grows_slower = candidate.algorithm.is_packets();
        *hopeless |= grows_slower && own > HOPELESS * best || time.is_some_and(|time| time > HOPELESS * own);
    }
}

/// The slowest member's median of each plan. Collective over the world, so that idle ranks keep up.
fn together(world: &World, group: &Group, mine: &[Vec<f64>]) -> anyhow::Result<Vec<f64>> {
    let all = world.exchange(world.group(), "tune", &serde_json::to_vec(mine)?).map_err(Error::from)?;
    let of_member = |member: &anabranch::GlobalRank| {
        let bytes = all.get(member.index()).context("fewer samples than ranks")?;
        Ok(serde_json::from_slice::<Vec<Vec<f64>>>(bytes)?)
    };
    let members = group.members().iter().map(of_member).collect::<anyhow::Result<Vec<_>>>()?;
    let plans = members.iter().map(Vec::len).min().unwrap_or(0);
    let slowest = |plan: usize| {
        let samples: Vec<_> = members.iter().map(|samples| samples[plan].clone()).collect();
        Samples::new(slowest_of_ranks(&samples)).median()
    };
    Ok((0..plans).map(slowest).collect())
}
