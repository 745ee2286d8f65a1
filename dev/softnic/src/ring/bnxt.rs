//! Broadcom's `bnxt_re`: packet numbers of each entry stand in a table, which the NIC needs to send again.
//!
//! The NIC walks the table by a message number of its own (`bnxt_re_pull_psn_buff` of rdma-core's `verbs.c`: row `msn`, which wraps at
//! `msn_tbl_sz`). Packets may be lost until the last is acknowledged, so each row is read twice: with its entry, and once more, as for a
//! retransmission, just before the entry's completion.
//!
//! The completion queue has one entry, `bnxt_re_req_cqe` and `bnxt_re_bcqe` of rdma-core's `bnxt_re-abi.h`: `con_indx` is the entry
//! behind the last that is complete, modulo the queue (`bnxt_re_poll_success_scqe`).

use std::collections::VecDeque;

use anabranch_hip::NoMemory;
use anabranch_transport_rdma::QueueWords;

use super::slots::{SlotRing, Slots, poison};
use crate::decode::{Entry, Expected, POISON, Request, Wrong, bnxt};
use crate::memory::{NicMemory, word};
use crate::stopped::Stopped;
use crate::syndrome::Syndrome;

/// What is particular to this format: the numbers of the next packet and of the next message.
#[derive(Debug, Default)]
pub(crate) struct Bnxt {
    next_packet: u32,
    next_message: u64,
    /// Messages that are not complete: where their rows are, and what these hold.
    sent: VecDeque<(u64, [u8; 8])>,
}

/// A send queue of `bnxt_re`.
pub(crate) type BnxtRing = SlotRing<Bnxt>;

impl BnxtRing {
    pub(crate) fn start(
        memory: &dyn NicMemory,
        words: QueueWords,
        most_inline: u32,
    ) -> Result<Self, NoMemory> {
        for message in 0..u64::from(bnxt::sequence_rows(words.entries)) {
            memory.write(row_of(&words, message), &NO_ROW)?;
        }
        Self::begin(Bnxt::default(), memory, words, most_inline)
    }
}

/// Packet numbers have 24 bits.
const PACKETS: u32 = 1 << 24;

/// What a row holds that belongs to no message under way.
const NO_ROW: [u8; 8] = [POISON; 8];

/// Where the row of a message is.
fn row_of(words: &QueueWords, message: u64) -> u64 {
    words.sequence_table.0 + message % u64::from(bnxt::sequence_rows(words.entries)) * bnxt::SEQUENCE_BYTES
}

/// Where a completion says how far it is, and where it becomes valid.
const CONSUMER: u64 = 8;
const STATUS: u64 = 24;

/// Packets of a request or of its answer: one at least.
fn packets(request: &Request, path_mtu: u32) -> u64 {
    let bytes = match request {
        Request::Write { source, .. } => source.bytes(),
        Request::Read { targets, .. } => targets.iter().map(|target| u64::from(target.bytes)).sum(),
        Request::Nop | Request::Dump { .. } | Request::Atomic { .. } => 0,
    };
    bytes.div_ceil(u64::from(path_mtu)).max(1)
}

/// `bnxt_re_req_wc_status`.
fn status(syndrome: Syndrome) -> u32 {
    match syndrome {
        Syndrome::LocalLength => 2,
        Syndrome::LocalQueueOperation => 3,
        Syndrome::LocalProtection => 4,
        Syndrome::RemoteInvalidRequest => 6,
        Syndrome::RemoteAccess => 7,
        Syndrome::RemoteOperation => 8,
        Syndrome::ReceiverNotReady => 9,
        Syndrome::RetryExceeded => 10,
        Syndrome::Flushed => 11,
    }
}

impl Slots for Bnxt {
    const BYTES: u32 = bnxt::ENTRY_BYTES;

    fn producer(&self, words: &QueueWords, value: [u8; 8]) -> Result<(u32, u32), Wrong> {
        Ok((bnxt::doorbell(value, words.number, words.entries)?, 2 * words.entries))
    }

    fn entry(
        &mut self,
        memory: &dyn NicMemory,
        words: &QueueWords,
        bytes: &[u8],
        expected: &Expected,
    ) -> Result<Entry, Stopped> {
        let position = expected.position;
        let wrong = |wrong| Stopped::Entry { position, wrong };
        let entry = bnxt::entry(bytes, expected).map_err(wrong)?;
        let place = position & u64::from(words.entries - 1);
        let address = row_of(words, self.next_message);
        let row = word(memory, address)?;
        if row == NO_ROW {
            return Err(wrong(Wrong::NoSequence { message: self.next_message }));
        }
        let given = bnxt::sequence(row);
        let packets = packets(&entry.request, words.path_mtu);
        let next = ((u64::from(self.next_packet) + packets) % u64::from(PACKETS)) as u32;
        let pairs = [
            (
                "the first slot in the sequence table",
                u64::from(given.slot),
                (place * u64::from(bnxt::SLOTS)) & 0xffff,
            ),
            ("the first packet in the sequence table", u64::from(given.first), self.next_packet.into()),
            ("the next packet in the sequence table", u64::from(given.next), next.into()),
        ];
        for (field, given, expected) in pairs {
            if given != expected {
                return Err(wrong(Wrong::Differs { field, given, expected }));
            }
        }
        self.next_packet = next;
        self.next_message += 1;
        self.sent.push_back((address, row));
        Ok(entry)
    }

    fn send_again(&mut self, memory: &dyn NicMemory, position: u64) -> Result<(), Stopped> {
        let Some((address, row)) = self.sent.pop_front() else { return Ok(()) };
        let found = word(memory, address)?;
        if found != row {
            let field = "the sequence table's row when it is read again";
            let (given, expected) = (u64::from_le_bytes(found), u64::from_le_bytes(row));
            return Err(Stopped::Entry { position, wrong: Wrong::Differs { field, given, expected } });
        }
        Ok(memory.write(address, &NO_ROW)?)
    }

    fn poison(&self, _position: u64, _entries: u32) -> Vec<u8> {
        poison(Self::BYTES)
    }

    /// Nothing in an entry says that it is new.
    fn is_written(&self, _: &dyn NicMemory, _: u64, _: &Expected) -> Result<bool, NoMemory> {
        Ok(false)
    }

    fn complete(
        &mut self,
        memory: &dyn NicMemory,
        words: &QueueWords,
        end: u64,
        failed: Option<(Syndrome, u8)>,
        bit: bool,
    ) -> Result<(), NoMemory> {
        let consumer = end & u64::from(words.entries - 1);
        let flags = failed.map_or(0, |(syndrome, _)| status(syndrome)) << 8 | u32::from(bit);
        let base = words.completions.0;
        if failed.is_some() {
            // Behind the consumer, else it would be one that is done.
            memory.write(base + STATUS, &u64::from(flags).to_le_bytes())?;
            return memory.write(base + CONSUMER, &consumer.to_le_bytes());
        }
        memory.write(base + CONSUMER, &consumer.to_le_bytes())?;
        memory.write(base + STATUS, &u64::from(flags).to_le_bytes())
    }
}
