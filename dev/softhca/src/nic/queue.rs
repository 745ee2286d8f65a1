//! The send queue of a queue pair: entries and doorbells in the program's memory.

use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering, fence};
use std::sync::{Arc, Mutex, PoisonError};

use super::requester::Requester;
use super::{Alive, Nic};
use crate::prm::Syndrome;
use crate::prm::completion::{Completion, Ring};
use crate::prm::entry::{BLOCK, Control, SEGMENT, damage, decode, irregularities};

/// Doorbell registers of a page: from half of it on, at this distance (`MLX5_BF_OFFSET`, `MLX5_BF_SIZE` of rdma-core's `mlx5.h`).
const FIRST_REGISTER: usize = 0x800;
const REGISTER_BYTES: usize = 0x100;
const REGISTERS: usize = 4;

/// Where a queue lies.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place {
    /// The first entry.
    pub(crate) entries: usize,
    /// Blocks of 64 bytes, a power of two.
    pub(crate) blocks: u32,
    /// The word with the count of posted blocks (`MLX5_SND_DBR` of the doorbell record).
    pub(crate) record: usize,
    /// The page with the doorbell registers.
    pub(crate) page: usize,
}

/// A queue pair as the device sees it.
#[derive(Debug)]
pub(crate) struct SendQueue {
    number: u32,
    place: Place,
    completions: Arc<Mutex<Ring>>,
    alive: Alive,
    /// Blocks read so far.
    taken: u32,
    /// What the registers held when they were looked at last.
    rung: [u64; REGISTERS],
    /// Where its entries go; none before it is ready to send.
    peer: Option<Requester>,
    has_failed: bool,
    /// The error that stopped it; those of entries that were flushed after it do not count.
    first_error: Option<Syndrome>,
}

impl SendQueue {
    /// # Safety
    ///
    /// What `place` names is memory, aligned as a NIC wants it, that lives until the queue is dropped.
    pub(crate) unsafe fn new(number: u32, place: Place, completions: Arc<Mutex<Ring>>) -> Self {
        let alive = Arc::new(AtomicBool::new(true));
        Self {
            number,
            place,
            completions,
            alive,
            taken: 0,
            rung: [0; REGISTERS],
            peer: None,
            has_failed: false,
            first_error: None,
        }
    }

    pub(super) fn number(&self) -> u32 {
        self.number
    }

    pub(super) fn alive(&self) -> Alive {
        Arc::clone(&self.alive)
    }

    pub(super) fn connect(&mut self, socket: &Path) {
        self.peer = Some(Requester::connect(socket));
    }

    pub(super) fn fail(&mut self) {
        self.has_failed = true;
    }

    pub(super) fn first_error(&self) -> Option<Syndrome> {
        self.first_error
    }

    fn registers(&self) -> [u64; REGISTERS] {
        std::array::from_fn(|index| {
            let register = self.place.page + FIRST_REGISTER + index * REGISTER_BYTES;
            // SAFETY: the page lives and registers are aligned (contract of `new`); the program writes them at any time.
            unsafe { AtomicU64::from_ptr(register as *mut u64) }.load(Ordering::Acquire)
        })
    }

    /// How far the program says that it has posted, modulo 2^16.
    fn posted(&self, nic: &Nic) -> u16 {
        fence(Ordering::SeqCst);
        // SAFETY: the word lives and is aligned (contract of `new`); the program writes it at any time.
        let record = unsafe { AtomicU32::from_ptr(self.place.record as *mut u32) };
        let count = u32::from_be(record.load(Ordering::Acquire));
        if count > u16::MAX.into() {
            let number = self.number;
            nic.violations.add(format_args!("queue pair {number:#x}: a doorbell record of {count:#x}"));
        }
        count as u16
    }

    fn block(&self, index: u32) -> [u8; BLOCK] {
        let place = (index & (self.place.blocks - 1)) as usize;
        let mut bytes = [0; BLOCK];
        // SAFETY: the place lies within the queue, which lives (contract of `new`). The program does not write posted entries.
        unsafe {
            ((self.place.entries + place * BLOCK) as *const [u8; BLOCK])
                .copy_to_nonoverlapping(&raw mut bytes, 1);
        };
        bytes
    }

    /// Reads what was posted since the last doorbell; whether one was rung.
    pub(super) fn poll(&mut self, nic: &Nic) -> bool {
        let rung = self.registers();
        if rung == self.rung {
            return false;
        }
        let fresh: Vec<u64> =
            rung.iter().zip(self.rung).filter(|(now, before)| *now != before).map(|(now, _)| *now).collect();
        self.rung = rung;
        let mut left = u32::from(self.posted(nic).wrapping_sub(self.taken as u16));
        if left > self.place.blocks {
            let (number, blocks) = (self.number, self.place.blocks);
            nic.violations.add(format_args!("queue pair {number:#x}: {left} of {blocks} blocks are posted"));
            return true;
        }
        for doorbell in fresh {
            self.check_doorbell(nic, doorbell, left);
        }
        while left > 0 {
            let blocks = Control::of(&self.block(self.taken)).blocks();
            if blocks > left {
                let number = self.number;
                nic.violations.add(format_args!(
                    "queue pair {number:#x}: an entry of {blocks} blocks, of which {left} are posted"
                ));
                return true;
            }
            self.take(nic, blocks);
            left -= blocks;
        }
        true
    }

    /// A doorbell is the first 8 bytes of the last entry before it. One for an entry that is still to be read can be compared.
    fn check_doorbell(&self, nic: &Nic, doorbell: u64, left: u32) {
        let mut head = [0; SEGMENT];
        head[..8].copy_from_slice(&doorbell.to_ne_bytes());
        let control = Control::of(&head);
        let ahead = u32::from(control.index.wrapping_sub(self.taken as u16));
        if control.queue != self.number || ahead >= left {
            return;
        }
        let entry = self.block(self.taken.wrapping_add(ahead));
        if entry[..8] != head[..8] {
            nic.violations.add(format_args!(
                "queue pair {:#x}: the doorbell {:02x?} is not the begin of entry {}: {:02x?}",
                self.number,
                &head[..8],
                control.index,
                &entry[..8]
            ));
        }
    }

    /// Reads an entry of so many blocks, and does what it says.
    fn take(&mut self, nic: &Nic, blocks: u32) {
        let index = self.taken;
        self.taken = index.wrapping_add(blocks);
        let mut entry: Vec<u8> =
            (0..blocks).flat_map(|block| self.block(index.wrapping_add(block))).collect();
        if nic.is_damaged_entry() {
            damage(&mut entry);
        }
        let control = Control::of(&entry);
        entry.truncate(control.segments.max(1) * SEGMENT);
        for text in irregularities(&entry, self.number, index as u16) {
            nic.violations.add(text);
        }
        let was_flushed = self.has_failed;
        let result = self.execute(nic, &entry);
        if !was_flushed {
            self.first_error = result.err();
        }
        self.has_failed |= result.is_err();
        if control.is_signaled || was_flushed || result.is_err() {
            let completion =
                Completion { opcode: control.opcode, queue: self.number, counter: control.index, result };
            let mut ring = self.completions.lock().unwrap_or_else(PoisonError::into_inner);
            ring.push(completion, &nic.violations);
        }
    }

    fn execute(&mut self, nic: &Nic, entry: &[u8]) -> Result<u32, Syndrome> {
        if self.has_failed {
            return Err(Syndrome::FLUSHED);
        }
        let Some(peer) = &mut self.peer else {
            let number = self.number;
            nic.violations.add(format_args!("queue pair {number:#x}: an entry before it is ready to send"));
            return Err(Syndrome::LOCAL_QP_OPERATION);
        };
        peer.execute(&nic.memory, decode(entry)?)
    }
}

#[cfg(test)]
#[path = "queue_tests.rs"]
mod tests;
