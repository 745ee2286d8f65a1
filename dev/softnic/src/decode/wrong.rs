//! What is wrong with an entry.

/// Why an entry is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Wrong {
    /// The blocks are as the NIC left them.
    #[error("the entry was not written since the NIC completed its blocks")]
    NotRewritten,
    /// No entry has this code.
    #[error("opcode {opcode:#04x} with modifier {modifier:#x} is not supported by this NIC")]
    Opcode {
        /// The code.
        opcode: u32,
        /// Its modifier.
        modifier: u32,
    },
    /// Bits that must be zero are not.
    #[error("{field} is {value:#x} and must be zero")]
    Reserved {
        /// Which.
        field: &'static str,
        /// What it is.
        value: u64,
    },
    /// A field that must say what the NIC knows.
    #[error("{field} is {given:#x} and must be {expected:#x}")]
    Differs {
        /// Which.
        field: &'static str,
        /// What it is.
        given: u64,
        /// What it must be.
        expected: u64,
    },
    /// `bnxt_re`: the row of a message was not written since the NIC was done with it.
    #[error("the sequence table has no row for message {message}, which a retransmission reads")]
    NoSequence {
        /// Which message of the queue pair, from 0.
        message: u64,
    },
    /// A value that means nothing.
    #[error("{field} {value} is undefined")]
    Meaning {
        /// Which.
        field: &'static str,
        /// The value.
        value: u32,
    },
    /// The entry's length and what it asks for do not fit.
    #[error("an entry of {units} units with opcode {opcode:#04x}, which has {allowed}")]
    Units {
        /// Units of 16 bytes.
        units: u32,
        /// The code.
        opcode: u32,
        /// What it has.
        allowed: &'static str,
    },
    /// A length that cannot be.
    #[error("{what} of {bytes} bytes, where {allowed} can be")]
    Bytes {
        /// Of what.
        what: &'static str,
        /// Bytes.
        bytes: u64,
        /// How many can be.
        allowed: String,
    },
    /// An address off its boundary.
    #[error("{what} {address:#x} is not a multiple of {multiple}")]
    Misaligned {
        /// Which address.
        what: &'static str,
        /// The address.
        address: u64,
        /// The boundary.
        multiple: u32,
    },
}
