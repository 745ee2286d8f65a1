//! Send queues whose doorbell says the producer itself: Broadcom's `bnxt_re` and AMD's ionic. Entries take one place each.

use std::collections::VecDeque;
use std::fmt;

use anabranch_hip::NoMemory;
use anabranch_transport_rdma::QueueWords;

use super::{Fetched, Ring};
use crate::decode::{Entry, Expected, POISON, Wrong};
use crate::memory::{NicMemory, word};
use crate::stopped::Stopped;
use crate::syndrome::Syndrome;

/// What formats of such queues differ in.
pub(super) trait Slots: fmt::Debug + Send {
    /// Bytes of an entry.
    const BYTES: u32;

    /// What the doorbell says: the producer modulo a multiple of the ring, and that multiple.
    fn producer(&self, words: &QueueWords, value: [u8; 8]) -> Result<(u32, u32), Wrong>;

    /// Reads an entry, and what belongs to it elsewhere.
    fn entry(
        &mut self,
        memory: &dyn NicMemory,
        words: &QueueWords,
        bytes: &[u8],
        expected: &Expected,
    ) -> Result<Entry, Stopped>;

    /// Reads what a retransmission of the entry at a position would need, as long as the peer may not have it: entries in order, each once.
    fn send_again(&mut self, memory: &dyn NicMemory, position: u64) -> Result<(), Stopped> {
        let _ = (memory, position);
        Ok(())
    }

    /// What the blocks of an entry that is done hold, until the next is written there.
    fn poison(&self, position: u64, entries: u32) -> Vec<u8>;

    /// Whether the entry at a position was written although it was not rung, as far as the NIC can tell.
    fn is_written(&self, memory: &dyn NicMemory, address: u64, expected: &Expected)
    -> Result<bool, NoMemory>;

    /// Writes a completion: that everything before `end` is done, and how the entry there failed.
    fn complete(
        &mut self,
        memory: &dyn NicMemory,
        words: &QueueWords,
        end: u64,
        failed: Option<(Syndrome, u8)>,
        bit: bool,
    ) -> Result<(), NoMemory>;
}

#[derive(Debug)]
pub(crate) struct SlotRing<S> {
    slots: S,
    words: QueueWords,
    most_inline: u32,
    value: [u8; 8],
    rung: u64,
    producer: u64,
    fetched: u64,
    told: u64,
    /// Where doorbells have ended that are not fetched.
    ends: VecDeque<u64>,
    /// The last entry that was fetched asks for a completion.
    completes: bool,
}

impl<S: Slots> SlotRing<S> {
    pub(super) fn begin(
        slots: S,
        memory: &dyn NicMemory,
        words: QueueWords,
        most_inline: u32,
    ) -> Result<Self, NoMemory> {
        let ring = Self {
            slots,
            words,
            most_inline,
            value: [0; 8],
            rung: 0,
            producer: 0,
            fetched: 0,
            told: 0,
            ends: VecDeque::new(),
            completes: false,
        };
        for position in 0..u64::from(words.entries) {
            // As if a lap before the first had been.
            let poison = ring.slots.poison(position + u64::from(words.entries), words.entries);
            memory.write(ring.address(position), &poison)?;
        }
        memory.write(words.doorbell.0, &[0; 8])?;
        memory.write(words.completions.0, &[0; 64])?;
        Ok(ring)
    }

    fn address(&self, position: u64) -> u64 {
        self.words.ring.0 + (position & u64::from(self.words.entries - 1)) * u64::from(S::BYTES)
    }

    fn expected(&self, position: u64) -> Expected {
        Expected {
            position,
            entries: self.words.entries,
            number: self.words.number,
            most_inline: self.most_inline,
        }
    }

    fn room(&self, producer: u64) -> Result<(), Stopped> {
        let entries = self.words.entries;
        // A NIC that reads beyond the doorbell may have done more than the doorbell says.
        if producer.saturating_sub(self.told) > u64::from(entries) {
            return Err(Stopped::Overrun { producer, told: self.told, entries });
        }
        Ok(())
    }

    fn check_rung(&mut self) -> Result<(), Stopped> {
        while self.ends.front().is_some_and(|end| *end <= self.fetched) {
            // An end that was passed at once was fetched before it was rung.
            let end = self.ends.pop_front();
            if end == Some(self.fetched) && !self.completes {
                return Err(Stopped::NotCompleting { position: self.fetched - 1 });
            }
        }
        Ok(())
    }
}

impl<S: Slots> Ring for SlotRing<S> {
    fn look(&mut self, memory: &dyn NicMemory, beyond: bool) -> Result<bool, Stopped> {
        let value = word(memory, self.words.doorbell.0)?;
        let news = value != self.value;
        if news {
            self.value = value;
            let position = self.rung;
            let (producer, modulus) = self
                .slots
                .producer(&self.words, value)
                .map_err(|wrong| Stopped::Doorbell { position, wrong })?;
            let modulus = u64::from(modulus);
            let ahead = (u64::from(producer) + modulus - self.rung % modulus) % modulus;
            let end = self.rung + ahead;
            self.room(end)?;
            self.rung = end;
            self.producer = self.producer.max(end);
            self.ends.push_back(end);
            self.check_rung()?;
        }
        if beyond && self.producer - self.told < u64::from(self.words.entries) {
            let position = self.producer;
            let expected = self.expected(position);
            if self.slots.is_written(memory, self.address(position), &expected)? {
                self.producer += 1;
            }
        }
        Ok(news)
    }

    fn fetch(&mut self, memory: &dyn NicMemory) -> Result<Option<Fetched>, Stopped> {
        if self.fetched == self.producer {
            return Ok(None);
        }
        let position = self.fetched;
        let mut bytes = vec![0; S::BYTES as usize];
        memory.read(self.address(position), &mut bytes)?;
        let expected = self.expected(position);
        let entry = self.slots.entry(memory, &self.words, &bytes, &expected)?;
        self.fetched += 1;
        self.completes = entry.completes;
        self.check_rung()?;
        Ok(Some(Fetched { position, bytes, entry }))
    }

    /// There is nothing but the doorbell that could tell of more.
    fn is_settled(&self, _memory: &dyn NicMemory) -> Result<(), Stopped> {
        Ok(())
    }

    fn release(&mut self, memory: &dyn NicMemory, done: &Fetched) -> Result<(), Stopped> {
        let position = done.position;
        let mut bytes = vec![0; S::BYTES as usize];
        memory.read(self.address(position), &mut bytes)?;
        if bytes != done.bytes {
            return Err(Stopped::Overwritten { position });
        }
        self.slots.send_again(memory, position)?;
        memory.write(self.address(position), &self.slots.poison(position, self.words.entries))?;
        self.told = done.end();
        Ok(())
    }

    fn tell(&mut self, memory: &dyn NicMemory, done: &Fetched, bit: bool) -> Result<(), NoMemory> {
        self.slots.complete(memory, &self.words, done.end(), None, bit)
    }

    fn tell_failure(
        &mut self,
        memory: &dyn NicMemory,
        position: u64,
        syndrome: Syndrome,
        vendor: u8,
    ) -> Result<(), NoMemory> {
        self.slots.complete(memory, &self.words, position, Some((syndrome, vendor)), false)
    }

    fn rung_anew(&mut self, memory: &dyn NicMemory) -> Option<u64> {
        let value = word(memory, self.words.doorbell.0).ok().filter(|value| *value != self.value)?;
        self.value = value;
        let (producer, modulus) = self.slots.producer(&self.words, value).ok()?;
        let modulus = u64::from(modulus);
        let ahead = (u64::from(producer) + modulus - self.rung % modulus) % modulus;
        Some((self.rung + ahead).saturating_sub(1))
    }

    fn next(&self) -> u64 {
        self.fetched
    }
}

/// A block of poison.
pub(super) fn poison(bytes: u32) -> Vec<u8> {
    vec![POISON; bytes as usize]
}
