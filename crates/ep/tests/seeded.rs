//! Dispatch and combine as they are, under seeds; and their broken twins, each of which some seed must catch.

#![allow(clippy::panic, clippy::print_stdout, reason = "helpers of tests fail by panicking")]

mod sim;

use std::time::Instant;

use sim::{Case, Harness};

/// Runs seeds and reports how fast; the first failure is the test's.
fn clean(case: Case, seeds: std::ops::Range<u64>) {
    let mut harness = Harness::new(case, 0, false, true);
    let (start, count, mut steps) = (Instant::now(), seeds.end - seeds.start, 0);
    for seed in seeds {
        steps += harness.run(seed).unwrap_or_else(|problem| panic!("{case:?}, seed {seed}: {problem}")).steps;
    }
    let seconds = start.elapsed().as_secs_f64();
    println!(
        "{case:?}: {count} seeds, {:.0} seeds/s, {} primitives a seed",
        count as f64 / seconds,
        steps / count
    );
}

const TWO: Case = Case { ranks: 2, epochs: 2, staged: false, blocks: 2 };
const THREE: Case = Case { ranks: 3, epochs: 2, staged: true, blocks: 2 };

#[test]
fn two_ranks_are_right_under_every_seed() {
    clean(TWO, 0..300);
}

#[test]
fn three_ranks_that_stage_are_right_under_every_seed() {
    clean(THREE, 0..150);
}

#[test]
fn a_seed_is_a_run() {
    let mut harness = Harness::new(TWO, 0, true, true);
    let first = harness.run(11).unwrap();
    let again = Harness::new(TWO, 0, true, true).run(11).unwrap();
    assert_eq!(first, again);
    assert!(first.events.len() as u64 >= first.steps);
    assert_ne!(harness.run(12).unwrap().digest, first.digest);
}

/// Seeds from `start` until one fails, and what it said.
fn seeds_to_catch(harness: &mut Harness, start: u64, most: u64) -> Option<(u64, String)> {
    (start..start + most).find_map(|seed| harness.run(seed).err().map(|problem| (seed - start + 1, problem)))
}

#[test]
fn every_broken_twin_is_caught() {
    const SEARCHES: u64 = 20;
    const MOST: u64 = 200;
    let twins = [
        (1, "only thread 0 releases"),
        (2, "nobody releases"),
        (3, "counted before the release"),
        (4, "the epoch before is good enough"),
        (5, "no acquire after the wait"),
        (6, "no acquire between blocks"),
        (7, "release at device scope"),
        (8, "the first block flags, not the last"),
    ];
    for (mutant, what) in twins {
        let mut harness = Harness::new(THREE, mutant, false, false);
        let mut taken = Vec::new();
        let mut said = String::new();
        for search in 0..SEARCHES {
            let Some((seeds, problem)) = seeds_to_catch(&mut harness, search * 100_000, MOST) else {
                panic!("{what}: not caught in seeds {}..{}", search * 100_000, search * 100_000 + MOST);
            };
            taken.push(seeds);
            said = problem;
        }
        taken.sort_unstable();
        println!("{what}: median {}, most {} seeds; {said}", taken[taken.len() / 2], taken[taken.len() - 1]);
    }
}

#[test]
fn the_checker_names_the_race_of_every_twin_that_orders_wrongly() {
    const MOST: u64 = 40;
    for mutant in [1, 2, 3, 5, 6, 7, 8] {
        let mut harness = Harness::new(THREE, mutant, false, true);
        let mut taken = Vec::new();
        for search in 0..20 {
            let (seeds, problem) = seeds_to_catch(&mut harness, search * 100_000, MOST).unwrap();
            assert!(problem.starts_with("race on "), "twin {mutant}: {problem}");
            taken.push(seeds);
        }
        println!("twin {mutant}: most {} seeds", taken.iter().max().unwrap());
    }
}

#[test]
fn a_rank_that_never_comes_is_named_by_all_others() {
    let mut harness = Harness::new(THREE, 0, false, true);
    for seed in 0..100 {
        let records = harness.run_without(2, seed).unwrap_or_else(|problem| panic!("seed {seed}: {problem}"));
        for (rank, record) in records.iter().enumerate() {
            let told = (record.state, record.peer, record.epoch, record.rank);
            assert_eq!(told, (2, 2, 1, rank as u32), "seed {seed}: {record:?}");
        }
        harness.run(seed).unwrap_or_else(|problem| panic!("seed {seed}, all ranks again: {problem}"));
    }
}
