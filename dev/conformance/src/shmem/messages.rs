//! Messages between all pairs, round after round: data before signal, source reuse, slot reuse.

use anabranch_hip_jit::DevicePointer;

use super::{MessageArgs, draw};
use anabranch_shmem::TeamView;

/// A way of sending of [`MESSAGE`](super::MESSAGE); its number is the kernel's `mode`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum MessageMode {
    /// put, quiet, signal.
    PutQuietSignal = 0,
    /// `put_signal`.
    PutSignal = 1,
    /// `put_signal_nbi`.
    PutSignalNbi = 2,
    /// put, fence, signal: by a thread alone.
    PutFenceSignal = 3,
}

impl MessageMode {
    /// All of them, in the order of their numbers.
    pub const ALL: [Self; 4] =
        [Self::PutQuietSignal, Self::PutSignal, Self::PutSignalNbi, Self::PutFenceSignal];
}

/// Device memory of a rank that a run reads and writes.
#[derive(Clone, Copy, Debug)]
pub struct MessageBuffers {
    /// [`MessageRun::length`] bytes: what the rank sends.
    pub prepared: DevicePointer<u8>,
    /// [`MessageRun::staging`] bytes.
    pub staging: DevicePointer<u8>,
    /// [`MessageRun::length`] bytes: what came; written.
    pub log: DevicePointer<u8>,
    /// `[2 * ranks]`; written.
    pub statuses: DevicePointer<u32>,
}

/// Sizes of a run. Two blocks a rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MessageRun {
    /// Ranks of the team.
    pub ranks: u32,
    /// Bytes of a message.
    pub bytes: u32,
    /// Messages a pair.
    pub rounds: u32,
}

impl MessageRun {
    /// Bytes from one message's place to the next.
    pub fn stride(&self) -> u32 {
        (self.bytes + 61).next_multiple_of(8)
    }

    /// Where the `[ranks]` words of arrived messages lie in the region.
    pub fn arrived(&self) -> u64 {
        0
    }

    /// Where the `[ranks]` words of consumed messages lie.
    pub fn consumed(&self) -> u64 {
        u64::from(self.ranks) * 8
    }

    /// Where the slots lie: not aligned to anything.
    pub fn slots(&self) -> u64 {
        (self.consumed() + u64::from(self.ranks) * 8).next_multiple_of(64) + 67
    }

    /// Bytes of the region.
    pub fn region_bytes(&self) -> u64 {
        self.slots() + u64::from(self.ranks * self.stride()) + 64
    }

    /// Bytes of `prepared` and of `log`: `[rounds][ranks][stride]`.
    pub fn length(&self) -> usize {
        (self.rounds * self.ranks * self.stride()) as usize
    }

    /// Bytes of `staging`: `[ranks][stride]`.
    pub fn staging(&self) -> usize {
        (self.ranks * self.stride()) as usize
    }

    /// The kernel's arguments on a rank, for a region at this offset of the heap: by this mode, at the scope of this number, with signals that
    /// set (0) or add (1).
    pub fn arguments(
        &self,
        (mode, scope, signal_op): (MessageMode, u32, u32),
        team: TeamView,
        buffers: MessageBuffers,
        region: u64,
        operation: u32,
    ) -> MessageArgs {
        let MessageBuffers { prepared, staging, log, statuses } = buffers;
        MessageArgs {
            team,
            prepared,
            staging,
            log,
            statuses,
            slots: region + self.slots(),
            arrived: region + self.arrived(),
            consumed: region + self.consumed(),
            bytes: self.bytes,
            stride: self.stride(),
            rounds: self.rounds,
            mode: mode as u32,
            scope,
            signal_op,
            operation,
            reserved: 0,
        }
    }

    /// What each rank sends, drawn from the state; the same at all ranks.
    pub fn draw(&self, state: &mut u64) -> Vec<Vec<u8>> {
        (0..self.ranks).map(|_| (0..self.length()).map(|_| draw(state) as u8).collect()).collect()
    }

    fn message<'a>(&self, of: &'a [u8], round: u32, place: u32) -> &'a [u8] {
        let at = ((round * self.ranks + place) * self.stride()) as usize;
        &of[at..at + self.bytes as usize]
    }

    /// The first message in `log`, what `rank` received, that is not what was sent: its round and sender.
    pub fn wrong(&self, rank: u32, prepared: &[Vec<u8>], log: &[u8]) -> Option<(u32, u32)> {
        let pairs = (0..self.rounds).flat_map(|round| (0..self.ranks).map(move |from| (round, from)));
        pairs.into_iter().find(|&(round, from)| {
            self.message(log, round, from) != self.message(&prepared[from as usize], round, rank)
        })
    }

    /// What `rank`'s region holds behind the run, from what it held before: the last round in the slots, and the counts.
    pub fn after(&self, rank: u32, before: &[u8], prepared: &[Vec<u8>]) -> Vec<u8> {
        let mut after = before.to_vec();
        for (peer, sent) in (0..self.ranks).zip(prepared) {
            for words in [self.arrived(), self.consumed()] {
                let at = words as usize + peer as usize * 8;
                after[at..at + 8].copy_from_slice(&u64::from(self.rounds).to_le_bytes());
            }
            if let Some(last) = self.rounds.checked_sub(1) {
                let slot = (self.slots() + u64::from(peer * self.stride())) as usize;
                after[slot..slot + self.bytes as usize].copy_from_slice(self.message(sent, last, rank));
            }
        }
        after
    }
}
