//! What the judge is for, and faults: a rank that never comes, a flag that is ahead.

use anabranch_ep::plan::FLAG_STRIDE;
use anabranch_ep::{COMBINE, COUNT, DISPATCH};

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
    // The rows would be waited for later: words are sent before any is waited for.
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
            let found = (record.state, record.operation, record.peer, record.epoch, record.rank);
            assert_eq!(found, (2, operation, 2, 1, rank), "seed {seed}: {record:?}");
            let own = ep.bench.ranks[rank as usize].own;
            let counts = ep.bench.get::<u32>(own, ep.own.counts, 3).unwrap();
            assert_eq!(counts, [0; 3], "seed {seed}, rank {rank}: counts after a fault");
        }
        ep.run(seed, &RunOptions::default()).unwrap();
    }
}

#[test]
fn a_rank_that_never_comes_is_masked_by_all_others_and_they_go_on() {
    for staged in [false, true] {
        let jit = scratch::jit();
        let case = Case { staged, ..Case::new(Protocol::EpMask, 3) };
        let mut ep = Ep::new(case.clone(), &mut Kernels::new(&jit, &case)).unwrap();
        for seed in 0..100 {
            ep.prepare(&RunOptions::default()).unwrap();
            for (rank, epoch) in (0..2).flat_map(|rank| (0..3).map(move |epoch| (rank, epoch))) {
                ep.queue(rank, epoch).unwrap();
            }
            ep.bench.run(seed).unwrap();
            for (rank, epoch) in (0..2).flat_map(|rank| (0..3).map(move |epoch| (rank, epoch))) {
                assert_ne!(ep.masked_by(rank).unwrap() & 4, 0, "seed {seed}, rank {rank}");
                let bytes = (case.tokens * ep.plan.combine_row_bytes()) as usize;
                let output = ep.memory[rank as usize].inputs[epoch as usize].output;
                let output = ep.bench.get::<u8>(output, 0, bytes).unwrap();
                let who = GroupRank::new(rank);
                ep.judge_masked_output(epoch, who, &output)
                    .unwrap_or_else(|problem| panic!("seed {seed}, epoch {epoch}: {problem}"));
            }
        }
    }
}

#[test]
fn some_ranks_are_missed_and_some_are_not() {
    let jit = scratch::jit();
    let case = Case::new(Protocol::EpMask, 3);
    let mut ep = Ep::new(case.clone(), &mut Kernels::new(&jit, &case)).unwrap();
    let (mut nobody, mut somebody, mut different) = (0, 0, 0);
    for seed in 0..100 {
        ep.run(seed, &RunOptions::default()).unwrap();
        let masks = [0, 1, 2].map(|rank| ep.masked_by(rank).unwrap());
        nobody += u32::from(masks == [0; 3]);
        somebody += u32::from(masks != [0; 3]);
        // One of two that works without the other, which has not missed it.
        different += u32::from((masks[0] >> 1 & 1) != (masks[1] & 1));
    }
    println!("{nobody} runs without a mask, {somebody} with, {different} in which two differ");
    assert!(nobody > 5 && somebody > 20 && different > 2, "{nobody}, {somebody}, {different}");
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
        let found = (record.phase, record.operation, record.peer, record.epoch, record.expected, record.seen);
        assert_eq!(found, (OVERRUN, COUNT.0, 1, 1, 1, 1 << 32 | 2), "seed {seed}: {record:?}");
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
                let found = (record.operation, record.peer, record.epoch, record.expected, record.seen);
                assert_eq!(found, (operation, 1, 1, 1, 1 << 32 | 2), "seed {seed}: {record:?}");
            } else {
                // The right flag of rank 1 came in time and overwrote what was planted, or another wait failed first.
                assert!(operation == COMBINE.0, "seed {seed}: {record:?}");
            }
        }
    }
    // All of dispatch, and some of combine.
    assert!(overruns > 50, "{overruns}");
}
