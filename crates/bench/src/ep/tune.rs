//! `anabranch tune ep`: measures the fastest launch shapes of dispatch and combine for each number of tokens on this machine, and writes
//! them as a table for `ep.table`. Every shape is timed as in `bench ep`, and its result compared.

mod arguments;

use anabranch::{Config, Error, RuntimeKind};
use anabranch_conformance::ep::oracle::{Oracle, Shape};
use anabranch_ep::Plan;
use anabranch_ep::launch::{Launch, LaunchKey, LaunchOperation, LaunchTable, Launches};
use anabranch_ep::plan::Geometry;
use anabranch_hip_jit::KernelSpec;
use anabranch_shmem::Team;
use anyhow::bail;
use serde::Serialize;

use self::arguments::sorted;
use super::EpArgs;
use super::cast::Casting;
use super::fit::{Measured, steps};
use super::{EpBench, experts_buffer, oracle_inputs, plan_config, plan_of};
use crate::link;
use crate::print;
use crate::ranks::RankContext;
use crate::statistics::{Samples, slowest_of_ranks};
use crate::workload::Workload;

pub(crate) use arguments::TuneEpArgs;

/// Samples of every shape.
const FIRST_SAMPLES: u32 = 10;
/// What takes so many times longer than the fastest in its first samples gets no more.
const PROMISING: f64 = 1.15;

/// What a run launches.
///
/// # Errors
/// Input that no plan can have.
pub(crate) fn needed_kernels(
    arguments: &TuneEpArgs,
    config: &Config,
    ranks: u32,
) -> anyhow::Result<Vec<KernelSpec>> {
    let mut all = Vec::new();
    for of_type in arguments.benches(false) {
        for spec in super::needed_kernels(&of_type, config, ranks)? {
            if !all.contains(&spec) {
                all.push(spec);
            }
        }
    }
    Ok(all)
}

/// The checks of the starting process, before it starts ranks.
///
/// # Errors
/// The first argument that cannot be used.
pub(crate) fn check(arguments: &TuneEpArgs, config: &Config, ranks: u32) -> anyhow::Result<()> {
    for (name, set) in [("blocks", config.ep.blocks), ("waves_per_block", config.ep.waves_per_block)] {
        if set.is_some() {
            bail!("ep.{name} is set: it would be the only one; leave it out");
        }
    }
    let host = config.device.runtime == RuntimeKind::Host;
    let heap = config.heap.most_bytes();
    for bench in arguments.benches(!host) {
        for tokens in arguments.sizes(host) {
            let workload = arguments.workload(&bench, tokens, ranks)?;
            let needed = plan_of(config, &bench, &workload, ranks)?.heap_bytes();
            if needed > heap {
                bail!(
                    "--tokens {tokens}: the windows of {ranks} ranks need {needed} bytes of the symmetric heap, and heap.bytes is \
                     {heap}: set heap.bytes, or take fewer tokens"
                );
            }
        }
    }
    Ok(())
}

/// One measurement, for `--json`.
#[derive(Debug, Serialize)]
struct Line {
    op: &'static str,
    ranks: u32,
    dispatch_type: String,
    combine_type: String,
    tokens: u32,
    max_blocks: u32,
    waves_per_block: u32,
    segments: u32,
    blocks: u32,
    threads: u32,
    us_median: f64,
}

/// What was measured at one number of tokens: for each operation the time of each launch.
struct Times([Vec<Option<f64>>; 3]);

/// Measures on one rank. Collective over the world.
///
/// # Errors
/// What the plan refuses, what made the world fail, a result that differs, a file that cannot be read or written.
pub(crate) fn run(context: &RankContext<'_>, arguments: &TuneEpArgs) -> anyhow::Result<()> {
    let world = context.world;
    let host = world.device().runtime().kind() == RuntimeKind::Host;
    let team = world.team(world.group()).map_err(Error::from)?;
    let mut table = arguments.table(&world.device().name())?;
    // A file that cannot be written is an error before anything is measured.
    arguments.write(context, &table)?;
    for bench in arguments.benches(!host) {
        let mut measured: [Vec<Measured>; 3] = Default::default();
        let mut launches = Vec::new();
        for tokens in arguments.sizes(host) {
            let workload = arguments.workload(&bench, tokens, world.size())?;
            let mut tuned = Tuned::new(context, arguments, &bench, &workload, &team)?;
            if launches.is_empty() {
                launches = tuned.launches();
            }
            let Times(times) = tuned.measure(tokens, &launches)?;
            for (all, times) in measured.iter_mut().zip(times) {
                all.push(Measured { tokens, times });
            }
        }
        let workload = arguments.workload(&bench, 1, world.size())?;
        let config = plan_config(context.config, &bench, &workload, world.size())?;
        let key = LaunchKey::new(&config, world.size());
        let [dispatch, combine_pull, combine_push] = measured.map(|of| steps(&launches, &of));
        table.put(Launches { dispatch, combine_pull, combine_push, ..Launches::new(key) });
        // What was measured stays if the rest is given up.
        arguments.write(context, &table)?;
    }
    context.progress.clear();
    match &arguments.output {
        _ if !context.is_root() => Ok(()),
        Some(path) => print::line(&format!("written to {}; ep.table names it", path.display())),
        None if context.json => Ok(()),
        None => print::line(text_of(&table).trim_end()),
    }
}

fn text_of(table: &LaunchTable) -> String {
    format!("# Measured by `anabranch tune ep`.\n{table}")
}

/// One number of tokens on one rank.
struct Tuned<'a> {
    bench: EpBench<'a>,
    arguments: &'a TuneEpArgs,
    team: &'a Team,
    tokens: u32,
}

/// What a launch comes to, of dispatch and of combine: launches of one shape are measured once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Shapes {
    dispatch: Geometry,
    combine: Geometry,
    push_segments: u32,
}

/// A launch, what it comes to, and the times of dispatch and combine with it, microseconds.
#[derive(Clone, Copy, Debug)]
struct Tried {
    launch: Launch,
    shapes: Shapes,
    times: [f64; 2],
}

impl<'a> Tuned<'a> {
    /// Collective over the world.
    fn new(
        context: &'a RankContext<'a>,
        arguments: &'a TuneEpArgs,
        bench: &'a EpArgs,
        workload: &'a Workload,
        team: &'a Team,
    ) -> anyhow::Result<Self> {
        let config = plan_config(context.config, bench, workload, context.world.size())?;
        let device = context.world.device();
        let blocks = arguments.blocks_of(device.multiprocessors()).last().copied().unwrap_or(1);
        let preferred = Plan::preferred_waves(device.wave_size(), device.multiprocessors());
        let waves = arguments.waves_of(device.multiprocessors()).last().copied().unwrap_or(1);
        // The plan takes a share of the device that every launch fits.
        let config = config.launch(blocks, waves.max(preferred).min(16));
        let bench = EpBench::with_config(context, bench, workload, Casting::Inside, config)?;
        let tokens = bench.tensors.count as u32;
        Ok(Self { bench, arguments, team, tokens })
    }

    /// All candidate launches, the plan's defaults first: of equally fast launches the first is taken.
    fn launches(&self) -> Vec<Launch> {
        let (plan, limits) = (self.bench.ep.plan(), self.bench.ep.limits());
        let operations = self.operations();
        let defaults = operations.iter().flatten().map(|operation| plan.default_launch(*operation, limits));
        let mut all: Vec<Launch> = Vec::new();
        for launch in defaults {
            if !all.contains(&launch) {
                all.push(launch);
            }
        }
        let usual = all.iter().map(|launch| launch.segments);
        let usual = usual.flat_map(|segments| [segments, 2 * segments, (segments / 2).max(1), 1]);
        let given = &self.arguments.segments;
        let segments = sorted(if given.is_empty() { usual.collect() } else { given.clone() });
        for max_blocks in self.arguments.blocks_of(limits.multiprocessors) {
            for waves_per_block in self.arguments.waves_of(limits.multiprocessors) {
                for segments in &segments {
                    let launch = Launch { max_blocks, waves_per_block, segments: *segments };
                    if !all.contains(&launch) {
                        all.push(launch);
                    }
                }
            }
        }
        all
    }

    /// What is measured in each pass: dispatch with the combine that pulls, then the combine that pushes.
    fn operations(&self) -> [Vec<LaunchOperation>; 2] {
        let push = vec![LaunchOperation::CombinePush];
        if self.bench.ep.plan().config().combine_source.pulls() {
            [vec![LaunchOperation::Dispatch, LaunchOperation::CombinePull], push]
        } else {
            [Vec::new(), vec![LaunchOperation::Dispatch, LaunchOperation::CombinePush]]
        }
    }

    fn measure(&mut self, tokens: u32, launches: &[Launch]) -> anyhow::Result<Times> {
        let world = self.bench.world();
        let mut times: [Vec<Option<f64>>; 3] = std::array::from_fn(|_| vec![None; launches.len()]);
        let inputs = std::mem::take(&mut self.bench.inputs);
        let oracle =
            Oracle::new(Shape::new(self.bench.ep.plan().config(), world.size()), oracle_inputs(&inputs))?;
        let mut expected: Option<Vec<u8>> = None;
        for (operations, pushes) in self.operations().into_iter().zip([false, true]) {
            if operations.is_empty() {
                continue;
            }
            self.say(tokens, &operations);
            self.bench.tensors.experts =
                if pushes { Some(experts_buffer(world, &self.bench.ep)?) } else { None };
            // The oracle judges one launch; the others have to give the same bytes.
            let mut right = true;
            let reference = if let Some(bytes) = expected.take() {
                bytes
            } else {
                self.bench.ep.force_launch(None);
                right &= self.bench.judge(&oracle)?;
                self.bench.output()?
            };
            let (measured, same) = self.pass(launches, pushes, &reference)?;
            right &= same;
            if !link::all_agree(world, world.group(), "ep tuned", right)? {
                bail!("{tokens} tokens: results differ from the oracle, on this rank or another");
            }
            for operation in &operations {
                let combines = *operation != LaunchOperation::Dispatch;
                for (index, tried) in measured.iter().enumerate() {
                    let time = tried.times[usize::from(combines)];
                    times[*operation as usize][index] = Some(time);
                    self.line(*operation, tokens, tried, time)?;
                }
            }
            expected = Some(reference);
        }
        Ok(Times(times))
    }

    /// The times of dispatch and combine with every launch, and whether this rank's results are the expected ones. Collective over the
    /// world.
    fn pass(
        &mut self,
        launches: &[Launch],
        pushes: bool,
        expected: &[u8],
    ) -> anyhow::Result<(Vec<Tried>, bool)> {
        let samples = self.samples();
        let mut measured: Vec<Tried> = Vec::new();
        let mut all = Vec::new();
        let mut right = true;
        for launch in launches {
            self.bench.ep.force_launch(Some(*launch));
            let shapes = self.shapes(pushes)?;
            let index = measured.iter().position(|other| other.shapes == shapes);
            if index.is_none() {
                self.bench.tensors.output.fill(0xff).map_err(Error::from)?;
                let times = self.time(samples.min(FIRST_SAMPLES))?;
                right &= self.bench.output()? == expected;
                measured.push(Tried { launch: *launch, shapes, times });
            }
            all.push((*launch, index.unwrap_or(measured.len() - 1)));
        }
        let best = |of: usize| measured.iter().map(|one| one.times[of]).fold(f64::INFINITY, f64::min);
        let best = [best(0), best(1)];
        for tried in &mut measured {
            let promising = (0..2).any(|of| tried.times[of] <= PROMISING * best[of]);
            if promising && samples > FIRST_SAMPLES {
                self.bench.ep.force_launch(Some(tried.launch));
                tried.times = self.time(samples)?;
            }
        }
        let of = |(launch, index): (Launch, usize)| Tried { launch, ..measured[index] };
        Ok((all.into_iter().map(of).collect(), right))
    }

    fn samples(&self) -> u32 {
        let host = self.bench.world().device().runtime().kind() == RuntimeKind::Host;
        self.arguments.samples.unwrap_or(if host { 5 } else { 40 })
    }

    /// Medians of the slowest rank, the same on all ranks. Collective over the world.
    fn time(&mut self, samples: u32) -> anyhow::Result<[f64; 2]> {
        let times = self.bench.time(self.team, samples)?;
        let median = |of: usize| -> anyhow::Result<f64> {
            let mine = times.get(of).map_or(&[][..], Vec::as_slice);
            let all = link::gather(self.bench.world(), self.bench.world().group(), "ep times", mine)?;
            Ok(Samples::new(slowest_of_ranks(&all)).median())
        };
        Ok([median(0)?, median(1)?])
    }

    fn shapes(&self, pushes: bool) -> anyhow::Result<Shapes> {
        let (ep, tokens) = (&self.bench.ep, self.tokens);
        let dispatch = ep.dispatch_geometry(tokens).map_err(Error::from)?;
        Ok(if pushes {
            let push_segments = ep.plan().push_segments(tokens, ep.limits());
            Shapes { dispatch, combine: ep.combine_push_geometry(tokens), push_segments }
        } else {
            Shapes { dispatch, combine: ep.combine_geometry(tokens), push_segments: 0 }
        })
    }

    fn say(&self, tokens: u32, operations: &[LaunchOperation]) {
        let names: Vec<_> = operations.iter().map(|operation| operation.name()).collect();
        let dispatched = self.bench.ep.plan().config().dispatch_type;
        self.bench
            .context
            .progress
            .say(&format!("{tokens} tokens a rank, {dispatched}: {}", names.join(" and ")));
    }

    fn line(
        &self,
        operation: LaunchOperation,
        tokens: u32,
        Tried { launch, shapes, .. }: &Tried,
        time: f64,
    ) -> anyhow::Result<()> {
        let context = self.bench.context;
        if !context.is_root() || !context.json {
            return Ok(());
        }
        let config = self.bench.ep.plan().config();
        let shape = if operation == LaunchOperation::Dispatch { shapes.dispatch } else { shapes.combine };
        print::json(&Line {
            op: operation.name(),
            ranks: context.world.size(),
            dispatch_type: config.dispatch_type.to_string(),
            combine_type: config.combine_type.to_string(),
            tokens,
            max_blocks: launch.max_blocks,
            waves_per_block: launch.waves_per_block,
            segments: launch.segments,
            blocks: shape.blocks,
            threads: shape.block_threads,
            us_median: time,
        })
    }
}
