//! Faults: a member that never comes.

use super::*;
use crate::scenarios::bench::{BUDGET_NS, UNTOUCHED};
use crate::scratch;

/// What a member that has not come must find as it was: its buffers.
fn buffers_of(scenario: &Collectives, rank: u32) -> Vec<u8> {
    let kinds = [LocationKind::Symmetric, LocationKind::Registered, LocationKind::Local];
    let read = |kind| {
        let (allocation, offset) = scenario.place(kind, rank);
        scenario.bench.get::<u8>(allocation, offset, scenario.region as usize).unwrap()
    };
    kinds.into_iter().flat_map(read).collect()
}

#[test]
fn a_member_that_never_comes_is_named_and_its_buffers_are_left_alone() {
    let jit = scratch::jit();
    let mut faults = 0;
    for protocol in
        [Protocol::CclMove, Protocol::CclPackets, Protocol::CclBulk, Protocol::CclHops, Protocol::CclNorm]
    {
        let case = Case { rounds: 1, values_only: true, ..Case::new(protocol, 3) };
        let mut scenario = Collectives::new(case.clone(), &mut Kernels::new(&jit, &case)).unwrap();
        for seed in 0..120 {
            let mut draw = Draw::new(seed);
            scenario.prepare(&RunOptions::default(), &mut draw).unwrap();
            let round = rounds(&case, &mut draw).remove(0);
            if round.call.collective == Collective::Barrier {
                continue; // What comes behind it here writes into the next rank's buffers.
            }
            let before = buffers_of(&scenario, 1);
            assert!(before.iter().all(|byte| [0, UNTOUCHED].contains(byte)));
            let expected = scenario.expectation(round, 0);
            for rank in [0, 2] {
                scenario.queue(rank, 0, &expected).unwrap();
            }
            let run = scenario.bench.run_to_a_fault(seed).unwrap();
            let behind = buffers_of(&scenario, 1);
            let written = before.iter().zip(&behind).position(|(before, behind)| before != behind);
            assert_eq!(written, None, "seed {seed}: {:?}", expected.round);
            for rank in [0, 2] {
                let record = scenario.bench.record(rank).unwrap();
                if record.state == 0 {
                    // Nothing to move: nobody waits for anybody.
                    assert!(expected.round.call.count == 0, "seed {seed}, {:?}", expected.round);
                    continue;
                }
                faults += 1;
                assert!(run.virtual_ns > BUDGET_NS, "{run:?}");
                let told = (record.state, record.peer, record.rank, record.operation);
                assert_eq!(told, (2, 1, rank, OPERATION.0), "seed {seed}: {:?}", expected.round);
            }
        }
    }
    assert!(faults > 500, "{faults}");
}

/// Copies that begin before all members have come, or whose end nobody waits for, are found; with both meetings nothing is.
#[test]
#[ignore = "extended"]
fn a_call_by_copy_engine_without_one_of_its_meetings_is_caught() {
    use engine::Meeting;
    let jit = scratch::jit();
    for cumulative in [false, true] {
        let case = Case { cumulative, ..Case::new(Protocol::CclEngine, 2) };
        let mut scenario = Collectives::new(case.clone(), &mut Kernels::new(&jit, &case)).unwrap();
        for left_out in [None, Some(Meeting::First), Some(Meeting::Last)] {
            scenario.left_out = left_out;
            let wrong = |seed| scenario.run_and_judge(seed, &RunOptions::default()).is_err();
            let wrong = (0..60).map(wrong).filter(|wrong| *wrong).count();
            assert_eq!(wrong > 0, left_out.is_some(), "{left_out:?}, cumulative {cumulative}: {wrong} of 60");
        }
    }
}
