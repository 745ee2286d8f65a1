//! The host's side of a queue that kernels write: requests, doorbell, completion words.

use std::sync::atomic::{AtomicU64, Ordering};

use anabranch_hip::{Device, DeviceAddress, HostBuffer};

use crate::posted::{POSTED_COMPLETION_WORDS, PostedRequest};

/// Bytes of an entry.
const ENTRY: usize = size_of::<PostedRequest>();
/// Words of an entry.
const ENTRY_WORDS: usize = ENTRY / size_of::<u64>();
/// Distance of the completion words from the entries, and of the doorbell from them: each is written by another side than its
/// neighbours, so each has lines of its own (128 bytes is the largest line of the processors and GPUs in question).
const APART: usize = 128;

const _: () =
    assert!(POSTED_COMPLETION_WORDS as usize * size_of::<u64>() <= APART, "the completion words have a line");

/// A ring in pinned memory of the host.
#[derive(Debug)]
pub(crate) struct Ring {
    memory: HostBuffer,
    entries: usize,
}

impl Ring {
    /// A ring of `entries`, a power of two, with all words zero.
    ///
    /// # Errors
    /// The runtime's, for want of pinned memory.
    pub(crate) fn new(device: &Device, entries: u32) -> anabranch_hip::Result<Self> {
        debug_assert!(entries.is_power_of_two(), "the driver checked the number of entries");
        let entries = entries as usize;
        let bytes = entries * ENTRY + 2 * APART;
        let memory = device.allocate_host(bytes)?;
        memory.write(0, &vec![0; bytes])?;
        Ok(Self { memory, entries })
    }

    /// Entries.
    pub(crate) fn entries(&self) -> u64 {
        self.entries as u64
    }

    /// Where kernels find the entries.
    pub(crate) fn entries_address(&self) -> DeviceAddress {
        self.memory.device_address()
    }

    /// Where kernels find the completion words.
    pub(crate) fn completions_address(&self) -> DeviceAddress {
        self.memory.device_address().offset(self.completions() as u64)
    }

    /// Where kernels find the doorbell.
    pub(crate) fn doorbell_address(&self) -> DeviceAddress {
        self.memory.device_address().offset(self.doorbell() as u64)
    }

    /// The position up to which kernels have filled entries.
    pub(crate) fn filled(&self) -> u64 {
        // Acquire: what the kernel stored before the doorbell is visible after this load.
        self.word(self.doorbell()).load(Ordering::Acquire)
    }

    /// The entry at a position, if its stamp says that it is of this lap. It stays unchanged until its completion is reported.
    pub(crate) fn request(&self, position: u64) -> Option<PostedRequest> {
        let first = (position % self.entries()) as usize * ENTRY;
        // Acquire: the rest of the entry was stored before its stamp.
        let stamp = self.word(first).load(Ordering::Acquire);
        if stamp != position.wrapping_add(1) {
            return None;
        }
        let mut words = [stamp; ENTRY_WORDS];
        for (index, word) in words.iter_mut().enumerate().skip(1) {
            *word = self.word(first + index * size_of::<u64>()).load(Ordering::Relaxed);
        }
        Some(bytemuck::cast(words))
    }

    /// What kernels have filled and was not reported as complete: how many entries, the position of the oldest, and the oldest itself, where
    /// its stamp is of this lap.
    pub(crate) fn incomplete(&self) -> Option<(u64, u64, Option<PostedRequest>)> {
        let oldest = self.word(self.completions()).load(Ordering::Acquire);
        let count = self.filled().checked_sub(oldest).filter(|count| *count > 0)?;
        Some((count, oldest, self.request(oldest)))
    }

    /// Reports to kernels that all entries before `position` are complete.
    pub(crate) fn complete(&self, position: u64) {
        // Release: what the NIC brought is there before kernels know of it.
        self.word(self.completions()).store(position, Ordering::Release);
    }

    /// Reports to kernels that the entry at `position` failed and that no more will complete.
    pub(crate) fn fail(&self, position: u64, status: u32) {
        let told = (position << 8) | u64::from(status.saturating_add(1).min(0xff));
        self.word(self.completions() + size_of::<u64>()).store(told, Ordering::Release);
    }

    fn completions(&self) -> usize {
        self.entries * ENTRY
    }

    fn doorbell(&self) -> usize {
        self.entries * ENTRY + APART
    }

    /// A word; `offset` is one that the functions above computed.
    fn word(&self, offset: usize) -> &AtomicU64 {
        debug_assert!(
            offset.is_multiple_of(8) && offset + 8 <= self.memory.len(),
            "an offset of this ring's layout"
        );
        // SAFETY: the offsets above are multiples of 8 within the `entries * ENTRY + 2 * APART` bytes of the buffer, which is page
        // aligned and lives as long as the reference; all access by the host is atomic.
        unsafe { AtomicU64::from_ptr(self.memory.as_ptr().add(offset).cast()) }
    }
}
