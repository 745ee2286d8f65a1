//! Atomics that every thread of every rank does to the same words: exact totals, each old value handed out once, neighbours untouched.

use anabranch_hip_jit::DevicePointer;

use super::copies::word_of;
use super::{AtomicArgs, mixed};
use anabranch_shmem::TeamView;

/// An operation of [`ATOMICS`](super::ATOMICS); its number is the kernel's `kind`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum AtomicKind {
    /// Adds.
    Add = 0,
    /// Adds and fetches.
    FetchAdd = 1,
    /// Each participant its bit.
    Or = 2,
    /// Each participant takes its bit away.
    And = 3,
    /// Each participant its bit, an odd number of times.
    Xor = 4,
    /// `fetch_or`, `fetch_xor` and `fetch_and` of a bit of one's own.
    FetchBits = 5,
    /// Tokens that are handed on.
    Swap = 6,
    /// A count that goes up by comparing.
    CompareSwap = 7,
    /// A word of one's own, read back.
    SetFetch = 8,
    /// Signals that add, at every scope.
    SignalAdd = 9,
}

impl AtomicKind {
    /// All of them, in the order of their numbers.
    pub const ALL: [Self; 10] = [
        Self::Add,
        Self::FetchAdd,
        Self::Or,
        Self::And,
        Self::Xor,
        Self::FetchBits,
        Self::Swap,
        Self::CompareSwap,
        Self::SetFetch,
        Self::SignalAdd,
    ];
}

/// An operation on words of one type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AtomicCase {
    /// The operation.
    pub kind: AtomicKind,
    /// 4 or 8.
    pub element_bytes: u32,
    /// Whether the words are signed.
    pub is_signed: bool,
}

impl AtomicCase {
    /// Every operation with each of the four types; signals are of 64 bits.
    pub fn all() -> impl Iterator<Item = Self> {
        AtomicKind::ALL.into_iter().flat_map(|kind| {
            let types = [(8, false), (8, true), (4, false), (4, true)].into_iter();
            let types = types.take(if kind == AtomicKind::SignalAdd { 1 } else { 4 });
            types.map(move |(element_bytes, is_signed)| Self { kind, element_bytes, is_signed })
        })
    }

    fn mask(self) -> u64 {
        if self.element_bytes == 4 { u64::from(u32::MAX) } else { u64::MAX }
    }

    /// What the kernel logs for a value: signed words are widened with their sign.
    fn logged(self, value: u64) -> u64 {
        let value = value & self.mask();
        let signed = self.element_bytes == 4 && self.is_signed;
        if signed { i64::from(value as u32 as i32).cast_unsigned() } else { value }
    }
}

/// Which members a run is to. A word is worked on in one way: NICs' operations are atomic among themselves, and not all are so with
/// respect to a GPU's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum AtomicWays {
    /// Those whose memory is mapped, itself too.
    Mapped = 1,
    /// Those by NIC.
    Nic = 2,
}

/// Who takes part, how often. One block a rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AtomicRun {
    /// Ranks of the team.
    pub ranks: u32,
    /// Lanes of a wave.
    pub wave: u32,
    /// Threads of a rank that take part.
    pub participants: u32,
    /// Operations of a thread on each rank; odd.
    pub rounds: u32,
    /// What is added.
    pub value: u64,
}

impl AtomicRun {
    /// Where the words lie in the region, bytes from its start.
    pub const WORDS: u64 = 256;
    /// The most ranks: each has a bit of 32 at least.
    pub const MOST_RANKS: u32 = 32;

    /// Eight threads a rank, fewer where a word has not bits for all. At most [`Self::MOST_RANKS`] ranks.
    pub fn new(ranks: u32, wave: u32) -> Self {
        Self { ranks, wave, participants: (32 / ranks.max(1)).clamp(1, 8), rounds: 21, value: 7 }
    }

    /// Bytes of the region.
    pub fn bytes(&self) -> u64 {
        Self::WORDS + u64::from((2 * self.ranks * self.participants).max(6)) * 8 + Self::WORDS
    }

    /// Threads of the block.
    pub fn threads(&self) -> u32 {
        self.participants.next_multiple_of(self.wave).max(2 * self.wave)
    }

    /// Words of a rank's log.
    pub fn log_words(&self) -> usize {
        (self.ranks * self.participants * self.rounds * 3) as usize
    }

    /// What the first word holds before: it overflows under way, and only its own bytes may change.
    pub fn first(&self) -> u64 {
        u64::MAX - 99
    }

    /// The kernel's arguments on a rank, for a region at this offset of the heap and a log of [`Self::log_words`].
    pub fn arguments(
        &self,
        (case, ways): (AtomicCase, AtomicWays),
        team: TeamView,
        log: DevicePointer<u64>,
        region: u64,
        operation: u32,
    ) -> AtomicArgs {
        AtomicArgs {
            team,
            log,
            words: region + Self::WORDS,
            value: self.value,
            participants: self.participants,
            rounds: self.rounds,
            kind: case.kind as u32,
            element_bytes: case.element_bytes,
            is_signed: u32::from(case.is_signed),
            operation,
            ways: ways as u32,
            reserved: 0,
        }
    }

    /// What `target`'s region holds behind the operations of `sources`, the ranks that reach it in the run's way, from what it held
    /// `before` (with [`Self::first`] at [`Self::WORDS`]). `logs` are all ranks', `found` is the region as it is: which token came last is
    /// not determined.
    ///
    /// # Errors
    /// Old values that cannot have been handed out.
    pub fn after(
        &self,
        case: AtomicCase,
        target: u32,
        sources: &[u32],
        before: &[u8],
        found: &[u8],
        logs: &[Vec<u64>],
    ) -> Result<Vec<u8>, WrongOldValues> {
        let mut after = before.to_vec();
        let width = case.element_bytes as usize;
        let mut set = |element: u64, value: u64| {
            let at = Self::WORDS as usize + element as usize * width;
            after[at..at + width].copy_from_slice(&value.to_le_bytes()[..width]);
        };
        match case.kind {
            AtomicKind::SetFetch => self.set_words(case, target, sources, logs, &mut set)?,
            AtomicKind::SignalAdd => {
                let lanes = u64::from(self.threads());
                let calls = u64::from(self.rounds) * sources.len() as u64;
                for (element, groups) in [(0, lanes), (2, lanes / u64::from(self.wave)), (4, 1)] {
                    let at = Self::WORDS as usize + element as usize * 8;
                    let old = word_of(&before[at..at + 8]);
                    set(element, old.wrapping_add(groups * calls * self.value));
                }
            }
            _ => set(0, self.last_word(case, target, sources, found, logs)?),
        }
        Ok(after)
    }

    /// Old values of one thread, three a round.
    fn of_thread<'a>(
        &self,
        logs: &'a [Vec<u64>],
        rank: u32,
        thread: u32,
        target: u32,
    ) -> impl Iterator<Item = [u64; 3]> + use<'a> {
        let at = ((target * self.participants + thread) * self.rounds * 3) as usize;
        let log = &logs[rank as usize][at..at + (self.rounds * 3) as usize];
        log.chunks_exact(3).map(|three| [three[0], three[1], three[2]])
    }

    /// Ranks and threads that take part.
    fn threads_of<'a>(&self, sources: &'a [u32]) -> impl Iterator<Item = (u32, u32)> + use<'a> {
        let participants = self.participants;
        sources.iter().flat_map(move |rank| (0..participants).map(move |thread| (*rank, thread)))
    }

    /// One of the three, from all of them, sorted.
    fn sorted(&self, logs: &[Vec<u64>], target: u32, sources: &[u32], which: usize) -> Vec<u64> {
        let threads = self.threads_of(sources);
        let of = |(rank, thread)| self.of_thread(logs, rank, thread, target).map(move |three| three[which]);
        let mut values: Vec<u64> = threads.flat_map(of).collect();
        values.sort_unstable();
        values
    }

    /// The word's last value, after the logged values were found right.
    fn last_word(
        &self,
        case: AtomicCase,
        target: u32,
        sources: &[u32],
        found: &[u8],
        logs: &[Vec<u64>],
    ) -> Result<u64, WrongOldValues> {
        let (first, value) = (self.first(), self.value);
        let calls = sources.len() as u64 * u64::from(self.participants * self.rounds);
        let number = |(rank, thread)| rank * self.participants + thread;
        let bits = self.threads_of(sources).fold(0, |bits, thread| bits | 1u64 << number(thread));
        let wrong = WrongOldValues { case, target };
        let same = |right: bool| if right { Ok(()) } else { Err(wrong) };
        let handed_out = |step: u64| {
            let mut olds: Vec<u64> = (0..calls).map(|n| case.logged(first.wrapping_add(n * step))).collect();
            olds.sort_unstable();
            same(self.sorted(logs, target, sources, 0) == olds)
        };
        match case.kind {
            AtomicKind::Add => {
                let sum: u64 = sources.iter().map(|rank| u64::from(rank + 1)).sum();
                Ok(first.wrapping_add(sum * value * u64::from(self.participants * self.rounds)))
            }
            AtomicKind::FetchAdd => handed_out(value).map(|()| first.wrapping_add(calls * value)),
            AtomicKind::CompareSwap => handed_out(1).map(|()| first.wrapping_add(calls)),
            AtomicKind::Or => Ok(first | bits),
            AtomicKind::And => Ok(first & !bits),
            AtomicKind::Xor => Ok(first ^ bits), // an odd number of times
            AtomicKind::FetchBits => {
                for (rank, thread) in self.threads_of(sources) {
                    let number = number((rank, thread));
                    let mut before = first >> number & 1;
                    for olds in self.of_thread(logs, rank, thread, target) {
                        same(olds.map(|old| old >> number & 1) == [before, 1, 0])?;
                        before = 0;
                    }
                }
                Ok(first & !bits)
            }
            AtomicKind::Swap => {
                // Every token, and the first value, is handed out once or is the last.
                let at = Self::WORDS as usize;
                let last = word_of(&found[at..at + case.element_bytes as usize]);
                let mut seen = self.sorted(logs, target, sources, 0);
                seen.push(case.logged(last));
                let mut given = self.sorted(logs, target, sources, 1);
                given.push(case.logged(first));
                seen.sort_unstable();
                given.sort_unstable();
                same(seen == given).map(|()| last)
            }
            AtomicKind::SetFetch | AtomicKind::SignalAdd => Err(wrong),
        }
    }

    /// Each thread has a word of its own, two elements apart, and reads back what it set.
    fn set_words(
        &self,
        case: AtomicCase,
        target: u32,
        sources: &[u32],
        logs: &[Vec<u64>],
        set: &mut impl FnMut(u64, u64),
    ) -> Result<(), WrongOldValues> {
        for (rank, thread) in self.threads_of(sources) {
            let number = rank * self.participants + thread;
            for (olds, round) in self.of_thread(logs, rank, thread, target).zip(0..) {
                let at = u64::from((target * self.participants + thread) * self.rounds + round) * 3;
                let put = mixed(self.value + u64::from(number) + at);
                if olds[0] != case.logged(put) || olds[1] != olds[0] {
                    return Err(WrongOldValues { case, target });
                }
                set(u64::from(2 * number), put);
            }
        }
        Ok(())
    }
}

/// Old values of an operation on the words of `target` that no order of the operations explains.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{case:?}: the old values at rank {target} fit no order of the operations")]
pub struct WrongOldValues {
    pub case: AtomicCase,
    pub target: u32,
}
