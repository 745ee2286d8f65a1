//! Runs a function on every rank of a world: in processes of this program, or in threads.

use std::ffi::OsString;
use std::io::Write as _;
use std::sync::Arc;
use std::time::Duration;

use anabranch::config::{NicDriverName, Schedule};
use anabranch::{Config, Environment, Platform, ProcessLayout, RankError, RuntimeKind};
use anabranch_hip_jit::{Jit, KernelSpec, Target};
use anabranch_shmem::Fault;
use anyhow::{Context, bail};

use crate::capture_beside::CaptureBeside;
use crate::exit;
use crate::invocation;
use crate::launch::finish;
use crate::launch::{Launch, Output};
use anabranch_bench::progress::Progress;
use anabranch_bench::ranks::{RankArgs, RankContext};

/// Runs `work` on every rank. First calls `check` with the configuration and the number of ranks, so that an invalid request
/// is one error of this process, before any rank starts. Then compiles what `kernels` returns for the same, with a line
/// of progress, so that the ranks find them in the cache. Then starts threads, or processes of this program with the
/// subcommand `hidden`, which call [`run_rank`].
///
/// # Errors
/// Errors of the configuration, of `check`, of the compiler, and of the first failing rank.
pub(crate) fn spawn<W>(
    arguments: &RankArgs,
    hidden: &str,
    kernels: impl FnOnce(&Config, u32) -> anyhow::Result<Vec<KernelSpec>>,
    check: impl FnOnce(&Config, u32) -> anyhow::Result<()>,
    work: W,
) -> anyhow::Result<()>
where
    W: Fn(&RankContext<'_>) -> anyhow::Result<()> + Sync,
{
    let config = arguments.load()?;
    let progress = Progress::to_terminal();
    let ranks = match (arguments.ranks, config.device.runtime) {
        (Some(ranks), _) => ranks,
        (None, RuntimeKind::Host) => config.device.host.count.unwrap_or(4),
        (None, _) => device_count(&config)?,
    };
    arguments.check(&config, ranks).and_then(|()| check(&config, ranks)).map_err(exit::usage)?;
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
    let layout =
        if arguments.threads { ProcessLayout::Threads { ranks } } else { ProcessLayout::Processes { ranks } };
    // Opened before any rank starts, so that too few devices are one error and not N.
    let platform = open(arguments, &config, layout, &progress)?;
    let target = platform.jit().device_target(&platform.device(0)?).map_err(anabranch::Error::from)?;
    compile(platform.jit(), &kernels(&config, ranks)?, &target, &config)?;
    progress.clear();
    if arguments.threads {
        return run_threads(arguments, &platform, &progress, work);
    }
    let compiled = platform.jit().stats().compiled;
    let port_offset = config.bootstrap.port_offset;
    // The ranks open the devices themselves; this process must not hold any of their memory.
    drop(platform);
    let invocation = invocation::get().context("the command was not started by its entry point")?;
    let (program, before) = invocation.program.split_first().context("no program to start ranks of")?;
    let own = rank_arguments(invocation.arguments.clone(), hidden, compiled);
    let launch = Launch {
        ranks,
        program: program.clone(),
        arguments: before.iter().cloned().chain(own).collect(),
        environment: Vec::new(),
        output: Output::RootOnly,
        grace: Duration::from_secs(5),
    };
    finish(&launch, port_offset)
}

/// Runs `work` as the rank that the launcher assigned to this process.
///
/// # Errors
/// Errors of the configuration, the world, and the work.
pub(crate) fn run_rank<W>(arguments: &RankArgs, work: W) -> anyhow::Result<()>
where
    W: Fn(&RankContext<'_>) -> anyhow::Result<()>,
{
    let config = arguments.load()?;
    let rank = anabranch::rendezvous_from_launcher(&config)?;
    let root = rank.rendezvous.rank().get() == 0;
    let progress = if root { Progress::to_terminal() } else { Progress::silent() };
    let platform = open(arguments, &config, ProcessLayout::Processes { ranks: rank.local_size }, &progress)?;
    let world = platform.join(&rank)?;
    let context = RankContext::new(arguments, &config, &world, progress.clone());
    let result = work(&context);
    progress.clear();
    result?;
    world.leave().map_err(anabranch::Error::from)?;
    rank.rendezvous.leave().map_err(anabranch::Error::from)?;
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
        work(&RankContext::new(arguments, platform.config(), world, line))
    });
    progress.clear();
    let captured = beside.map_or(Ok(0), CaptureBeside::finish);
    let ranks = first_failure(results?);
    // Either failure may have caused the other, so both are reported.
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
    // A failing rank makes the others fail; their errors about its loss are not the cause.
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
    use anabranch_shmem::Error as Shmem;
    let lost = |error: &Shmem| {
        matches!(
            error,
            Shmem::FailedOn { .. } | Shmem::Rendezvous { .. } | Shmem::Fault(Fault::PeerLost { .. })
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

fn open(
    arguments: &RankArgs,
    config: &Config,
    layout: ProcessLayout,
    progress: &Progress,
) -> anyhow::Result<Platform> {
    let observer = Arc::new(progress.clone());
    let platform = Platform::open_with(config, layout, &Environment::of_process(), Some(observer))?;
    Ok(arguments.nodes.into_iter().fold(platform, Platform::as_machines))
}

fn device_count(config: &Config) -> anyhow::Result<u32> {
    if let Some(devices) = &config.device.devices {
        return Ok(devices.len() as u32);
    }
    let platform = Platform::open(config, ProcessLayout::Processes { ranks: 1 })?;
    let count = platform.runtime().device_count().map_err(anabranch::Error::from)?;
    match count.saturating_sub(config.device.first) {
        0 => bail!("no device from ordinal {} on: the runtime shows {count}", config.device.first),
        left => Ok(left),
    }
}

/// Compiles the kernels of the ranks, several at once.
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
    own.extend(RankArgs::of_rank(compiled));
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
