//! `anabranch bench ep`: dispatch, the reference expert, combine. Every result is compared bit by bit with the
//! oracle before and after the timing.

pub(crate) mod arguments;
mod cast;
mod codec_error;
mod expert_major;
mod fit;
mod kernels;
pub(crate) mod memory;
mod moved;
mod peer;
mod replay;
mod steps;
mod timing;
pub(crate) mod tune;

use std::num::NonZeroU32;
use std::path::PathBuf;

use anabranch::{Config, Error, World};
use anabranch_conformance::ep::oracle::{Oracle, RankInput, Shape};
use anabranch_conformance::ep::reference::ReferenceExpert;
use anabranch_ep::plan::Geometry;
use anabranch_ep::{
    CombineSource, EpConfig, EpShape, ExpertParallel, Payload, PlacementTable, Plan, ReceivedRows, Tokens,
};
use anabranch_hip::{DeviceBuffer, Stream};
use anyhow::{Context, bail};
use serde_json::Map;

pub(crate) use self::arguments::EpArgs;
use self::arguments::SyntheticArgs;
use self::cast::{Casting, Sent};
use self::expert_major::ExpertMajorBench;
pub(crate) use self::kernels::needed_kernels;
use self::moved::{crossing_rows, dropped_copies};
use self::replay::ReplayBench;
use super::device;
use super::link;
use super::row::{self, Row};
use super::statistics::{Samples, gigabytes_per_second, slowest_of_ranks};
use crate::ranks::RankContext;
use crate::workload::{Routing, Synthetic, Trace, Workload};

/// The trace in the repository.
const TRACE: &str = "data/moe-trace-minilm-e64k8.safetensors";

/// Measures on one rank.
///
/// # Errors
/// Invalid input, an error of the plan or the world, a result that differs from the oracle.
pub(crate) fn measure(context: &RankContext<'_>, arguments: &EpArgs) -> anyhow::Result<()> {
    context.progress.say("link speed");
    let link = link::speed(context.world)?;
    let mut verified = true;
    for workload in workloads(arguments, context.world.size()) {
        let workload = workload?;
        context.progress.say(&format!("{} tokens a rank", workload.max_tokens()));
        let mut rows = Vec::new();
        for &casting in Casting::of(arguments) {
            rows.extend(EpBench::new(context, arguments, &workload, casting)?.rows(link)?);
        }
        verified &= rows.iter().all(|row| row.verified);
        context.progress.clear();
        if context.is_root() {
            row::print_rows(&rows, context.json)?;
        }
    }
    if verified { Ok(()) } else { bail!("results differ from the oracle; see `verified`") }
}

/// The checks of the starting process, before it starts ranks: readable input, and slots that fit the heap.
///
/// # Errors
/// The first invalid input.
pub(crate) fn check(config: &Config, arguments: &EpArgs, ranks: u32) -> anyhow::Result<()> {
    peer::check(arguments, config.device.runtime)?;
    replay::check(arguments, ranks)?;
    let heap = config.heap.most_bytes();
    for workload in workloads(arguments, ranks) {
        let plan = plan_of(config, arguments, &workload?, ranks)?;
        expert_major::check(arguments, &plan)?;
        let needed = plan.heap_bytes();
        if needed > heap {
            bail!(
                "the receive windows of {ranks} ranks need {needed} bytes of the symmetric heap, and heap.bytes is \
                 {heap}: set heap.bytes, or take fewer or smaller tokens"
            );
        }
    }
    Ok(())
}

/// The plan of an input, for the starting process: it checks the sizes and allocates nothing.
fn plan_of(config: &Config, arguments: &EpArgs, workload: &Workload, ranks: u32) -> anyhow::Result<Plan> {
    Ok(Plan::new(plan_config(config, arguments, workload, ranks)?, ranks).map_err(Error::from)?)
}

/// The plan's configuration for an input, with the settings of the `[ep]` table.
fn plan_config(
    config: &Config,
    arguments: &EpArgs,
    workload: &Workload,
    ranks: u32,
) -> anyhow::Result<EpConfig> {
    let size = |what: &str, value: usize| {
        u32::try_from(value).with_context(|| format!("{what} is {value}; allowed are 32 bits"))
    };
    let plan = EpConfig::new(EpShape {
        hidden: size("hidden", workload.hidden())?,
        experts: workload.experts(),
        top_k: size("top_k", workload.top_k())?,
        max_tokens: size("the number of tokens a rank", workload.max_tokens().max(1))?,
    })
    .dispatch_type(arguments.sent_type())
    .dispatch_cast(arguments.dispatch_cast)
    .cast_from(workload.element())
    .combine_type(arguments.combine_type())
    .mode(arguments.mode)
    .max_recv(arguments.max_recv.map_or(0, NonZeroU32::get))
    .combine_source(arguments.combine_source())
    .payload(arguments.payload)
    .combine_codec(arguments.combine_quant);
    let table = arguments.placement.as_deref().map(PlacementTable::read).transpose().map_err(Error::from)?;
    let plan = table.into_iter().fold(plan, EpConfig::placement);
    let plan = arguments.bench.ranks.several_nodes(ranks).into_iter().fold(plan, EpConfig::nodes);
    Ok(anabranch::with_ep_settings(config, plan)?)
}

/// The inputs to measure, one after the other: the trace, or synthetic ones of each size.
fn workloads(arguments: &EpArgs, ranks: u32) -> Vec<anyhow::Result<Workload>> {
    let element = arguments.dispatch_dtype;
    if !arguments.synthetic.is_given() {
        let read = || {
            let path = arguments.trace.clone().map_or_else(default_trace, Ok)?;
            Ok(Workload::from_trace(Trace::read(&path)?, ranks, element)?)
        };
        return vec![read()];
    }
    let SyntheticArgs { tokens, hidden, experts, top_k, routing, seed } = arguments.synthetic.clone();
    let sizes = if tokens.is_empty() { vec![128] } else { tokens };
    sizes
        .into_iter()
        .map(|count| {
            let synthetic = Synthetic {
                tokens: vec![count; ranks as usize],
                hidden: hidden.unwrap_or(7168) as usize,
                experts: experts.unwrap_or(256),
                top_k: top_k.unwrap_or(8) as usize,
                routing: routing.unwrap_or(Routing::Random),
                masked: 0.0,
                seed: seed.unwrap_or(0),
            };
            Ok(Workload::from_synthetic(synthetic, element)?)
        })
        .collect()
}

/// The trace in the current folder's repository, else in the repository in which this program was built.
fn default_trace() -> anyhow::Result<PathBuf> {
    let built = PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../../")).join(TRACE);
    let here = PathBuf::from(TRACE);
    [here, built].into_iter().find(|path| path.exists()).with_context(|| {
        format!("{TRACE} is not here: run from the repository's root, name a file with --trace, or ask for synthetic \
                 input with --tokens N")
    })
}

/// One input on one rank, ready to be run.
struct EpBench<'a> {
    context: &'a RankContext<'a>,
    arguments: &'a EpArgs,
    workload: &'a Workload,
    inputs: Vec<Sent>,
    casting: Casting,
    ep: ExpertParallel,
    expert: ReferenceExpert,
    expert_major: Option<ExpertMajorBench>,
    replay: Option<ReplayBench>,
    tensors: Tensors,
    stream: Stream,
}

struct Tensors {
    rows: DeviceBuffer,
    ids: DeviceBuffer,
    weights: DeviceBuffer,
    /// For rows that were cast on the host.
    scales: Option<DeviceBuffer>,
    output: DeviceBuffer,
    /// The experts' output, where it is not in the combine window.
    experts: Option<DeviceBuffer>,
    count: usize,
}

impl<'a> EpBench<'a> {
    fn new(
        context: &'a RankContext<'a>,
        arguments: &'a EpArgs,
        workload: &'a Workload,
        casting: Casting,
    ) -> anyhow::Result<Self> {
        let config = plan_config(context.config, arguments, workload, context.world.size())?;
        Self::with_config(context, arguments, workload, casting, casting.plan(config))
    }

    fn with_config(
        context: &'a RankContext<'a>,
        arguments: &'a EpArgs,
        workload: &'a Workload,
        casting: Casting,
        config: EpConfig,
    ) -> anyhow::Result<Self> {
        let world = context.world;
        // The plan first: sizes that do not fit are refused before inputs of that size are created.
        let ep = ExpertParallel::new(world, world.group(), config).map_err(Error::from)?;
        let given = (0..world.size()).map(|rank| workload.rank(rank)).collect::<Result<Vec<_>, _>>()?;
        let expert = ReferenceExpert::new(world, ep.plan(), ep.rank()).map_err(Error::from)?;
        let expert_major = ExpertMajorBench::new(world, &ep, arguments)?;
        let mine = &given[ep.rank().index()];
        let (rows, scales) = match casting {
            Casting::Inside => (device::upload(world, &mine.tokens)?, None),
            Casting::Before => {
                let Sent { tokens, scales } = Sent::new(arguments, mine.clone());
                (device::upload(world, &tokens.tokens)?, Some(device::upload(world, &scales)?))
            }
        };
        let tensors = Tensors {
            rows,
            scales,
            ids: device::upload(world, &mine.ids.iter().flat_map(|id| id.to_ne_bytes()).collect::<Vec<_>>())?,
            weights: device::upload(
                world,
                &mine.weights.iter().flat_map(|weight| weight.to_ne_bytes()).collect::<Vec<_>>(),
            )?,
            output: device::upload(world, &vec![0; mine.count * ep.plan().combine_row_bytes() as usize])?,
            experts: match arguments.combine_source() {
                CombineSource::Buffer => Some(experts_buffer(world, &ep)?),
                _ => None,
            },
            count: mine.count,
        };
        let stream = world.device().create_stream().map_err(Error::from)?;
        let replay = None;
        let inputs = given.into_iter().map(|given| Sent::new(arguments, given)).collect();
        Ok(Self {
            context,
            arguments,
            workload,
            inputs,
            casting,
            ep,
            expert,
            expert_major,
            replay,
            tensors,
            stream,
        })
    }

    fn world(&self) -> &'a World {
        self.context.world
    }

    fn tokens(&self) -> Tokens {
        Tokens {
            count: self.tensors.count,
            data_type: self.ep.plan().config().token_type(),
            rows: device::slice(&self.tensors.rows),
            ids: device::slice(&self.tensors.ids),
            weights: Some(device::slice(&self.tensors.weights)),
            scales: self.tensors.scales.as_ref().map(device::slice),
            device_count: None,
        }
    }

    /// One operation with every result compared with the oracle; logs differences and returns whether there were none.
    fn judge(&mut self, oracle: &Oracle<'_>) -> anyhow::Result<bool> {
        let me = self.ep.rank();
        let world = self.world();
        self.tensors.output.fill(0xff).map_err(Error::from)?;
        let dispatched = self.dispatch()?;
        world.synchronize(&self.stream).map_err(Error::from)?;
        let received =
            ReceivedRows::read(world.device(), self.ep.plan(), &dispatched).map_err(Error::from)?;
        let rows = oracle.dispatch(me)?.compare_rows(&received);
        let dropped = self.ep.dropped(&self.stream, &dispatched).map_err(Error::from)?;
        let dropped: Vec<_> = dropped.into_iter().map(|copy| (copy.token, copy.destination)).collect();
        let drops = dropped == oracle.dropped(me)?;
        self.expand(&dispatched)?;
        self.run_experts(&dispatched)?;
        self.contract(&dispatched)?;
        self.combine(dispatched)?;
        world.synchronize(&self.stream).map_err(Error::from)?;
        let expanded = self.expert_major.as_ref().map_or(Ok(true), |bench| bench.judge(world, me, oracle))?;
        let sums = self.compare_output(oracle)?;
        if let Err(mismatch) = &rows {
            tracing::error!("dispatch: {mismatch}");
        }
        if !drops {
            tracing::error!("dispatch: the {} dropped copies are not those of the oracle", dropped.len());
        }
        Ok(rows.is_ok() && drops && expanded && sums)
    }

    fn output(&self) -> Result<Vec<u8>, Error> {
        let row = self.ep.plan().combine_row_bytes() as usize;
        let mut output = vec![0; self.tensors.count * row];
        self.tensors.output.copy_to_host(0, &mut output)?;
        Ok(output)
    }

    fn compare_output(&self, oracle: &Oracle<'_>) -> anyhow::Result<bool> {
        let output = self.output()?;
        let me = self.ep.rank();
        let judged = match &self.expert_major {
            Some(bench) => bench.compare_output(me, oracle, &output)?,
            None => oracle.combine(me)?.compare_output(&output, &oracle.reference_experts()?),
        };
        if let Err(mismatch) = &judged {
            tracing::error!("combine: {mismatch}");
        }
        Ok(judged.is_ok())
    }

    fn rows(mut self, link: Option<f64>) -> anyhow::Result<Vec<Row>> {
        let world = self.world();
        let inputs = std::mem::take(&mut self.inputs);
        let inputs = oracle_inputs(&inputs);
        let oracle = Oracle::new(Shape::new(self.ep.plan().config(), world.size()), inputs.clone())?;
        let mut right = self.judge(&oracle)?;
        self.replay = ReplayBench::new(&self, &inputs)?;
        right &= self.judge_replay(&inputs)?;
        let host = world.device().runtime().kind() == anabranch::RuntimeKind::Host;
        let iters = self.arguments.bench.iters.unwrap_or(if host { 5 } else { 100 });
        self.tensors.output.fill(0xff).map_err(Error::from)?;
        let empty = self.empty_interval()?;
        let times = self.time(&world.team(world.group()).map_err(Error::from)?, iters)?;
        // The output of the last repetition, then one more operation.
        right &= self.compare_output(&oracle)?;
        right &= self.judge(&oracle)?;
        right &= self.judge_replay(&inputs)?;
        self.ep.check_ids(&self.stream).map_err(Error::from)?;
        let error = self.codec_error(&inputs)?;
        let verified = link::all_agree(world, world.group(), "ep verified", right)?;
        let compiled = self.context.compiled()?;
        let crossing = crossing_rows(&oracle, world.size())?;
        let dropped = dropped_copies(&oracle, world.size())?;
        let config = self.ep.plan().config();
        let tokens = self.tensors.count as u32;
        let sending = self.ep.dispatch_geometry(tokens).map_err(Error::from)?;
        let pushed = self.tensors.experts.is_some() && config.payload == Payload::Kernels;
        let summing =
            if pushed { self.ep.combine_push_geometry(tokens) } else { self.ep.combine_geometry(tokens) };
        let local = self.expert_major.as_ref().map_or((0, 0), ExpertMajorBench::geometry);
        let shape = |geometry: &Geometry| (geometry.blocks, geometry.block_threads);
        let third = if self.replay.is_some() { shape(&sending) } else { local };
        let to_experts = self.expert_major.as_ref().and_then(|bench| bench.dispatch_shape(tokens));
        let geometry = [to_experts.unwrap_or_else(|| shape(&sending)), shape(&summing), third, local];
        // Bytes per row on a link: with a codec, the encoded bytes.
        let row_bytes = [self.ep.plan().row_bytes(), self.ep.plan().combine_wire_bytes()];
        let crossing_bytes = row_bytes.map(|row| crossing * u64::from(row) / u64::from(world.size()));
        let peers = self.peers(crossing_bytes, iters)?;
        let moved = self.moved_bytes(&oracle, crossing_bytes)?;
        let mut rows = Vec::new();
        for (index, &(op, ..)) in self.intervals().iter().enumerate() {
            let crosses = index < crossing_bytes.len() || self.replay.is_some();
            let times = link::gather(world, world.group(), "ep times", &times[index])?;
            let samples = Samples::new(slowest_of_ranks(&times));
            let speed = gigabytes_per_second(moved[index], samples.median());
            let row = Row {
                op: op.to_owned(),
                runtime: world.device().runtime().kind().to_string(),
                ranks: world.size(),
                dtype: [config.dispatch_type, config.combine_type][index % 2].to_string(),
                tokens: Some(self.workload.max_tokens() as u64),
                bytes: None,
                us_median: samples.median(),
                us_p99: samples.p99(),
                gb_per_s: speed,
                link_fraction: link.filter(|link| crosses && *link > 0.0).map(|link| speed / link),
                verified,
                compiled,
                extras: Map::new(),
            };
            let row = match index {
                0 => self.casting.describe(row, self.arguments),
                1 => codec_error::describe(row, config, error),
                _ => row,
            };
            let ours = samples.median();
            let beside = peers.get(index).map_or(&[][..], Vec::as_slice);
            let fastest = beside.iter().map(|(_, time)| *time).reduce(f64::min);
            let row = beside.iter().fold(row, |row, (name, time)| row.with(&format!("{name}_us"), *time));
            let row = fastest.into_iter().fold(row, |row, time| row.with("ratio", time / ours));
            rows.push(
                row.with("hidden", config.hidden)
                    .with("experts", config.experts)
                    .with("top_k", config.top_k)
                    .with("placement", placement_of(config))
                    .with("routing", self.arguments.synthetic.routing_name())
                    .with("blocks", geometry[index].0)
                    .with("threads", geometry[index].1)
                    .with("launch", self.ep.plan().launch_choice().name())
                    .with("layout", self.arguments.layout.name())
                    .with("mode", if self.arguments.graph { "graph" } else { "eager" })
                    .with("dispatch_mode", self.ep.plan().mode().name())
                    .with("payload", config.payload.name())
                    .with("dropped", dropped)
                    .with("timer_us", (empty * 100.0).round() / 100.0)
                    .with(
                        "link_gb_per_s",
                        link.map_or(serde_json::Value::Null, |link| ((link * 10.0).round() / 10.0).into()),
                    ),
            );
        }
        Ok(rows)
    }
}

impl EpBench<'_> {
    /// Whether a replay of the saved routing, if there is one, equals the oracle.
    fn judge_replay(&mut self, inputs: &[RankInput<'_>]) -> anyhow::Result<bool> {
        let Some(replay) = self.replay.take() else { return Ok(true) };
        let right = replay.judge(self, inputs);
        self.replay = Some(replay);
        right
    }

    /// Times of the requested peers, for dispatch and for combine: an all_to_all of these bytes per rank over the
    /// links. Collective over the world.
    fn peers(&self, crossing_bytes: [u64; 2], iters: u32) -> anyhow::Result<[Vec<(&'static str, f64)>; 2]> {
        let links = u64::from(self.world().size()).saturating_sub(1).max(1);
        let bytes = crossing_bytes.map(|bytes| bytes / links);
        let most = bytes.into_iter().max().unwrap_or_default();
        let Some(mut peers) = peer::AllToAll::new(self.world(), &self.stream, self.arguments, most)? else {
            return Ok([Vec::new(), Vec::new()]);
        };
        let times = [0, 1].map(|index| peers.time(bytes[index], iters, self.arguments.graph));
        peers.finish()?;
        let [dispatch, combine] = times;
        Ok([dispatch?, combine?])
    }
}

/// The placement of experts, for reports.
fn placement_of(config: &EpConfig) -> String {
    let table = |table: &PlacementTable| format!("{} places", table.copies());
    config.placement.as_ref().map_or_else(|| "even".to_owned(), table)
}

/// The inputs of all ranks for the oracle.
fn oracle_inputs(inputs: &[Sent]) -> Vec<RankInput<'_>> {
    inputs
        .iter()
        .map(|Sent { tokens, scales }| RankInput {
            tokens: &tokens.tokens,
            ids: &tokens.ids,
            weights: Some(&tokens.weights),
            scales,
        })
        .collect()
}

/// Memory for the output of all rows that a rank may receive.
fn experts_buffer(world: &World, ep: &ExpertParallel) -> anyhow::Result<DeviceBuffer> {
    let rows = ep.plan().ranks() as usize * ep.plan().config().max_tokens as usize;
    let bytes = rows * ep.plan().combine_row_bytes() as usize;
    Ok(world.device().allocate(bytes).map_err(Error::from)?)
}
