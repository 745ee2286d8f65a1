//! Every protocol as it is, under seeds: clean, and a seed is a run.

use crate::common;

use anabranch_clock::Moment;

use anabranch_sim::{Case, CaseError, Protocol, RunOptions, ScenarioError, scenario};

/// Runs seeds and prints how fast; the first failure is the test's.
fn clean(case: &Case, seeds: std::ops::Range<u64>) {
    let mut scenario = common::make(&common::jit(), case);
    let (start, count, mut steps) = (Moment::now(), seeds.end - seeds.start, 0);
    for seed in seeds {
        let outcome = scenario.run(seed, &RunOptions::default());
        steps +=
            outcome.unwrap_or_else(|failure| panic!("{case:?}, seed {seed}: {}", failure.problem)).run.steps;
    }
    let rate = count as f64 / start.elapsed().as_secs_f64();
    println!("{case:?}: {rate:.0} seeds/s, {} primitives a seed", steps / count);
}

fn with(protocol: Protocol, ranks: u32, change: impl FnOnce(&mut Case)) -> Case {
    let mut case = Case::new(protocol, ranks);
    change(&mut case);
    case
}

#[test]
fn dispatch_and_combine_are_right_under_every_seed() {
    clean(&with(Protocol::Ep, 2, |case| case.tokens = 5), 0..75);
    clean(&with(Protocol::Ep, 3, |case| (case.tokens, case.staged) = (5, true)), 0..37);
    clean(&with(Protocol::Ep, 2, |case| (case.rounds, case.blocks, case.waves) = (4, 3, 1)), 0..37);
    clean(&Case::new(Protocol::Ep, 1), 0..25);
}

#[test]
fn compact_dispatch_is_right_under_every_seed() {
    clean(&with(Protocol::EpCompact, 2, |case| case.tokens = 5), 0..75);
    clean(&with(Protocol::EpCompact, 3, |case| (case.tokens, case.staged) = (5, true)), 0..37);
    clean(&with(Protocol::EpCompact, 2, |case| (case.rounds, case.blocks, case.waves) = (4, 3, 1)), 0..37);
    clean(&with(Protocol::EpCompact, 3, |case| case.cumulative = true), 0..25);
    clean(&Case::new(Protocol::EpCompact, 1), 0..25);
}

#[test]
fn halves_are_right_under_every_seed() {
    clean(&with(Protocol::EpSplit, 2, |case| case.tokens = 5), 0..50);
    clean(&with(Protocol::EpSplit, 3, |case| (case.tokens, case.staged) = (5, true)), 0..37);
    clean(&with(Protocol::EpSplit, 2, |case| (case.rounds, case.blocks, case.waves) = (4, 3, 1)), 0..25);
    clean(&with(Protocol::EpSplit, 3, |case| case.cumulative = true), 0..25);
}

#[test]
fn ranks_on_several_nodes_are_right_under_every_seed() {
    for protocol in [Protocol::EpNodes, Protocol::EpRelay] {
        clean(&with(protocol, 2, |case| case.tokens = 5), 0..25);
        clean(&with(protocol, 3, |case| (case.tokens, case.staged) = (5, true)), 0..25);
        clean(&with(protocol, 4, |case| (case.rounds, case.blocks, case.waves) = (4, 3, 1)), 0..15);
        clean(&with(protocol, 3, |case| case.cumulative = true), 0..15);
    }
}

#[test]
fn ranks_that_mask_each_other_are_right_under_every_seed() {
    clean(&with(Protocol::EpMask, 2, |case| case.tokens = 5), 0..50);
    clean(&with(Protocol::EpMask, 3, |case| (case.tokens, case.staged) = (5, true)), 0..37);
    clean(&with(Protocol::EpMask, 4, |case| (case.rounds, case.blocks, case.waves) = (4, 3, 1)), 0..25);
    clean(&with(Protocol::EpMask, 3, |case| case.cumulative = true), 0..25);
}

#[test]
fn expert_major_rows_are_right_under_every_seed() {
    clean(&with(Protocol::EpExperts, 2, |case| case.tokens = 5), 0..50);
    clean(&with(Protocol::EpExperts, 3, |case| (case.tokens, case.staged) = (9, true)), 0..25);
    clean(&with(Protocol::EpExperts, 2, |case| (case.rounds, case.blocks, case.waves) = (4, 3, 1)), 0..25);
    // Fewer rows than blocks: blocks share them.
    clean(&with(Protocol::EpExperts, 1, |case| (case.tokens, case.blocks) = (1, 4)), 0..25);
}

#[test]
fn replayed_routings_are_right_under_every_seed() {
    clean(&with(Protocol::EpReplay, 3, |case| case.tokens = 5), 0..50);
    clean(&with(Protocol::EpReplay, 2, |case| (case.tokens, case.staged) = (5, true)), 0..37);
    clean(&with(Protocol::EpReplay, 2, |case| (case.rounds, case.blocks, case.waves) = (6, 3, 1)), 0..25);
    clean(&with(Protocol::EpReplay, 3, |case| case.cumulative = true), 0..25);
    clean(&Case::new(Protocol::EpReplay, 1), 0..12);
}

#[test]
fn barriers_are_right_under_every_seed() {
    for protocol in [Protocol::Barrier, Protocol::DeviceBarrier] {
        clean(&with(protocol, 3, |case| case.rounds = 4), 0..100);
        // More members than lanes of a wave.
        clean(&with(protocol, 6, |case| case.waves = 1), 0..25);
    }
    clean(&with(Protocol::DeviceBarrier, 2, |case| (case.staged, case.rounds) = (true, 4)), 0..100);
    clean(&Case::new(Protocol::DeviceBarrier, 1), 0..12);
}

#[test]
fn messages_are_right_under_every_seed() {
    for protocol in [Protocol::PutSignal, Protocol::PutQuiet] {
        clean(&Case::new(protocol, 2), 0..125);
        clean(&with(protocol, 3, |case| (case.staged, case.rounds) = (true, 6)), 0..125);
        clean(&with(protocol, 1, |case| case.tokens = 9), 0..25);
    }
}

#[test]
fn sends_and_receives_are_right_under_every_seed() {
    for staged in [false, true] {
        clean(&with(Protocol::CclPipes, 2, |case| case.staged = staged), 0..75);
        clean(
            &with(Protocol::CclPipes, 3, |case| (case.staged, case.rounds, case.blocks) = (staged, 4, 3)),
            0..37,
        );
        // One block of one wave goes round all pipes of all peers.
        clean(
            &with(Protocol::CclPipes, 4, |case| (case.staged, case.blocks, case.waves) = (staged, 1, 1)),
            0..25,
        );
    }
    clean(&with(Protocol::CclPipes, 1, |case| case.tokens = 9), 0..25);
}

#[test]
fn collectives_of_several_machines_are_right_under_every_seed() {
    for staged in [false, true] {
        clean(&with(Protocol::CclNetwork, 2, |case| case.staged = staged), 0..50);
        clean(
            &with(Protocol::CclNetwork, 3, |case| (case.staged, case.rounds, case.blocks) = (staged, 4, 3)),
            0..20,
        );
    }
    // By node, as machines have two ranks each.
    clean(&with(Protocol::CclNetwork, 4, |case| case.waves = 1), 0..30);
    clean(&with(Protocol::CclNetwork, 6, |case| (case.blocks, case.cumulative) = (1, true)), 0..10);
    clean(&with(Protocol::CclNetwork, 1, |case| case.tokens = 9), 0..12);
}

#[test]
fn gathers_signals_and_atomics_are_right_under_every_seed() {
    clean(&with(Protocol::Ping, 3, |case| case.tokens = 9), 0..100);
    for ranks in 1..4 {
        clean(&Case::new(Protocol::Gather, ranks), 0..100);
        clean(&Case::new(Protocol::StreamSignal, ranks), 0..50);
        clean(&Case::new(Protocol::Atomics, ranks), 0..50);
    }
    // More members than lanes of a wave.
    clean(&with(Protocol::Gather, 6, |case| case.waves = 1), 0..15);
}

/// `parts` of each range of seeds are run: one of five in the default test.
fn collectives(parts: u64) {
    let few = |case: &Case, seeds: u64| clean(case, 0..seeds * parts / 5);
    for protocol in Protocol::COLLECTIVES {
        few(&Case::new(protocol, 2), 50);
        few(&with(protocol, 3, |case| (case.staged, case.rounds, case.blocks) = (true, 9, 1)), 20);
        // More members than sources that are polled or loaded at once; as many lanes of a block as members, and fewer.
        few(&with(protocol, 6, |case| (case.waves, case.tokens) = (1, 2)), 20);
        few(&Case::new(protocol, 1), 10);
    }
    few(&with(Protocol::Ccl, 3, |case| case.staged = true), 10);
    few(&with(Protocol::Ccl, 2, |case| (case.rounds, case.blocks, case.waves) = (40, 3, 1)), 20);
}

#[test]
fn collectives_are_right_under_a_few_seeds() {
    collectives(1);
}

#[test]
#[ignore = "extended"]
fn collectives_are_right_under_every_seed() {
    collectives(5);
}

#[test]
#[ignore = "extended"]
fn many_tensors_gathered_are_right_under_every_seed() {
    for staged in [false, true] {
        let many = |ranks, change: fn(&mut Case)| {
            with(Protocol::CclGatherMany, ranks, |case| {
                case.staged = staged;
                change(case);
            })
        };
        clean(&many(2, |_| {}), 0..200);
        clean(&many(3, |case| (case.rounds, case.blocks) = (9, 1)), 0..50);
        // More members than sources that are polled at once, and than lanes of a wave.
        clean(&many(6, |case| (case.waves, case.tokens, case.rounds) = (1, 2, 3)), 0..15);
        clean(&many(1, |_| {}), 0..15);
    }
}

/// A few seeds of what the extended tests run in mass.
#[test]
fn engines_nics_and_cumulative_fences_are_right_under_a_few_seeds() {
    for protocol in [Protocol::Sdma, Protocol::Rdma] {
        clean(&Case::new(protocol, 2), 0..4);
        clean(&with(protocol, 2, |case| case.staged = true), 0..4);
    }
    for protocol in [Protocol::Ep, Protocol::PutSignal, Protocol::DeviceBarrier, Protocol::CclMove] {
        clean(&with(protocol, 3, |case| case.cumulative = true), 0..20);
    }
    clean(&Case::new(Protocol::CclGatherMany, 3), 0..20);
}

#[test]
#[ignore = "extended"]
fn messages_by_copy_engines_are_right_under_every_seed() {
    clean(&Case::new(Protocol::Sdma, 2), 0..15);
    clean(&with(Protocol::Sdma, 3, |case| (case.blocks, case.waves) = (1, 2)), 0..30);
    clean(&with(Protocol::Sdma, 4, |case| (case.blocks, case.tokens) = (1, 3)), 0..10);
    clean(&with(Protocol::Sdma, 1, |case| (case.blocks, case.waves, case.rounds) = (3, 4, 4)), 0..20);
    clean(
        &with(Protocol::Sdma, 16, |case| (case.blocks, case.waves, case.rounds, case.tokens) = (1, 1, 1, 2)),
        0..2,
    );
    clean(&with(Protocol::Sdma, 2, |case| case.staged = true), 0..15);
    clean(&Case::new(Protocol::Rdma, 2), 0..10);
    clean(&with(Protocol::Rdma, 3, |case| (case.blocks, case.waves) = (1, 2)), 0..20);
    clean(&with(Protocol::Rdma, 2, |case| case.staged = true), 0..10);
    clean(&with(Protocol::Sdma, 4, |case| (case.staged, case.blocks, case.waves) = (true, 1, 1)), 0..10);
}

#[test]
#[ignore = "extended"]
fn with_cumulative_fences_the_form_for_them_is_right_under_every_seed() {
    // A whole machine has AMD's fences.
    for protocol in Protocol::ALL.iter().filter(|protocol| !protocol.is_whole_machine()) {
        clean(&with(*protocol, 3, |case| case.cumulative = true), 0..20);
        clean(
            &with(*protocol, 2, |case| (case.cumulative, case.staged, case.blocks) = (true, true, 1)),
            0..20,
        );
    }
}

#[test]
fn a_seed_is_a_run_and_keeps_its_events_when_asked() {
    for protocol in Protocol::ALL {
        let mut first = common::make(&common::jit(), &Case::new(*protocol, 2));
        let mut second = common::make(&common::jit(), &Case::new(*protocol, 2));
        let mut options = RunOptions::default();
        let bare = first.run(11, &options).unwrap().run;
        assert!(bare.events.is_empty());
        first.run(5, &options).unwrap();
        options.keep_events = true;
        let [one, two] = [&mut first, &mut second].map(|scenario| scenario.run(11, &options).unwrap().run);
        assert_eq!(one, two, "{protocol}");
        assert_eq!((one.digest, one.steps), (bare.digest, bare.steps), "{protocol}");
        assert!(one.events.len() as u64 >= one.steps);
        assert_ne!(first.run(12, &options).unwrap().run.digest, one.digest, "{protocol}");
    }
}

#[test]
fn cases_out_of_range_are_refused_by_name() {
    let jit = common::jit();
    for protocol in Protocol::ALL {
        let most_ranks = if *protocol == Protocol::Sdma { 16 } else { 8 };
        for (what, most, change) in [
            ("ranks", most_ranks, (|case: &mut Case| case.ranks = 0) as fn(&mut Case)),
            ("rounds", 64, |case| case.rounds = 0),
            ("tokens", 64, |case| case.tokens = 65),
            ("blocks", 8, |case| case.blocks = 9),
            ("waves", 4, |case| case.waves = 5),
        ] {
            let refused = scenario(with(*protocol, 2, change), &jit);
            let Err(ScenarioError::Case(CaseError::Range { what: named, most: said, .. })) = refused else {
                panic!("{protocol}, {what}: {refused:?}");
            };
            assert_eq!((named, said), (what, most));
        }
        let refused = scenario(with(*protocol, 2, |case| case.mutant = Some("NOTHING")), &jit);
        assert!(matches!(refused, Err(ScenarioError::Case(CaseError::Mutant { .. }))));
    }
}
