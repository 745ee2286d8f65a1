//! AMD's ionic: a colour in the flags of each entry says that it is new; completions say how many messages are done.
//!
//! The completion queue is one entry, `ionic_v1_cqe` of `ionic_fw_types.h` in rdma-core's provider, in its form of type `SEND_MSN`.

use anabranch_hip::NoMemory;
use anabranch_transport_rdma::QueueWords;

use super::slots::{SlotRing, Slots, poison};
use crate::decode::{Entry, Expected, Wrong, ionic};
use crate::memory::{NicMemory, word};
use crate::stopped::Stopped;
use crate::syndrome::Syndrome;

/// What is particular to this format: nothing that lasts.
#[derive(Debug)]
pub(crate) struct Ionic;

/// A send queue of ionic.
pub(crate) type IonicRing = SlotRing<Ionic>;

impl IonicRing {
    pub(crate) fn start(
        memory: &dyn NicMemory,
        words: QueueWords,
        most_inline: u32,
    ) -> Result<Self, NoMemory> {
        Self::begin(Ionic, memory, words, most_inline)
    }
}

/// Where the count of messages lies, in the completion's first word, and where its status and flags.
const STATUS: u64 = 24;
const ERROR: u32 = 1 << 1;
const TYPE_SEND: u32 = 2 << 5;
const MESSAGES: u64 = (1 << 24) - 1;

/// `enum ionic_status`.
fn status(syndrome: Syndrome) -> u32 {
    match syndrome {
        Syndrome::LocalLength => 1,
        Syndrome::LocalQueueOperation => 2,
        Syndrome::LocalProtection => 3,
        Syndrome::Flushed => 4,
        Syndrome::RemoteInvalidRequest => 8,
        Syndrome::RemoteAccess => 9,
        Syndrome::RemoteOperation => 10,
        Syndrome::RetryExceeded => 11,
        Syndrome::ReceiverNotReady => 12,
    }
}

impl Slots for Ionic {
    const BYTES: u32 = ionic::ENTRY_BYTES;

    fn producer(&self, words: &QueueWords, value: [u8; 8]) -> Result<(u32, u32), Wrong> {
        let rung = u64::from_le_bytes(value);
        Ok((ionic::doorbell(rung, words.doorbell_value, words.entries)?, words.entries))
    }

    fn entry(
        &mut self,
        _memory: &dyn NicMemory,
        _words: &QueueWords,
        bytes: &[u8],
        expected: &Expected,
    ) -> Result<Entry, Stopped> {
        let position = expected.position;
        ionic::entry(bytes, expected).map_err(|wrong| Stopped::Entry { position, wrong })
    }

    /// The colour stays: it is what tells old entries from new ones.
    fn poison(&self, position: u64, entries: u32) -> Vec<u8> {
        let mut bytes = poison(Self::BYTES);
        let colour = if ionic::has_colour(position, entries) { ionic::COLOUR } else { 0 };
        bytes[ionic::FLAGS_AT..ionic::FLAGS_AT + 2].copy_from_slice(&[0, colour]);
        bytes
    }

    fn is_written(
        &self,
        memory: &dyn NicMemory,
        address: u64,
        expected: &Expected,
    ) -> Result<bool, NoMemory> {
        // The word that holds the flags.
        let place = ionic::FLAGS_AT & !7;
        let flags = word(memory, address + place as u64)?[ionic::FLAGS_AT + 1 - place];
        let has_colour = flags & ionic::COLOUR != 0;
        Ok(has_colour == ionic::has_colour(expected.position, expected.entries))
    }

    fn complete(
        &mut self,
        memory: &dyn NicMemory,
        words: &QueueWords,
        end: u64,
        failed: Option<(Syndrome, u8)>,
        bit: bool,
    ) -> Result<(), NoMemory> {
        let mut status_and_flags = [0; 8];
        let code = failed.map_or(0, |(syndrome, _)| status(syndrome));
        let error = if failed.is_some() { ERROR } else { 0 };
        let flags = words.number << 8 | TYPE_SEND | error | u32::from(bit);
        status_and_flags[..4].copy_from_slice(&code.to_be_bytes());
        status_and_flags[4..].copy_from_slice(&flags.to_be_bytes());
        let mut first = [0; 8];
        first[4..].copy_from_slice(&((end & MESSAGES) as u32).to_be_bytes());
        let base = words.completions.0;
        memory.write(base + STATUS, &status_and_flags)?;
        memory.write(base, &first)
    }
}
