//! Why a queue pair does nothing any more.

use anabranch_hip::NoMemory;

use crate::decode::Wrong;
use crate::syndrome::Syndrome;

/// Why a queue pair has stopped.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Stopped {
    #[error("the entry at position {position}: {wrong}")]
    Entry { position: u64, wrong: Wrong },
    /// What was stored at the doorbell, or in its record, is wrong in itself.
    #[error("the doorbell after position {position}: {wrong}")]
    Doorbell { position: u64, wrong: Wrong },
    #[error("the doorbell announces entries up to position {rung}, its record entries up to {recorded}")]
    RecordBehind { rung: u64, recorded: u64 },
    /// The record tells of entries, and no doorbell came for them.
    #[error(
        "the doorbell record announces entries up to position {recorded}, the last doorbell entries up to {rung}"
    )]
    RecordAhead { rung: u64, recorded: u64 },
    #[error("the doorbell went back to index {index:#06x}, after position {rung}")]
    Backwards { index: u16, rung: u64 },
    #[error(
        "entries up to position {producer} in a ring of {entries}, of which entries up to {told} are free"
    )]
    Overrun { producer: u64, told: u64, entries: u32 },
    #[error("the doorbell is {given:#018x}, which is not the start of the entry that ends at position {end}")]
    DoorbellValue {
        /// What was stored, as memory has it, the first byte highest.
        given: u64,
        end: u64,
    },
    #[error("the entry at position {position} has {blocks} blocks, and the producer is {producer}")]
    Unfinished { position: u64, blocks: u32, producer: u64 },
    /// The last entry of a doorbell requests no completion, so its blocks would never be known to be free.
    #[error("the entry at position {position} is the last of a doorbell and requests no completion")]
    NotCompleting { position: u64 },
    #[error("the entry at position {position} was overwritten before it was complete")]
    Overwritten { position: u64 },
    #[error("the entry at position {position} requests an atomic operation, and this NIC has none")]
    NoAtomics { position: u64 },
    #[error("the doorbell was rung before the queue pair was connected")]
    NotConnected,
    #[error("the memory of the queue: {0}")]
    Memory(#[from] NoMemory),
    #[error("the request at position {position}: {syndrome}")]
    Request { position: u64, syndrome: Syndrome },
    /// A request of the peer's was refused, which stops both ends.
    #[error("a request of the peer was refused: {syndrome}")]
    OfPeer { syndrome: Syndrome },
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
