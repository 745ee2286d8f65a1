//! `anabranch sim`: runs protocols under seeds; shrinks and shows the first failure, with the command line that replays it.

mod exhaustive;
mod seeds;
mod show;
mod size;
mod sweep;

use std::fs::File;
use std::io::BufWriter;
use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::sync::Arc;
use std::thread::available_parallelism;

use anabranch::config::Period;
use anabranch::{Environment, kernel_pipeline};
use anabranch_hip_jit::Jit;
use anabranch_sim::{
    Case, CaseError, End, Found, FoundError, Protocol, Scenario, ScenarioError, SearchOptions, ShrinkOptions,
    Shrunk, check_mutant, scenario, search, shrink, write_trace,
};
use anyhow::Context;
use clap::Args;
use clap::builder::{PossibleValuesParser, TypedValueParser};

use anabranch_bench::progress::Progress;
use anabranch_bench::reported::Reported;
use anabranch_bench::settings::SettingsArgs;
use exhaustive::ExhaustiveArgs;
use seeds::Seeds;
use size::SizeArgs;
use sweep::SweepArgs;

/// `anabranch sim`.
#[derive(Clone, Debug, Args)]
#[command(
    after_help = "Exit code 0: every seed that ran succeeded. 1: a seed failed. Others as for all commands."
)]
pub(crate) struct SimArgs {
    /// The protocol; `--list` describes each.
    #[arg(required_unless_present = "list", value_parser = protocol_parser())]
    protocol: Option<Protocol>,
    /// Print the protocols and the mutants, one sentence each.
    #[arg(long, conflicts_with = "protocol")]
    list: bool,
    /// The seeds, without the last one.
    #[arg(long, value_name = "A..B", default_value_t = Seeds { start: 0, end: 1000 })]
    seeds: Seeds,
    #[command(flatten)]
    size: SizeArgs,
    #[command(flatten)]
    sweep: SweepArgs,
    /// With a sweep: only every K-th point.
    #[arg(long, value_name = "K", requires = "sweep")]
    stride: Option<NonZeroUsize>,
    /// Most preemptions of a run, each a switch to another lane that is not forced [default with --exhaustive: 1].
    #[arg(long, value_name = "N")]
    most_switches: Option<u64>,
    #[command(flatten)]
    exhaustive: ExhaustiveArgs,
    /// Threads that run seeds [default: one per core]. The result does not depend on it.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=256))]
    threads: Option<u32>,
    /// Start no more seeds after this time ("60s"); the seeds that ran count.
    #[arg(long, value_name = "DURATION")]
    time_limit: Option<Period>,
    /// Show the failure as it was found.
    #[arg(long)]
    no_shrink: bool,
    /// Entries of each device in the timeline of a failure.
    #[arg(long, value_name = "N", default_value_t = 40)]
    last: usize,
    /// Write the failing run, as shown, for Perfetto; written only when a seed fails.
    #[arg(long, value_name = "FILE")]
    trace: Option<PathBuf>,
    #[command(flatten)]
    settings: SettingsArgs,
    /// Print one JSON object per line.
    #[arg(long)]
    json: bool,
}

fn protocol_parser() -> impl TypedValueParser<Value = Protocol> {
    let names = PossibleValuesParser::new(Protocol::ALL.iter().map(|protocol| protocol.name()));
    names.try_map(|name| name.parse::<Protocol>())
}

impl SimArgs {
    fn threads(&self) -> NonZeroUsize {
        let given = self.threads.and_then(|threads| NonZeroUsize::new(threads as usize));
        given.or_else(|| available_parallelism().ok()).unwrap_or(NonZeroUsize::MIN)
    }

    fn options(&self) -> SearchOptions {
        SearchOptions {
            threads: self.threads(),
            time_limit: self.time_limit.map(Period::duration),
            most_switches: self.most_switches,
            ..SearchOptions::new(self.seeds.start..self.seeds.end)
        }
    }
}

/// A failure, first as the search met it.
struct Failed {
    first: Found,
    /// Seeds up to and with it.
    searched: u64,
    shrunk: Option<Shrunk>,
}

impl Failed {
    /// What is shown.
    fn smallest(&self) -> &Found {
        self.shrunk.as_ref().map_or(&self.first, |shrunk| &shrunk.found)
    }
}

/// Searches, and shows what came of it.
///
/// # Errors
/// A configuration that does not load, a case that the protocol does not have, a kernel that does not compile;
/// [`Reported`] when a seed fails.
pub(crate) fn run(arguments: &SimArgs) -> anyhow::Result<()> {
    let Some(protocol) = arguments.protocol else { return show::list(arguments.json) };
    let case = arguments.size.case(protocol)?;
    if !protocol.counts_switches() {
        for (asked, what) in [
            (arguments.most_switches.is_some(), "limit of switches"),
            (arguments.exhaustive.exhaustive, "runs that can be enumerated"),
        ] {
            if asked {
                return Err(CaseError::Lacks { protocol, what }.into());
            }
        }
    }
    let config = arguments.settings.load(&[])?.config;
    let progress = Progress::to_terminal();
    let observer = Arc::new(progress.clone());
    let jit = kernel_pipeline(&config.kernels, &Environment::of_process(), Some(observer))?;
    check_mutant(&case, &jit).map_err(of_scenario)?;
    if arguments.exhaustive.exhaustive {
        let scenario = scenario(case, &jit).map_err(of_scenario)?;
        let bounds = arguments.exhaustive.bounds(arguments.most_switches);
        return exhaustive::run(scenario, bounds, arguments.last, arguments.json, &progress);
    }
    if let Some(what) = arguments.sweep.what() {
        return sweep::run(arguments, what, &case, &jit, &progress);
    }
    let outcome = find(arguments, &case, &jit, &progress);
    progress.clear();
    match outcome? {
        Outcome::Right(report) => show::right(&case, arguments.seeds, &report, arguments.json),
        Outcome::Failed(failed) => {
            show::failed(&failed, arguments.last, arguments.json)?;
            if let Some(path) = &arguments.trace {
                let write =
                    || write_trace(&failed.smallest().events, &mut BufWriter::new(File::create(path)?));
                write().with_context(|| format!("{} cannot be written", path.display()))?;
            }
            Err(Reported(1).into())
        }
    }
}

enum Outcome {
    Right(anabranch_sim::Report),
    Failed(Box<Failed>),
}

fn find(arguments: &SimArgs, case: &Case, jit: &Jit, progress: &Progress) -> anyhow::Result<Outcome> {
    let make = |case: &Case| -> Result<Box<dyn Scenario>, ScenarioError> { scenario(case.clone(), jit) };
    let report = search(|| make(case), &arguments.options(), &mut |now| {
        progress.say(&format!(
            "{}: {} of {} seeds, {:.0} seeds/s, {} primitives",
            case.protocol,
            now.done,
            now.of,
            now.seeds_per_second(),
            now.primitives
        ));
    });
    let report = report.map_err(of_scenario)?;
    let End::Failed { seed, failure } = &report.end else { return Ok(Outcome::Right(report)) };
    let mut again = make(case).map_err(of_scenario)?;
    let first = Found::again(again.as_mut(), *seed, arguments.most_switches, &failure.problem);
    let first = first.map_err(of_found)?;
    let mut shrunk = None;
    if !arguments.no_shrink {
        let made = shrink(&first, &make, ShrinkOptions::default(), &mut |now| {
            // Each run takes milliseconds; a terminal need not see all.
            if now.runs % 16 == 0 {
                let Case { ranks, rounds, tokens, blocks, waves, .. } = now.case;
                progress.say(&format!(
                    "seed {seed} fails; shrinking, run {} of at most {}: \
                     {ranks} ranks, {rounds} rounds, {tokens} tokens, {blocks} blocks, {waves} waves",
                    now.runs, now.of
                ));
            }
        });
        shrunk = Some(made.map_err(of_found)?);
    }
    Ok(Outcome::Failed(Box::new(Failed { first, searched: report.seeds, shrunk })))
}

/// With the causes that have an exit code.
fn of_scenario(error: ScenarioError) -> anyhow::Error {
    match error {
        ScenarioError::Case(error) => error.into(),
        ScenarioError::Compile(error) => anabranch::Error::from(error).into(),
        other => other.into(),
    }
}

fn of_found(error: FoundError) -> anyhow::Error {
    match error {
        FoundError::Scenario(error) => of_scenario(error),
        other => other.into(),
    }
}
