//! What the judge is for, and faults: a rank that never comes, a flag that is ahead.

use anabranch_ep::plan::FLAG_STRIDE;

use super::*;
use crate::{Protocol, Scenario as _, scratch};

fn three() -> Ep {
    of_three(Protocol::Ep)
}

fn of_three(protocol: Protocol) -> Ep {
    let jit = scratch::jit();
    let case = Case { staged: true, ..Case::new(protocol, 3) };
    Ep::new(case.clone(), &mut Kernels::new(&jit, &case)).unwrap()
}

#[test]
fn a_rank_that_never_comes_is_named_by_all_others() {
    never_comes(three(), DISPATCH.0);
    // The rows would be waited for later: words are told before any is waited for.
    never_comes(of_three(Protocol::EpCompact), COUNT.0);
    never_comes(of_three(Protocol::EpSplit), DISPATCH.0);
}

fn never_comes(mut ep: Ep, operation: u32) {
    for seed in 0..100 {
        ep.prepare(&RunOptions::default()).unwrap();
        for (rank, epoch) in [(0, 0), (0, 1), (1, 0), (1, 1)] {
            ep.queue(rank, epoch).unwrap();
        }
        ep.bench.run_to_a_fault(seed).unwrap();
        for rank in 0..2 {
            let record = ep.bench.record(rank).unwrap();
            let told = (record.state, record.operation, record.peer, record.epoch, record.rank);
            assert_eq!(told, (2, operation, 2, 1, rank), "seed {seed}: {record:?}");
            let own = ep.bench.ranks[rank as usize].own;
            let counts = ep.bench.get::<u32>(own, ep.own.counts, 3).unwrap();
            assert_eq!(counts, [0; 3], "seed {seed}, rank {rank}: counts behind a fault");
        }
        ep.run(seed, &RunOptions::default()).unwrap();
    }
}

#[test]
fn a_count_that_is_ahead_is_an_overrun_and_not_a_count() {
    let mut ep = of_three(Protocol::EpCompact);
    for seed in 0..50 {
        ep.prepare(&RunOptions::default()).unwrap();
        // A word of rank 1 at rank 0 carries epoch 2 and the count 1 before anybody has begun; rank 1 does not come.
        let (heap, layout) = (ep.bench.ranks[0].heap, *ep.plan.layout());
        ep.bench.put(heap, layout.count_matrix + layout.count_stride, &[1_u64 << 32 | 2]).unwrap();
        for rank in [0, 2] {
            ep.queue(rank, 0).unwrap();
        }
        ep.bench.run_to_a_fault(seed).unwrap();
        let record = ep.bench.record(0).unwrap();
        let told = (record.phase, record.operation, record.peer, record.epoch, record.expected, record.seen);
        assert_eq!(told, (OVERRUN, COUNT.0, 1, 1, 1, 1 << 32 | 2), "seed {seed}: {record:?}");
    }
}

/// The phases in which an epoch ahead of the one waited for is reported (`count.hip`, `dispatch.hip`, `combine.hip`).
const OVERRUN: u32 = 2;

#[test]
fn a_flag_that_is_ahead_is_an_overrun_and_not_a_count() {
    let mut ep = three();
    let mut overruns = 0;
    for (flags, operation) in
        [(ep.plan.layout().dispatch_flags, DISPATCH.0), (ep.plan.layout().combine_flags, COMBINE.0)]
    {
        for seed in 0..50 {
            ep.prepare(&RunOptions::default()).unwrap();
            // Rank 1's flag at rank 0 carries epoch 2 and the count 1 before anybody has begun; rank 1 does not come.
            let heap = ep.bench.ranks[0].heap;
            ep.bench.put(heap, flags + u64::from(FLAG_STRIDE), &[1_u64 << 32 | 2]).unwrap();
            let ranks = if operation == DISPATCH.0 { [0, 2].as_slice() } else { [0, 1, 2].as_slice() };
            for rank in ranks {
                ep.queue(*rank, 0).unwrap();
            }
            ep.bench.run_to_a_fault(seed).unwrap();
            let record = ep.bench.record(0).unwrap();
            if record.phase == OVERRUN {
                overruns += 1;
                let told = (record.operation, record.peer, record.epoch, record.expected, record.seen);
                assert_eq!(told, (operation, 1, 1, 1, 1 << 32 | 2), "seed {seed}: {record:?}");
            } else {
                // The right flag of rank 1 came in time and overwrote what was planted, or another wait failed first.
                assert!(operation == COMBINE.0, "seed {seed}: {record:?}");
            }
        }
    }
    // All of dispatch, and some of combine.
    assert!(overruns > 50, "{overruns}");
}
