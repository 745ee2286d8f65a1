//! Tiny cases in every order within bounds.

use crate::common;

use anabranch_sim::{Bounds, Case, Exploration, Protocol, explore};

/// One wave a rank, one word a rank, one round.
fn tiny(protocol: Protocol, ranks: u32) -> Case {
    let mut case = Case::new(protocol, ranks);
    (case.rounds, case.tokens, case.blocks, case.waves) = (1, 1, 1, 1);
    case
}

fn explored(case: &Case, switches: u64, landings: u64, runs: u64) -> Exploration {
    let bounds = Bounds { switches, landings, runs };
    let mut told = 0;
    let explored = explore(common::make(&common::jit(), case).as_mut(), 0, bounds, &mut |runs| told = runs);
    assert_eq!(told + u64::from(explored.failed.is_some()), explored.runs);
    println!("{case:?}, {bounds:?}: {} runs, complete: {}", explored.runs, explored.complete);
    explored
}

#[test]
fn a_case_is_explored_to_its_end_or_as_far_as_was_asked() {
    let case = tiny(Protocol::Atomics, 1);
    let all = explored(&case, 0, 0, u64::MAX);
    assert!(all.complete && all.failed.is_none() && all.runs > 1000, "{all:?}");
    let exactly = explored(&case, 0, 0, all.runs);
    assert!(exactly.complete && exactly.primitives == all.primitives, "{exactly:?}");
    let fewer = explored(&case, 0, 0, all.runs - 1);
    assert!(!fewer.complete && fewer.failed.is_none() && fewer.runs == all.runs - 1, "{fewer:?}");
}

#[test]
#[ignore = "extended"]
fn an_atomic_that_is_none_breaks_with_one_switch_and_with_none_never() {
    let mut case = tiny(Protocol::Atomics, 1);
    case.mutant = Some("TORN_ATOMIC");
    let calm = explored(&case, 0, 0, 100_000);
    assert!(calm.complete && calm.failed.is_none(), "{calm:?}");
    let found = explored(&case, 1, 0, 100_000);
    let failure = found.failed.unwrap();
    assert!(failure.problem.contains("the heap is") && !failure.events.is_empty(), "{}", failure.problem);
    case.mutant = None;
    let right = explored(&case, 1, 0, 200_000);
    assert!(right.complete && right.failed.is_none(), "{right:?}");
}

/// All orders are too many: each in which the stores of eight launches land is one.
#[test]
fn the_first_runs_of_two_ranks_around_a_barrier_are_right_and_the_mutants_are_races() {
    for cumulative in [false, true] {
        let mut case = tiny(Protocol::Barrier, 2);
        case.cumulative = cumulative;
        let right = explored(&case, 1, 1, 3_000);
        assert!(right.failed.is_none() && right.runs == 3_000 && !right.complete, "{right:?}");
        case.mutant = Some("EPOCH_LOOSE");
        let failure = explored(&case, 1, 1, 3_000).failed.unwrap();
        assert!(failure.problem.contains("race on heap"), "{}", failure.problem);
    }
}
