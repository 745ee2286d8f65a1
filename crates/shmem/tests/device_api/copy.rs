//! put, get and their kin: operation x scope x size x alignment x peer, with whole heaps compared.

use anabranch_hip_jit::KernelSpec;
use anabranch_shmem::device_api::Mutant;
use anabranch_shmem::device_api::conformance::{COPY, CopyArgs, CopyCase, mutant, spec};

use crate::ranks::{OPERATION, Ranks, WAVES, next, pointer, read};

const ENTRY: &str = "anabranch_shmem_conformance_copy";
const SIZES: [u64; 16] = [0, 1, 2, 3, 4, 7, 8, 15, 16, 17, 31, 33, 255, 4095, 4096, 4097];
const CANARY: u64 = 64;
pub(crate) const HEAP: usize = 1 << 20;
/// Signal words lie here; what is copied lies behind.
const SIGNAL_BYTES: u64 = 8192;

pub(crate) const PUT: u32 = 0;
pub(crate) const GET: u32 = 2;
pub(crate) const PUT_SIGNAL: u32 = 4;
pub(crate) const P: u32 = 6;
pub(crate) const G: u32 = 7;
pub(crate) const SCOPES: [u32; 3] = [0, 1, 2];

fn is_get(kind: u32) -> bool {
    kind == GET || kind == GET + 1 || kind == G
}

fn signals(kind: u32) -> bool {
    kind == PUT_SIGNAL || kind == PUT_SIGNAL + 1
}

/// Deals out places of the heaps that no two cases share.
struct Places {
    next: Vec<u64>,
    signal: Vec<u64>,
}

impl Places {
    fn new(ranks: u32) -> Self {
        Self { next: vec![SIGNAL_BYTES; ranks as usize], signal: vec![0; ranks as usize] }
    }

    /// A place with canaries around it, `phase` bytes behind a multiple of 16.
    fn take(&mut self, rank: u32, bytes: u64, phase: u64) -> u64 {
        let next = &mut self.next[rank as usize];
        let place = (*next + CANARY).next_multiple_of(16) + phase;
        *next = place + bytes + CANARY;
        place
    }

    fn signal(&mut self, rank: u32) -> u64 {
        self.signal[rank as usize] += 16;
        self.signal[rank as usize] - 16
    }
}

/// Copies of every size to every peer, at alignments drawn from the state. Half of them are mutually aligned.
pub(crate) fn copies(ranks: u32, kind: u32, state: &mut u64) -> Vec<Vec<CopyCase>> {
    let mut places = Places::new(ranks);
    let mut all = vec![Vec::new(); ranks as usize];
    for bytes in SIZES {
        for rank in 0..ranks {
            for peer in 0..ranks {
                for mutual in [true, false] {
                    let drawn = next(state);
                    let near = drawn % 16;
                    let far = if mutual { near } else { (drawn >> 8) % 16 };
                    let remote = places.take(peer, bytes, far);
                    let local = places.take(rank, bytes, near);
                    let signal = if signals(kind) { places.signal(peer) } else { 0 };
                    let signal_op = ((drawn >> 16) % 2) as u32;
                    all[rank as usize].push(CopyCase {
                        remote,
                        local,
                        bytes,
                        signal,
                        value: drawn >> 20,
                        peer,
                        signal_op,
                    });
                }
            }
        }
    }
    check_places(&places);
    all
}

/// Values of every width, naturally aligned.
pub(crate) fn values(ranks: u32, state: &mut u64) -> Vec<Vec<CopyCase>> {
    let mut places = Places::new(ranks);
    let mut all = vec![Vec::new(); ranks as usize];
    for bytes in [1, 2, 4, 8] {
        for rank in 0..ranks {
            for peer in 0..ranks {
                for phase in (0..16).step_by(bytes as usize) {
                    let remote = places.take(peer, bytes, phase);
                    let local = places.take(rank, bytes, phase);
                    let value = next(state);
                    all[rank as usize].push(CopyCase {
                        remote,
                        local,
                        bytes,
                        signal: 0,
                        value,
                        peer,
                        signal_op: 0,
                    });
                }
            }
        }
    }
    check_places(&places);
    all
}

fn check_places(places: &Places) {
    assert!(
        places.next.iter().all(|next| *next + CANARY <= HEAP as u64),
        "the heap is too small for the cases"
    );
    assert!(places.signal.iter().all(|next| *next <= SIGNAL_BYTES), "too many signals");
}

/// What the heaps hold afterwards.
fn oracle(ranks: &Ranks, kind: u32, cases: &[Vec<CopyCase>]) -> Vec<Vec<u8>> {
    let before = &ranks.initial;
    let mut after = before.clone();
    for (rank, cases) in cases.iter().enumerate() {
        for case in cases {
            let peer = case.peer as usize;
            let (remote, local, bytes) = (case.remote as usize, case.local as usize, case.bytes as usize);
            if kind == P {
                after[peer][remote..remote + bytes].copy_from_slice(&case.value.to_le_bytes()[..bytes]);
            } else if is_get(kind) {
                after[rank][local..local + bytes].copy_from_slice(&before[peer][remote..remote + bytes]);
            } else {
                after[peer][remote..remote + bytes].copy_from_slice(&before[rank][local..local + bytes]);
            }
            if signals(kind) {
                let word = case.signal as usize..case.signal as usize + 8;
                let old = u64::from_le_bytes(before[peer][word.clone()].try_into().unwrap());
                let new = if case.signal_op == 0 { case.value } else { old.wrapping_add(case.value) };
                after[peer][word].copy_from_slice(&new.to_le_bytes());
            }
        }
    }
    after
}

/// Runs the cases and compares every byte of every heap.
pub(crate) fn check(
    ranks: &mut Ranks,
    spec: &KernelSpec,
    kind: u32,
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
    kind: u32,
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
            kind,
            scope,
            operation: OPERATION,
        })
    };
    ranks.run_well(spec, ENTRY, blocks, threads, arguments);
    for statuses in &statuses {
        assert!(read::<u32>(statuses).iter().all(|status| *status == 0));
    }
    ranks.compare(&oracle(ranks, kind, cases)).map_err(|error| format!("kind {kind}, scope {scope}: {error}"))
}

/// One copy between rank 0 and a peer, without a signal's meaning.
pub(crate) fn one(peer: u32, remote: u64, local: u64, bytes: u64) -> CopyCase {
    CopyCase { remote, local, bytes, signal: 0, value: 1, peer, signal_op: 0 }
}

/// Rank 0 alone does it, by one thread; whatever comes of it.
pub(crate) fn launch_one(ranks: &Ranks, spec: &KernelSpec, kind: u32, case: &CopyCase) {
    let buffer = ranks.buffer(0, std::slice::from_ref(case));
    let statuses = ranks.buffer(0, &[u32::MAX]);
    ranks.run(spec, ENTRY, 1, ranks.wave, |rank| {
        (rank == 0).then(|| CopyArgs {
            team: ranks.team(rank),
            cases: pointer(&buffer),
            statuses: pointer(&statuses),
            case_count: 1,
            kind,
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
        for kind in PUT..=PUT_SIGNAL + 1 {
            for scope in SCOPES {
                let cases = copies(size, kind, &mut state);
                check(&mut ranks, &spec(&COPY), kind, scope, &cases).unwrap();
            }
        }
        for kind in [P, G] {
            let cases = values(size, &mut state);
            check(&mut ranks, &spec(&COPY), kind, 0, &cases).unwrap();
        }
    }
}

#[test]
fn every_copy_at_every_scope_with_waves_of_1() {
    matrix(WAVES[0]);
}

#[test]
fn every_copy_at_every_scope_with_waves_of_4() {
    matrix(WAVES[1]);
}

#[test]
fn every_copy_at_every_scope_with_waves_of_32() {
    matrix(WAVES[2]);
}

#[test]
fn every_copy_at_every_scope_with_waves_of_64() {
    matrix(WAVES[3]);
}

#[test]
fn all_pairs_of_phases_and_a_world_of_one() {
    for size in [1, 4] {
        let mut ranks = Ranks::new(size, 4, HEAP);
        let mut places = Places::new(size);
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
        check_places(&places);
        check(&mut ranks, &spec(&COPY), PUT, 1, &cases).unwrap();
        check(&mut ranks, &spec(&COPY), GET, 2, &cases).unwrap();
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
    check(&mut ranks, &spec(&COPY), PUT_SIGNAL, 2, &cases(11)).unwrap();
    check(&mut ranks, &spec(&COPY), GET, 1, &cases(4)).unwrap();
}

#[test]
fn broken_twins_are_noticed() {
    let mut ranks = Ranks::new(2, 4, HEAP);
    let mut state = 5;
    for (broken, kind, scope) in [
        (Mutant::LengthPlusOne, PUT, 1),
        (Mutant::LengthPlusOne, GET, 0),
        (Mutant::LengthMinusOne, PUT, 2),
        (Mutant::LengthMinusOne, GET + 1, 1),
        (Mutant::WrongPeer, PUT + 1, 2),
        (Mutant::WrongPeer, G, 0),
        (Mutant::EmptyIsSilent, PUT_SIGNAL, 2),
        (Mutant::EmptyIsSilent, PUT_SIGNAL + 1, 0),
        (Mutant::EveryLaneSignals, PUT_SIGNAL, 1),
        (Mutant::EveryLaneSignals, PUT_SIGNAL, 2),
    ] {
        let cases = if kind >= P { values(2, &mut state) } else { copies(2, kind, &mut state) };
        check(&mut ranks, &spec(&COPY), kind, scope, &cases).unwrap();
        let found = check(&mut ranks, &mutant(&COPY, broken), kind, scope, &cases);
        assert!(found.is_err(), "{broken:?} of kind {kind} at scope {scope} was not noticed");
    }
}
