//! What the host of a GPU submits by.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

use crate::amd::driver::RingPlace;
use crate::amd::queue::AmdQueue;
use crate::device_queue::Port;

/// The host's side of a queue: its ring and pointers, which stay as long as this does.
#[derive(Debug)]
pub(in crate::amd) struct HostPort {
    queue: Arc<AmdQueue>,
}

impl HostPort {
    pub(in crate::amd) fn new(queue: Arc<AmdQueue>) -> Self {
        Self { queue }
    }

    /// One of the queue's three words of 64 bits, by the method that says where it is.
    fn word_64(&self, place: fn(&AmdQueue) -> u64) -> &AtomicU64 {
        // SAFETY: 8 bytes that the driver says are mapped for the host as long as the queue is there, aligned to 8
        // (`DriverQueue::flaw`), and touched by Rust code in this file only, atomically.
        unsafe { AtomicU64::from_ptr(place(&self.queue) as *mut u64) }
    }

    /// A word of the ring. Places beyond its end are those after its start again, so that none is outside.
    fn word_32(&self, place: u64) -> &AtomicU32 {
        let inside = (place % self.queue.ring_bytes()) & !3;
        // SAFETY: inside the ring, which is mapped for the host as long as the queue is there and a whole number of words;
        // its start is aligned to 8; Rust code touches it in this file only, atomically.
        unsafe { AtomicU32::from_ptr((self.queue.ring_address() + inside) as *mut u32) }
    }
}

impl Port for HostPort {
    fn write(&self, place: u64, words: &[u32]) {
        for (word, index) in words.iter().zip(0..) {
            self.word_32(place + index * 4).store(*word, Ordering::Relaxed);
        }
        if self.queue.ring_place() == RingPlace::Device {
            // Stores to the GPU's memory are write-combined, and may arrive after the doorbell: a fence empties what
            // combines them, and a load from there waits for those before it (`PcieWcFlush` of ROCr does the same).
            fence(Ordering::SeqCst);
            let last = (words.len() as u64).saturating_sub(1) * 4;
            self.word_32(place + last).load(Ordering::Acquire);
        }
    }

    fn publish(&self, end: u64) {
        self.word_64(AmdQueue::write_pointer).store(end, Ordering::Release);
        // The doorbell is memory of the device, and no earlier store of the host may arrive after it.
        fence(Ordering::SeqCst);
        self.word_64(AmdQueue::doorbell).store(end, Ordering::Release);
    }
}
