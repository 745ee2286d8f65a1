//! Atomics contended by every thread of every rank: exact totals, each old value handed out once, neighbours untouched.

use anabranch_conformance::shmem::{
    ATOMICS, ATOMICS_UNIT, AtomicArgs, AtomicCase, AtomicKind, AtomicRun, AtomicWays, spec,
};
use anabranch_hip::DeviceBuffer;
use anabranch_hip_jit::KernelSpec;
use anabranch_testkit::mutant;

use crate::device_api::ranks::{OPERATION, Ranks, WAVES, pointer, read};

pub(crate) fn arguments(
    ranks: &Ranks,
    rank: u32,
    log: &DeviceBuffer,
    case: AtomicCase,
    ways: AtomicWays,
) -> AtomicArgs {
    let run = AtomicRun::new(ranks.size(), ranks.wave);
    run.arguments((case, ways), ranks.team(rank), pointer(log), 0, OPERATION)
}

/// In each way in which ranks reach each other.
pub(crate) fn check(ranks: &mut Ranks, spec: &KernelSpec, case: AtomicCase) -> Result<(), String> {
    let size = ranks.size();
    if !ranks.have_nics() {
        return check_way(ranks, spec, case, AtomicWays::Mapped, |_| (0..size).collect());
    }
    // These map only their own memory.
    check_way(ranks, spec, case, AtomicWays::Mapped, |target| vec![target])?;
    check_way(ranks, spec, case, AtomicWays::Nic, |target| (0..size).filter(|rank| *rank != target).collect())
}

fn check_way(
    ranks: &mut Ranks,
    spec: &KernelSpec,
    case: AtomicCase,
    ways: AtomicWays,
    sources: impl Fn(u32) -> Vec<u32>,
) -> Result<(), String> {
    let run = AtomicRun::new(ranks.size(), ranks.wave);
    for rank in 0..run.ranks {
        let first = &run.first().to_le_bytes()[..case.element_bytes as usize];
        ranks.poke(rank, AtomicRun::WORDS, first);
    }
    ranks.fill();
    let logs = ranks.buffers(run.log_words() * 8);
    ranks.run_well(spec, ATOMICS, 1, run.threads(), |rank| {
        Some(arguments(ranks, rank, &logs[rank as usize], case, ways))
    });
    let logs: Vec<Vec<u64>> = logs.iter().map(read).collect();
    let after = |(before, target): (&Vec<u8>, u32)| {
        let found = ranks.heap(target);
        let after = run.after(case, target, &sources(target), before, &found, &logs);
        after.map_err(|wrong| wrong.to_string())
    };
    let expected: Vec<Vec<u8>> = ranks.initial.iter().zip(0..).map(after).collect::<Result<_, _>>()?;
    ranks.compare(&expected).map_err(|error| format!("{case:?}, {ways:?}: {error}"))
}

#[test]
fn contended_atomics_give_exact_totals() {
    for wave in WAVES {
        let mut ranks = Ranks::new(4, wave, 4096);
        for case in AtomicCase::all() {
            check(&mut ranks, &spec(&ATOMICS_UNIT), case).unwrap();
        }
    }
}

#[test]
fn mutants_are_caught() {
    let mut ranks = Ranks::new(2, 4, 4096);
    for (broken, kind, element_bytes) in [
        ("WIDE_ATOMIC", AtomicKind::Add, 4),
        ("WIDE_ATOMIC", AtomicKind::FetchAdd, 4),
        ("EVERY_LANE_SIGNALS", AtomicKind::SignalAdd, 8),
    ] {
        let case = AtomicCase { kind, element_bytes, is_signed: false };
        check(&mut ranks, &spec(&ATOMICS_UNIT), case).unwrap();
        assert!(
            check(&mut ranks, &spec(&ATOMICS_UNIT).edited(&mutant(broken)), case).is_err(),
            "{broken} of {kind:?}"
        );
    }
}

/// The oracle is told another story than what happened.
#[test]
fn wrong_old_values_are_noticed() {
    let run = AtomicRun::new(2, 4);
    let right: Vec<Vec<u64>> = (0..2)
        .map(|rank| {
            let mut log = vec![0; run.log_words()];
            for (index, three) in log.chunks_exact_mut(3).enumerate() {
                let calls = (run.participants * run.rounds) as usize;
                let number = (rank * calls + index % calls) as u64;
                three[0] = run.first().wrapping_add(number * run.value);
            }
            log
        })
        .collect();
    let case = AtomicCase { kind: AtomicKind::FetchAdd, element_bytes: 8, is_signed: false };
    let before = vec![0; run.bytes() as usize];
    run.after(case, 1, &[0, 1], &before, &before, &right).unwrap();
    for thread in [0, 5] {
        let mut wrong = right.clone();
        let at = ((run.participants + thread) * run.rounds * 3) as usize;
        wrong[1][at] = wrong[1][at].wrapping_add(run.value);
        run.after(case, 1, &[0, 1], &before, &before, &wrong).unwrap_err();
        run.after(case, 0, &[0, 1], &before, &before, &wrong).unwrap();
    }
}
