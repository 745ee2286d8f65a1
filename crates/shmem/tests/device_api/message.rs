//! Messages between all pairs, round after round: data before signal, source reuse, slot reuse.

use anabranch_conformance::shmem::{MESSAGE, MESSAGE_UNIT, MessageBuffers, MessageMode, MessageRun};

use crate::device_api::ranks::{OPERATION, Ranks, WAVES, pointer, read};

pub(crate) struct Case {
    pub(crate) mode: MessageMode,
    pub(crate) scope: u32,
    pub(crate) signal_op: u32,
    pub(crate) bytes: u32,
    pub(crate) rounds: u32,
}

/// Every mode at every scope that has it.
pub(crate) fn cases(bytes: impl Fn(u32) -> u32) -> Vec<Case> {
    let of_scope = |scope| {
        let modes = MessageMode::ALL
            .into_iter()
            .filter(move |mode| scope == 0 || *mode != MessageMode::PutFenceSignal);
        modes.map(move |mode| (mode, scope))
    };
    let one =
        |(mode, scope)| Case { mode, scope, signal_op: mode as u32 % 2, bytes: bytes(scope), rounds: 20 };
    (0..3).flat_map(of_scope).map(one).collect()
}

/// Runs the case and compares every message with what was sent.
pub(crate) fn check(ranks: &mut Ranks, case: &Case, state: &mut u64) {
    let run = MessageRun { ranks: ranks.size(), bytes: case.bytes, rounds: case.rounds };
    for rank in 0..run.ranks {
        ranks.poke(rank, 0, &vec![0; run.slots() as usize]);
    }
    ranks.fill();
    let prepared = run.draw(state);
    let sources: Vec<_> = prepared.iter().zip(0..).map(|(bytes, rank)| ranks.buffer(rank, bytes)).collect();
    let staging = ranks.buffers(run.staging());
    let _known = [ranks.registered(&sources), ranks.registered(&staging)];
    let logs = ranks.buffers(run.length());
    let statuses = ranks.buffers((2 * run.ranks * 4) as usize);
    let threads = match case.scope {
        0 => ranks.wave,
        1 => 2 * ranks.wave,
        _ => ranks.block_threads(),
    };
    let spec = ranks.spec(&MESSAGE_UNIT);
    ranks.run_well(&spec, MESSAGE, 2 * run.ranks, threads, |rank| {
        let buffers = MessageBuffers {
            prepared: pointer(&sources[rank as usize]),
            staging: pointer(&staging[rank as usize]),
            log: pointer(&logs[rank as usize]),
            statuses: pointer(&statuses[rank as usize]),
        };
        let how = (case.mode, case.scope, case.signal_op);
        Some(run.arguments(how, ranks.team(rank), buffers, 0, OPERATION))
    });
    for ((log, statuses), rank) in logs.iter().zip(&statuses).zip(0..) {
        assert!(read::<u32>(statuses).iter().all(|status| *status == 0));
        let wrong = run.wrong(rank, &prepared, &read(log));
        assert_eq!(wrong, None, "round and sender, at rank {rank}, {:?}, scope {}", case.mode, case.scope);
    }
    // The last round is still in the slots; nothing was written between them or to the words but the counts.
    let expected: Vec<_> =
        ranks.initial.iter().zip(0..).map(|(before, rank)| run.after(rank, before, &prepared)).collect();
    ranks.compare(&expected).unwrap();
}

fn every_message(waves: &[u32]) {
    for &wave in waves {
        let mut state = u64::from(wave);
        let mut ranks = Ranks::new(3, wave, 32 << 10);
        for case in cases(|scope| 67 + 16 * scope) {
            check(&mut ranks, &case, &mut state);
        }
    }
}

#[test]
fn messages_arrive_whole_and_in_order_at_every_scope() {
    every_message(&[WAVES[1]]);
}

#[test]
#[ignore = "extended"]
fn messages_arrive_whole_and_in_order_with_waves_of_1_32_and_64() {
    every_message(&[WAVES[0], WAVES[2], WAVES[3]]);
}

#[test]
fn put_signal_many_rounds() {
    let mut ranks = Ranks::new(4, 4, 32 << 10);
    check(
        &mut ranks,
        &Case { mode: MessageMode::PutSignal, scope: 2, signal_op: 1, bytes: 1021, rounds: 400 },
        &mut 3,
    );
    check(
        &mut ranks,
        &Case { mode: MessageMode::PutSignal, scope: 1, signal_op: 0, bytes: 333, rounds: 400 },
        &mut 4,
    );
}

#[test]
fn empty_messages_still_signal() {
    let mut ranks = Ranks::new(2, 4, 32 << 10);
    for case in cases(|_| 0) {
        check(&mut ranks, &Case { signal_op: 1, ..case }, &mut 5);
    }
}
