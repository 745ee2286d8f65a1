//! Cases of put, get and their kin, of every size, alignment and peer, and what heaps hold behind them.
//!
//! Pure: from the same state every rank draws the same cases for all ranks, and knows what its own heap has to hold.

use super::{CopyCase, draw};

/// Lengths in bytes: around every width that copies are made of.
pub const SIZES: [u64; 16] = [0, 1, 2, 3, 4, 7, 8, 15, 16, 17, 31, 33, 255, 4095, 4096, 4097];
/// Bytes on either side of what is copied, which no case names.
const CANARY: u64 = 64;

/// An operation of [`COPY`](super::COPY); its number is the kernel's `kind`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum CopyKind {
    /// Returns when the source may be overwritten.
    Put = 0,
    /// The same, completed by quiet.
    PutNbi = 1,
    /// Returns when the bytes are here.
    Get = 2,
    /// The same, completed by quiet.
    GetNbi = 3,
    /// A put with a signal behind it.
    PutSignal = 4,
    /// The same, completed by quiet.
    PutSignalNbi = 5,
    /// One value.
    P = 6,
    /// One value, fetched.
    G = 7,
}

impl CopyKind {
    /// All of them, in the order of their numbers.
    pub const ALL: [Self; 8] = [
        Self::Put,
        Self::PutNbi,
        Self::Get,
        Self::GetNbi,
        Self::PutSignal,
        Self::PutSignalNbi,
        Self::P,
        Self::G,
    ];

    /// Whether bytes come from the peer.
    pub fn is_get(self) -> bool {
        matches!(self, Self::Get | Self::GetNbi | Self::G)
    }

    /// Whether a signal follows the bytes.
    pub fn signals(self) -> bool {
        matches!(self, Self::PutSignal | Self::PutSignalNbi)
    }

    /// Whether it is of one value of 1, 2, 4 or 8 bytes, by a thread alone.
    pub fn is_value(self) -> bool {
        matches!(self, Self::P | Self::G)
    }
}

/// Deals out places of a region that every rank has, none twice.
#[derive(Debug)]
pub struct Places {
    next: Vec<u64>,
    signal: Vec<u64>,
    signal_bytes: u64,
}

impl Places {
    /// Room for the signals of `signals` copies to each rank, and behind it what is dealt out.
    pub fn new(ranks: u32, signals: u64) -> Self {
        let signal_bytes = (16 * signals).next_multiple_of(16);
        Self { next: vec![signal_bytes; ranks as usize], signal: vec![0; ranks as usize], signal_bytes }
    }

    /// The offset of `bytes` bytes with canaries around them, `phase` bytes behind a multiple of 16.
    pub fn take(&mut self, rank: u32, bytes: u64, phase: u64) -> u64 {
        let next = &mut self.next[rank as usize];
        let place = (*next + CANARY).next_multiple_of(16) + phase;
        *next = place + bytes + CANARY;
        place
    }

    fn signal(&mut self, rank: u32) -> u64 {
        let next = &mut self.signal[rank as usize];
        *next += 16;
        debug_assert!(*next <= self.signal_bytes, "more signals than there is room for");
        *next - 16
    }

    /// Bytes of the region that holds all that was dealt out at any rank.
    pub fn bytes(&self) -> u64 {
        self.next.iter().copied().max().unwrap_or(0) + CANARY
    }
}

/// The copies of each rank, and bytes of the region that they lie in. Offsets count from the region's start.
#[derive(Clone, Debug)]
pub struct Copies {
    /// `[rank][case]`.
    pub of_rank: Vec<Vec<CopyCase>>,
    /// Bytes of the region.
    pub bytes: u64,
}

impl Copies {
    /// Of every size, from every rank to every rank (itself too), at alignments drawn from the state; half of them have source and target
    /// equally aligned. Values come in every width, at every natural alignment within 16 bytes.
    pub fn draw(kind: CopyKind, ranks: u32, state: &mut u64) -> Self {
        if kind.is_value() { Self::values(ranks, state) } else { Self::bulk(kind, ranks, state) }
    }

    fn bulk(kind: CopyKind, ranks: u32, state: &mut u64) -> Self {
        let mut places = Places::new(ranks, 2 * SIZES.len() as u64 * u64::from(ranks));
        let mut of_rank = vec![Vec::new(); ranks as usize];
        for bytes in SIZES {
            for (rank, peer, mutual) in triples(ranks) {
                let drawn = draw(state);
                let near = drawn % 16;
                let far = if mutual { near } else { (drawn >> 8) % 16 };
                let remote = places.take(peer, bytes, far);
                let local = places.take(rank, bytes, near);
                let signal = if kind.signals() { places.signal(peer) } else { 0 };
                let signal_op = ((drawn >> 16) % 2) as u32;
                let value = drawn >> 20;
                of_rank[rank as usize].push(CopyCase {
                    remote,
                    local,
                    bytes,
                    signal,
                    value,
                    peer,
                    signal_op,
                });
            }
        }
        Self { of_rank, bytes: places.bytes() }
    }

    fn values(ranks: u32, state: &mut u64) -> Self {
        let mut places = Places::new(ranks, 0);
        let mut of_rank = vec![Vec::new(); ranks as usize];
        for bytes in [1, 2, 4, 8] {
            for (rank, peer) in (0..ranks).flat_map(|rank| (0..ranks).map(move |peer| (rank, peer))) {
                for phase in (0..16).step_by(bytes as usize) {
                    let remote = places.take(peer, bytes, phase);
                    let local = places.take(rank, bytes, phase);
                    let value = draw(state);
                    let case = CopyCase { remote, local, bytes, signal: 0, value, peer, signal_op: 0 };
                    of_rank[rank as usize].push(case);
                }
            }
        }
        Self { of_rank, bytes: places.bytes() }
    }

    /// What each rank's region holds behind the copies, from what all held before; regions of [`Self::bytes`] or more.
    pub fn after(&self, kind: CopyKind, before: &[Vec<u8>]) -> Vec<Vec<u8>> {
        after(kind, before, &self.of_rank)
    }
}

/// Rank, peer, and whether source and target are equally aligned.
fn triples(ranks: u32) -> impl Iterator<Item = (u32, u32, bool)> {
    (0..ranks).flat_map(move |rank| {
        (0..ranks).flat_map(move |peer| [true, false].map(|mutual| (rank, peer, mutual)))
    })
}

/// What regions hold behind copies that have nothing in common with each other.
pub fn after(kind: CopyKind, before: &[Vec<u8>], cases: &[Vec<CopyCase>]) -> Vec<Vec<u8>> {
    let mut after = before.to_vec();
    for (rank, case) in
        cases.iter().enumerate().flat_map(|(rank, cases)| cases.iter().map(move |case| (rank, case)))
    {
        let peer = case.peer as usize;
        let (remote, local, bytes) = (case.remote as usize, case.local as usize, case.bytes as usize);
        if kind == CopyKind::P {
            after[peer][remote..remote + bytes].copy_from_slice(&case.value.to_le_bytes()[..bytes]);
        } else if kind.is_get() {
            after[rank][local..local + bytes].copy_from_slice(&before[peer][remote..remote + bytes]);
        } else {
            after[peer][remote..remote + bytes].copy_from_slice(&before[rank][local..local + bytes]);
        }
        if kind.signals() {
            let word = case.signal as usize..case.signal as usize + 8;
            let old = word_of(&before[peer][word.clone()]);
            let new = if case.signal_op == 0 { case.value } else { old.wrapping_add(case.value) };
            after[peer][word].copy_from_slice(&new.to_le_bytes());
        }
    }
    after
}

/// A little-endian word of at most eight bytes.
pub(super) fn word_of(bytes: &[u8]) -> u64 {
    bytes.iter().rev().fold(0, |word, byte| word << 8 | u64::from(*byte))
}
