//! What `anabranch sim` prints. Times are in the line of a clean search only: a failure prints the same every time.

use std::io::IsTerminal;

use anabranch_sim::{Case, End, Found, Mutant, Protocol, Report, TimelineOptions, about, mutants, timeline};
use serde::Serialize;

use super::Failed;
use super::seeds::Seeds;
use anabranch_bench::print::{self, Table};

/// Columns of a line without a terminal.
const WIDTH: usize = 120;

#[derive(Serialize)]
pub(super) struct CaseRow {
    protocol: &'static str,
    ranks: u32,
    rounds: u32,
    tokens: u32,
    blocks: u32,
    waves: u32,
    staged: bool,
    cumulative: bool,
    values_only: bool,
    mutant: Option<&'static str>,
}

impl From<&Case> for CaseRow {
    fn from(case: &Case) -> Self {
        let Case {
            protocol,
            ranks,
            rounds,
            tokens,
            blocks,
            waves,
            staged,
            cumulative,
            values_only,
            mutant,
            ..
        } = *case;
        let protocol = protocol.name();
        Self { protocol, ranks, rounds, tokens, blocks, waves, staged, cumulative, values_only, mutant }
    }
}

#[derive(Serialize)]
struct RightRow {
    result: &'static str,
    #[serde(flatten)]
    case: CaseRow,
    first_seed: u64,
    seeds: u64,
    of: u64,
    seconds: f64,
    seeds_per_second: f64,
    primitives: u64,
}

/// A search in which every seed that ran was right.
pub(super) fn right(case: &Case, seeds: Seeds, report: &Report, json: bool) -> anyhow::Result<()> {
    let now = report.progress;
    let cut = matches!(report.end, End::TimeLimit);
    let (seconds, speed) = (now.wall.as_secs_f64(), now.seeds_per_second());
    if json {
        return print::json(&RightRow {
            result: if cut { "time limit" } else { "clean" },
            case: case.into(),
            first_seed: seeds.start,
            seeds: report.seeds,
            of: now.of,
            seconds,
            seeds_per_second: speed,
            primitives: now.primitives,
        });
    }
    let protocol = case.protocol;
    let what = if cut {
        let (ran, of) = (report.seeds, now.of);
        format!("{protocol}: the time limit ended the search after {ran} of {of} seeds; no failure in them")
    } else {
        format!("{protocol}: seeds {seeds}: no failure")
    };
    print::line(&format!(
        "{what}; {} seeds in {seconds:.2} s, {speed:.0} seeds/s, {} primitives",
        report.seeds, now.primitives
    ))
}

#[derive(Serialize)]
struct FoundRow<'a> {
    #[serde(flatten)]
    case: CaseRow,
    seed: u64,
    most_switches: Option<u64>,
    problem: &'a str,
}

impl<'a> From<&'a Found> for FoundRow<'a> {
    fn from(found: &'a Found) -> Self {
        let Found { case, seed, most_switches, problem, .. } = found;
        Self { case: case.into(), seed: *seed, most_switches: *most_switches, problem }
    }
}

#[derive(Serialize)]
struct FailedRow<'a> {
    result: &'static str,
    #[serde(flatten)]
    found: FoundRow<'a>,
    kind: String,
    searched: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    shrunk: Option<ShrunkRow<'a>>,
    events: usize,
    timeline: Vec<String>,
    replay: String,
}

#[derive(Serialize)]
struct ShrunkRow<'a> {
    #[serde(flatten)]
    found: FoundRow<'a>,
    runs: u64,
    complete: bool,
}

/// A seed that fails, and the smallest failure made of it.
pub(super) fn failed(failed: &Failed, last: usize, json: bool) -> anyhow::Result<()> {
    let (first, smallest) = (&failed.first, failed.smallest());
    let width = if json { WIDTH } else { width() };
    let picture = timeline(&smallest.events, &smallest.problem, TimelineOptions { width, last });
    let replay = smallest.command_line();
    if json {
        let shrunk = failed.shrunk.as_ref().map(|shrunk| ShrunkRow {
            found: (&shrunk.found).into(),
            runs: shrunk.runs,
            complete: shrunk.complete,
        });
        return print::json(&FailedRow {
            result: "failed",
            found: first.into(),
            kind: first.kind().to_string(),
            searched: failed.searched,
            shrunk,
            events: smallest.events.len(),
            timeline: picture,
            replay,
        });
    }
    print::line(&format!("{}: seed {} fails: {}", first.case.protocol, first.seed, first.problem))?;
    if let Some(shrunk) = &failed.shrunk {
        print::line(&format!("shrunk in {} runs to {}", shrunk.runs, size(smallest)))?;
        if !shrunk.complete {
            print::line("  not every smaller case was tried: the runs allowed were used up")?;
        }
    }
    // Right before the events that it speaks of.
    print::line(&format!("problem: {}", smallest.problem))?;
    print::line("")?;
    picture.iter().try_for_each(|text| print::line(text))?;
    print::line("")?;
    print::line(&format!("replay: {replay}"))
}

fn size(found: &Found) -> String {
    let Case { ranks, rounds, tokens, blocks, waves, staged, cumulative, .. } = found.case;
    let count = |number: u32, one: &str| format!("{number} {one}{}", if number == 1 { "" } else { "s" });
    let mut parts: Vec<String> =
        [(ranks, "rank"), (rounds, "round"), (tokens, "token"), (blocks, "block"), (waves, "wave")]
            .iter()
            .map(|(number, one)| count(*number, one))
            .collect();
    parts.extend(staged.then(|| "staged".to_owned()));
    parts.extend(cumulative.then(|| "cumulative".to_owned()));
    parts.push(format!("seed {}", found.seed));
    parts.extend(found.most_switches.map(|most| format!("at most {most} switches")));
    parts.join(", ")
}

/// As wide as the terminal, if there is one.
pub(super) fn width() -> usize {
    let stdout = std::io::stdout();
    if !stdout.is_terminal() {
        return WIDTH;
    }
    rustix::termios::tcgetwinsize(&stdout).map_or(WIDTH, |size| match size.ws_col {
        0 => WIDTH,
        columns => usize::from(columns),
    })
}

#[derive(Serialize)]
#[serde(tag = "kind", rename_all = "lowercase")]
enum ListRow {
    Protocol { name: &'static str, about: &'static str },
    Mutant { name: &'static str, about: &'static str },
}

/// The protocols, and the mutants.
pub(super) fn list(json: bool) -> anyhow::Result<()> {
    let protocol = |one: &Protocol| ListRow::Protocol { name: one.name(), about: about(*one) };
    let mutant = |one: &'static Mutant| ListRow::Mutant { name: &one.name, about: &one.why };
    let rows = Protocol::ALL.iter().map(protocol).chain(mutants().iter().map(mutant));
    if json {
        return rows.into_iter().try_for_each(|row| print::json(&row));
    }
    let mut protocols = Table::new(&["protocol", ""]);
    let mut mistakes = Table::new(&["--mutant", ""]);
    for row in rows {
        match row {
            ListRow::Protocol { name, about } => protocols.row(vec![name.to_owned(), about.to_owned()]),
            ListRow::Mutant { name, about } => mistakes.row(vec![name.to_owned(), about.to_owned()]),
        }
    }
    protocols.print("")?;
    mistakes.print("")
}
