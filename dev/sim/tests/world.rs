//! A whole world of rank threads, with a fault at every point.

use crate::common;

use std::num::NonZeroUsize;

use anabranch_sim::{Case, Protocol, Sweep, SweepOptions, SweepReport, sweep};

/// Sweeps with a stride; the first run that is wrong is the test's failure.
fn swept(case: &Case, what: Sweep, seeds: std::ops::Range<u64>, stride: usize) -> SweepReport {
    let number = |number: usize| NonZeroUsize::new(number).unwrap();
    let options = SweepOptions { sweep: what, seeds, stride: number(stride), threads: number(2) };
    let report = sweep(case, &common::jit(), &options, &|_, _| {}).unwrap();
    let faults: Vec<String> = case.faults.iter().map(ToString::to_string).collect();
    println!("{what:?} {faults:?}: {} runs in {:?}", report.runs, report.wall);
    for (words, count) in &report.outcomes {
        println!("  {count:6} {words}");
    }
    if let Some(wrong) = &report.wrong {
        panic!("{}\n{}", wrong.problem, wrong.command_line());
    }
    report
}

fn world(ranks: u32, faults: &[&str]) -> Case {
    let mut case = Case::new(Protocol::World, ranks);
    case.faults = faults.iter().map(|text| text.parse().unwrap()).collect();
    case
}

fn count(report: &SweepReport, words: &str) -> u64 {
    report.outcomes.iter().filter(|(other, _)| other.contains(words)).map(|(_, count)| count).sum()
}

const RIGHT: &str = "all right";
const NAMED: &str = "the faulty one";

#[test]
fn worlds_are_right_under_every_seed() {
    swept(&world(1, &[]), Sweep::Seeds, 0..20, 1);
    swept(&world(2, &[]), Sweep::Seeds, 0..100, 1);
    let mut large = world(3, &[]);
    (large.rounds, large.tokens, large.waves) = (2, 3, 2);
    swept(&large, Sweep::Seeds, 0..20, 1);
    (large.ranks, large.staged) = (2, true);
    swept(&large, Sweep::Seeds, 0..20, 1);
}

/// Every so-manieth point; `anabranch sim world --kill-each` and `--fail-each-call` do all.
#[test]
#[ignore = "extended"]
fn a_rank_that_dies_or_fails_anywhere_is_named() {
    for (ranks, stride) in [(2, 17), (3, 53)] {
        let killed = swept(&world(ranks, &[]), Sweep::Kill, 0..2, stride);
        assert!(count(&killed, "every other rank names") > killed.runs / 2, "{killed:?}");
        let failed = swept(&world(ranks, &[]), Sweep::FailCall, 0..2, stride);
        assert!(count(&failed, "every other rank names") > failed.runs / 4, "{failed:?}");
        // Calls of destructors, whose failure is logged.
        assert!(count(&failed, RIGHT) > 2, "{failed:?}");
    }
}

#[test]
#[ignore = "extended"]
fn a_link_that_is_cut_at_any_call_is_named() {
    for ranks in [2, 3] {
        let cut = swept(&world(ranks, &[]), Sweep::Cut, 0..4, 1);
        assert!(count(&cut, NAMED) > cut.runs * 3 / 4, "{cut:?}");
        // Slow links change nothing of that.
        swept(&world(ranks, &["slow:0:1ms", "slow:1:1ms"]), Sweep::Cut, 0..2, 3);
    }
}

#[test]
#[ignore = "extended"]
fn what_takes_long_is_waited_for_up_to_the_deadlines() {
    let mut named = 0;
    for faults in [&["stall:0@100:5ms"][..], &["stall:1@300:25ms"], &["slow:1:2ms", "repeat:0@0"]] {
        let report = swept(&world(2, faults), Sweep::Seeds, 0..20, 1);
        assert_eq!(count(&report, RIGHT), report.runs);
    }
    // Behind the operation deadline; behind the rendezvous' deadline.
    for (number, time) in (0..).zip(["200ms", "1500ms", "3s", "10s"]) {
        for at in (number * 10..500).step_by(60) {
            let stall = format!("stall:{}@{at}:{time}", at % 3);
            let stalled = swept(&world(3, &[&stall]), Sweep::Seeds, 0..3, 1);
            named += count(&stalled, NAMED);
        }
    }
    assert!(named > 20, "{named}");
}

#[test]
fn a_flag_that_arrives_twice_changes_nothing() {
    let mut case = world(2, &["repeat:0@0", "repeat:0@1", "repeat:1@0", "repeat:1@2"]);
    case.rounds = 3;
    let report = swept(&case, Sweep::Seeds, 0..60, 1);
    assert_eq!(count(&report, RIGHT), report.runs);
}

#[test]
fn a_lost_store_is_an_expired_wait_or_the_oracle_finds_it() {
    let mut wrong = 0;
    for nth in 0..14 {
        let report = swept(&world(2, &[&format!("lose:0>1@{nth}")]), Sweep::Seeds, 0..6, 1);
        wrong += count(&report, "the oracle says");
    }
    let chance = swept(&world(2, &["lose:0>1~8", "lose:1>0~8"]), Sweep::Seeds, 0..60, 1);
    assert!(count(&chance, "an error names") > 0, "{chance:?}");
    // A row's words are stores like any others.
    assert!(wrong > 20, "{wrong}");
}

/// An informed rank loses its device before it releases what the lost store belongs to.
#[test]
fn a_reported_loss_never_shows_as_wrong_rows() {
    for nth in 0..14 {
        let report = swept(&world(2, &[&format!("lose:0>1@{nth}:told")]), Sweep::Seeds, 0..6, 1);
        assert_eq!(count(&report, "the oracle says"), 0, "{report:?}");
    }
    let chance = swept(&world(3, &["lose:0>1~8:told", "lose:2>1~8:told"]), Sweep::Seeds, 0..30, 1);
    assert!(count(&chance, RIGHT) < chance.runs, "{chance:?}");
}

#[test]
fn what_a_world_does_not_have_is_refused() {
    let scenario = |case: Case| anabranch_sim::scenario(case, &common::jit()).unwrap_err().to_string();
    let refused = scenario(world(2, &["kill:2@0"]));
    assert_eq!(refused, "the fault kill:2@0 names a rank that is none of 2");
    let mut case = world(2, &[]);
    case.mutant = Some("EPOCH_LOOSE");
    let refused = scenario(case);
    assert!(refused.starts_with("world has no mutants"), "{refused}");
    let mut case = Case::new(Protocol::Barrier, 2);
    case.faults = world(2, &["kill:0@0"]).faults;
    assert_eq!(scenario(case), "barrier has no faults");
}
