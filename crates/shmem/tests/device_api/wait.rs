//! Comparisons, waits for several words, and waits that expire.

use std::time::Duration;

use anabranch_conformance::shmem::{COMPARE, CompareCase, EXPIRY, SEVERAL, WAIT_UNIT, WaitArgs, spec};
use anabranch_shmem::device_api::phase_name;
use bytemuck::Zeroable as _;

use crate::device_api::ranks::{GROUP, OPERATION, Ranks, WAVES, pointer, read};

#[test]
fn comparisons_hold_as_differences_and_end_waits() {
    let values = [0, 1, 5, 6, (1 << 63) - 1, 1 << 63, u64::MAX - 1, u64::MAX];
    let mut cases = Vec::new();
    let mut words = Vec::new();
    for word in values {
        for value in values {
            for compare in 0..6 {
                let at = 8 * words.len() as u64;
                words.push(word);
                cases.push(CompareCase { word: at, value, compare, reserved: 0 });
            }
        }
    }
    for wave in WAVES {
        let mut ranks = Ranks::new(1, wave, 32 << 10);
        ranks.poke(0, 0, bytemuck::cast_slice(&words));
        let threads = ranks.block_threads();
        let buffer = ranks.buffer(0, &cases);
        let results = ranks.buffer(0, &vec![u32::MAX; cases.len() * threads as usize]);
        ranks.run_well(&spec(&WAIT_UNIT), COMPARE, 1, threads, |rank| {
            Some(WaitArgs {
                team: ranks.team(rank),
                cases: pointer(&buffer),
                results: pointer(&results),
                count: cases.len() as u32,
                operation: OPERATION,
                ..WaitArgs::zeroed()
            })
        });
        let results: Vec<u32> = read(&results);
        for ((case, word), results) in cases.iter().zip(&words).zip(results.chunks(threads as usize)) {
            let ahead = word.wrapping_sub(case.value).cast_signed();
            let holds = match case.compare {
                0 => ahead == 0,
                1 => ahead != 0,
                2 => ahead > 0,
                3 => ahead >= 0,
                4 => ahead < 0,
                _ => ahead <= 0,
            };
            let expected = if holds { 15 } else { 0 };
            assert!(results.iter().all(|result| *result == expected), "{case:?} on {word}: {results:?}");
        }
    }
}

#[test]
fn wait_all_and_wait_any_find_the_signalled_words() {
    for wave in WAVES {
        for scope in [1, 2] {
            let mut ranks = Ranks::new(4, wave, 32 << 10);
            let (size, rounds) = (4, 20);
            for rank in 0..size {
                ranks.poke(rank, 0, &vec![0; ((rounds + size) * size * 8) as usize]);
            }
            let threads = ranks.block_threads();
            let count = ((rounds + size) * threads) as usize;
            let results: Vec<_> = (0..size).map(|rank| ranks.buffer(rank, &vec![u32::MAX; count])).collect();
            ranks.run_well(&spec(&WAIT_UNIT), SEVERAL, 2, threads, |rank| {
                Some(WaitArgs {
                    team: ranks.team(rank),
                    results: pointer(&results[rank as usize]),
                    rounds,
                    scope,
                    operation: OPERATION,
                    ..WaitArgs::zeroed()
                })
            });
            let lanes = if scope == 1 { wave } else { threads } as usize;
            for results in &results {
                let results: Vec<u32> = read(results);
                for (array, results) in results.chunks(threads as usize).enumerate() {
                    let array = array as u32;
                    // The upper half, the status, is zero; in wait_all the index counts the words that have come.
                    let expected = if array < rounds { size } else { array - rounds };
                    assert!(
                        results[..lanes].iter().all(|result| *result == expected),
                        "{array}: {results:x?}"
                    );
                }
            }
        }
    }
}

/// What a wait that cannot end does.
struct Expiry {
    kind: u32,
    scope: u32,
    phase: &'static str,
    peer: u32,
    seen: u64,
}

#[test]
fn a_signal_that_never_comes_is_a_fault_that_names_the_peer() {
    let budget = Duration::from_millis(40);
    let value = 10;
    // Words of ranks 0 and 2 have come, that of rank 1 has not.
    let words = [10u64, 4, 11];
    for wave in [1, 4, 64] {
        let mut ranks = Ranks::new(3, wave, 32 << 10);
        for (kind, phase, peer, seen) in
            [(0, "signal_wait", 2, 4), (1, "wait_all", 1, 4), (2, "wait_any", 0, 4)]
        {
            for scope in if kind == 0 { 0..3 } else { 1..3 } {
                let case = Expiry { kind, scope, phase, peer, seen };
                // signal_wait looks at the first word; wait_any must find none.
                let there = match kind {
                    1 => words,
                    _ => [4; 3],
                };
                ranks.poke(2, 64, bytemuck::cast_slice(&there));
                ranks.set_budget(budget);
                expire(&ranks, &case, value, budget);
            }
        }
    }
}

fn expire(ranks: &Ranks, case: &Expiry, value: u64, budget: Duration) {
    let threads = ranks.block_threads();
    let results = ranks.buffer(2, &vec![u32::MAX; 2 * threads as usize]);
    let arguments = |rank: u32| {
        (rank == 2).then(|| WaitArgs {
            team: ranks.team(rank),
            results: pointer(&results),
            words: 64,
            value,
            count: 3,
            kind: case.kind,
            scope: case.scope,
            peer: case.peer,
            operation: OPERATION,
            ..WaitArgs::zeroed()
        })
    };
    let took = ranks.run(&spec(&WAIT_UNIT), EXPIRY, 1, threads, arguments);
    assert!(took >= budget && took < budget + Duration::from_secs(1), "{took:?}");
    let results: Vec<u32> = read(&results);
    assert!(results.iter().all(|status| *status == 1), "{results:?}");
    let record = ranks.fault(2).unwrap();
    assert_eq!(phase_name(record.phase), Some(case.phase));
    assert_eq!((record.operation, record.group, record.epoch, record.rank), (OPERATION, GROUP, 1, 2));
    assert_eq!((record.peer, record.expected, record.seen), (case.peer, value, case.seen));
    assert!(record.waited_ns > budget.as_nanos() as u64);
}
