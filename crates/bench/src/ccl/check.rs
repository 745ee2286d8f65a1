//! `anabranch bench ccl --check`: correctness of collectives on a machine. The cases are those of the library's tests without a
//! GPU (`ccl::conformance`).

use std::collections::BTreeMap;

use anabranch::{Error, World};
use anabranch_ccl::{CclConfig, Communicator, DataType};
use anabranch_conformance::ccl::{self as conformance, LeftOut, Level, ListForm, Replays, Sweep, Tally};
use anabranch_hip_jit::KernelSpec;
use anyhow::bail;
use serde::{Deserialize, Serialize};

use crate::print::{self, Table};
use crate::ranks::RankContext;

/// Every kernel of collectives.
pub(super) fn kernels() -> Vec<KernelSpec> {
    anabranch_ccl::kernels::kernels()
}

/// Staging unless configured: so small that messages of the sweep take several steps.
const STAGING_BYTES: u64 = 1 << 20;
/// Inputs and outputs of the sweep; the host computes what is right.
const MOST_BYTES: u64 = 4 << 20;
/// Lanes of each of the two communicators that replays go through: both fit on a device.
const REPLAY_LANES: u32 = 16;
/// Elements of the replayed calls.
const MOST_COUNT: u64 = 200_000;
/// Most wrong results that a rank reports.
const MOST_TOLD: usize = 8;

/// One part of the check, over all ranks.
#[derive(Debug, Serialize)]
struct Row {
    op: &'static str,
    ranks: u32,
    groups: u64,
    /// Counted once for each rank that took part.
    calls: u64,
    /// Of them, tensors gathered together, as many as there are in a list.
    gathers_of_many: u64,
    /// Of them, messages in one launch.
    batches: u64,
    /// Of them, messages one by one, a list of them each.
    send_receives: u64,
    /// Of them, between members on several nodes.
    internode: u64,
    wrong: u64,
    verified: bool,
    /// What does not exist in some groups.
    left_out: Vec<Missing>,
}

/// A case that does not exist in some groups.
#[derive(Debug, Serialize, Deserialize)]
struct Missing {
    /// An algorithm, or a kind of call.
    what: String,
    why: String,
    /// Counted like calls.
    calls: u64,
}

/// One rank's report to the others.
#[derive(Debug, Serialize, Deserialize)]
struct Said {
    calls: u64,
    /// In the order of [`ListForm::ALL`].
    lists: Vec<u64>,
    internode: u64,
    left_out: Vec<Missing>,
    wrong: u64,
    first: Vec<String>,
}

/// Runs the check on one rank. Collective over the world.
///
/// # Errors
/// Wrong results; errors of a call or the world.
pub(super) fn run(context: &RankContext<'_>, replays: u64) -> anyhow::Result<()> {
    let world = context.world;
    let configured = anabranch::ccl_config(context.config)?;
    let staging_bytes = if configured.staging_bytes == 0 { STAGING_BYTES } else { configured.staging_bytes };
    let config = CclConfig { staging_bytes, ..configured };
    let stream = world.device().create_stream().map_err(Error::from)?;
    context.progress.say("every collective, messages and many tensors in every group");
    let lanes = Communicator::new(world, world.group(), config.clone())?.channels();
    let ranks = world.size();
    let sweep = Sweep { ranks, channels: lanes, staging_bytes, most_bytes: MOST_BYTES, level: Level::Sample };
    let points = conformance::sweep(&sweep);
    let tally = conformance::run_points(world, &config, &points, &stream)?;
    let groups = conformance::ordered_subsets(ranks).len() as u64;
    let swept = collect(world, "sweep", groups, &tally)?;
    context.progress.say("replays");
    // Several types, and not all: each graph and eager call draws one.
    let types = vec![DataType::Bf16, DataType::F32, DataType::I8, DataType::F64];
    let replays = Replays { count: replays, types, most_count: MOST_COUNT, seed: 1 };
    let config = CclConfig { max_blocks: lanes.min(REPLAY_LANES), ..config };
    let tally = conformance::run_replays(world, &config, &replays, &stream)?;
    let replayed = collect(world, "replays", tally.groups, &tally)?;
    context.progress.clear();
    if context.is_root() {
        report(&[&swept.0, &replayed.0], context.json)?;
    }
    let wrong: Vec<_> = swept.1.into_iter().chain(replayed.1).collect();
    if wrong.is_empty() { Ok(()) } else { bail!("wrong results:\n{}", wrong.join("\n")) }
}

/// Sums of all ranks, and the first wrong results of each.
fn collect(
    world: &World,
    op: &'static str,
    groups: u64,
    tally: &Tally,
) -> anyhow::Result<(Row, Vec<String>)> {
    let first = tally.failures.iter().take(MOST_TOLD);
    let first = first.map(|(subset, failure)| format!("{} in {subset}: {failure}", world.rank())).collect();
    let (calls, lists) = (tally.calls, tally.lists.to_vec());
    let missing = |(left, calls): (&LeftOut, &u64)| {
        let LeftOut { what, why } = left.clone();
        Missing { what, why, calls: *calls }
    };
    let said = Said {
        calls,
        lists,
        internode: tally.internode,
        left_out: tally.left_out.iter().map(missing).collect(),
        wrong: tally.failures.len() as u64,
        first,
    };
    let all = world.exchange(world.group(), "ccl check", &serde_json::to_vec(&said)?).map_err(Error::from)?;
    let all = all.iter().map(|bytes| serde_json::from_slice(bytes)).collect::<Result<Vec<Said>, _>>()?;
    let [calls, wrong, internode] =
        [|said: &Said| said.calls, |said: &Said| said.wrong, |said: &Said| said.internode]
            .map(|of| all.iter().map(of).sum());
    let mut left_out = BTreeMap::new();
    for Missing { what, why, calls } in all.iter().flat_map(|said| &said.left_out) {
        *left_out.entry((what.clone(), why.clone())).or_default() += calls;
    }
    let of = |form: ListForm| -> u64 {
        let place = ListForm::ALL.iter().position(|other| *other == form);
        all.iter().filter_map(|said| said.lists.get(place?)).sum()
    };
    let row = Row {
        op,
        ranks: world.size(),
        groups,
        calls,
        gathers_of_many: of(ListForm::GatherMany),
        batches: of(ListForm::Batch),
        send_receives: of(ListForm::SendReceive),
        internode,
        wrong,
        verified: wrong == 0,
        left_out: left_out.into_iter().map(|((what, why), calls)| Missing { what, why, calls }).collect(),
    };
    Ok((row, all.into_iter().flat_map(|said| said.first).collect()))
}

fn report(rows: &[&Row], json: bool) -> anyhow::Result<()> {
    if json {
        return rows.iter().try_for_each(print::json);
    }
    let mut table = Table::new(&[
        "check",
        "ranks",
        "groups",
        "calls",
        "gathers of many",
        "batches",
        "sends and receives",
        "internode",
        "wrong",
    ]);
    for row in rows {
        table.row(vec![
            row.op.to_owned(),
            row.ranks.to_string(),
            row.groups.to_string(),
            row.calls.to_string(),
            row.gathers_of_many.to_string(),
            row.batches.to_string(),
            row.send_receives.to_string(),
            row.internode.to_string(),
            row.wrong.to_string(),
        ]);
    }
    table.print("")?;
    for row in rows.iter().filter(|row| !row.left_out.is_empty()) {
        print::line(&format!("left out of the {}, where it does not exist:", row.op))?;
        let mut by_reason: BTreeMap<&str, Vec<String>> = BTreeMap::new();
        for Missing { what, why, calls } in &row.left_out {
            by_reason.entry(why).or_default().push(format!("{what} ({calls} calls)"));
        }
        for (why, what) in by_reason {
            print::line(&format!("  {}: {why}", what.join(", ")))?;
        }
    }
    Ok(())
}
