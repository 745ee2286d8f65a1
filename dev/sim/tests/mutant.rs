//! The real team barrier and its mutant, from the search to the replay.

use std::path::PathBuf;

use anabranch_hip_jit::{Jit, JitConfig, ToolSearch};
use anabranch_sim::{
    Case, End, Found, Kind, Protocol, Report, RunOptions, Scenario, ScenarioError, SearchOptions,
    ShrinkOptions, TimelineOptions, scenario, search, shrink, timeline, write_trace,
};
use anabranch_weakmem::Action;

fn jit() -> Jit {
    let folder: PathBuf = env!("CARGO_TARGET_TMPDIR").into();
    let path = ["/usr/local/bin", "/usr/bin", "/bin"].map(PathBuf::from).to_vec();
    Jit::new(JitConfig::new(folder.join("seeded-cache")), ToolSearch { path, ..ToolSearch::default() })
}

fn small_mutant() -> Case {
    let mut case = Case::new(Protocol::Barrier, 3);
    case.mutant = Some("EPOCH_LOOSE");
    // The checker names a race in every seed: this is about seeds that may fail.
    case.values_only = true;
    case
}

fn searched(case: &Case, jit: &Jit, seeds: core::ops::Range<u64>, threads: usize) -> Report {
    let options = SearchOptions { threads: threads.try_into().unwrap(), ..SearchOptions::new(seeds) };
    search(|| scenario(case.clone(), jit), &options, &mut |_| {}).unwrap()
}

/// Which seeds from `start` on fail, the judge asked seed by seed.
fn first_failing(case: &Case, jit: &Jit, start: u64) -> (u64, String) {
    let mut scenario = scenario(case.clone(), jit).unwrap();
    let judged = |seed| Some((seed, scenario.run(seed, &RunOptions::default()).err()?.problem));
    (start..start + 1000).find_map(judged).expect("the mutant is caught")
}

#[test]
fn the_barrier_is_right_under_every_seed() {
    let (jit, case) = (jit(), Case::new(Protocol::Barrier, 3));
    let mut told = Vec::new();
    for threads in [1, 4] {
        let report = searched(&case, &jit, 0..500, threads);
        assert!(matches!(report.end, End::Clean), "{report:?}");
        told.push((report.seeds, report.progress.primitives));
    }
    assert_eq!(told[0], told[1], "what is counted does not depend on threads");
    assert!(told[0].0 == 500 && told[0].1 > 100_000, "{told:?}");
}

#[test]
fn the_lowest_failing_seed_is_found_whatever_the_threads() {
    let (jit, mut case) = (jit(), small_mutant());
    // In a small case most seeds pass.
    (case.ranks, case.waves) = (2, 1);
    let mut later = 0;
    for start in [0, 1000, 2000] {
        let (lowest, problem) = first_failing(&case, &jit, start);
        later += u64::from(lowest > start);
        for threads in [1, 4] {
            let report = searched(&case, &jit, start..start + 1000, threads);
            let End::Failed { seed, failure } = report.end else { panic!("{report:?}") };
            assert_eq!((seed, &failure.problem), (lowest, &problem), "{threads} threads");
            assert_eq!(report.seeds, lowest - start + 1);
        }
    }
    assert!(later > 0, "some search passes seeds before it fails");
}

#[test]
fn a_mutant_shrinks_to_a_case_that_fails_again_event_by_event() {
    let (jit, case) = (jit(), small_mutant());
    let make = |case: &Case| -> Result<Box<dyn Scenario>, ScenarioError> { scenario(case.clone(), &jit) };
    let (seed, problem) = first_failing(&case, &jit, 0);
    let first = Found::again(make(&case).unwrap().as_mut(), seed, None, &problem).unwrap();
    let shrunk = shrink(&first, &make, ShrinkOptions::default(), &mut |_| {}).unwrap();
    assert_eq!(shrink(&first, &make, ShrinkOptions::default(), &mut |_| {}).unwrap(), shrunk);
    assert!(shrunk.complete, "{} runs", shrunk.runs);
    let found = &shrunk.found;
    assert_eq!(found.kind(), Kind::of(&problem));
    // One rank is not overtaken by any other.
    assert_eq!(found.case.ranks, 2);
    assert_eq!((found.case.tokens, found.case.blocks, found.case.waves), (1, 1, 1));
    assert!(found.most_switches.is_some() && found.events.len() < first.events.len());
    let mut fresh = make(&found.case).unwrap();
    let again = Found::again(fresh.as_mut(), found.seed, found.most_switches, &found.problem).unwrap();
    assert_eq!(&again, found);
    if let Some(fewer) = found.most_switches.and_then(|most| most.checked_sub(1)) {
        let calmer = Found::again(fresh.as_mut(), found.seed, Some(fewer), &found.problem);
        assert!(calmer.is_err(), "one switch less does not fail");
    }

    // A place that is touched: the flag that was stored last.
    let flag = found.events.iter().rev().find_map(|event| match &event.action {
        Action::Access("flag store", name, byte, _) => Some(format!("{name}+{byte}")),
        _ => None,
    });
    let flag = flag.unwrap();
    let problem = format!("wrong since {flag}");
    let lines = timeline(&found.events, &problem, TimelineOptions { width: 110, last: 30 });
    let marked: Vec<&String> = lines.iter().filter(|line| line.starts_with('>')).collect();
    let stores = |line: &&String| line.contains(&format!("flag store {flag}.."));
    assert!(marked.iter().any(stores), "{flag}: {lines:#?}");
    assert!(marked.iter().all(|line| line.contains(&format!("{flag}.."))), "{flag}: {lines:#?}");
    assert!(lines.iter().all(|line| line.chars().count() <= 110));

    let mut trace = Vec::new();
    write_trace(&found.events, &mut trace).unwrap();
    let trace: serde_json::Value = serde_json::from_slice(&trace).unwrap();
    let rows = trace["traceEvents"].as_array().unwrap();
    let count = |phase: &str| rows.iter().filter(|row| row["ph"] == phase).count();
    assert_eq!(count("i"), found.events.len());
    assert!(count("B") > 4 && count("B") == count("E"), "launches begin and end");
}

#[test]
fn a_limit_of_switches_changes_nothing_before_it_is_reached() {
    let (jit, case) = (jit(), Case::new(Protocol::Barrier, 2));
    let mut scenario = scenario(case, &jit).unwrap();
    let mut run = |seed, most| {
        let mut options = RunOptions::default();
        options.most_switches = most;
        scenario.run(seed, &options).unwrap().run.digest
    };
    let mut differ = 0;
    for seed in 0..20 {
        assert_eq!(run(seed, None), run(seed, Some(u64::MAX)));
        differ += u32::from(run(seed, None) != run(seed, Some(0)));
    }
    assert!(differ > 15, "without switches most seeds are other runs: {differ}");
}
