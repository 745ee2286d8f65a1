//! The ranks of a run: their flags, and what each is given.

use std::ffi::OsString;
use std::num::NonZeroU32;

use anabranch::config::{LoadedConfig, NicDriverName, Origin, Schedule, TransportConfig};
use anabranch::{Config, GlobalRank, World};
use anabranch_hip_jit::JitStats;
use anabranch_ranks::Nodes;
use anabranch_transport::TransportKind;
use anyhow::bail;
use clap::Args;

use crate::progress::Progress;
use crate::settings::RuntimeArgs;

/// The flags of every command that runs ranks.
#[derive(Clone, Debug, Default, Args)]
pub struct RankArgs {
    /// The configuration.
    #[command(flatten)]
    pub runtime: RuntimeArgs,
    /// Number of ranks [default: 4 on the host runtime, one per device on GPUs].
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub ranks: Option<u32>,
    /// Run the ranks as threads of this process instead of processes.
    #[arg(long)]
    pub threads: bool,
    /// Run the ranks as N nodes of neighbouring ranks, connected by NICs (`rdma` is appended to transport.order): software NICs unless
    /// transport.rdma.driver is set. NICs of this machine that are equally near are divided among the nodes.
    #[arg(long, value_name = "N")]
    pub nodes: Option<NonZeroU32>,
    /// Capture and replay graphs on another thread while the ranks, which must be threads, run, as a framework does; it is an
    /// error if a capture or replay fails.
    #[arg(long, requires = "threads")]
    pub capture_beside: bool,
    /// Print one JSON object per line.
    #[arg(long)]
    pub json: bool,
    /// Number of kernels that the starting process compiled, passed to the ranks.
    #[arg(long, hide = true, default_value_t = 0)]
    already_compiled: u64,
}

impl RankArgs {
    /// The configuration, with what `--nodes` asks of it.
    ///
    /// # Errors
    /// The first complaint about a layer.
    pub fn load(&self) -> anyhow::Result<Config> {
        let LoadedConfig { mut config, origins } = self.runtime.load()?;
        if self.nodes.is_some() {
            let TransportConfig { order, rdma, .. } = &mut config.transport;
            if !order.contains(&TransportKind::Rdma) {
                order.push(TransportKind::Rdma);
            }
            // `--nodes` only divides one machine: no NIC connects its parts, so software NICs do unless a driver is set.
            if origins.of("transport.rdma.driver") == Origin::Default {
                rdma.driver = NicDriverName::Software;
            }
        }
        Ok(config)
    }

    /// For commands that measure what one machine does.
    ///
    /// # Errors
    /// That `--nodes` was given.
    pub fn refuse_nodes(&self, command: &str) -> anyhow::Result<()> {
        match self.nodes {
            None => Ok(()),
            Some(nodes) => {
                bail!("--nodes {nodes}: {command} is for ranks that map each other's memory; leave it out")
            }
        }
    }

    /// The machines that `--nodes` divides so many ranks into, where they are several.
    pub fn several_nodes(&self, ranks: u32) -> Option<Nodes> {
        let machines = self.nodes?;
        let node_of = |rank| anabranch::machine_of(GlobalRank::new(rank), ranks, machines);
        Some(Nodes::new(&(0..ranks).map(node_of).collect::<Vec<_>>())).filter(|nodes| nodes.count() > 1)
    }

    /// Checks these flags against the configuration and each other.
    ///
    /// # Errors
    /// More nodes than ranks; a capturing thread with a seeded schedule, which does not order it.
    pub fn check(&self, config: &Config, ranks: u32) -> anyhow::Result<()> {
        if let Some(nodes) = self.nodes.filter(|nodes| nodes.get() > ranks) {
            bail!(
                "--nodes {nodes} with {ranks} ranks; allowed are 1 to {ranks}, as every machine has a rank"
            );
        }
        if self.capture_beside && config.is_host() && config.device.host.schedule == Schedule::Seeded {
            bail!(
                "--capture-beside: device.host.schedule is seeded; take free, as the thread that captures is not under the seed"
            );
        }
        Ok(())
    }

    /// These flags for one of the ranks, the words that follow a rank's arguments.
    pub fn of_rank(compiled: u64) -> [OsString; 2] {
        ["--already-compiled".into(), compiled.to_string().into()]
    }
}

/// What one rank's work gets.
#[derive(Clone, Debug)]
pub struct RankContext<'a> {
    /// The joined world; left by the caller after the work.
    pub world: &'a World,
    /// The effective configuration.
    pub config: &'a Config,
    /// The terminal's line: rank 0's; the others' shows nothing.
    pub progress: Progress,
    /// Whether rows are JSON.
    pub json: bool,
    already_compiled: u64,
}

impl<'a> RankContext<'a> {
    /// Of a rank that has joined `world`.
    pub fn new(arguments: &RankArgs, config: &'a Config, world: &'a World, progress: Progress) -> Self {
        let RankArgs { json, already_compiled, .. } = *arguments;
        Self { world, config, progress, json, already_compiled }
    }
    /// Whether this rank prints.
    pub fn is_root(&self) -> bool {
        self.world.rank().get() == 0
    }

    /// Kernels compiled in this run, by the starting process and all ranks. Collective over the world.
    ///
    /// # Errors
    /// What made the world fail.
    pub fn compiled(&self) -> anyhow::Result<u64> {
        let JitStats { compiled, .. } = self.world.jit().stats();
        // Ranks that are threads share one pipeline, which must count once.
        let mine = [u64::from(std::process::id()), compiled];
        let bytes: Vec<u8> = mine.iter().flat_map(|word| word.to_le_bytes()).collect();
        let all = self.world.exchange(self.world.group(), "count compilations", &bytes)?;
        let word = |bytes: &[u8]| bytes.iter().rev().fold(0_u64, |word, byte| word << 8 | u64::from(*byte));
        let mut processes = std::collections::BTreeMap::new();
        for answer in &all {
            let (process, compiled) = answer.split_at(answer.len().min(8));
            processes.insert(word(process), word(compiled));
        }
        Ok(self.already_compiled + processes.values().sum::<u64>())
    }
}

/// The flags of every benchmark.
#[derive(Clone, Debug, Args)]
pub(crate) struct BenchArgs {
    #[command(flatten)]
    pub(crate) ranks: RankArgs,
    /// Number of timed repetitions.
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub(crate) iters: Option<u32>,
}
