//! The producers' side of a ring, for any number of host threads.
//!
//! A producer takes room, fills it, and makes it known in the order in which room was taken. What it takes at once is one
//! operation, copies and their signal together: no other operation's packets lie between.
//!
//! 1. It takes room by moving `reserved` on, only when the engine has read far enough: what is taken is never given back.
//! 2. It writes what fills the ring's end, its packets, and what fills its last unit. No other producer writes there: `reserved` gave
//!    each position to one producer, and the engine has left it, since the read pointer, loaded with acquire, is behind.
//! 3. It waits until `committed` is where its operation starts: everything before is written and known.
//! 4. It publishes (write pointer, then doorbell), and moves `committed` on, with release. Doorbells are therefore rung in
//!    ascending order, and after the acquire of step 3 the words of all producers before are there too.
//!
//! A producer whose wait expires in step 1 has taken nothing, and the queue continues. One whose wait expires in step 3 has taken
//! room that it will not publish: from then on the queue has failed, for all producers, and the engine never sees that operation
//! nor any later one.

use std::sync::Arc;

#[cfg(loom)]
use loom::sync::atomic::{AtomicBool, AtomicU64, Ordering};
#[cfg(not(loom))]
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::error::Error;
use crate::format::nop;
use crate::ring::{Placement, Ring};

/// What a queue and its engine share.
pub trait Port: Send + Sync {
    /// The position up to which the engine has read, with acquire.
    fn read_pointer(&self) -> u64;

    /// Stores words at a place of the ring, in bytes from its start. They end at the ring's end at the latest.
    fn write(&self, place: u64, words: &[u32]);

    /// Lets the engine read up to this position: the write pointer, then the doorbell, after all words that this
    /// thread wrote or has seen to be written.
    fn publish(&self, end: u64);
}

impl<P: Port + ?Sized> Port for Arc<P> {
    fn read_pointer(&self) -> u64 {
        (**self).read_pointer()
    }

    fn write(&self, place: u64, words: &[u32]) {
        (**self).write(place, words);
    }

    fn publish(&self, end: u64) {
        (**self).publish(end);
    }
}

/// Why an operation did not get into a queue. It is not done, and nothing of it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum QueueError {
    /// The operation is too long for the ring.
    #[error(transparent)]
    Operation(#[from] Error),
    /// The engine did not read on, so that no room came free.
    #[error(
        "the queue is full: the engine has read up to {read}, {reserved} is taken, and {words} words more are wanted"
    )]
    Full {
        /// The engine's read pointer.
        read: u64,
        /// The end of what is taken.
        reserved: u64,
        /// Words of the operation.
        words: usize,
    },
    /// Another producer took room before this one and did not make its packets known.
    #[error(
        "the queue has failed: packets at {committed} were not submitted, and packets at {start} wait for them"
    )]
    Stuck {
        /// Up to where packets are known.
        committed: u64,
        /// Where this operation stands.
        start: u64,
    },
    /// A producer gave up earlier, and the queue with it.
    #[error("the queue has failed: a producer gave up")]
    Failed,
}

/// A ring and its producers.
#[derive(Debug)]
pub struct Queue<P> {
    ring: Ring,
    port: P,
    reserved: AtomicU64,
    committed: AtomicU64,
    /// A read pointer that was observed.
    read: AtomicU64,
    failed: AtomicBool,
}

impl<P: Port> Queue<P> {
    /// An empty queue. The engine's pointers are zero.
    pub fn new(ring: Ring, port: P) -> Self {
        Self {
            ring,
            port,
            reserved: AtomicU64::new(0),
            committed: AtomicU64::new(0),
            read: AtomicU64::new(0),
            failed: AtomicBool::new(false),
        }
    }

    /// The ring.
    pub fn ring(&self) -> Ring {
        self.ring
    }

    /// What it shares with its engine.
    pub fn port(&self) -> &P {
        &self.port
    }

    /// Puts the words of whole packets into the queue, next to each other, and gives the position at their end: when the engine's
    /// read pointer has come there, it has read them. Any thread, any number at once.
    ///
    /// `patience` is asked whenever there is nothing to do but wait, between two looks; it may sleep, and ends the wait by
    /// returning false.
    ///
    /// No words are no operation: there is nothing to wait for.
    ///
    /// # Errors
    /// [`QueueError`]; the engine then never does any of the packets.
    pub fn submit(&self, words: &[u32], mut patience: impl FnMut() -> bool) -> Result<u64, QueueError> {
        if self.failed.load(Ordering::Acquire) {
            return Err(QueueError::Failed);
        }
        if words.is_empty() {
            return Ok(self.reserved.load(Ordering::Relaxed));
        }
        let placed = self.reserve(words.len(), &mut patience)?;
        self.fill(&placed, words);
        self.commit(&placed, &mut patience)?;
        Ok(placed.end)
    }

    fn reserve(&self, words: usize, patience: &mut impl FnMut() -> bool) -> Result<Placement, QueueError> {
        let mut start = self.reserved.load(Ordering::Relaxed);
        loop {
            let placed = self.ring.place_words(start, words as u64)?;
            // Room is what the acquire below has seen to be left, here or in the thread that left the hint.
            if !self.ring.has_room(&placed, self.read.load(Ordering::Acquire)) {
                let read = self.port.read_pointer();
                self.read.fetch_max(read, Ordering::AcqRel);
                if !self.ring.has_room(&placed, read) {
                    if self.failed.load(Ordering::Acquire) {
                        return Err(QueueError::Failed);
                    }
                    if !patience() {
                        return Err(QueueError::Full { read, reserved: start, words });
                    }
                    start = self.reserved.load(Ordering::Relaxed);
                    continue;
                }
            }
            match self.reserved.compare_exchange_weak(start, placed.end, Ordering::Relaxed, Ordering::Relaxed)
            {
                Ok(_) => return Ok(placed),
                Err(now) => start = now,
            }
        }
    }

    /// Writes what a reservation holds: the padding, the packets, and what fills the last unit.
    fn fill(&self, placed: &Placement, words: &[u32]) {
        self.pass_over(placed.start, placed.padding / 4);
        let first = placed.first();
        self.port.write(self.ring.place(first), words);
        let end = first + words.len() as u64 * 4;
        self.pass_over(end, (placed.end - end) / 4);
    }

    /// Words that the engine passes over: one that says how many follow, as often as it takes.
    fn pass_over(&self, from: u64, words: u64) {
        let longest = nop::SKIP.most() + 1;
        for first in (0..words).step_by(longest as usize) {
            let skip = (words - first).min(longest) - 1;
            let head = nop::FORMAT.op | (skip as u32) << nop::SKIP.shift;
            self.port.write(self.ring.place(from + first * 4), &[head]);
        }
    }

    fn commit(&self, placed: &Placement, patience: &mut impl FnMut() -> bool) -> Result<(), QueueError> {
        loop {
            let committed = self.committed.load(Ordering::Acquire);
            if committed == placed.start {
                break;
            }
            if self.failed.load(Ordering::Acquire) {
                return Err(QueueError::Failed);
            }
            if !patience() {
                self.failed.store(true, Ordering::Release);
                return Err(QueueError::Stuck { committed, start: placed.start });
            }
        }
        self.port.publish(placed.end);
        self.committed.store(placed.end, Ordering::Release);
        Ok(())
    }

    /// The position up to which packets are known to the engine.
    pub fn committed(&self) -> u64 {
        self.committed.load(Ordering::Acquire)
    }
}

#[cfg(all(test, not(loom)))]
mod tests;

#[cfg(all(test, loom))]
mod loom_tests;
