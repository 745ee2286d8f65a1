//! `anabranch bench p2p`: the speed of the links, by copy engine and by kernels; one pair at a time, and all ranks at once
//! in both directions; and the latency of a flag, alone and after data.

use anabranch::{Config, RuntimeKind, World};
use anabranch_hip_jit::KernelSpec;
use anyhow::{Context as _, bail};
use clap::Args;
use serde_json::Map;

use super::device::{self, Links, Mechanism, Pattern};
use super::link::{self, Role, Timed};
use super::row::{self, Row};
use super::statistics::{Samples, gigabytes_per_second};
use crate::ranks::{BenchArgs, RankContext};

/// `anabranch bench p2p`.
#[derive(Clone, Debug, Args)]
pub struct P2pArgs {
    #[command(flatten)]
    pub(crate) bench: BenchArgs,
    /// Blocks of the copying kernels [default on a GPU: 64 for stores, 24 or more for loads].
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=4096))]
    pub(crate) blocks: Option<u32>,
    /// Bytes a peer; several sizes are measured one after the other, and pairs with the largest. Units as in "64 MiB".
    #[arg(long, value_delimiter = ',', value_name = "SIZE,...")]
    pub(crate) bytes: Vec<anabranch::config::ByteSize>,
}

/// What a run launches.
pub(crate) fn needed_kernels() -> Vec<KernelSpec> {
    let mut all = vec![KernelSpec::new(&anabranch_shmem::TEAM_BARRIER_UNIT)];
    all.extend(device::kernels());
    all
}

/// Payloads of the latency rows, bytes.
const PAYLOADS: [u64; 4] = [0, 16, 4 << 10, 16 << 10];

/// Measures on one rank.
///
/// # Errors
/// A rank alone has no peer; sizes that do not fit the heap; what made the world fail.
pub(crate) fn measure(context: &RankContext<'_>, arguments: &P2pArgs) -> anyhow::Result<()> {
    let world = context.world;
    if world.size() < 2 {
        bail!("bench p2p needs at least 2 ranks, and this world has 1");
    }
    let host = world.device().runtime().kind() == RuntimeKind::Host;
    let iters = arguments.bench.iters.unwrap_or(if host { 5 } else { 20 });
    let Sizes { to_each_peer, pair_bytes, area, heap_bytes } = Sizes::new(arguments, host, world.size())?;
    let mut links = Links::new(world, world.group(), area).with_context(|| {
        format!("the areas of {area} bytes and {pair_bytes} for a pair need {heap_bytes} bytes of heap.bytes")
    })?;
    let mut report = Report { world, blocks: arguments.blocks, rows: Vec::new() };
    for mechanism in Mechanism::ALL {
        context.progress.say(&format!("{} between pairs", mechanism.name()));
        report.pairs(&mut links, mechanism, pair_bytes, iters)?;
    }
    share_of_fastest(&mut report.rows);
    for bytes in to_each_peer {
        let first = report.rows.len();
        for mechanism in Mechanism::ALL {
            context.progress.say(&format!("{} of all ranks, {bytes} bytes a peer", mechanism.name()));
            report.all(&mut links, mechanism, bytes, iters)?;
        }
        share_of_fastest(&mut report.rows[first..]);
    }
    for bytes in PAYLOADS {
        context.progress.say(&format!("a flag after {bytes} bytes"));
        report.latency(&mut links, bytes, iters, if host { 50 } else { 1000 })?;
    }
    links.free()?;
    context.progress.clear();
    let compiled = context.compiled()?;
    if context.is_root() {
        report.rows.iter_mut().for_each(|row| row.compiled = compiled);
        row::print_rows(&report.rows, context.json)?;
    }
    if report.rows.iter().all(|row| row.verified) {
        Ok(())
    } else {
        bail!("bytes arrived wrong; see `verified`")
    }
}

/// The checks of the starting process, before it starts ranks.
///
/// # Errors
/// Sizes that no heap of `heap.bytes` holds.
pub(crate) fn check(arguments: &P2pArgs, config: &Config, ranks: u32) -> anyhow::Result<()> {
    if ranks < 2 {
        bail!("bench p2p needs at least 2 ranks, and {ranks} is asked for");
    }
    let host = config.device.runtime == RuntimeKind::Host;
    let Sizes { area, heap_bytes, .. } = Sizes::new(arguments, host, ranks)?;
    let heap = config.heap.most_bytes();
    if heap_bytes > heap {
        bail!(
            "sending and receiving areas of {area} bytes for {ranks} ranks need {heap_bytes} bytes, and heap.bytes \
             is {heap}: set heap.bytes, or smaller --bytes"
        );
    }
    Ok(())
}

/// The sizes of a run, checked.
struct Sizes {
    /// Bytes a peer, one after the other.
    to_each_peer: Vec<u64>,
    pair_bytes: u64,
    /// Bytes of each of the two areas.
    area: u64,
    heap_bytes: u64,
}

impl Sizes {
    fn new(arguments: &P2pArgs, host: bool, ranks: u32) -> anyhow::Result<Self> {
        let sizes = sizes(arguments, host)?;
        let largest = sizes.iter().copied().max().unwrap_or(0);
        let pair_bytes = if arguments.bytes.is_empty() { default_pair_bytes(host) } else { largest };
        let all = largest.checked_mul(u64::from(ranks)).with_context(|| {
            format!("--bytes: {largest} bytes for each of {ranks} ranks are more than any heap holds")
        })?;
        let area = pair_bytes.max(all).max(PAYLOADS[PAYLOADS.len() - 1]);
        Ok(Self { to_each_peer: sizes, pair_bytes, area, heap_bytes: device::heap_bytes(area, ranks)? })
    }
}

/// Gives each row that has no share yet the share of the fastest of them: mechanisms of one pattern and size.
fn share_of_fastest(rows: &mut [Row]) {
    let fastest = rows.iter().map(|row| row.gb_per_s).fold(0.0, f64::max);
    for row in rows {
        row.link_fraction = (fastest > 0.0).then(|| row.gb_per_s / fastest);
    }
}

fn sizes(arguments: &P2pArgs, host: bool) -> anyhow::Result<Vec<u64>> {
    if arguments.bytes.is_empty() {
        return Ok(if host { vec![256 << 10] } else { vec![64 << 20, 16 << 20, 8 << 20, 1 << 20] });
    }
    let sizes: Vec<u64> = arguments.bytes.iter().map(|size| size.bytes()).collect();
    match sizes.iter().find(|bytes| **bytes == 0 || !bytes.is_multiple_of(16)) {
        Some(bytes) => bail!("--bytes: {bytes} is no positive multiple of 16"),
        None => Ok(sizes),
    }
}

/// What a pair moves alone where no sizes are given.
fn default_pair_bytes(host: bool) -> u64 {
    if host { 1 << 20 } else { 256 << 20 }
}

struct Report<'w> {
    world: &'w World,
    /// What the user asked for.
    blocks: Option<u32>,
    rows: Vec<Row>,
}

impl Report<'_> {
    fn row(&self, op: &str, bytes: u64, samples: &Samples, moved: u64, verified: bool) -> Row {
        Row {
            op: op.to_owned(),
            runtime: self.world.device().runtime().kind().to_string(),
            ranks: self.world.size(),
            dtype: "bytes".to_owned(),
            tokens: None,
            bytes: Some(bytes),
            us_median: samples.median(),
            us_p99: samples.p99(),
            gb_per_s: gigabytes_per_second(moved, samples.median()),
            link_fraction: None,
            verified,
            compiled: 0,
            extras: Map::new(),
        }
    }

    fn blocks(&self, mechanism: Mechanism, peers: u32) -> u32 {
        self.blocks.unwrap_or_else(|| link::copy_blocks(self.world, mechanism, peers)).max(peers)
    }

    /// Says how many blocks a result took; a copy engine takes none.
    fn with_blocks(&self, row: Row, mechanism: Mechanism, peers: u32) -> Row {
        let blocks = if mechanism == Mechanism::CopyEngine { 0 } else { self.blocks(mechanism, peers) };
        row.with("blocks", blocks)
    }

    /// Every ordered pair alone. The row is the slowest pair's.
    fn pairs(
        &mut self,
        links: &mut Links,
        mechanism: Mechanism,
        bytes: u64,
        iters: u32,
    ) -> anyhow::Result<()> {
        let (me, size) = (self.world.rank().get(), self.world.size());
        let mut worst: Option<(Timed, u32, u32)> = None;
        let mut best = 0.0f64;
        let mut verified = true;
        for step in 1..size {
            for from in 0..size {
                let to = (from + step) % size;
                // A pull is the receiver's work: it goes against the step.
                let first_step = if mechanism.pushes() { step } else { size - step };
                let actor = if mechanism.pushes() { from } else { to };
                let pattern = Pattern { first_step, peers: 1, bytes, stride: 0 };
                let role = Role { acts: me == actor, receives: me == to };
                let timed = link::time(
                    self.world,
                    links,
                    mechanism,
                    &pattern,
                    iters,
                    self.blocks(mechanism, 1),
                    role,
                )?;
                verified &= timed.verified;
                let speed = gigabytes_per_second(bytes, timed.samples.median());
                best = best.max(speed);
                if worst
                    .as_ref()
                    .is_none_or(|(slowest, ..)| timed.samples.median() > slowest.samples.median())
                {
                    worst = Some((timed, from, to));
                }
            }
        }
        if let Some((timed, from, to)) = worst {
            let row = self.row(mechanism.name(), bytes, &timed.samples, bytes, verified);
            let name = format!("slowest of {} pairs: {from} to {to}", size * (size - 1));
            let row = row.with("fastest_gb_per_s", (best * 100.0).round() / 100.0);
            self.rows.push(self.with_blocks(row, mechanism, 1).with("what", name));
        }
        Ok(())
    }

    /// All ranks to all others at once. GB/s is each rank's in each direction.
    fn all(&mut self, links: &mut Links, mechanism: Mechanism, bytes: u64, iters: u32) -> anyhow::Result<()> {
        let peers = self.world.size() - 1;
        let pattern = Pattern { first_step: 1, peers, bytes, stride: bytes };
        let timed = link::time(
            self.world,
            links,
            mechanism,
            &pattern,
            iters,
            self.blocks(mechanism, peers),
            link::EVERY_RANK,
        )?;
        let row = self.row(mechanism.name(), bytes, &timed.samples, bytes * u64::from(peers), timed.verified);
        let what = "all to all others at once, per rank and direction";
        self.rows.push(self.with_blocks(row, mechanism, peers).with("what", what));
        Ok(())
    }

    /// One way between ranks 0 and 1 ([`link::ping`]).
    fn latency(&mut self, links: &mut Links, bytes: u64, iters: u32, rounds: u32) -> anyhow::Result<()> {
        let (samples, verified) = link::ping(self.world, links, bytes, iters, rounds)?;
        // A bare flag has no bytes to compare: a ping that lost one would have ended in a fault, not here.
        let (op, what) = if bytes == 0 {
            ("flag", "one way, one block, ranks 0 and 1; verified by every flag's arrival")
        } else {
            ("data_and_flag", "one way, one block, ranks 0 and 1")
        };
        let row = self.row(op, bytes, &samples, bytes, verified);
        self.rows.push(row.with("what", what));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;

    #[derive(clap::Parser)]
    struct Line {
        #[command(flatten)]
        p2p: P2pArgs,
    }

    fn planned(words: &[&str], host: bool) -> Sizes {
        let line = Line::parse_from([&["p2p"], words].concat());
        Sizes::new(&line.p2p, host, 4).unwrap()
    }

    #[test]
    fn areas_are_of_the_sizes_that_are_measured() {
        for host in [true, false] {
            let small = planned(&["--bytes", "4KiB"], host);
            // Four ranks' parts; no less than the largest payload of the latency rows.
            assert_eq!((small.pair_bytes, small.area), (4 << 10, 16 << 10), "host {host}");
            assert!(small.heap_bytes < 64 << 10, "{}", small.heap_bytes);
            assert_eq!(planned(&["--bytes", "4KiB,1MiB"], host).pair_bytes, 1 << 20);
        }
        assert_eq!(planned(&[], false).pair_bytes, 256 << 20);
        assert_eq!(planned(&[], true).pair_bytes, 1 << 20);
    }
}
