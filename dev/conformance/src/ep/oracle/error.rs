//! What can be wrong with an oracle's inputs, and with the results it judges.

use anabranch_ranks::GroupRank;
use thiserror::Error;

/// The oracle was asked about inputs that no dispatch could have had.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum OracleError {
    /// A size that must be at least 1 is 0.
    #[error("the shape's `{field}` is 0")]
    Zero { field: &'static str },
    #[error("{given} inputs for {ranks} ranks")]
    Inputs { given: usize, ranks: u32 },
    #[error("{rank} is not in a group of {ranks}")]
    NoSuchRank { rank: GroupRank, ranks: u32 },
    #[error("{rank} brings {tokens} tokens, at most {max_tokens} are allowed")]
    TooManyTokens { rank: GroupRank, tokens: usize, max_tokens: usize },
    #[error("`{tensor}` of {rank} has length {given}, expected {expected}")]
    Length {
        rank: GroupRank,
        tensor: &'static str,
        /// Elements (bytes, for tensors of bytes) needed.
        expected: usize,
        given: usize,
    },
    #[error("{rank} and group rank 0 differ in whether they carry weights")]
    SomeWeights {
        /// The first rank that differs from rank 0.
        rank: GroupRank,
    },
    /// The reference expert multiplies by weights, and none are carried.
    #[error("the reference expert needs weights and the inputs carry none")]
    NoWeights,
}

/// The first place where a result differs from what it must be.
///
/// Bits are those of the element's type, in the low bits of a `u32`.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum Mismatch {
    #[error("{destination} received {seen} rows from {source_rank}, expected {expected}")]
    Count { destination: GroupRank, source_rank: GroupRank, expected: u32, seen: u32 },
    /// An entry of the offsets: the rows from all sources before this place.
    #[error("offset {place} at {destination} is {seen}, expected {expected}")]
    Offset {
        destination: GroupRank,
        /// The source whose rows start here; the number of ranks for the total.
        place: usize,
        expected: u32,
        seen: u32,
    },
    #[error("{what} of {rank} has length {seen}, expected {expected}")]
    Length { rank: GroupRank, what: &'static str, expected: usize, seen: usize },
    #[error("row {row} at {destination} (token {token} of {source_rank}) is missing")]
    MissingRow { destination: GroupRank, source_rank: GroupRank, row: usize, token: u32 },
    #[error("row {row} at {destination} names token {seen} of {source_rank}, expected token {expected}")]
    SourceToken { destination: GroupRank, source_rank: GroupRank, row: usize, expected: u32, seen: u32 },
    #[error(
        "{field} {column} of row {row} at {destination} (token {token} of {source_rank}) is {seen:#x}, \
         expected {expected:#x}"
    )]
    Row {
        destination: GroupRank,
        source_rank: GroupRank,
        token: u32,
        field: RowField,
        row: usize,
        /// Column of the value: element, k, or byte of the scales.
        column: usize,
        expected: u32,
        seen: u32,
    },
    #[error("the combined weight {k} of token {token} on {rank} is {seen:#x}, expected {expected:#x}")]
    CombinedWeight { rank: GroupRank, token: usize, k: usize, expected: u32, seen: u32 },
    #[error("column {column} of combined token {token} on {rank} is {seen:#x}, expected {expected:#x}")]
    Output { rank: GroupRank, token: usize, column: usize, expected: u32, seen: u32 },
}

/// A part of a received row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RowField {
    /// An expert id.
    Id,
    /// A weight.
    Weight,
    /// A byte of the scales.
    Scale,
    /// An element of the payload.
    Payload,
}

impl std::fmt::Display for RowField {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Id => "expert id",
            Self::Weight => "weight",
            Self::Scale => "scale byte",
            Self::Payload => "element",
        })
    }
}
