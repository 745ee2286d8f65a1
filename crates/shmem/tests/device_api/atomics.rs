//! Atomics contended by every thread of every rank: exact totals, each old value handed out once, neighbours untouched.

use anabranch_hip::DeviceBuffer;
use anabranch_hip_jit::KernelSpec;
use anabranch_shmem::device_api::Mutant;
use anabranch_shmem::device_api::conformance::{ATOMICS, AtomicArgs, mutant, spec};

use crate::ranks::{OPERATION, Ranks, WAVES, mixed, pointer, read};

pub(crate) const ENTRY: &str = "anabranch_shmem_conformance_atomics";
const WORDS: u64 = 256;
const PARTICIPANTS: u32 = 8;
const ROUNDS: u32 = 21;
const VALUE: u64 = 7;

pub(crate) const ADD: u32 = 0;
pub(crate) const FETCH_ADD: u32 = 1;
pub(crate) const OR: u32 = 2;
const AND: u32 = 3;
const XOR: u32 = 4;
const FETCH_BITS: u32 = 5;
pub(crate) const SWAP: u32 = 6;
const COMPARE_SWAP: u32 = 7;
pub(crate) const SET_FETCH: u32 = 8;
pub(crate) const SIGNAL_ADD: u32 = 9;

#[derive(Clone, Copy, Debug)]
pub(crate) struct Case {
    pub(crate) kind: u32,
    pub(crate) bytes: u32,
    pub(crate) signed: bool,
}

impl Case {
    fn mask(self) -> u64 {
        if self.bytes == 4 { u64::from(u32::MAX) } else { u64::MAX }
    }

    /// What the kernel logs for a value: signed words are widened with their sign.
    fn logged(self, value: u64) -> u64 {
        let value = value & self.mask();
        if self.bytes == 4 && self.signed { i64::from(value as u32 as i32).cast_unsigned() } else { value }
    }
}

/// Old values of one thread: `[target][round][3]`, by rank and thread.
struct Logs {
    all: Vec<Vec<u64>>,
}

impl Logs {
    fn of(&self, rank: u32, thread: u32, target: u32) -> impl Iterator<Item = [u64; 3]> {
        let at = (target * PARTICIPANTS + thread) * ROUNDS * 3;
        let log = &self.all[rank as usize][at as usize..][..(ROUNDS * 3) as usize];
        log.chunks(3).map(|three| [three[0], three[1], three[2]])
    }

    /// One of the three, from everybody, sorted.
    fn sorted(&self, target: u32, which: usize) -> Vec<u64> {
        let mut values: Vec<u64> = (0..self.all.len() as u32)
            .flat_map(|rank| (0..PARTICIPANTS).map(move |thread| (rank, thread)))
            .flat_map(|(rank, thread)| self.of(rank, thread, target).map(|three| three[which]))
            .collect();
        values.sort_unstable();
        values
    }
}

/// Of unsigned words.
pub(crate) fn arguments(ranks: &Ranks, rank: u32, log: &DeviceBuffer, kind: u32, bytes: u32) -> AtomicArgs {
    AtomicArgs {
        team: ranks.team(rank),
        log: pointer(log),
        words: WORDS,
        value: VALUE,
        participants: PARTICIPANTS,
        rounds: ROUNDS,
        kind,
        element_bytes: bytes,
        is_signed: 0,
        operation: OPERATION,
    }
}

fn threads(ranks: &Ranks) -> u32 {
    PARTICIPANTS.next_multiple_of(ranks.wave).max(2 * ranks.wave)
}

pub(crate) fn check(ranks: &mut Ranks, spec: &KernelSpec, case: Case) -> Result<(), String> {
    let size = ranks.size();
    // The words overflow under way: only their own bytes may change.
    let initial = u64::MAX - 99;
    for rank in 0..size {
        ranks.poke(rank, WORDS, &initial.to_le_bytes()[..case.bytes as usize]);
    }
    ranks.fill();
    let logs = ranks.buffers((size * PARTICIPANTS * ROUNDS * 3 * 8) as usize);
    let value = VALUE;
    ranks.run_well(spec, ENTRY, 1, threads(ranks), |rank| {
        let of_rank = arguments(ranks, rank, &logs[rank as usize], case.kind, case.bytes);
        Some(AtomicArgs { is_signed: u32::from(case.signed), ..of_rank })
    });
    let logs = Logs { all: logs.iter().map(read).collect() };
    let mut expected = ranks.initial.clone();
    for (target, heap) in expected.iter_mut().enumerate() {
        let found = ranks.heap(target as u32);
        let mut set = |element: u64, value: u64| {
            let at = (WORDS + element * u64::from(case.bytes)) as usize;
            heap[at..at + case.bytes as usize].copy_from_slice(&value.to_le_bytes()[..case.bytes as usize]);
        };
        match case.kind {
            SET_FETCH => set_words(&logs, target as u32, size, case, value, &mut set)?,
            SIGNAL_ADD => {
                let lanes = u64::from(threads(ranks));
                let calls = u64::from(ROUNDS * size);
                for (element, groups) in [(0, lanes), (2, lanes / u64::from(ranks.wave)), (4, 1)] {
                    let at = (WORDS + element * 8) as usize;
                    let old = u64::from_le_bytes(ranks.initial[target][at..at + 8].try_into().unwrap());
                    set(element, old.wrapping_add(groups * calls * value));
                }
            }
            _ => set(0, final_word(&logs, &found, target as u32, size, case, initial, value)?),
        }
    }
    ranks.compare(&expected).map_err(|error| format!("{case:?}: {error}"))
}

/// The word's last value, after the logged values were found right.
fn final_word(
    logs: &Logs,
    found: &[u8],
    target: u32,
    size: u32,
    case: Case,
    initial: u64,
    value: u64,
) -> Result<u64, String> {
    let calls = u64::from(size * PARTICIPANTS * ROUNDS);
    let bits = (0..size * PARTICIPANTS).fold(0, |bits, number| bits | 1u64 << number);
    let same =
        |right: bool| if right { Ok(()) } else { Err(format!("{case:?}: old values at rank {target}")) };
    let handed_out = |step: u64| {
        let mut olds: Vec<u64> = (0..calls).map(|n| case.logged(initial.wrapping_add(n * step))).collect();
        olds.sort_unstable();
        same(logs.sorted(target, 0) == olds)
    };
    match case.kind {
        ADD => {
            let sum: u64 = (1..=u64::from(size)).sum();
            Ok(initial.wrapping_add(sum * value * u64::from(PARTICIPANTS * ROUNDS)))
        }
        FETCH_ADD => handed_out(value).map(|()| initial.wrapping_add(calls * value)),
        COMPARE_SWAP => handed_out(1).map(|()| initial.wrapping_add(calls)),
        OR => Ok(initial | bits),
        AND => Ok(initial & !bits),
        XOR => Ok(initial ^ bits), // an odd number of times
        FETCH_BITS => {
            for number in 0..size * PARTICIPANTS {
                let mut before = initial >> number & 1;
                for olds in logs.of(number / PARTICIPANTS, number % PARTICIPANTS, target) {
                    same(olds.map(|old| old >> number & 1) == [before, 1, 0])?;
                    before = 0;
                }
            }
            Ok(initial & !bits)
        }
        SWAP => {
            // Every token, and the first value, is handed out once or is the last.
            let width = case.bytes as usize;
            let mut bytes = [0; 8];
            bytes[..width].copy_from_slice(&found[WORDS as usize..WORDS as usize + width]);
            let last = u64::from_le_bytes(bytes);
            let mut seen = logs.sorted(target, 0);
            seen.push(case.logged(last));
            let mut given = logs.sorted(target, 1);
            given.push(case.logged(initial));
            seen.sort_unstable();
            given.sort_unstable();
            same(seen == given).map(|()| last)
        }
        kind => Err(format!("no oracle for kind {kind}")),
    }
}

/// Each thread has a word of its own, two elements apart, and reads back what it set.
fn set_words(
    logs: &Logs,
    target: u32,
    size: u32,
    case: Case,
    value: u64,
    set: &mut impl FnMut(u64, u64),
) -> Result<(), String> {
    for number in 0..size * PARTICIPANTS {
        let thread = number % PARTICIPANTS;
        for (round, olds) in logs.of(number / PARTICIPANTS, thread, target).enumerate() {
            let at = u64::from((target * PARTICIPANTS + thread) * ROUNDS + round as u32) * 3;
            let put = mixed(value + u64::from(number) + at);
            if olds[0] != case.logged(put) || olds[1] != olds[0] {
                return Err(format!("{case:?}: thread {number} fetched {:#x}, not {put:#x}", olds[0]));
            }
            set(u64::from(2 * number), put);
        }
    }
    Ok(())
}

#[test]
fn contended_atomics_give_exact_totals() {
    for wave in WAVES {
        let mut ranks = Ranks::new(4, wave, 4096);
        for kind in ADD..=SET_FETCH {
            for (bytes, signed) in [(4, false), (4, true), (8, false), (8, true)] {
                check(&mut ranks, &spec(&ATOMICS), Case { kind, bytes, signed }).unwrap();
            }
        }
        check(&mut ranks, &spec(&ATOMICS), Case { kind: SIGNAL_ADD, bytes: 8, signed: false }).unwrap();
    }
}

#[test]
fn broken_twins_are_noticed() {
    let mut ranks = Ranks::new(2, 4, 4096);
    for (broken, kind, bytes) in [
        (Mutant::WideAtomic, ADD, 4),
        (Mutant::WideAtomic, FETCH_ADD, 4),
        (Mutant::EveryLaneSignals, SIGNAL_ADD, 8),
    ] {
        let case = Case { kind, bytes, signed: false };
        check(&mut ranks, &spec(&ATOMICS), case).unwrap();
        assert!(check(&mut ranks, &mutant(&ATOMICS, broken), case).is_err(), "{broken:?} of kind {kind}");
    }
}
