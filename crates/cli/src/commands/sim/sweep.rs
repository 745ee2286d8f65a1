//! `anabranch sim world` with a fault injected at every point in turn.

use std::num::NonZeroUsize;

use anabranch_hip_jit::Jit;
use anabranch_sim::{Case, Sweep, SweepOptions, SweepReport, sweep};
use clap::Args;
use serde::Serialize;

use super::{SimArgs, of_scenario};
use anabranch_bench::print;
use anabranch_bench::progress::Progress;
use anabranch_bench::reported::Reported;

/// Faults that a sweep injects, besides those of `--fault`.
#[derive(Clone, Debug, Args)]
#[expect(clippy::struct_excessive_bools, reason = "flags of a command line")]
#[group(id = "sweep", multiple = false)]
pub(super) struct SweepArgs {
    /// Kill each rank at each of its primitives, one run per point, and count the outcomes.
    #[arg(long)]
    kill_each: bool,
    /// Make each HIP call of each rank fail, with three error codes.
    #[arg(long)]
    fail_each_call: bool,
    /// Cut each rank's link to the rendezvous before each call.
    #[arg(long)]
    cut_each: bool,
    /// Run every seed and count the outcomes.
    #[arg(long)]
    outcomes: bool,
}

impl SweepArgs {
    pub(super) fn what(&self) -> Option<Sweep> {
        [
            (self.kill_each, Sweep::Kill),
            (self.fail_each_call, Sweep::FailCall),
            (self.cut_each, Sweep::Cut),
            (self.outcomes, Sweep::Seeds),
        ]
        .into_iter()
        .find_map(|(asked, what)| asked.then_some(what))
    }
}

#[derive(Serialize)]
struct SweepRow<'a> {
    result: &'static str,
    protocol: &'static str,
    runs: u64,
    outcomes: &'a std::collections::BTreeMap<String, u64>,
    digest: String,
    seconds: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    problem: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    replay: Option<String>,
}

/// Runs the sweep and prints the outcomes.
pub(super) fn run(
    arguments: &SimArgs,
    what: Sweep,
    case: &Case,
    jit: &Jit,
    progress: &Progress,
) -> anyhow::Result<()> {
    let options = SweepOptions {
        sweep: what,
        seeds: arguments.seeds.start..arguments.seeds.end,
        stride: arguments.stride.unwrap_or(NonZeroUsize::MIN),
        threads: arguments.threads(),
    };
    let report = sweep(case, jit, &options, &|done, of| {
        // A terminal need not see all.
        if done % 16 == 0 {
            progress.say(&format!("{}: {done} of {of} runs", case.protocol));
        }
    });
    progress.clear();
    let report = report.map_err(of_scenario)?;
    show(case, &report, arguments.json)?;
    if report.wrong.is_some() { Err(Reported(1).into()) } else { Ok(()) }
}

fn show(case: &Case, report: &SweepReport, json: bool) -> anyhow::Result<()> {
    let SweepReport { runs, outcomes, wrong, digest, wall, .. } = report;
    let (digest, seconds) = (format!("{digest:016x}"), wall.as_secs_f64());
    let replay = wrong.as_ref().map(anabranch_sim::Found::command_line);
    if json {
        return print::json(&SweepRow {
            result: if wrong.is_some() { "failed" } else { "clean" },
            protocol: case.protocol.name(),
            runs: *runs,
            outcomes,
            digest,
            seconds,
            problem: wrong.as_ref().map(|wrong| wrong.problem.as_str()),
            replay,
        });
    }
    for (words, count) in outcomes {
        print::line(&format!("{count:8}  {words}"))?;
    }
    print::line(&format!("{}: {runs} runs, digest {digest}, in {seconds:.2} s", case.protocol))?;
    if let (Some(wrong), Some(replay)) = (wrong, replay) {
        print::line(&format!("problem: {}", wrong.problem))?;
        print::line(&format!("replay: {replay}"))?;
    }
    Ok(())
}
