//! `anabranch bench shmem`: the operations of the symmetric heap in kernels. First every one at every scope between all ranks, with every
//! byte compared; then the time of single ones by each route.

mod matrix;
pub(crate) mod region;
mod speed;

use anabranch::config::ByteSize;
use anabranch::{Config, RuntimeKind, World};
use anabranch_conformance::shmem::{ATOMICS_UNIT, AtomicRun, COPY_UNIT, MESSAGE_UNIT};
use anabranch_hip_jit::{KernelSpec, KernelUnit};
use anabranch_shmem::for_nic;
use anabranch_transport_rdma::{Atomics, Provider};
use anyhow::bail;
use clap::Args;
use serde_json::Map;

use super::row::{self, Row};
use super::statistics::gigabytes_per_second;
use crate::ranks::{BenchArgs, RankContext};
use matrix::{Cell, Matrix};
use speed::{Plan, Timed};

/// What of the heap is left for teams: far more than flags of [`AtomicRun::MOST_RANKS`] ranks.
const TEAM_BYTES: u64 = 1 << 20;

/// `anabranch bench shmem`.
#[derive(Clone, Debug, Args)]
pub struct ShmemArgs {
    #[command(flatten)]
    pub(crate) bench: BenchArgs,
    /// Bytes of the operations that are timed. Units as in "64 KiB" [default: 8, 4 KiB, 64 KiB, and on GPUs 1 MiB].
    #[arg(long, value_delimiter = ',', value_name = "SIZE,...")]
    bytes: Vec<ByteSize>,
    /// Run only one part: the matrix of operations and scopes, or the times.
    #[arg(long, value_enum, value_name = "PART")]
    only: Option<Part>,
}

/// A part of the benchmark.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Part {
    /// Every operation at every scope between all ranks.
    Matrix,
    /// Single operations from rank 0 to one peer of each route.
    Times,
}

impl ShmemArgs {
    fn runs(&self, part: Part) -> bool {
        self.only.is_none_or(|only| only == part)
    }

    fn plan(&self, host: bool) -> Plan {
        let mut sizes: Vec<u64> = self.bytes.iter().map(|size| size.bytes()).collect();
        if sizes.is_empty() {
            sizes = vec![8, 4 << 10, 64 << 10];
            sizes.extend((!host).then_some(1 << 20));
        }
        let iters = self.bench.iters.unwrap_or(if host { 5 } else { 20 });
        Plan { sizes, iters, operations: if host { 8 } else { 32 } }
    }
}

/// The units of the operations.
const UNITS: [&KernelUnit; 3] = [&COPY_UNIT, &MESSAGE_UNIT, &ATOMICS_UNIT];

/// What a run launches, on routes that need no other form of it.
pub(crate) fn needed_kernels() -> Vec<KernelSpec> {
    let barrier = KernelSpec::new(&anabranch_shmem::TEAM_BARRIER_UNIT);
    UNITS.map(KernelSpec::new).into_iter().chain([barrier]).collect()
}

/// The form of it for ranks that have NICs.
pub(crate) fn nic_kernels(provider: Provider, atomics: Atomics) -> Vec<KernelSpec> {
    UNITS.map(|unit| for_nic(KernelSpec::new(unit), provider, atomics)).into()
}

/// The checks of the starting process, before it starts ranks.
///
/// # Errors
/// More ranks than the matrix has bits for; sizes that no heap of `heap.bytes` holds.
pub(crate) fn check(arguments: &ShmemArgs, config: &Config, ranks: u32) -> anyhow::Result<()> {
    if ranks < 2 {
        bail!("bench shmem needs at least 2 ranks, and {ranks} is asked for");
    }
    if arguments.runs(Part::Matrix) && ranks > AtomicRun::MOST_RANKS {
        bail!(
            "the matrix gives each rank a bit of a word of 32, and there are {ranks} ranks: at most {} with it, any number with \
             --only times",
            AtomicRun::MOST_RANKS
        );
    }
    if let Some(zero) = arguments.bytes.iter().find(|size| size.bytes() == 0) {
        bail!("--bytes: {} is no number of bytes to time", zero.bytes());
    }
    let times = arguments.plan(config.device.runtime == RuntimeKind::Host).heap_bytes();
    let matrix = if arguments.runs(Part::Matrix) { matrix::heap_bytes(ranks) } else { 0 };
    let heap = config.heap.most_bytes();
    // A team takes some too.
    let room = heap.saturating_sub(TEAM_BYTES);
    match times {
        Some(times) if times.max(matrix) <= room => Ok(()),
        _ => bail!(
            "the matrix of {ranks} ranks needs {matrix} bytes and the largest of --bytes {}, and heap.bytes is {heap}, of \
             which {TEAM_BYTES} are for teams: set heap.bytes, or smaller --bytes",
            times.map_or_else(|| "more than there are".to_owned(), |bytes| bytes.to_string())
        ),
    }
}

/// Measures on one rank.
///
/// # Errors
/// A rank alone has no peer; what made the world fail; bytes that are wrong.
pub(crate) fn measure(context: &RankContext<'_>, arguments: &ShmemArgs) -> anyhow::Result<()> {
    let world = context.world;
    if world.size() < 2 {
        bail!("bench shmem needs at least 2 ranks, and this world has 1");
    }
    let host = world.device().runtime().kind() == RuntimeKind::Host;
    let say = |what: &str| context.progress.say(what);
    let mut rows = Vec::new();
    let mut lacking = Vec::new();
    if arguments.runs(Part::Matrix) {
        let mut matrix = Matrix::new(world)?;
        matrix.run(say)?;
        rows.extend(matrix.cells.iter().map(|cell| row_of_cell(world, cell)));
        lacking = std::mem::take(&mut matrix.lacking);
        matrix.free()?;
    }
    if arguments.runs(Part::Times) {
        let (timed, without) = speed::measure(world, &arguments.plan(host), say)?;
        lacking.extend(without);
        rows.extend(timed.iter().map(|timed| row_of_time(world, timed)));
    }
    context.progress.clear();
    let compiled = context.compiled()?;
    if context.is_root() {
        for row in &mut rows {
            row.compiled = compiled;
        }
        row::print_rows(&rows, context.json)?;
        for lacking in lacking {
            tracing::warn!("left out, as it is not supported: {lacking}");
        }
    }
    if rows.is_empty() {
        bail!("no operation is supported by the routes of all ranks");
    }
    if rows.iter().all(|row| row.verified) { Ok(()) } else { bail!("bytes are wrong; see `verified`") }
}

fn row(world: &World, op: &str, scope: &str) -> Row {
    let row = Row {
        op: op.to_owned(),
        runtime: world.device().runtime().kind().to_string(),
        ranks: world.size(),
        dtype: "bytes".to_owned(),
        tokens: None,
        bytes: None,
        us_median: 0.0,
        us_p99: 0.0,
        gb_per_s: 0.0,
        link_fraction: None,
        verified: false,
        compiled: 0,
        extras: Map::new(),
    };
    row.with("scope", scope)
}

fn row_of_cell(world: &World, cell: &Cell) -> Row {
    let row = row(world, cell.op, cell.scope).with("operations", cell.operations);
    let mut kinds: Vec<String> = world.routes().iter().map(|route| route.kind.to_string()).collect();
    kinds.sort();
    kinds.dedup();
    let row = row.with("route", kinds.join(", ")).with("what", cell.what.clone());
    Row { bytes: cell.bytes, us_median: cell.us, us_p99: cell.us, verified: cell.verified, ..row }
}

fn row_of_time(world: &World, timed: &Timed) -> Row {
    let Timed { kind, scope, peer, route, bytes, operations, samples, verified } = timed;
    let row = row(world, matrix::operation(*kind).word(), scope.word()).with("operations", *operations);
    let row = row.with("route", route.clone()).with("what", format!("one of them, rank 0 to rank {peer}"));
    Row {
        bytes: Some(*bytes),
        us_median: samples.median(),
        us_p99: samples.p99(),
        gb_per_s: gigabytes_per_second(*bytes, samples.median()),
        verified: *verified,
        ..row
    }
}
