//! Packets that an engine does not take, as error values.

/// A packet that an engine does not take, or a ring that cannot be.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A packet about no bytes: the count field holds bytes - 1, and what it would say is the most it can.
    #[error("{packet} of 0 bytes: its count would read {most}")]
    Empty {
        /// The packet.
        packet: &'static str,
        /// Bytes that the engine would take it for.
        most: u64,
    },
    /// More than one packet can say, or than engines of this generation do reliably.
    #[error("{packet} of {given} bytes: {generation} takes at most {most}")]
    TooLong {
        /// The packet.
        packet: &'static str,
        /// Bytes given.
        given: u64,
        /// The most.
        most: u64,
        /// The generation.
        generation: &'static str,
    },
    /// An address or a length off its boundary.
    #[error("{packet}: {what} is {given:#x} and must be a multiple of {multiple}")]
    Misaligned {
        /// The packet.
        packet: &'static str,
        /// Which of its values.
        what: &'static str,
        /// The value.
        given: u64,
        /// The boundary.
        multiple: u64,
    },
    /// A value that its field does not hold.
    #[error("{packet}: {field} is {given} and its field holds at most {most}")]
    Field {
        /// The packet.
        packet: &'static str,
        /// The field.
        field: &'static str,
        /// The value.
        given: u64,
        /// The most.
        most: u64,
    },
    /// A ring that cannot be.
    #[error("a ring of {given} bytes: allowed are powers of two from {least} on")]
    Ring {
        /// Bytes given.
        given: u64,
        /// The least.
        least: u64,
    },
}

/// Result of this crate.
pub type Result<T> = core::result::Result<T, Error>;
