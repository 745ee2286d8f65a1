//! Completions (CQE) of 64 bytes, and the ring that the NIC writes them into.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use super::Syndrome;
use crate::violations::Violations;

pub(crate) const BYTES: usize = 64;
/// Where the fields lie: `struct mlx5_cqe64` and `struct mlx5_err_cqe` of rdma-core's `mlx5dv.h`.
const BYTE_COUNT: usize = 44;
const VENDOR_SYNDROME: usize = 54;
const SYNDROME: usize = 55;
const OPCODE_AND_QUEUE: usize = 56;
const ENTRY_COUNTER: usize = 60;
const OPCODE_AND_OWNER: usize = 63;
/// What `op_own` says: `MLX5_CQE_REQ`, `MLX5_CQE_REQ_ERR`.
const REQUEST: u8 = 0;
const REQUEST_ERROR: u8 = 13;
/// Any number: what it means is the vendor's secret.
pub(crate) const SOME_VENDOR_SYNDROME: u8 = 0x88;
/// Bits of the consumer counter in a doorbell record (`mlx5_cq_set_ci`).
const CONSUMER_MASK: u32 = 0x00ff_ffff;

/// What is told of an entry.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Completion {
    pub(crate) opcode: u8,
    pub(crate) queue: u32,
    /// The entry's index, modulo 2^16.
    pub(crate) counter: u16,
    /// Bytes moved, or what went wrong.
    pub(crate) result: Result<u32, Syndrome>,
}

impl Completion {
    fn encode(self, owner: u8) -> [u8; BYTES] {
        let mut bytes = [0; BYTES];
        let kind = match self.result {
            Ok(count) => {
                bytes[BYTE_COUNT..BYTE_COUNT + 4].copy_from_slice(&count.to_be_bytes());
                REQUEST
            }
            Err(Syndrome(syndrome)) => {
                bytes[VENDOR_SYNDROME] = SOME_VENDOR_SYNDROME;
                bytes[SYNDROME] = syndrome;
                REQUEST_ERROR
            }
        };
        let word = u32::from(self.opcode) << 24 | self.queue;
        bytes[OPCODE_AND_QUEUE..OPCODE_AND_QUEUE + 4].copy_from_slice(&word.to_be_bytes());
        bytes[ENTRY_COUNTER..ENTRY_COUNTER + 2].copy_from_slice(&self.counter.to_be_bytes());
        bytes[OPCODE_AND_OWNER] = kind << 4 | owner;
        bytes
    }
}

/// A completion queue in the program's memory.
#[derive(Debug)]
pub(crate) struct Ring {
    address: usize,
    /// A power of two.
    entries: u32,
    /// Whether every completion overwrites the first place (`cqc.cc`).
    collapsed: bool,
    /// Where the program counts what it has taken, unless the queue may be overrun (`cqc.oi`).
    consumer: Option<usize>,
    produced: u32,
}

impl Ring {
    /// # Safety
    ///
    /// `address` is `entries` completions of memory, and `consumer` a word, both aligned, which live as long as the ring is written.
    pub(crate) unsafe fn new(address: usize, entries: u32, collapsed: bool, consumer: Option<usize>) -> Self {
        Self { address, entries, collapsed, consumer, produced: 0 }
    }

    fn is_full(&self) -> bool {
        let Some(consumer) = self.consumer else { return false };
        // SAFETY: the word lives and is aligned (contract of `new`); the program may write it at any time, so it is read as an atomic.
        let consumer = unsafe { AtomicU32::from_ptr(consumer as *mut u32) };
        let taken = u32::from_be(consumer.load(Ordering::Acquire));
        (self.produced.wrapping_sub(taken) & CONSUMER_MASK) >= self.entries
    }

    /// Writes a completion, its last word last.
    pub(crate) fn push(&mut self, completion: Completion, violations: &Violations) {
        if self.is_full() {
            violations.add(format_args!(
                "the completion queue of {} entries is overrun by {completion:?}",
                self.entries
            ));
            return;
        }
        let (place, owner) = if self.collapsed {
            (0, 0)
        } else {
            (self.produced & (self.entries - 1), ((self.produced / self.entries) & 1) as u8)
        };
        self.produced = self.produced.wrapping_add(1);
        let bytes = completion.encode(owner);
        let at = (self.address + place as usize * BYTES) as *mut u64;
        for (index, word) in bytes.chunks_exact(8).enumerate() {
            let mut value = [0; 8];
            value.copy_from_slice(word);
            // SAFETY: the place lies within the ring and is aligned (contract of `new`).
            let word = unsafe { AtomicU64::from_ptr(at.add(index)) };
            // The last one has the owner bit: the program reads the rest behind it.
            word.store(u64::from_ne_bytes(value), Ordering::Release);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DONE: Completion = Completion { opcode: 8, queue: 0x123, counter: 0x4567, result: Ok(64) };

    fn violations() -> Violations {
        Violations::new(&std::env::temp_dir())
    }

    #[test]
    fn the_owner_changes_with_each_lap() {
        let mut memory = vec![0u64; 2 * 8];
        let address = memory.as_mut_ptr() as usize;
        // SAFETY: the memory is two completions, and lives.
        let mut ring = unsafe { Ring::new(address, 2, false, None) };
        for _ in 0..3 {
            ring.push(DONE, &violations());
        }
        let bytes: &[u8] = bytemuck::cast_slice(&memory);
        assert_eq!((bytes[63], bytes[64 + 63]), (1, 0));
        assert_eq!(bytes[44..48], 64u32.to_be_bytes());
        assert_eq!(bytes[56..62], [8, 0, 1, 0x23, 0x45, 0x67]);
    }

    #[test]
    fn errors_have_syndrome_and_opcode_and_a_collapsed_queue_keeps_the_last() {
        let mut memory = vec![0u64; 8];
        let address = memory.as_mut_ptr() as usize;
        // SAFETY: the memory is one completion, and lives.
        let mut ring = unsafe { Ring::new(address, 1, true, None) };
        ring.push(DONE, &violations());
        ring.push(Completion { result: Err(Syndrome::REMOTE_ACCESS), ..DONE }, &violations());
        let bytes: &[u8] = bytemuck::cast_slice(&memory);
        assert_eq!((bytes[55], bytes[63]), (0x13, 13 << 4));
    }

    #[test]
    fn a_full_queue_is_a_violation() {
        let folder = std::env::temp_dir().join(format!("softhca-full-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let violations = Violations::new(&folder);
        let mut memory = vec![0u64; 2 * 8];
        let mut taken = 0u32;
        let (address, consumer) = (memory.as_mut_ptr() as usize, &raw mut taken as usize);
        // SAFETY: the memory is two completions, the word is one, and both live.
        let mut ring = unsafe { Ring::new(address, 2, false, Some(consumer)) };
        ring.push(DONE, &violations);
        ring.push(DONE, &violations);
        assert!(violations.list().is_empty());
        ring.push(DONE, &violations);
        assert_eq!(violations.list().len(), 1);
        assert!(std::fs::read_to_string(folder.join("violations")).unwrap().contains("overrun"));
        std::fs::remove_dir_all(folder).unwrap();
    }
}
