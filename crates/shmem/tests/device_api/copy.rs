//! put, get and their kin: operation x scope x size x alignment x peer, with whole heaps compared.

use anabranch_conformance::shmem::{
    COPY, COPY_UNIT, Copies, CopyArgs, CopyCase, CopyKind, Places, after, spec,
};
use anabranch_hip_jit::KernelSpec;
use anabranch_testkit::mutant;

use crate::device_api::ranks::{OPERATION, Ranks, WAVES, pointer, read};

pub(crate) const HEAP: usize = 1 << 20;
pub(crate) const SCOPES: [u32; 3] = [0, 1, 2];

/// Every scope that has the operation.
pub(crate) fn scopes(kind: CopyKind) -> &'static [u32] {
    if kind.is_value() { &SCOPES[..1] } else { &SCOPES }
}

pub(crate) fn copies(ranks: u32, kind: CopyKind, state: &mut u64) -> Vec<Vec<CopyCase>> {
    let copies = Copies::draw(kind, ranks, state);
    assert!(copies.bytes <= HEAP as u64, "the heap is too small for the cases");
    copies.of_rank
}

/// Runs the cases and compares every byte of every heap.
pub(crate) fn check(
    ranks: &mut Ranks,
    spec: &KernelSpec,
    kind: CopyKind,
    scope: u32,
    cases: &[Vec<CopyCase>],
) -> Result<(), String> {
    let grid = (2, ranks.block_threads());
    check_on(ranks, spec, kind, scope, cases, grid)
}

/// The same with so many blocks of so many threads.
pub(crate) fn check_on(
    ranks: &mut Ranks,
    spec: &KernelSpec,
    kind: CopyKind,
    scope: u32,
    cases: &[Vec<CopyCase>],
    (blocks, threads): (u32, u32),
) -> Result<(), String> {
    ranks.fill();
    let buffers: Vec<_> =
        cases.iter().enumerate().map(|(rank, cases)| ranks.buffer(rank as u32, cases)).collect();
    let statuses: Vec<_> = cases
        .iter()
        .enumerate()
        .map(|(rank, cases)| ranks.buffer(rank as u32, &vec![u32::MAX; cases.len()]))
        .collect();
    let arguments = |rank: u32| {
        Some(CopyArgs {
            team: ranks.team(rank),
            cases: pointer(&buffers[rank as usize]),
            statuses: pointer(&statuses[rank as usize]),
            case_count: cases[rank as usize].len() as u32,
            kind: kind as u32,
            scope,
            operation: OPERATION,
        })
    };
    ranks.run_well(spec, COPY, blocks, threads, arguments);
    for statuses in &statuses {
        assert!(read::<u32>(statuses).iter().all(|status| *status == 0));
    }
    let expected = after(kind, &ranks.initial, cases);
    ranks.compare(&expected).map_err(|error| format!("{kind:?}, scope {scope}: {error}"))
}

/// One copy between rank 0 and a peer, without a signal's meaning.
pub(crate) fn one(peer: u32, remote: u64, local: u64, bytes: u64) -> CopyCase {
    CopyCase { remote, local, bytes, signal: 0, value: 1, peer, signal_op: 0 }
}

/// Rank 0 alone does it, by one thread; whatever comes of it.
pub(crate) fn launch_one(ranks: &Ranks, spec: &KernelSpec, kind: CopyKind, case: &CopyCase) {
    let buffer = ranks.buffer(0, std::slice::from_ref(case));
    let statuses = ranks.buffer(0, &[u32::MAX]);
    ranks.run(spec, COPY, 1, ranks.wave, |rank| {
        (rank == 0).then(|| CopyArgs {
            team: ranks.team(rank),
            cases: pointer(&buffer),
            statuses: pointer(&statuses),
            case_count: 1,
            kind: kind as u32,
            scope: 0,
            operation: OPERATION,
        })
    });
    assert_ne!(read::<u32>(&statuses)[0], 0, "it was refused");
}

fn matrix(wave: u32) {
    let mut state = u64::from(wave);
    for size in [2, 3] {
        let mut ranks = Ranks::new(size, wave, HEAP);
        for kind in CopyKind::ALL {
            for scope in scopes(kind) {
                let cases = copies(size, kind, &mut state);
                check(&mut ranks, &spec(&COPY_UNIT), kind, *scope, &cases).unwrap();
            }
        }
    }
}

#[test]
#[ignore = "extended"]
fn every_copy_at_every_scope_with_waves_of_1() {
    matrix(WAVES[0]);
}

#[test]
fn every_copy_at_every_scope_with_waves_of_4() {
    matrix(WAVES[1]);
}

#[test]
#[ignore = "extended"]
fn every_copy_at_every_scope_with_waves_of_32() {
    matrix(WAVES[2]);
}

#[test]
#[ignore = "extended"]
fn every_copy_at_every_scope_with_waves_of_64() {
    matrix(WAVES[3]);
}

#[test]
fn all_pairs_of_phases_and_a_world_of_one() {
    for size in [1, 4] {
        let mut ranks = Ranks::new(size, 4, HEAP);
        let mut places = Places::new(size, 0);
        let mut cases = vec![Vec::new(); size as usize];
        for phase in 0..256 {
            for rank in 0..size {
                let peer = (rank + 1) % size;
                let remote = places.take(peer, 67, phase % 16);
                let local = places.take(rank, 67, phase / 16);
                let case = CopyCase { remote, local, bytes: 67, signal: 0, value: 0, peer, signal_op: 0 };
                cases[rank as usize].push(case);
            }
        }
        assert!(places.bytes() <= HEAP as u64);
        check(&mut ranks, &spec(&COPY_UNIT), CopyKind::Put, 1, &cases).unwrap();
        check(&mut ranks, &spec(&COPY_UNIT), CopyKind::Get, 2, &cases).unwrap();
    }
}

#[test]
fn a_large_odd_copy_arrives_whole() {
    let bytes = (1 << 20) + 5;
    let mut ranks = Ranks::new(2, 32, 4 << 20);
    // To the other rank mutually aligned, to itself not.
    let one = |remote, local, peer| CopyCase {
        remote,
        local,
        bytes,
        signal: 8 * u64::from(peer),
        value: 9,
        peer,
        signal_op: 0,
    };
    let place = (1 << 20) + 8192;
    let cases =
        |far: u64| vec![vec![one(place + far, 3 + 4096, 1)], vec![one(place * 2 + 9 + far, 4096 + 2, 1)]];
    check(&mut ranks, &spec(&COPY_UNIT), CopyKind::PutSignal, 2, &cases(11)).unwrap();
    check(&mut ranks, &spec(&COPY_UNIT), CopyKind::Get, 1, &cases(4)).unwrap();
}

#[test]
#[ignore = "extended"]
fn mutants_are_caught() {
    let mut ranks = Ranks::new(2, 4, HEAP);
    let mut state = 5;
    for (broken, kind, scope) in [
        ("LENGTH_PLUS_ONE", CopyKind::Put, 1),
        ("LENGTH_PLUS_ONE", CopyKind::Get, 0),
        ("LENGTH_MINUS_ONE", CopyKind::Put, 2),
        ("LENGTH_MINUS_ONE", CopyKind::GetNbi, 1),
        ("WRONG_PEER", CopyKind::PutNbi, 2),
        ("WRONG_PEER", CopyKind::G, 0),
        ("EMPTY_IS_SILENT", CopyKind::PutSignal, 2),
        ("EMPTY_IS_SILENT", CopyKind::PutSignalNbi, 0),
        ("EVERY_LANE_SIGNALS", CopyKind::PutSignal, 1),
        ("EVERY_LANE_SIGNALS", CopyKind::PutSignal, 2),
    ] {
        let cases = copies(2, kind, &mut state);
        check(&mut ranks, &spec(&COPY_UNIT), kind, scope, &cases).unwrap();
        let found = check(&mut ranks, &spec(&COPY_UNIT).edited(&mutant(broken)), kind, scope, &cases);
        assert!(found.is_err(), "{broken} of {kind:?} at scope {scope} was not noticed");
    }
}
