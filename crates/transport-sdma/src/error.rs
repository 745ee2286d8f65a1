//! Packets that an engine does not take, as error values.

/// A packet that an engine does not take, or a ring that cannot be.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A packet about no bytes: the count field holds bytes - 1, and what it would say is the most it can.
    #[error("{packet} of 0 bytes: its count would read {most}")]
    Empty {
        packet: &'static str,
        /// Bytes that the engine would take it for.
        most: u64,
    },
    /// More than one packet can say, or than engines of this generation do reliably.
    #[error("{packet} of {given} bytes: {generation} takes at most {most}")]
    TooLong { packet: &'static str, given: u64, most: u64, generation: &'static str },
    #[error("{packet}: {what} is {given:#x} and must be a multiple of {multiple}")]
    Misaligned { packet: &'static str, what: &'static str, given: u64, multiple: u64 },
    #[error("{packet}: {field} is {given} and its field holds at most {most}")]
    Field { packet: &'static str, field: &'static str, given: u64, most: u64 },
    #[error("a ring of {given} bytes: allowed are powers of two from {least} on")]
    Ring { given: u64, least: u64 },
}

/// Result of this crate.
pub type Result<T> = core::result::Result<T, Error>;
