//! What can be wrong with an oracle's inputs, and with the results it judges.

use anabranch_ranks::GroupRank;
use thiserror::Error;

/// The oracle was asked about inputs that no dispatch could have had.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum OracleError {
    /// A size that must be at least 1 is 0.
    #[error("the shape's `{field}` is 0")]
    Zero {
        /// The field.
        field: &'static str,
    },
    /// Not one input for each rank.
    #[error("{given} inputs for {ranks} ranks")]
    Inputs {
        /// Inputs given.
        given: usize,
        /// Ranks of the group.
        ranks: u32,
    },
    /// A rank that the group does not have.
    #[error("{rank} is not in a group of {ranks}")]
    NoSuchRank {
        /// The rank asked for.
        rank: GroupRank,
        /// Ranks of the group.
        ranks: u32,
    },
    /// A rank brings more tokens than the plan allows.
    #[error("{rank} brings {tokens} tokens, at most {max_tokens} are allowed")]
    TooManyTokens {
        /// The rank.
        rank: GroupRank,
        /// Its tokens.
        tokens: usize,
        /// The most allowed.
        max_tokens: usize,
    },
    /// A tensor does not have the length that its rank's tokens need.
    #[error("`{tensor}` of {rank} has length {given}, expected {expected}")]
    Length {
        /// The rank.
        rank: GroupRank,
        /// The tensor.
        tensor: &'static str,
        /// Elements (bytes, for tensors of bytes) needed.
        expected: usize,
        /// Elements given.
        given: usize,
    },
    /// Some ranks carry weights and some do not.
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
    /// The number of rows from a source.
    #[error("{destination} received {seen} rows from {source_rank}, expected {expected}")]
    Count {
        /// The receiver.
        destination: GroupRank,
        /// The sender.
        source_rank: GroupRank,
        /// Rows expected.
        expected: u32,
        /// Rows reported.
        seen: u32,
    },
    /// An entry of the offsets: the rows from all sources before this place.
    #[error("offset {place} at {destination} is {seen}, expected {expected}")]
    Offset {
        /// The receiver.
        destination: GroupRank,
        /// The source whose rows start here; the number of ranks for the total.
        place: usize,
        /// Offset expected.
        expected: u32,
        /// Offset reported.
        seen: u32,
    },
    /// A table or a row has another length.
    #[error("{what} of {rank} has length {seen}, expected {expected}")]
    Length {
        /// The rank whose result it is.
        rank: GroupRank,
        /// The table.
        what: &'static str,
        /// Entries expected.
        expected: usize,
        /// Entries given.
        seen: usize,
    },
    /// A row that was expected is not in the result.
    #[error("row {row} at {destination} (token {token} of {source_rank}) is missing")]
    MissingRow {
        /// The receiver.
        destination: GroupRank,
        /// The sender.
        source_rank: GroupRank,
        /// Index of the row in the window.
        row: usize,
        /// The token expected there.
        token: u32,
    },
    /// A row says that it is another token.
    #[error("row {row} at {destination} names token {seen} of {source_rank}, expected token {expected}")]
    SourceToken {
        /// The receiver.
        destination: GroupRank,
        /// The sender.
        source_rank: GroupRank,
        /// Index of the row.
        row: usize,
        /// The token expected there.
        expected: u32,
        /// The token named there.
        seen: u32,
    },
    /// A value that a row carries.
    #[error(
        "{field} {column} of row {row} at {destination} (token {token} of {source_rank}) is {seen:#x}, \
         expected {expected:#x}"
    )]
    Row {
        /// The receiver.
        destination: GroupRank,
        /// The sender.
        source_rank: GroupRank,
        /// The token expected in this row.
        token: u32,
        /// What the value is.
        field: RowField,
        /// Index of the row.
        row: usize,
        /// Column of the value: element, k, or byte of the scales.
        column: usize,
        /// Bits expected.
        expected: u32,
        /// Bits found.
        seen: u32,
    },
    /// A combined weight.
    #[error("the combined weight {k} of token {token} on {rank} is {seen:#x}, expected {expected:#x}")]
    CombinedWeight {
        /// The rank that brought the token.
        rank: GroupRank,
        /// The token.
        token: usize,
        /// Which of its weights.
        k: usize,
        /// Bits expected.
        expected: u32,
        /// Bits found.
        seen: u32,
    },
    /// An element of a combined token.
    #[error("column {column} of combined token {token} on {rank} is {seen:#x}, expected {expected:#x}")]
    Output {
        /// The rank that brought the token.
        rank: GroupRank,
        /// The token.
        token: usize,
        /// The element.
        column: usize,
        /// Bits expected.
        expected: u32,
        /// Bits found.
        seen: u32,
    },
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
