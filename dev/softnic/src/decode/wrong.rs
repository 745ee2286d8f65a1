//! What is wrong with an entry.

/// Why an entry is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Wrong {
    #[error("the entry was not written since the NIC completed its blocks")]
    NotRewritten,
    #[error("opcode {opcode:#04x} with modifier {modifier:#x} is not supported by this NIC")]
    Opcode { opcode: u32, modifier: u32 },
    #[error("{field} is {value:#x} and must be zero")]
    Reserved { field: &'static str, value: u64 },
    #[error("{field} is {given:#x} and must be {expected:#x}")]
    Differs { field: &'static str, given: u64, expected: u64 },
    /// `bnxt_re`: the row of a message was not written since the NIC was done with it.
    #[error("the sequence table has no row for message {message}, which a retransmission reads")]
    NoSequence {
        /// Which message of the queue pair, from 0.
        message: u64,
    },
    #[error("{field} {value} is undefined")]
    Meaning { field: &'static str, value: u32 },
    #[error("an entry of {units} units with opcode {opcode:#04x}, which has {allowed}")]
    Units {
        /// Units of 16 bytes.
        units: u32,
        opcode: u32,
        allowed: &'static str,
    },
    #[error("{what} of {bytes} bytes, where {allowed} can be")]
    Bytes { what: &'static str, bytes: u64, allowed: String },
    #[error("{what} {address:#x} is not a multiple of {multiple}")]
    Misaligned { what: &'static str, address: u64, multiple: u32 },
}
