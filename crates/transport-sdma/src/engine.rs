//! An engine in software: reads packets with the decoder and does them. Does what hardware may do and no more: a copy takes
//! several steps, and does not wait for the copy before it.

use std::collections::VecDeque;

use crate::decode::{self, Refused, Wrong};
use crate::generation::Generation;
use crate::packet::Packet;
use crate::ring::Ring;

/// The memory that an engine's addresses mean.
pub trait Memory {
    /// Copies bytes. They do not overlap.
    ///
    /// # Errors
    /// The address that means nothing.
    fn copy(&mut self, source: u64, destination: u64, bytes: u64) -> Result<(), Fault>;

    /// Stores a word; the address is a multiple of 4.
    ///
    /// # Errors
    /// As for a copy.
    fn store(&mut self, address: u64, word: u32) -> Result<(), Fault>;

    /// Adds to 64 bits, atomically; the address is a multiple of 8.
    ///
    /// # Errors
    /// As for a copy.
    fn add(&mut self, address: u64, value: u64) -> Result<(), Fault>;
}

/// An address that means nothing to an engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{bytes} bytes at {address:#x} are not memory of the engine")]
pub struct Fault {
    pub address: u64,
    pub bytes: u64,
}

/// Why an engine stopped. It does nothing more, as hardware would hang.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Stopped {
    #[error("at position {position}: {refused}")]
    Packet {
        position: u64,
        /// What is wrong, counted from there.
        refused: Refused,
    },
    #[error("at position {position}: {fault}")]
    Memory { position: u64, fault: Fault },
    #[error("the write pointer is {write}, and the engine has read up to {read} of a ring of {bytes} bytes")]
    Pointer { write: u64, read: u64, bytes: u64 },
}

/// What a step came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Did {
    /// Something.
    Worked,
    /// Nothing: there are no packets.
    Waits,
}

/// Words that it reads at once: those of an atomic, which no packet of fixed length exceeds.
const LOOK: usize = 8;

/// A copy that is not yet done.
#[derive(Clone, Copy, Debug)]
struct Copying {
    source: u64,
    destination: u64,
    left: u64,
    position: u64,
}

/// The packet that is being done, and what became of it so far.
#[derive(Debug)]
struct Current {
    packet: Packet,
    position: u64,
}

/// One engine and its ring.
#[derive(Debug)]
pub struct Engine {
    ring: Ring,
    generation: &'static Generation,
    /// Bytes that a copy moves in a step.
    stride: u64,
    read: u64,
    copies: VecDeque<Copying>,
    current: Option<Current>,
    stopped: Option<Stopped>,
}

impl Engine {
    /// An engine that has read nothing, whose copies move `stride` bytes a step (at least one).
    pub fn new(ring: Ring, generation: &'static Generation, stride: u64) -> Self {
        Self {
            ring,
            generation,
            stride: stride.max(1),
            read: 0,
            copies: VecDeque::new(),
            current: None,
            stopped: None,
        }
    }

    /// The position up to which it has read: what its read pointer says.
    pub fn read(&self) -> u64 {
        self.read
    }

    /// Why it stopped, if it did.
    pub fn stopped(&self) -> Option<Stopped> {
        self.stopped
    }

    /// Whether everything that was read is done.
    pub fn is_idle(&self) -> bool {
        self.copies.is_empty() && self.current.is_none()
    }

    /// Does a little. `write` is the write pointer, as the doorbell said it last; `word` loads a word of the ring by its place in bytes.
    /// With `copy_first` a copy in flight continues, else the packet after it goes first where it may.
    ///
    /// # Errors
    /// Why it stopped, now or earlier.
    pub fn step(
        &mut self,
        write: u64,
        word: impl Fn(u64) -> u32,
        memory: &mut impl Memory,
        copy_first: bool,
    ) -> Result<Did, Stopped> {
        if let Some(stopped) = self.stopped {
            return Err(stopped);
        }
        let did = self.go_on(write, word, memory, copy_first);
        self.stopped = did.err();
        did
    }

    fn go_on(
        &mut self,
        write: u64,
        word: impl Fn(u64) -> u32,
        memory: &mut impl Memory,
        copy_first: bool,
    ) -> Result<Did, Stopped> {
        if copy_first && !self.copies.is_empty() {
            self.copy_on(memory)?;
            return Ok(Did::Worked);
        }
        if self.current.is_none() && !self.fetch(write, word)? {
            return if self.copies.is_empty() {
                Ok(Did::Waits)
            } else {
                self.copy_on(memory).map(|()| Did::Worked)
            };
        }
        self.perform(memory)
    }

    /// Reads the next packet; false where there is none.
    fn fetch(&mut self, write: u64, word: impl Fn(u64) -> u32) -> Result<bool, Stopped> {
        if write == self.read {
            return Ok(false);
        }
        let bytes = self.ring.bytes();
        if write < self.read || write - self.read >= bytes || !write.is_multiple_of(4) {
            return Err(Stopped::Pointer { write, read: self.read, bytes });
        }
        // No packet crosses the ring's end.
        let position = self.read;
        let place = self.ring.place(position);
        let left = ((write - position).min(bytes - place) / 4) as usize;
        let words = |count: usize| (0..count as u64).map(|index| word(place + index * 4)).collect::<Vec<_>>();
        // As many as most packets have; all that a longer one says it has.
        let read = match decode::packet(&words(left.min(LOOK)), self.generation) {
            Err(Wrong::Short { needed, .. }) if needed <= left => {
                decode::packet(&words(needed), self.generation)
            }
            read => read,
        };
        let (packet, taken) =
            read.map_err(|what| Stopped::Packet { position, refused: Refused { word: 0, what } })?;
        self.read += taken as u64 * 4;
        self.current = Some(Current { packet, position });
        Ok(true)
    }

    /// Moves the first copy on.
    fn copy_on(&mut self, memory: &mut impl Memory) -> Result<(), Stopped> {
        let Some(copy) = self.copies.front_mut() else { return Ok(()) };
        let bytes = copy.left.min(self.stride);
        let position = copy.position;
        memory
            .copy(copy.source, copy.destination, bytes)
            .map_err(|fault| Stopped::Memory { position, fault })?;
        copy.source += bytes;
        copy.destination += bytes;
        copy.left -= bytes;
        if copy.left == 0 {
            self.copies.pop_front();
        }
        Ok(())
    }

    /// Does the current packet, or what has to be done before it.
    fn perform(&mut self, memory: &mut impl Memory) -> Result<Did, Stopped> {
        let Some(current) = &self.current else { return Ok(Did::Waits) };
        let position = current.position;
        let stop = |fault| Stopped::Memory { position, fault };
        let overlaps = matches!(current.packet, Packet::Nop { .. } | Packet::Copy { .. });
        if !overlaps && !self.copies.is_empty() {
            self.copy_on(memory)?;
            return Ok(Did::Worked);
        }
        match &current.packet {
            Packet::Nop { .. } => {}
            Packet::Copy { source, destination, bytes } => {
                let (source, destination, left) = (*source, *destination, u64::from(*bytes));
                self.copies.push_back(Copying { source, destination, left, position });
            }
            Packet::Fence { address, value } => memory.store(*address, *value).map_err(stop)?,
            Packet::Add { address, value } => memory.add(*address, *value).map_err(stop)?,
        }
        self.current = None;
        Ok(Did::Worked)
    }
}
