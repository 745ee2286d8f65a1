//! A whole world of rank threads, struck at every point.
#![allow(clippy::panic, clippy::print_stdout, reason = "helpers of tests fail by panicking, and say what ran")]

mod common;

use std::num::NonZeroUsize;

use anabranch_sim::{Case, Protocol, Sweep, SweepOptions, SweepReport, sweep};

/// Sweeps with a stride; the first run that is wrong is the test's failure.
fn swept(case: &Case, what: Sweep, seeds: std::ops::Range<u64>, stride: usize) -> SweepReport {
    let number = |number: usize| NonZeroUsize::new(number).unwrap();
    let options = SweepOptions { sweep: what, seeds, stride: number(stride), threads: number(2) };
    let report = sweep(case, &common::jit(), &options, &|_, _| {}).unwrap();
    println!("{what:?} {:?}: {} runs in {:?}", case.faults, report.runs, report.wall);
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

/// By hand: everything, as `STRIDE=1` says.
#[test]
#[ignore = "minutes"]
fn explore() {
    let get = |name: &str, other: usize| {
        #[expect(clippy::disallowed_methods, reason = "by hand only")]
        std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(other)
    };
    let (ranks, stride) = (get("RANKS", 2) as u32, get("STRIDE", 1));
    let what = [Sweep::Seeds, Sweep::Kill, Sweep::FailCall, Sweep::Cut][get("WHAT", 1)];
    swept(&world(ranks, &[]), what, 0..get("SEEDS", 1) as u64, stride);
}
