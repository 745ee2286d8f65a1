//! What a kernel does with a queue, by the host.

use core::time::Duration;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use anabranch_clock::{Moment, sleep};
use anabranch_hip::DeviceAddress;
use anabranch_transport_rdma::{NicQueue, PostedRequest, QueueWords};
use anyhow::{Result, bail, ensure};

/// No request of this program takes so long, unless something hangs.
const LONGEST_WAIT: Duration = Duration::from_secs(30);

/// How a queue ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Failed {
    pub(crate) position: u64,
    pub(crate) status: u32,
}

/// The producer of one queue.
#[derive(Debug)]
pub(crate) struct Producer {
    pub(crate) queue: Arc<dyn NicQueue>,
    words: QueueWords,
    next: u64,
}

impl Producer {
    pub(crate) fn new(queue: Arc<dyn NicQueue>) -> Self {
        let words = queue.words();
        Self { queue, words, next: 0 }
    }

    /// Entries of the ring.
    pub(crate) fn entries(&self) -> u64 {
        u64::from(self.words.entries)
    }

    /// Fills an entry, once there is room, and returns its position. The doorbell comes with [`Self::ring`].
    pub(crate) fn fill(&mut self, request: &PostedRequest) -> Result<u64> {
        let position = self.next;
        if position >= self.entries() {
            self.wait(position - self.entries())?;
        }
        let slot = position % self.entries() * 8;
        let words: [u64; 8] = bytemuck::cast(*request);
        for (index, word) in words.iter().enumerate().skip(1) {
            word_at(self.words.ring, slot + index as u64).store(*word, Ordering::Relaxed);
        }
        word_at(self.words.ring, slot).store(position + 1, Ordering::Release);
        self.next += 1;
        Ok(position)
    }

    /// Waits until there is room for an entry; or says how the queue ended.
    pub(crate) fn next_with_room(&self) -> Result<Result<(), Failed>> {
        let Some(oldest) = self.next.checked_sub(self.entries()) else { return Ok(Ok(())) };
        Ok(self.outcome(oldest)?.map_or(Ok(()), Err))
    }

    /// The position of the entry that was filled last.
    pub(crate) fn last(&self) -> u64 {
        self.next.saturating_sub(1)
    }

    /// Tells of all that was filled.
    pub(crate) fn ring(&self) {
        word_at(self.words.doorbell, 0).store(self.next, Ordering::Release);
    }

    /// Fills, rings and waits.
    pub(crate) fn run(&mut self, request: &PostedRequest) -> Result<()> {
        let position = self.fill(request)?;
        self.ring();
        self.wait(position)
    }

    /// Waits for an entry's completion.
    pub(crate) fn wait(&self, position: u64) -> Result<()> {
        match self.outcome(position)? {
            None => Ok(()),
            Some(failed) => bail!("{failed:?}: {:?}", self.queue.stopped()),
        }
    }

    /// Waits for an entry's completion or the queue's end.
    pub(crate) fn outcome(&self, position: u64) -> Result<Option<Failed>> {
        let until = Moment::now().after(LONGEST_WAIT);
        loop {
            if word_at(self.words.completions, 0).load(Ordering::Acquire) > position {
                return Ok(None);
            }
            let failed = word_at(self.words.completions, 1).load(Ordering::Acquire);
            if failed != 0 {
                return Ok(Some(Failed { position: failed >> 8, status: (failed & 0xff) as u32 - 1 }));
            }
            ensure!(!until.remaining().is_zero(), "entry {position} of {} hangs", self.queue.describe());
            sleep(Duration::from_micros(20));
        }
    }
}

/// Waits until a word has a value.
pub(crate) fn wait_for(address: DeviceAddress, value: u64) -> Result<()> {
    let until = Moment::now().after(LONGEST_WAIT);
    while word_at(address, 0).load(Ordering::Acquire) != value {
        ensure!(!until.remaining().is_zero(), "the word at {address} does not become {value}");
        sleep(Duration::from_micros(20));
    }
    Ok(())
}

/// A word of memory of the machine of threads, whose addresses are those of this process.
pub(crate) fn word_at(address: DeviceAddress, index: u64) -> &'static AtomicU64 {
    // SAFETY: callers pass addresses of queues and buffers that live until the process ends, at multiples of 8; the NIC writes words in
    // one piece, and all access by the host is atomic.
    unsafe { AtomicU64::from_ptr(address.offset(index * 8).as_ptr().cast()) }
}
