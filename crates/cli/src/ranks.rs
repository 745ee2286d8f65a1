//! Running something on every rank of a world: in processes that this program starts of itself, or in threads.

use std::ffi::OsString;
use std::io::Write as _;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use anabranch::config::{LoadedConfig, NicDriverName, Origin, Schedule, TransportConfig, TransportName};
use anabranch::jit::{Jit, JitStats, KernelSpec, Target};
use anabranch::ranks::Nodes;
use anabranch::shmem::Fault;
use anabranch::{Config, Environment, GlobalRank, Placement, Platform, RankError, RuntimeKind, World};
use anyhow::{Context, bail};
use clap::Args;

use crate::capture_beside::CaptureBeside;
use crate::commands::run::finish;
use crate::exit;
use crate::launch::{Launch, Output};
use crate::progress::Progress;
use crate::settings::RuntimeArgs;

/// The flags of every command that runs ranks.
#[derive(Clone, Debug, Default, Args)]
pub(crate) struct RankArgs {
    #[command(flatten)]
    pub(crate) runtime: RuntimeArgs,
    /// How many ranks; 4 on the host runtime and one a device on GPUs unless given.
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub(crate) ranks: Option<u32>,
    /// Ranks are threads of this process and not processes of their own.
    #[arg(long)]
    pub(crate) threads: bool,
    /// Divide the ranks into N machines, blocks of neighbours, between which they go as between real ones: through a NIC (`rdma` is put
    /// behind transport.order), which is one in software unless transport.rdma.driver is set. NICs of this machine that are equally near are
    /// divided among its parts.
    #[arg(long, value_name = "N")]
    pub(crate) nodes: Option<NonZeroU32>,
    /// Beside the ranks, which must be threads, capture graphs on a stream of another thread all the time, as a framework does; it is an
    /// error if one of these captures or replays fails.
    #[arg(long, requires = "threads")]
    pub(crate) capture_beside: bool,
    /// One JSON object a line.
    #[arg(long)]
    pub(crate) json: bool,
    /// Kernels that the starting process compiled; given to ranks by it.
    #[arg(long, hide = true, default_value_t = 0)]
    already_compiled: u64,
}

impl RankArgs {
    /// The configuration, with what `--nodes` asks of it.
    ///
    /// # Errors
    /// The first complaint about a layer.
    fn load(&self) -> anyhow::Result<Config> {
        let LoadedConfig { mut config, origins } = self.runtime.load()?;
        if self.nodes.is_some() {
            let TransportConfig { order, rdma, .. } = &mut config.transport;
            if !order.contains(&TransportName::Rdma) {
                order.push(TransportName::Rdma);
            }
            // Machines that are none have no NICs of their own between them, unless somebody says so.
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
    pub(crate) fn refuse_nodes(&self, command: &str) -> anyhow::Result<()> {
        match self.nodes {
            None => Ok(()),
            Some(nodes) => {
                bail!("--nodes {nodes}: {command} is for ranks that map each other's memory; leave it out")
            }
        }
    }

    /// A thread that captures would run outside of the seed's order.
    fn check_capture_beside(&self, config: &Config) -> anyhow::Result<()> {
        if self.capture_beside && config.is_host() && config.device.host.schedule == Schedule::Seeded {
            bail!(
                "--capture-beside: device.host.schedule is seeded; take free, as the thread that captures is not under the seed"
            );
        }
        Ok(())
    }

    /// The machines that `--nodes` divides so many ranks into, where they are several.
    pub(crate) fn several_nodes(&self, ranks: u32) -> Option<Nodes> {
        let machines = self.nodes?;
        let node_of = |rank| anabranch::machine_of(GlobalRank::new(rank), ranks, machines);
        Some(Nodes::new(&(0..ranks).map(node_of).collect::<Vec<_>>())).filter(|nodes| nodes.count() > 1)
    }

    fn check_nodes(&self, ranks: u32) -> anyhow::Result<()> {
        match self.nodes {
            Some(nodes) if nodes.get() > ranks => {
                bail!(
                    "--nodes {nodes} with {ranks} ranks; allowed are 1 to {ranks}, as every machine has a rank"
                )
            }
            _ => Ok(()),
        }
    }
}

/// What one rank's work gets.
#[derive(Clone, Debug)]
pub(crate) struct RankContext<'a> {
    /// The joined world; left by the caller after the work.
    pub(crate) world: &'a World,
    /// The effective configuration.
    pub(crate) config: &'a Config,
    /// The terminal's line: rank 0's; the others' shows nothing.
    pub(crate) progress: Progress,
    /// Whether rows are JSON.
    pub(crate) json: bool,
    already_compiled: u64,
}

impl RankContext<'_> {
    /// Whether this rank prints.
    pub(crate) fn is_root(&self) -> bool {
        self.world.rank().get() == 0
    }

    /// Kernels compiled in this run, by the starting process and all ranks. Collective over the world.
    ///
    /// # Errors
    /// What made the world fail.
    pub(crate) fn compiled(&self) -> anyhow::Result<u64> {
        let JitStats { compiled, .. } = self.world.jit().stats();
        // Ranks that are threads share one pipeline, which must count once.
        let mine = [u64::from(std::process::id()), compiled];
        let bytes: Vec<u8> = mine.iter().flat_map(|word| word.to_le_bytes()).collect();
        let all = self.world.exchange(self.world.group(), "count compilations", &bytes)?;
        let word = |bytes: &[u8]| bytes.iter().rev().fold(0_u64, |word, byte| word << 8 | u64::from(*byte));
        let mut processes = std::collections::BTreeMap::new();
        for said in &all {
            let (process, compiled) = said.split_at(said.len().min(8));
            processes.insert(word(process), word(compiled));
        }
        Ok(self.already_compiled + processes.values().sum::<u64>())
    }
}

/// Runs `work` on every rank. `check` is asked first, with the configuration and the number of ranks: what it refuses
/// is one error of this process, with no rank started. Compiles `kernels` first, with a line of progress, so that the ranks find them; then
/// starts threads, or processes of this program with the subcommand `hidden` in place of its own, which end in
/// [`run_rank`].
///
/// # Errors
/// The configuration's, those of `check`, a kernel's that does not compile, and the first failing rank's.
pub(crate) fn spawn<W>(
    arguments: &RankArgs,
    hidden: &str,
    kernels: &[KernelSpec],
    check: impl FnOnce(&Config, u32) -> anyhow::Result<()>,
    work: W,
) -> anyhow::Result<()>
where
    W: Fn(&RankContext<'_>) -> anyhow::Result<()> + Sync,
{
    let config = arguments.load()?;
    let progress = Progress::new();
    let ranks = match (arguments.ranks, config.device.runtime) {
        (Some(ranks), _) => ranks,
        (None, RuntimeKind::Host) => config.device.host.count.unwrap_or(4),
        (None, _) => device_count(&config)?,
    };
    arguments
        .check_nodes(ranks)
        .and_then(|()| arguments.check_capture_beside(&config))
        .and_then(|()| check(&config, ranks))
        .map_err(exit::usage)?;
    if let Some(nodes) = arguments.nodes {
        let driver = match config.transport.rdma.driver {
            NicDriverName::Software => "NICs in software",
            NicDriverName::Libfabric => "libfabric",
            _ => "the machine's NICs",
        };
        // Reports go to standard output.
        let _ =
            writeln!(std::io::stderr(), "{ranks} ranks as if on {nodes} machines, by {driver} between them");
    }
    if config.is_host() && config.device.host.schedule == Schedule::Seeded {
        tracing::warn!("under a seed the clock is virtual: times and rates say nothing of speed");
    }
    let placement =
        if arguments.threads { Placement::Threads { ranks } } else { Placement::Processes { ranks } };
    // Opened before anything is started: that there are fewer devices than ranks is one error and not N.
    let platform = open(arguments, &config, placement, &progress)?;
    let target = platform.jit().device_target(&platform.device(0)?).map_err(anabranch::Error::from)?;
    compile(platform.jit(), kernels, &target, &config)?;
    progress.clear();
    if arguments.threads {
        return run_threads(arguments, &platform, &progress, work);
    }
    let compiled = platform.jit().stats().compiled;
    let port_offset = config.bootstrap.port_offset;
    // The ranks open devices of their own; this process must not hold any of their memory.
    drop(platform);
    let launch = Launch {
        ranks,
        program: std::env::current_exe().context("cannot find this program")?.into(),
        arguments: rank_arguments(std::env::args_os().skip(1).collect(), hidden, compiled),
        output: Output::RootOnly,
        grace: Duration::from_secs(5),
    };
    finish(&launch, port_offset)
}

/// Runs `work` as the rank that the launcher says this process is.
///
/// # Errors
/// The configuration's, the world's, and the work's.
pub(crate) fn run_rank<W>(arguments: &RankArgs, work: W) -> anyhow::Result<()>
where
    W: Fn(&RankContext<'_>) -> anyhow::Result<()>,
{
    let config = arguments.load()?;
    let place = anabranch::rendezvous_from_launcher(&config)?;
    let root = place.rendezvous.rank().get() == 0;
    let progress = if root { Progress::new() } else { Progress::silent() };
    let platform = open(arguments, &config, Placement::Processes { ranks: place.local_size }, &progress)?;
    let world = platform.join(&place)?;
    let context = context(arguments, &config, &world, &progress);
    let result = work(&context);
    progress.clear();
    result?;
    world.leave().map_err(anabranch::Error::from)?;
    place.rendezvous.leave().map_err(anabranch::Error::from)?;
    Ok(())
}

fn run_threads<W>(
    arguments: &RankArgs,
    platform: &Platform,
    progress: &Progress,
    work: W,
) -> anyhow::Result<()>
where
    W: Fn(&RankContext<'_>) -> anyhow::Result<()> + Sync,
{
    let beside = || CaptureBeside::start(platform.device(0)?);
    let beside = arguments.capture_beside.then(beside).transpose()?;
    let results = platform.spawn_threads(|world| {
        let line = if world.rank().get() == 0 { progress.clone() } else { Progress::silent() };
        work(&context(arguments, platform.config(), world, &line))
    });
    progress.clear();
    let captured = beside.map_or(Ok(0), CaptureBeside::finish);
    let ranks = first_failure(results?);
    // What fails beside may be why ranks fail, and the other way round: both are said.
    match (ranks, captured) {
        (ranks, Ok(graphs)) => {
            if arguments.capture_beside {
                // Reports go to standard output.
                let _ = writeln!(
                    std::io::stderr(),
                    "{graphs} graphs were captured and replayed beside the ranks"
                );
            }
            ranks
        }
        (Ok(()), Err(beside)) => Err(beside),
        (Err(failure), Err(beside)) => {
            tracing::error!("{beside:#}");
            Err(failure)
        }
    }
}

/// Why ranks failed, if any did.
fn first_failure(results: Vec<Result<(), RankError<anyhow::Error>>>) -> anyhow::Result<()> {
    let failures: Vec<RankError<anyhow::Error>> = results.into_iter().filter_map(Result::err).collect();
    // A rank that fails takes the others with it: what they say about losing it is not the cause.
    let cause = failures.iter().position(|failure| !is_consequence(failure)).unwrap_or(0);
    match failures.into_iter().nth(cause) {
        None => Ok(()),
        Some(RankError::Work { rank, error }) => Err(error.context(format!("{rank} failed"))),
        Some(RankError::World { rank, error }) => {
            Err(anyhow::Error::from(anabranch::Error::from(error)).context(format!("{rank} failed")))
        }
        Some(other) => Err(anyhow::anyhow!("{other}")),
    }
}

fn is_consequence(failure: &RankError<anyhow::Error>) -> bool {
    use anabranch::shmem::Error as Shmem;
    let lost = |error: &Shmem| {
        matches!(
            error,
            Shmem::Elsewhere { .. } | Shmem::Rendezvous { .. } | Shmem::Fault(Fault::PeerLost { .. })
        )
    };
    match failure {
        RankError::World { error, .. } => lost(error),
        RankError::Work { error, .. } => error.chain().any(|cause| {
            let shmem = match cause.downcast_ref::<anabranch::Error>() {
                Some(anabranch::Error::Shmem(error)) => Some(&**error),
                _ => cause.downcast_ref::<Shmem>(),
            };
            shmem.is_some_and(lost)
        }),
        _ => false,
    }
}

fn context<'a>(
    arguments: &RankArgs,
    config: &'a Config,
    world: &'a World,
    progress: &Progress,
) -> RankContext<'a> {
    RankContext {
        world,
        config,
        progress: progress.clone(),
        json: arguments.json,
        already_compiled: arguments.already_compiled,
    }
}

fn open(
    arguments: &RankArgs,
    config: &Config,
    placement: Placement,
    progress: &Progress,
) -> anyhow::Result<Platform> {
    let observer = Arc::new(progress.clone());
    let platform = Platform::open_with(config, placement, &Environment::of_process(), Some(observer))?;
    Ok(arguments.nodes.into_iter().fold(platform, Platform::as_machines))
}

fn device_count(config: &Config) -> anyhow::Result<u32> {
    if let Some(devices) = &config.device.devices {
        return Ok(devices.len() as u32);
    }
    let platform = Platform::open(config, Placement::Processes { ranks: 1 })?;
    let count = platform.runtime().device_count().map_err(anabranch::Error::from)?;
    match count.saturating_sub(config.device.first) {
        0 => bail!("no device from ordinal {} on: the runtime shows {count}", config.device.first),
        left => Ok(left),
    }
}

/// Compiles what the ranks will need, several kernels at once.
fn compile(jit: &Jit, kernels: &[KernelSpec], target: &Target, config: &Config) -> anyhow::Result<()> {
    let wanted: Vec<_> = kernels.iter().map(|spec| (spec.clone(), target.clone())).collect();
    let report = jit.compile_ahead(&wanted, anabranch::compile_jobs(&config.kernels));
    report.into_result().map_err(anabranch::Error::from)?;
    Ok(())
}

/// This program's arguments with the hidden subcommand, for ranks.
fn rank_arguments(mut own: Vec<OsString>, hidden: &str, compiled: u64) -> Vec<OsString> {
    if let Some(first) = own.first_mut() {
        *first = hidden.into();
    }
    own.extend(["--already-compiled".into(), compiled.to_string().into()]);
    own
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_get_the_same_arguments() {
        let own = ["bench", "ep", "--ranks", "2"].map(OsString::from).to_vec();
        let theirs = rank_arguments(own, "bench-rank", 3);
        assert_eq!(theirs, ["bench-rank", "ep", "--ranks", "2", "--already-compiled", "3"]);
    }
}
