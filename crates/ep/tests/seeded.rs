//! Dispatch and combine as they are, under seeds; and their broken twins, each of which some seed must catch.

#![allow(clippy::panic, clippy::print_stdout, reason = "helpers of tests fail by panicking")]

mod sim;

use std::time::Instant;

use anabranch_hip_host::seeded::MemoryProfile::{Cumulative, PerWave};
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

const TWO: Case = Case { ranks: 2, epochs: 2, staged: false, blocks: 2, profile: PerWave };
const THREE: Case = Case { ranks: 3, epochs: 2, staged: true, blocks: 2, profile: PerWave };

#[test]
fn two_ranks_are_right_under_every_seed() {
    clean(TWO, 0..300);
}

#[test]
fn three_ranks_that_stage_are_right_under_every_seed() {
    clean(THREE, 0..150);
}

#[test]
fn with_cumulative_fences_the_form_for_them_is_right_under_every_seed() {
    clean(Case { profile: Cumulative, ..TWO }, 0..150);
    clean(Case { profile: Cumulative, ..THREE }, 0..100);
    clean(Case { profile: Cumulative, blocks: 1, ..THREE }, 0..100);
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

/// Searches for each twin; by the values that the run left, or by the first race.
fn catch(case: Case, twins: &[(u32, &str)], find_races: bool, most: u64) {
    const SEARCHES: u64 = 20;
    for (mutant, what) in twins {
        let mut harness = Harness::new(case, *mutant, false, find_races);
        let mut taken = Vec::new();
        let mut said = String::new();
        for search in 0..SEARCHES {
            let start = search * 100_000;
            let Some((seeds, problem)) = seeds_to_catch(&mut harness, start, most) else {
                panic!("{what}: not caught in seeds {start}..{}", start + most);
            };
            assert!(!find_races || problem.starts_with("race on "), "{what}: {problem}");
            taken.push(seeds);
            said = problem;
        }
        taken.sort_unstable();
        println!("{what}: median {}, most {} seeds; {said}", taken[taken.len() / 2], taken[taken.len() - 1]);
    }
}

const LOOSE: (u32, &str) = (4, "the epoch before is good enough");
const TWINS: [(u32, &str); 7] = [
    (1, "only thread 0 releases"),
    (2, "nobody releases"),
    (3, "counted before the release"),
    (5, "no acquire after the wait"),
    (6, "no acquire between blocks"),
    (7, "release at device scope"),
    (8, "the first block flags, not the last"),
];
const CUMULATIVE_TWINS: [(u32, &str); 7] = [
    (2, "nobody releases"),
    (3, "counted before the barrier"),
    (5, "the polling load does not acquire"),
    (7, "the last block releases at device scope"),
    (8, "the first block flags, not the last"),
    (9, "counted without a release"),
    (10, "the last block does not release"),
];

#[test]
fn every_broken_twin_is_caught() {
    catch(THREE, &TWINS, false, 200);
    catch(THREE, &[LOOSE], false, 200);
}

#[test]
fn every_broken_twin_of_the_cumulative_form_is_caught() {
    let case = Case { profile: Cumulative, ..THREE };
    catch(case, &CUMULATIVE_TWINS, false, 400);
    catch(case, &[LOOSE], false, 200);
}

#[test]
fn the_checker_names_a_race_of_every_twin_that_orders_wrongly() {
    catch(THREE, &TWINS, true, 40);
    catch(Case { profile: Cumulative, ..THREE }, &CUMULATIVE_TWINS, true, 40);
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
