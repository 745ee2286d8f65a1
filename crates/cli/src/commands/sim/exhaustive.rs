//! `anabranch sim --exhaustive`: every run of a tiny case within bounds, instead of the runs of some seeds.

use anabranch_sim::{Bounds, Case, Exploration, TimelineOptions, explore, timeline};
use clap::Args;
use serde::Serialize;

use super::show::{CaseRow, width};
use anabranch_bench::print;
use anabranch_bench::progress::Progress;
use anabranch_bench::reported::Reported;

/// The bounds.
#[derive(Clone, Copy, Debug, Args)]
pub(crate) struct ExhaustiveArgs {
    /// Take every run within bounds, depth first, instead of seeds; for tiny cases.
    #[arg(long, conflicts_with_all = ["list", "seeds", "threads", "time_limit", "no_shrink", "trace"])]
    pub(super) exhaustive: bool,
    /// With --exhaustive: the most stores of a run that land while lanes could go on.
    #[arg(long, value_name = "N", default_value_t = 1, requires = "exhaustive")]
    landings: u64,
    /// With --exhaustive: runs after which it is given up.
    #[arg(long, value_name = "N", default_value_t = 100_000, requires = "exhaustive")]
    runs: u64,
}

impl ExhaustiveArgs {
    pub(super) fn bounds(self, most_switches: Option<u64>) -> Bounds {
        Bounds { switches: most_switches.unwrap_or(1), landings: self.landings, runs: self.runs }
    }
}

#[derive(Serialize)]
struct Row<'a> {
    result: &'static str,
    #[serde(flatten)]
    case: CaseRow,
    most_switches: u64,
    landings: u64,
    runs: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    problem: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    timeline: Option<Vec<String>>,
}

/// Explores, and shows what came of it.
pub(super) fn run(
    mut scenario: Box<dyn anabranch_sim::Scenario>,
    bounds: Bounds,
    last: usize,
    json: bool,
    progress: &Progress,
) -> anyhow::Result<()> {
    let case = scenario.case().clone();
    let explored = explore(scenario.as_mut(), 0, bounds, &mut |runs| {
        if runs % 256 == 0 {
            progress.say(&format!("{}: {runs} runs", case.protocol));
        }
    });
    progress.clear();
    show(&case, bounds, &explored, last, json)?;
    if explored.failed.is_some() { Err(Reported(1).into()) } else { Ok(()) }
}

fn show(case: &Case, bounds: Bounds, explored: &Exploration, last: usize, json: bool) -> anyhow::Result<()> {
    let Bounds { switches, landings, .. } = bounds;
    let Exploration { runs, complete, primitives, wall, failed, .. } = explored;
    let problem = failed.as_ref().map(|failure| failure.problem.as_str());
    let options = TimelineOptions { width: width(), last };
    let picture = failed.as_ref().map(|failure| timeline(&failure.events, &failure.problem, options));
    if json {
        let result = match (problem, complete) {
            (Some(_), _) => "failed",
            (None, true) => "clean",
            (None, false) => "runs used up",
        };
        let (case, runs) = (case.into(), *runs);
        return print::json(&Row {
            result,
            case,
            most_switches: switches,
            landings,
            runs,
            problem,
            timeline: picture,
        });
    }
    let protocol = case.protocol;
    let within = format!("at most {switches} switches and {landings} landings");
    let Some(problem) = problem else {
        let what = if *complete {
            format!("{protocol}: all {runs} runs with {within}: no failure")
        } else {
            format!("{protocol}: the first {runs} runs with {within}: no failure in them; there are more")
        };
        return print::line(&format!("{what}; {:.2} s, {primitives} primitives", wall.as_secs_f64()));
    };
    print::line(&format!("{protocol}: run {runs} with {within} fails"))?;
    print::line(&format!("problem: {problem}"))?;
    print::line("")?;
    picture.iter().flatten().try_for_each(|text| print::line(text))
}
