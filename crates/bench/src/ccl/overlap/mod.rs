//! `anabranch bench overlap`: a matrix product on one stream, concurrent with a collective on another: how much each slows the other. This library by
//! copy engine and by kernels, and NCCL with `--compare`, take turns on the same buffers.

mod beside;
mod cublas;
mod product;

use std::cell::RefCell;
use std::path::PathBuf;
use std::rc::Rc;

use anabranch::{Config, Environment, Error, Group, GroupRank, RuntimeKind, World};
use anabranch_ccl::Shape;
use anabranch_ccl::{Algorithm, Choice, Communicator, DataType, LocationKind, Plan, ReduceOp};
use anabranch_hip_jit::KernelSpec;
use anyhow::{Context as _, bail};
use clap::Args;
use serde::{Deserialize, Serialize};
use serde_json::Map;

use super::super::row::{self, Row};
use super::super::statistics::{Samples, gigabytes_per_second, slowest_of_ranks};
use super::super::{device, link};
use super::arguments::{MemoryKind, Peer};
use super::collective::Collective;
use super::contender::{Case, Contender};
use super::nccl::{self, Nccl, NcclLibrary};
use super::ours::{self, Memory, Ours};
use super::reference::Reference;
use super::sizes::SizeArgs;
use super::{judge, report};
use crate::ranks::{BenchArgs, RankContext};
use crate::types::collective_type;
use beside::{Beside, Times};
use product::Product;

pub(crate) use product::kernels as product_kernels;

/// `anabranch bench overlap`.
#[derive(Clone, Debug, Args)]
pub struct OverlapArgs {
    #[command(flatten)]
    pub(crate) bench: BenchArgs,
    /// Collectives, measured one after the other [default: all_gather,all_to_all].
    #[arg(long = "op", value_enum, value_delimiter = ',', value_name = "OP,...")]
    collectives: Vec<Collective>,
    #[command(flatten)]
    sizes: SizeArgs,
    /// Element type of the collective: bf16, f16, f32, ..., as in `bench ccl`. The product's is bf16.
    #[arg(long, value_parser = collective_type, default_value = "bf16", value_name = "TYPE")]
    dtype: DataType,
    /// Rows and columns of the product's square matrices [default: 8192 on GPUs, 96 on the host].
    #[arg(long, value_name = "N")]
    product: Option<u32>,
    /// Collectives are launched one by one and not replayed in graphs: by copy engine, streams meet then and no kernel needs a place
    /// beside the product (ccl.meetings).
    #[arg(long)]
    eager: bool,
    /// Also measure NCCL, on NVIDIA GPUs.
    #[arg(long, value_enum, value_delimiter = ',', value_name = "PEER,...")]
    compare: Vec<Peer>,
    /// NCCL's library or its folder, in place of the one that the loader or Python's site-packages give.
    #[arg(long, value_name = "PATH", requires = "compare")]
    nccl_library: Option<PathBuf>,
    /// cuBLAS's library or its folder, in place of the one that the loader or Python's site-packages give.
    #[arg(long, value_name = "PATH")]
    cublas_library: Option<PathBuf>,
}

/// Default sizes.
const ON_GPUS: [u64; 3] = [16 << 20, 64 << 20, 256 << 20];
const ON_THE_HOST: [u64; 1] = [64 << 10];

/// What a run launches.
pub(crate) fn needed_kernels(arguments: &OverlapArgs, ranks: u32) -> Vec<KernelSpec> {
    let mut all = vec![KernelSpec::new(&anabranch_shmem::TEAM_BARRIER_UNIT)];
    all.extend(device::own_kernels());
    all.extend(ours::kernels(arguments.dtype, ranks));
    all
}

/// The checks of the starting process, before it starts ranks.
///
/// # Errors
/// The first argument that cannot be used.
pub(crate) fn check(arguments: &OverlapArgs, config: &Config, ranks: u32) -> anyhow::Result<()> {
    let runtime = config.device.runtime;
    if !arguments.compare.is_empty() {
        if runtime != RuntimeKind::Nvidia {
            bail!("--compare: NCCL runs on NVIDIA GPUs, and device.runtime is {runtime}; omit it");
        }
        NcclLibrary::open(arguments.nccl_library.as_deref(), &Environment::of_process())?;
    }
    if arguments.cublas_library.is_some() && runtime != RuntimeKind::Nvidia {
        bail!("--cublas-library: on {runtime} a plain kernel computes the product; omit it");
    }
    let run = Run::new(arguments, &Group::world(ranks)?, runtime == RuntimeKind::Host)?;
    let (needed, heap) = (run.largest()?, config.heap.most_bytes());
    if needed > heap {
        bail!(
            "input and output of the largest operation need {needed} bytes of the symmetric heap, and heap.bytes is \
             {heap}: set heap.bytes, or take smaller --sizes"
        );
    }
    Ok(())
}

/// The arguments, checked against the world.
struct Run<'a> {
    arguments: &'a OverlapArgs,
    group: Group,
    collectives: Vec<Collective>,
    sizes: Vec<u64>,
    product: u32,
}

impl<'a> Run<'a> {
    fn new(arguments: &'a OverlapArgs, world: &Group, host: bool) -> anyhow::Result<Self> {
        let collectives = match arguments.collectives.as_slice() {
            [] => vec![Collective::AllGather, Collective::AllToAll],
            given => given.to_vec(),
        };
        let product = arguments.product.unwrap_or(if host { 96 } else { 8192 });
        product::check_size(product)?;
        let defaults: &[u64] = if host { &ON_THE_HOST } else { &ON_GPUS };
        let sizes = if arguments.sizes.is_given() { arguments.sizes.all(host)? } else { defaults.to_vec() };
        let run = Self { arguments, group: world.clone(), collectives, sizes, product };
        for collective in &run.collectives {
            if collective.reduces() {
                ReduceOp::Sum.check(arguments.dtype)?;
            }
            if !arguments.compare.is_empty() {
                nccl::check(*collective, arguments.dtype, ReduceOp::Sum)?;
            }
            let shape = run.shape(&run.case(*collective, run.sizes[0], GroupRank::new(0))?);
            Algorithm::CopyEngine.allows(&shape).map_err(|reason| {
                anyhow::anyhow!("{collective} does not go by copy engine: {reason}; leave it out of --op")
            })?;
        }
        run.largest()?;
        Ok(run)
    }

    fn case(&self, collective: Collective, bytes: u64, me: GroupRank) -> anyhow::Result<Case> {
        let element = u64::from(self.arguments.dtype.bytes());
        Ok(Case {
            collective,
            data_type: self.arguments.dtype,
            reduce: ReduceOp::Sum,
            elements: collective
                .elements(bytes, element, self.group.size())
                .with_context(|| format!("--sizes: {collective}"))?,
            in_place: false,
            root: GroupRank::new(0),
            group: self.group.clone(),
            me,
        })
    }

    fn shape(&self, case: &Case) -> Shape {
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
            input: if scatters { LocationKind::Local } else { LocationKind::Symmetric },
            output: LocationKind::Symmetric,
        }
    }

    fn largest(&self) -> anyhow::Result<u64> {
        let mut largest = 0;
        for (collective, bytes) in
            self.collectives.iter().flat_map(|one| self.sizes.iter().map(move |bytes| (one, bytes)))
        {
            largest = largest.max(self.case(*collective, *bytes, GroupRank::new(0))?.places().end);
        }
        Ok(largest)
    }

    /// This library by copy engine and by kernels, and the peers. Collective over the world.
    fn contenders<'m>(
        &self,
        context: &RankContext<'m>,
        memory: &'m Memory,
        communicator: &Rc<RefCell<Communicator>>,
        case: &Case,
        me: GroupRank,
    ) -> anyhow::Result<Vec<(&'static str, Box<dyn Contender + 'm>)>> {
        let by_engine = Choice { algorithm: Some(Algorithm::CopyEngine), ..Choice::default() };
        let shape = self.shape(case);
        let planned = communicator.borrow().explain(&shape)?;
        // A table may have measured copies to be the fastest: then what is expected to be, among kernels.
        let by_kernels = match planned.algorithm {
            Algorithm::CopyEngine => Plan::new(&shape, communicator.borrow().limits(), None, None)?.algorithm,
            kernels => kernels,
        };
        let by_kernels = Choice { algorithm: Some(by_kernels), ..Choice::default() };
        let ours = |choice| Box::new(Ours::sharing(Rc::clone(communicator), memory, choice));
        let mut all: Vec<(&'static str, Box<dyn Contender + 'm>)> =
            vec![("copy engine", ours(by_engine)), ("kernels", ours(by_kernels))];
        for peer in &self.arguments.compare {
            let library =
                NcclLibrary::open(self.arguments.nccl_library.as_deref(), &Environment::of_process())?;
            context.progress.say("NCCL's communicator");
            let world = context.world;
            let made = match peer {
                Peer::Nccl => Nccl::on(world, &self.group, me, library, memory.area())?,
                Peer::NcclSymmetric => Nccl::symmetric(world, &self.group, me, library, memory.area().bytes)?,
            };
            all.push((made.name(), Box::new(made)));
        }
        Ok(all)
    }
}

/// Measures on one rank.
///
/// # Errors
/// What a contender or the product refuses, what made the world fail, a result that is wrong.
pub(crate) fn measure(context: &RankContext<'_>, arguments: &OverlapArgs) -> anyhow::Result<()> {
    let world = context.world;
    let host = world.device().runtime().kind() == RuntimeKind::Host;
    let run = Run::new(arguments, world.group(), host)?;
    let samples = arguments.bench.iters.unwrap_or(if host { 3 } else { 20 });
    context.progress.say("product");
    let product = Product::new(world, run.product, arguments.cublas_library.as_deref());
    let failure = product.as_ref().err().map(|error| std::io::Error::other(format!("{error:#}")));
    world
        .agree_outcome(world.group(), "matrix product", failure.as_ref().map(|error| error as _))
        .map_err(Error::from)?;
    let product = product?;
    let memory = Memory::allocate(world, &run.group, MemoryKind::Symmetric, run.largest()?)?;
    let config = anabranch::ccl_config(context.config)?.algorithm(None);
    let communicator = Communicator::new(world, &run.group, config).map_err(Error::from)?;
    let communicator = Rc::new(RefCell::new(communicator));
    let beside = Beside::new(world, host, arguments.eager)?;
    beside.run(&product)?;
    let mut right = link::all_agree(world, world.group(), "product", product.is_right()?)?;
    let me = GroupRank::new(world.rank().get());
    for (collective, bytes) in
        run.collectives.iter().flat_map(|one| run.sizes.iter().map(move |bytes| (one, bytes)))
    {
        context.progress.say(&format!("{collective}, {bytes} bytes"));
        let case = run.case(*collective, *bytes, me)?;
        let reference = Reference::new(&case)?;
        let mut rows = Vec::new();
        for (name, mut contender) in run.contenders(context, &memory, &communicator, &case, me)? {
            contender.prepare(&case)?;
            let before = judged(world, &beside, contender.as_mut(), &case, &reference)?;
            let times = beside.measure(&product, contender.as_mut(), samples)?;
            let after = judged(world, &beside, contender.as_mut(), &case, &reference)?;
            let verified =
                before && after && link::all_agree(world, world.group(), "product", product.is_right()?)?;
            right &= verified;
            rows.push(
                row_of(context, &case, name, contender.as_ref(), &times, verified)?
                    .with("product", product.describe())
                    .with("launched", if arguments.eager { "one by one" } else { "in graphs" }),
            );
            contender.finish()?;
        }
        context.progress.clear();
        if context.is_root() {
            row::print_rows(&rows, context.json)?;
        }
    }
    drop((communicator, beside));
    memory.free()?;
    if right { Ok(()) } else { bail!("results are wrong; see `verified`") }
}

/// One operation from fresh inputs: whether all ranks' results are the reference's, where all libraries have the same.
fn judged(
    world: &World,
    beside: &Beside<'_>,
    contender: &mut dyn Contender,
    case: &Case,
    reference: &Reference,
) -> anyhow::Result<bool> {
    let stream = beside.collectives();
    judge::prepare(stream, contender, case, reference)?;
    world.barrier(&case.group, "overlap inputs").map_err(Error::from)?;
    contender.enqueue(stream)?;
    world.synchronize_within(stream, link::patience(world)).map_err(Error::from)?;
    let right = !reference.is_exact() || judge::compare(world.device(), contender, case, reference)?;
    Ok(link::all_agree(world, world.group(), "overlap outputs", right)?)
}

/// What all ranks together have found.
#[derive(Debug, Default, Serialize, Deserialize)]
struct Said {
    lists: [Vec<f64>; 4],
    covered: f64,
}

fn row_of(
    context: &RankContext<'_>,
    case: &Case,
    name: &str,
    contender: &dyn Contender,
    times: &Times,
    verified: bool,
) -> anyhow::Result<Row> {
    let world = context.world;
    let mine = Said {
        lists: [
            times.product_alone.clone(),
            times.collective_alone.clone(),
            times.product_beside.clone(),
            times.collective_beside.clone(),
        ],
        covered: times.covered,
    };
    let all = world.exchange(world.group(), "overlap", &serde_json::to_vec(&mine)?).map_err(Error::from)?;
    let all = all
        .iter()
        .map(|bytes| Ok(serde_json::from_slice::<Said>(bytes)?))
        .collect::<anyhow::Result<Vec<_>>>()?;
    let covered = all.iter().map(|said| said.covered).fold(1.0, f64::min);
    let slowest = |list: usize| {
        Samples::new(slowest_of_ranks(&all.iter().map(|said| said.lists[list].clone()).collect::<Vec<_>>()))
    };
    let [product, collective, product_beside, collective_beside] = [0, 1, 2, 3].map(slowest);
    let bandwidth = gigabytes_per_second(case.bytes(), collective.median())
        * case.collective.bus_factor(case.group.size());
    let slowdown = |beside: &Samples, alone: &Samples| {
        if alone.median() > 0.0 { report::rounded(beside.median() / alone.median()) } else { 0.0 }
    };
    let description = contender.describe();
    let mut row = Row {
        op: case.collective.to_string(),
        runtime: world.device().runtime().kind().to_string(),
        ranks: case.group.size(),
        dtype: case.data_type.to_string(),
        tokens: None,
        bytes: Some(case.bytes()),
        us_median: collective.median(),
        us_p99: collective.p99(),
        gb_per_s: bandwidth,
        link_fraction: None,
        verified,
        compiled: context.compiled()?,
        extras: Map::new(),
    }
    .with("contender", name);
    if let Some(algorithm) = &description.algorithm {
        row = row.with("algorithm", algorithm.as_str());
    }
    if let Some(blocks) = description.blocks {
        row = row.with("blocks", blocks);
    }
    Ok(row
        .with("us_beside", report::rounded(collective_beside.median()))
        .with("product_us", report::rounded(product.median()))
        .with("product_us_beside", report::rounded(product_beside.median()))
        .with("slowdown", slowdown(&collective_beside, &collective))
        .with("product_slowdown", slowdown(&product_beside, &product))
        .with("covered", report::rounded(covered)))
}
