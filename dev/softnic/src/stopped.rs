//! Why a queue pair does nothing any more.

use anabranch_hip::NoMemory;

use crate::decode::Wrong;
use crate::syndrome::Syndrome;

/// Why a queue pair has stopped.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Stopped {
    /// An entry that is none.
    #[error("the entry at position {position}: {wrong}")]
    Entry {
        /// Its first block.
        position: u64,
        /// What is wrong with it.
        wrong: Wrong,
    },
    /// What was stored at the doorbell, or in its record, is wrong in itself.
    #[error("the doorbell after position {position}: {wrong}")]
    Doorbell {
        /// What had been rung before.
        position: u64,
        /// What is wrong.
        wrong: Wrong,
    },
    /// The doorbell was rung before its record was written.
    #[error("the doorbell announces entries up to position {rung}, its record entries up to {recorded}")]
    RecordBehind {
        /// Where the doorbell's entry ends.
        rung: u64,
        /// The producer that the record says.
        recorded: u64,
    },
    /// The record tells of entries, and no doorbell came for them.
    #[error(
        "the doorbell record announces entries up to position {recorded}, the last doorbell entries up to {rung}"
    )]
    RecordAhead {
        /// Where the last doorbell's entry ends.
        rung: u64,
        /// The producer that the record says.
        recorded: u64,
    },
    /// A doorbell for entries before those that were rung already.
    #[error("the doorbell went back to index {index:#06x}, after position {rung}")]
    Backwards {
        /// The entry's index.
        index: u16,
        /// What had been rung before.
        rung: u64,
    },
    /// More entries than the ring has.
    #[error(
        "entries up to position {producer} in a ring of {entries}, of which entries up to {told} are free"
    )]
    Overrun {
        /// The producer.
        producer: u64,
        /// Up to which completions have been told.
        told: u64,
        /// Blocks of the ring.
        entries: u32,
    },
    /// What was stored at the doorbell is not how the last entry begins.
    #[error("the doorbell is {given:#018x}, which is not the start of the entry that ends at position {end}")]
    DoorbellValue {
        /// What was stored, as memory has it, the first byte highest.
        given: u64,
        /// Where the entry would end.
        end: u64,
    },
    /// An entry goes on behind the producer.
    #[error("the entry at position {position} has {blocks} blocks, and the producer is {producer}")]
    Unfinished {
        /// Its first block.
        position: u64,
        /// Its blocks.
        blocks: u32,
        /// The producer.
        producer: u64,
    },
    /// The last entry of a doorbell requests no completion, so its blocks would never be known to be free.
    #[error("the entry at position {position} is the last of a doorbell and requests no completion")]
    NotCompleting {
        /// Its first block.
        position: u64,
    },
    /// An entry was overwritten before its completion was told.
    #[error("the entry at position {position} was overwritten before it was complete")]
    Overwritten {
        /// Its first block.
        position: u64,
    },
    /// An atomic operation, of a NIC that has none.
    #[error("the entry at position {position} requests an atomic operation, and this NIC has none")]
    NoAtomics {
        /// Its first block.
        position: u64,
    },
    /// A doorbell before the queue pair was connected.
    #[error("the doorbell was rung before the queue pair was connected")]
    NotConnected,
    /// The queue's own memory is gone.
    #[error("the memory of the queue: {0}")]
    Memory(#[from] NoMemory),
    /// A request failed.
    #[error("the request at position {position}: {syndrome}")]
    Request {
        /// Its first block.
        position: u64,
        /// How.
        syndrome: Syndrome,
    },
    /// A request of the peer's was refused, which stops both ends.
    #[error("a request of the peer was refused: {syndrome}")]
    OfPeer {
        /// How.
        syndrome: Syndrome,
    },
}

impl Stopped {
    /// The syndrome that completions carry.
    pub fn syndrome(&self) -> Syndrome {
        match self {
            Self::Request { syndrome, .. } => *syndrome,
            Self::OfPeer { .. } => Syndrome::Flushed,
            _ => Syndrome::LocalQueueOperation,
        }
    }

    /// This NIC's own number for the cause, in completions.
    pub fn vendor(&self) -> u8 {
        match self {
            Self::Request { .. } => 0,
            Self::Entry { .. } => 1,
            Self::Doorbell { .. } => 2,
            Self::RecordBehind { .. } => 3,
            Self::RecordAhead { .. } => 4,
            Self::Backwards { .. } => 5,
            Self::Overrun { .. } => 6,
            Self::DoorbellValue { .. } => 7,
            Self::Unfinished { .. } => 8,
            Self::NotCompleting { .. } => 9,
            Self::Overwritten { .. } => 10,
            Self::NotConnected => 11,
            Self::Memory(_) => 12,
            Self::OfPeer { .. } => 13,
            Self::NoAtomics { .. } => 14,
        }
    }
}
