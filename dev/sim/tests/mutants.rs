//! Every mutant is caught by the first search that the table names, and with `MUTANT_SEARCHES` by each; the right kernels are clean over the
//! same seeds.

use crate::common;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use anabranch_hip_jit::Jit;
use anabranch_sim::mutants::{By, CAUGHT, Caught, Search};
use anabranch_sim::{Case, RunOptions, Scenario};

/// How often each search is made: `MUTANT_SEARCHES=20` is what the table of `docs/memory-model.md` was made with. Without it the first search
/// of each mutant is made once: most of the time is that of compiling the mutant for a search.
fn searches() -> Option<u64> {
    #[expect(clippy::disallowed_methods, reason = "how thorough a run is, is its caller's choice")]
    let given = std::env::var("MUTANT_SEARCHES").ok();
    given.map(|given| given.parse().expect("a number"))
}

/// At most so often on a whole machine, whose runs take a hundred times as long.
const SEARCHES_OF_MACHINES: u64 = 4;
/// How far apart searches start, and the most seeds that one may take.
const APART: u64 = 100_000;
const MOST: u64 = 10_000;
/// Within how many seeds the checker must name a race.
const NAMED: u64 = 100;
/// Seeds of each search that are run with the right kernels.
const CLEAN: u64 = 12;

/// The seeds at which the searches of a protocol start.
fn starts(search: Search) -> impl Iterator<Item = u64> {
    let most = if search.protocol.is_whole_machine() { SEARCHES_OF_MACHINES } else { u64::MAX };
    (0..searches().unwrap_or(1).min(most)).map(|search| search * APART)
}

/// The first seed from `start` on that fails, as a number of seeds, and what was wrong.
fn first_failing(scenario: &mut dyn Scenario, start: u64, most: u64) -> Option<(u64, String)> {
    (start..start + most).find_map(|seed| {
        let failure = scenario.run(seed, &RunOptions::default()).err()?;
        Some((seed - start + 1, failure.problem))
    })
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

fn name(search: Search) -> String {
    let Search { protocol, staged, one_block, alone, by, .. } = search;
    let words = [
        (staged, ", staged"),
        (one_block, ", one block"),
        (alone, ", one rank"),
        (by == By::Races, ", by races"),
    ];
    let words = words.iter().filter(|(is, _)| *is).map(|(_, word)| *word);
    core::iter::once(protocol.name()).chain(words).collect()
}

/// All searches; the median and the most of how many seeds they took.
fn searched(jit: &Jit, search: Search, mutant: &'static str) -> Result<(u64, u64), String> {
    let mut scenario = common::make(jit, &Case::of_search(search, Some(mutant)));
    let mut taken = Vec::new();
    for start in starts(search) {
        let caught = first_failing(scenario.as_mut(), start, MOST);
        let Some((seeds, problem)) = caught else {
            return Err(format!("not in seeds {start}..{}", start + MOST));
        };
        if search.by == By::Races && !problem.contains("race on ") {
            return Err(format!("seed {}: not the checker catches it: {problem}", start + seeds - 1));
        }
        taken.push(seeds);
    }
    taken.sort_unstable();
    Ok((taken[taken.len() / 2], taken[taken.len() - 1]))
}

/// With the checker, the first seed that fails is one in which it names a race.
fn named(jit: &Jit, search: Search, mutant: &'static str) -> Result<(), String> {
    let checked = Search { by: By::Races, ..search };
    let mut scenario = common::make(jit, &Case::of_search(checked, Some(mutant)));
    match first_failing(scenario.as_mut(), 0, NAMED) {
        Some((_, problem)) if problem.contains("race on ") => Ok(()),
        other => Err(format!("the checker names no race in seeds 0..{NAMED}, but {other:?}")),
    }
}

/// A row of the table of `docs/memory-model.md`: the searches per wave, and the cumulative ones.
fn row(mutant: &Caught, caught: &[(&Caught, Search, u64, u64)]) -> String {
    let cell = |cumulative: bool| {
        let of = |(other, search, ..): &&(&Caught, Search, u64, u64)| {
            other.name == mutant.name && search.cumulative == cumulative
        };
        let text =
            |(_, search, median, most): &(_, Search, u64, u64)| format!("{} {median}, {most}", name(*search));
        let texts: Vec<_> = caught.iter().filter(of).map(text).collect();
        if texts.is_empty() { "-".to_owned() } else { texts.join("; ") }
    };
    format!("| `{}` | {} | {} |", mutant.name, cell(false), cell(true))
}

#[test]
fn mutants_of_local_memory_are_caught() {
    search_all(&["BROADCAST_UNREAD", "ROUTE_ROW_STALE", "EXPAND_NEXT_OVERWRITTEN", "RELAY_ROW_SHARED"]);
}

#[test]
#[ignore = "extended"]
fn every_mutant_is_caught() {
    let names: Vec<_> = CAUGHT.iter().map(|mutant| mutant.name).collect();
    search_all(&names);
}

/// Makes every search of these mutants, and prints their rows.
fn search_all(names: &[&str]) {
    let jit = common::jit();
    let mutants = || CAUGHT.iter().filter(|mutant| names.contains(&mutant.name));
    let of_each = if searches().is_some() { usize::MAX } else { 1 };
    let searches = |mutant: &'static Caught| mutant.caught_by.iter().take(of_each);
    let jobs: Vec<(&Caught, Search)> =
        mutants().flat_map(|mutant| searches(mutant).map(move |search| (mutant, *search))).collect();
    let done = Mutex::new(Vec::new());
    in_parallel(jobs.len(), |index| {
        let (mutant, search) = jobs[index];
        let mut outcome = searched(&jit, search, mutant.name);
        if search.by == By::Both {
            outcome = outcome.and_then(|seeds| named(&jit, search, mutant.name).map(|()| seeds));
        }
        done.lock().unwrap_or_else(PoisonError::into_inner).push((index, outcome));
    });
    let mut done = done.into_inner().unwrap_or_else(PoisonError::into_inner);
    done.sort_unstable_by_key(|(index, _)| *index);
    let (mut caught, mut missed) = (Vec::new(), Vec::new());
    for (index, outcome) in done {
        let (mutant, search) = jobs[index];
        match outcome {
            Ok((median, most)) => caught.push((mutant, search, median, most)),
            Err(problem) => missed.push(format!("{} by {search:?}: {problem}", mutant.name)),
        }
    }
    for mutant in mutants() {
        println!("{}", row(mutant, &caught));
    }
    assert!(missed.is_empty(), "not caught:\n{}", missed.join("\n"));
}

#[test]
#[ignore = "extended"]
fn the_right_kernels_are_clean_over_the_same_seeds() {
    let jit = common::jit();
    let mut searches: Vec<Search> =
        CAUGHT.iter().flat_map(|mutant| mutant.caught_by.iter().copied()).collect();
    // With the checker, whatever showed the mistake.
    for search in &mut searches {
        search.by = By::Races;
    }
    searches.sort_unstable();
    searches.dedup();
    in_parallel(searches.len(), |index| {
        let search = searches[index];
        let mut scenario = common::make(&jit, &Case::of_search(search, None));
        for start in starts(search) {
            if let Some((seeds, problem)) = first_failing(scenario.as_mut(), start, CLEAN) {
                panic!("{search:?}, seed {}: {problem}", start + seeds - 1);
            }
        }
    });
}
