//! `anabranch tune ep`: which launch shapes of dispatch and combine are fastest for each number of tokens on this machine, as a table
//! that `ep.table` names. Every shape is timed as `bench ep` times dispatch and combine, and its result compared.

use std::collections::BTreeSet;
use std::num::NonZeroU32;
use std::path::PathBuf;

use anabranch::ep::launch::{Launch, LaunchKey, LaunchOperation, LaunchTable, Launches, Measured, fit};
use anabranch::ep::oracle::{Oracle, Shape};
use anabranch::ep::plan::Geometry;
use anabranch::ep::{CombineCodec, CombineSource, DataType, EpConfig, Mode, Plan};
use anabranch::jit::KernelSpec;
use anabranch::shmem::Team;
use anabranch::{Config, Error, RuntimeKind};
use anyhow::{Context as _, bail};
use clap::Args;
use serde::Serialize;

use super::{EpBench, experts_buffer, oracle_inputs, plan_of};
use crate::bench::ccl::tune::write_whole;
use crate::bench::statistics::{Samples, slowest_of_ranks};
use crate::bench::{BenchArgs, EpArgs, Layout, SyntheticArgs, link};
use crate::print;
use crate::ranks::{RankArgs, RankContext};
use crate::workload::{Routing, Synthetic, Workload};

/// `anabranch tune ep`.
#[derive(Clone, Debug, Args)]
pub(crate) struct TuneEpArgs {
    #[command(flatten)]
    pub(crate) ranks: RankArgs,
    /// Tokens a rank, random routing [default: 1, 8, 32, 128, 512, 4096; and 1, 8, 32 without a GPU].
    #[arg(long, value_delimiter = ',', value_name = "N,...", value_parser = clap::value_parser!(u32).range(1..))]
    tokens: Vec<u32>,
    /// Elements of a token.
    #[arg(long, default_value_t = 7168, value_name = "H")]
    hidden: u32,
    /// Experts of all ranks.
    #[arg(long, default_value_t = 256, value_name = "E")]
    experts: u32,
    /// Experts a token.
    #[arg(long, default_value_t = 8, value_name = "K")]
    top_k: u32,
    /// Element types of the rows that dispatch sends [default: bf16, fp8_e4m3fn].
    #[arg(long, value_delimiter = ',', value_name = "TYPE,...")]
    dispatch_dtype: Vec<DataType>,
    /// Element type of the rows that combine sums.
    #[arg(long, default_value_t = DataType::Bf16, value_name = "TYPE")]
    combine_dtype: DataType,
    /// What rows are turned into on their way back.
    #[arg(long, default_value_t = CombineCodec::None, value_name = "CODEC")]
    combine_quant: CombineCodec,
    /// How received rows lie: auto, slotted or compact.
    #[arg(long, default_value_t = Mode::Auto, value_name = "MODE")]
    mode: Mode,
    /// Most blocks of a launch [default: 16, 32, 48, 64, 96, 128 and as many as multiprocessors; 1, 2 and 4 without a GPU].
    #[arg(long, value_delimiter = ',', value_name = "N,...", value_parser = clap::value_parser!(u32).range(1..=65_535))]
    blocks: Vec<u32>,
    /// Waves of a block [default: 4, 8, 16; and 1, 2, 4 without a GPU].
    #[arg(long, value_delimiter = ',', value_name = "N,...", value_parser = clap::value_parser!(u32).range(1..=16))]
    waves: Vec<u32>,
    /// Most waves that share a row [default: 1, and half, all and twice of two 16-byte units a lane].
    #[arg(long, value_delimiter = ',', value_name = "N,...", value_parser = clap::value_parser!(u32).range(1..))]
    segments: Vec<u32>,
    /// Samples of each shape that is near the fastest; the others have fewer.
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    samples: Option<u32>,
    /// Where the table goes, in place of standard output. What it has of the same device for other ranks, types or lengths of rows
    /// stays.
    #[arg(long, value_name = "FILE.toml")]
    output: Option<PathBuf>,
}

/// Samples of every shape.
const FIRST_SAMPLES: u32 = 10;
/// What takes so many times longer than the fastest in its first samples gets no more.
const PROMISING: f64 = 1.15;

/// What a run launches.
pub(crate) fn needed_kernels(arguments: &TuneEpArgs) -> Vec<KernelSpec> {
    let mut all = Vec::new();
    for of_type in arguments.benches(false) {
        for spec in super::needed_kernels(&of_type) {
            if !all.contains(&spec) {
                all.push(spec);
            }
        }
    }
    all
}

/// What the starting process can tell before there are ranks.
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
    let heap = config.heap.bytes.bytes();
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
    let mut table = arguments.table(&world.device().properties().name())?;
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
        let key = LaunchKey {
            ranks: world.size(),
            dispatch_type: bench.dispatch_dtype,
            combine_type: bench.combine_type(),
            combine_codec: bench.combine_quant,
            hidden: arguments.hidden,
            top_k: arguments.top_k,
        };
        let [dispatch, combine_pull, combine_push] = measured.map(|of| fit(&launches, &of));
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

impl TuneEpArgs {
    fn sizes(&self, host: bool) -> Vec<u32> {
        let most = if host { 32 } else { 4096 };
        let usual = || [1, 8, 32, 128, 512, 4096].into_iter().filter(|tokens| *tokens <= most);
        sorted(if self.tokens.is_empty() { usual().collect() } else { self.tokens.clone() })
    }

    /// What `bench ep` would be asked for: one for each type of dispatched rows.
    fn benches(&self, graph: bool) -> Vec<EpArgs> {
        let usual = || vec![DataType::Bf16, DataType::F8E4m3];
        let types = if self.dispatch_dtype.is_empty() { usual() } else { self.dispatch_dtype.clone() };
        let pulls = self.combine_quant == CombineCodec::None;
        let bench = |dispatch_dtype| EpArgs {
            bench: BenchArgs { ranks: self.ranks.clone(), iters: None },
            graph,
            dispatch_dtype,
            combine_dtype: Some(self.combine_dtype),
            mode: self.mode,
            max_recv: None::<NonZeroU32>,
            combine_quant: self.combine_quant,
            combine_source: Some(if pulls { CombineSource::Any } else { CombineSource::Buffer }),
            layout: Layout::TokenMajor,
            expert_capacity: None,
            expert_alignment: None,
            placement: None,
            plan: false,
            compare: Vec::new(),
            nccl_library: None,
            trace: None,
            synthetic: SyntheticArgs {
                tokens: Vec::new(),
                hidden: Some(self.hidden),
                experts: Some(self.experts),
                top_k: Some(self.top_k),
                routing: None,
                seed: None,
            },
        };
        types.into_iter().map(bench).collect()
    }

    fn workload(&self, bench: &EpArgs, tokens: u32, ranks: u32) -> anyhow::Result<Workload> {
        let synthetic = Synthetic {
            tokens: vec![tokens; ranks as usize],
            hidden: self.hidden as usize,
            experts: self.experts,
            top_k: self.top_k as usize,
            routing: Routing::Random,
            masked: 0.0,
            seed: 0,
        };
        Ok(Workload::from_synthetic(synthetic, bench.dispatch_dtype)?)
    }

    /// What the file has of this device.
    fn table(&self, device: &str) -> anyhow::Result<LaunchTable> {
        let empty = LaunchTable { device: device.to_owned(), launches: Vec::new() };
        let Some(path) = self.output.as_ref().filter(|path| path.exists()) else { return Ok(empty) };
        let table = LaunchTable::read(path).map_err(Error::from)?;
        if table.device != device {
            bail!(
                "--output {} is a table of {:?}, and this device is {device:?}: take another file",
                path.display(),
                table.device
            );
        }
        Ok(table)
    }

    /// Writes what was measured so far, if a file was asked for and this rank writes it: whole, or not at all.
    fn write(&self, context: &RankContext<'_>, table: &LaunchTable) -> anyhow::Result<()> {
        let Some(path) = self.output.as_ref().filter(|_| context.is_root()) else { return Ok(()) };
        write_whole(path, &text_of(table)).with_context(|| format!("--output {}", path.display()))
    }
}

fn sorted(numbers: Vec<u32>) -> Vec<u32> {
    numbers.into_iter().collect::<BTreeSet<_>>().into_iter().collect()
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

impl<'a> Tuned<'a> {
    /// Collective over the world.
    fn new(
        context: &'a RankContext<'a>,
        arguments: &'a TuneEpArgs,
        bench: &'a EpArgs,
        workload: &'a Workload,
        team: &'a Team,
    ) -> anyhow::Result<Self> {
        let config = plan_of(context.config, bench, workload, context.world.size())?.config().clone();
        let device = context.world.device();
        let blocks = arguments.blocks_of(device.multiprocessors()).last().copied().unwrap_or(1);
        let preferred = Plan::preferred_waves(device.wave_size(), device.multiprocessors());
        let waves = arguments.waves_of(device.multiprocessors()).last().copied().unwrap_or(1);
        // The plan takes a share of the device that every launch fits.
        let config: EpConfig = config.launch(blocks, waves.max(preferred).min(16));
        let bench = EpBench::with_config(context, bench, workload, config)?;
        let tokens = bench.tensors.count as u32;
        Ok(Self { bench, arguments, team, tokens })
    }

    /// All launches that are tried, the plan's defaults first: of those that are equally fast the first is taken.
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
            let reference = match expected.take() {
                Some(bytes) => bytes,
                None => {
                    self.bench.ep.force_launch(None);
                    right &= self.bench.judge(&oracle)?;
                    self.bench.output()?
                }
            };
            let (measured, same) = self.pass(launches, pushes, &reference)?;
            right &= same;
            if !link::all_agree(world, "ep tuned", right).map_err(Error::from)? {
                bail!("{tokens} tokens: results differ from the oracle, on this rank or another");
            }
            for operation in &operations {
                let combines = *operation != LaunchOperation::Dispatch;
                for (index, (launch, shapes, of)) in measured.iter().enumerate() {
                    times[*operation as usize][index] = Some(of[usize::from(combines)]);
                    self.line(*operation, tokens, launch, shapes, of[usize::from(combines)])?;
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
    ) -> anyhow::Result<(Vec<(Launch, Shapes, [f64; 2])>, bool)> {
        let samples = self.samples();
        let mut measured: Vec<(Shapes, Launch, [f64; 2])> = Vec::new();
        let mut all = Vec::new();
        let mut right = true;
        for launch in launches {
            self.bench.ep.force_launch(Some(*launch));
            let shapes = self.shapes(pushes)?;
            let index = measured.iter().position(|(other, ..)| *other == shapes);
            if index.is_none() {
                self.bench.tensors.output.fill(0xff).map_err(Error::from)?;
                let times = self.time(samples.min(FIRST_SAMPLES))?;
                right &= self.bench.output()? == expected;
                measured.push((shapes, *launch, times));
            }
            all.push((*launch, shapes, index.unwrap_or(measured.len() - 1)));
        }
        let best = |of: usize| measured.iter().map(|(.., times)| times[of]).fold(f64::INFINITY, f64::min);
        let best = [best(0), best(1)];
        for (_, launch, times) in &mut measured {
            let promising = (0..2).any(|of| times[of] <= PROMISING * best[of]);
            if promising && samples > FIRST_SAMPLES {
                self.bench.ep.force_launch(Some(*launch));
                *times = self.time(samples)?;
            }
        }
        let of = |(launch, shapes, index): (Launch, Shapes, usize)| (launch, shapes, measured[index].2);
        Ok((all.into_iter().map(of).collect(), right))
    }

    fn samples(&self) -> u32 {
        let host = self.bench.world().device().runtime().kind() == RuntimeKind::Host;
        self.arguments.samples.unwrap_or(if host { 5 } else { 40 })
    }

    /// Medians of the slowest rank, the same on all ranks. Collective over the world.
    fn time(&mut self, samples: u32) -> anyhow::Result<[f64; 2]> {
        let times = self.bench.time(self.team, samples).map_err(Error::from)?;
        let median = |of: usize| -> anyhow::Result<f64> {
            let mine = times.get(of).map_or(&[][..], Vec::as_slice);
            let all = link::gather(self.bench.world(), "ep times", mine).map_err(Error::from)?;
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
        launch: &Launch,
        shapes: &Shapes,
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

impl TuneEpArgs {
    fn blocks_of(&self, multiprocessors: u32) -> Vec<u32> {
        let usual = || {
            let some: &[u32] = if multiprocessors >= 32 { &[16, 32, 48, 64, 96, 128] } else { &[1, 2, 4] };
            let some = some.iter().copied().filter(|blocks| *blocks <= multiprocessors);
            some.chain((multiprocessors >= 32).then_some(multiprocessors)).collect()
        };
        sorted(if self.blocks.is_empty() { usual() } else { self.blocks.clone() })
    }

    fn waves_of(&self, multiprocessors: u32) -> Vec<u32> {
        let usual = || if multiprocessors >= 32 { vec![4, 8, 16] } else { vec![1, 2, 4] };
        sorted(if self.waves.is_empty() { usual() } else { self.waves.clone() })
    }
}
