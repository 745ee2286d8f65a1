//! Messages between all pairs, round after round: data before signal, source reuse, slot reuse.

use anabranch_shmem::device_api::conformance::{MESSAGE, MessageArgs};

use crate::ranks::{OPERATION, Ranks, WAVES, next, pointer, read};

const ENTRY: &str = "anabranch_shmem_conformance_message";
const ARRIVED: u64 = 0;
const CONSUMED: u64 = 64;
const SLOTS: u64 = 4096 + 3;

pub(crate) struct Case {
    pub(crate) mode: u32,
    pub(crate) scope: u32,
    pub(crate) signal_op: u32,
    pub(crate) bytes: u32,
    pub(crate) rounds: u32,
}

/// Runs the case and compares every message with what was sent.
pub(crate) fn check(ranks: &mut Ranks, case: &Case, state: &mut u64) {
    let size = ranks.size();
    let stride = (case.bytes + 61).next_multiple_of(8);
    let length = (case.rounds * size * stride) as usize;
    for rank in 0..size {
        ranks.poke(rank, 0, &[0; 128]);
    }
    ranks.fill();
    let prepared: Vec<Vec<u8>> =
        (0..size).map(|_| (0..length).map(|_| next(state) as u8).collect()).collect();
    let sources: Vec<_> =
        prepared.iter().enumerate().map(|(rank, bytes)| ranks.buffer(rank as u32, bytes)).collect();
    let staging = ranks.buffers((size * stride) as usize);
    let _known = [ranks.registered(&sources), ranks.registered(&staging)];
    let logs = ranks.buffers(length);
    let statuses = ranks.buffers((2 * size * 4) as usize);
    let threads = match case.scope {
        0 => ranks.wave,
        1 => 2 * ranks.wave,
        _ => ranks.block_threads(),
    };
    let spec = ranks.spec(&MESSAGE);
    ranks.run_well(&spec, ENTRY, 2 * size, threads, |rank| {
        Some(MessageArgs {
            team: ranks.team(rank),
            prepared: pointer(&sources[rank as usize]),
            staging: pointer(&staging[rank as usize]),
            log: pointer(&logs[rank as usize]),
            statuses: pointer(&statuses[rank as usize]),
            slots: SLOTS,
            arrived: ARRIVED,
            consumed: CONSUMED,
            bytes: case.bytes,
            stride,
            rounds: case.rounds,
            mode: case.mode,
            scope: case.scope,
            signal_op: case.signal_op,
            operation: OPERATION,
            reserved: 0,
        })
    });
    let (bytes, stride, size) = (case.bytes as usize, stride as usize, size as usize);
    for (rank, log) in logs.iter().enumerate() {
        assert!(read::<u32>(&statuses[rank]).iter().all(|status| *status == 0));
        let log: Vec<u8> = read(log);
        for round in 0..case.rounds as usize {
            for (from, prepared) in prepared.iter().enumerate() {
                let got = &log[(round * size + from) * stride..][..bytes];
                let sent = &prepared[(round * size + rank) * stride..][..bytes];
                let (mode, scope) = (case.mode, case.scope);
                assert_eq!(got, sent, "round {round} from {from} to {rank}, mode {mode}, scope {scope}");
            }
        }
    }
    // The last round is still in the slots; nothing was written between them or to the words but the counts.
    let mut expected = ranks.initial.clone();
    for (rank, heap) in expected.iter_mut().enumerate() {
        for (peer, prepared) in prepared.iter().enumerate() {
            for word in [ARRIVED, CONSUMED] {
                let at = word as usize + peer * 8;
                heap[at..at + 8].copy_from_slice(&u64::from(case.rounds).to_le_bytes());
            }
            let last = ((case.rounds as usize - 1) * size + rank) * stride;
            let slot = SLOTS as usize + peer * stride;
            heap[slot..slot + bytes].copy_from_slice(&prepared[last..last + bytes]);
        }
    }
    ranks.compare(&expected).unwrap();
}

#[test]
fn messages_arrive_whole_and_in_order_at_every_scope() {
    for wave in WAVES {
        let mut state = u64::from(wave);
        let mut ranks = Ranks::new(3, wave, 32 << 10);
        for scope in 0..3 {
            for mode in 0..if scope == 0 { 4 } else { 3 } {
                let case = Case { mode, scope, signal_op: mode % 2, bytes: 67 + 16 * scope, rounds: 20 };
                check(&mut ranks, &case, &mut state);
            }
        }
    }
}

#[test]
fn put_signal_many_rounds() {
    let mut ranks = Ranks::new(4, 4, 32 << 10);
    check(&mut ranks, &Case { mode: 1, scope: 2, signal_op: 1, bytes: 1021, rounds: 400 }, &mut 3);
    check(&mut ranks, &Case { mode: 1, scope: 1, signal_op: 0, bytes: 333, rounds: 400 }, &mut 4);
}

#[test]
fn empty_messages_still_signal() {
    let mut ranks = Ranks::new(2, 4, 32 << 10);
    for scope in 0..3 {
        for mode in 0..3 {
            check(&mut ranks, &Case { mode, scope, signal_op: 1, bytes: 0, rounds: 20 }, &mut 5);
        }
    }
}
