//! Every broken twin is caught by every protocol that the table names, from many starting seeds; the right kernels are clean
//! over the same seeds.
#![allow(clippy::panic, clippy::print_stdout, reason = "helpers of tests fail by panicking")]

mod common;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use anabranch_hip_jit::mutant;
use anabranch_sim::twins::{TWINS, Twin};
use anabranch_sim::{Case, Protocol, RunOptions, Scenario};

/// Searches of each twin and protocol, how far apart they start, and the most seeds that one may take.
const SEARCHES: u64 = 20;
const APART: u64 = 100_000;
const MOST: u64 = 10_000;
/// Seeds of each search that are run with the right kernels.
const CLEAN: u64 = 12;

/// Small cases: a search is for a mistake in a line, and every line is there.
fn small(protocol: Protocol, staged: bool) -> Case {
    let ranks = match protocol {
        Protocol::Barrier | Protocol::DeviceBarrier | Protocol::Gather => 3,
        _ => 2,
    };
    let mut case = Case::new(protocol, ranks);
    case.staged = staged;
    if matches!(protocol, Protocol::Ep | Protocol::Ping) {
        // More than one tile a block; payload from every wave.
        case.tokens = 10;
    }
    case
}

/// Seeds that each search took, sorted, and what one of them said.
fn search(scenario: &mut dyn Scenario) -> Result<(Vec<u64>, String), u64> {
    let (mut taken, mut said) = (Vec::new(), String::new());
    for start in (0..SEARCHES).map(|search| search * APART) {
        let caught = (start..start + MOST).find_map(|seed| {
            let failure = scenario.run(seed, &RunOptions::default()).err()?;
            Some((seed - start + 1, failure.problem))
        });
        let (seeds, problem) = caught.ok_or(start)?;
        taken.push(seeds);
        said = problem;
    }
    taken.sort_unstable();
    Ok((taken, said))
}

/// Calls `work` with each number below `count`, on two threads.
fn in_parallel(count: usize, work: impl Fn(usize) + Sync) {
    let next = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                loop {
                    let index = next.fetch_add(1, Ordering::Relaxed);
                    if index >= count {
                        return;
                    }
                    work(index);
                }
            });
        }
    });
}

#[test]
fn every_broken_twin_is_caught() {
    let jit = common::jit();
    let jobs: Vec<(&Twin, Protocol, bool)> = TWINS
        .iter()
        .flat_map(|twin| twin.caught_by.iter().map(move |(protocol, staged)| (twin, *protocol, *staged)))
        .collect();
    let lines = Mutex::new(vec![String::new(); jobs.len()]);
    let missed = Mutex::new(Vec::new());
    in_parallel(jobs.len(), |index| {
        let (twin, protocol, staged) = jobs[index];
        let mut case = small(protocol, staged);
        case.mutant = mutant(twin.name).unwrap_or_else(|| panic!("{} has no number", twin.name));
        let name = format!("{protocol}{}", if staged { ", staged" } else { "" });
        let line = match search(common::make(&jit, &case).as_mut()) {
            Ok((taken, said)) => {
                let (median, most) = (taken[taken.len() / 2], taken[taken.len() - 1]);
                format!("| {} | {name} | {median} | {most} | {said}", twin.name)
            }
            Err(start) => {
                let problem = format!("{} by {name}: not in seeds {start}..{}", twin.name, start + MOST);
                missed.lock().unwrap_or_else(PoisonError::into_inner).push(problem);
                return;
            }
        };
        lines.lock().unwrap_or_else(PoisonError::into_inner)[index] = line;
    });
    for line in lines.lock().unwrap_or_else(PoisonError::into_inner).iter() {
        println!("{line}");
    }
    let missed = missed.into_inner().unwrap_or_else(PoisonError::into_inner);
    assert!(missed.is_empty(), "not caught:\n{}", missed.join("\n"));
}

#[test]
fn the_right_kernels_are_clean_over_the_same_seeds() {
    let jit = common::jit();
    let mut cases: Vec<(Protocol, bool)> =
        TWINS.iter().flat_map(|twin| twin.caught_by.iter().copied()).collect();
    cases.sort_unstable();
    cases.dedup();
    in_parallel(cases.len(), |index| {
        let (protocol, staged) = cases[index];
        let mut scenario = common::make(&jit, &small(protocol, staged));
        for seed in (0..SEARCHES).flat_map(|search| search * APART..search * APART + CLEAN) {
            if let Err(failure) = scenario.run(seed, &RunOptions::default()) {
                panic!("{protocol}, staged {staged}, seed {seed}: {}", failure.problem);
            }
        }
    });
}
