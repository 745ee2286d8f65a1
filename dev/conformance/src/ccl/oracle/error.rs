//! What can be wrong with an oracle's inputs, and with the results it judges.

use anabranch_ranks::GroupRank;
use thiserror::Error;

use anabranch_ccl::{DataType, ReduceOp};

/// The oracle was asked about inputs that no collective could have had. Ranks are those of the group.
#[derive(Clone, Debug, Error, PartialEq)]
#[non_exhaustive]
pub enum OracleError {
    /// No rank gave anything.
    #[error("a group has at least one rank, and no inputs were given")]
    NoRanks,
    /// The operator means nothing for the type.
    #[error("{op} is not defined for {data_type}")]
    Unsupported {
        /// The operator.
        op: ReduceOp,
        /// The type.
        data_type: DataType,
    },
    /// An input is not as long as it must be.
    #[error("the input of {rank} has {given} bytes, but {needed} are needed: {why}")]
    Length {
        /// The rank.
        rank: GroupRank,
        /// Bytes given.
        given: usize,
        /// Bytes needed.
        needed: usize,
        /// What sets the length.
        why: &'static str,
    },
    /// An input cannot be cut into equal parts of whole elements.
    #[error("the input of {rank} has {given} bytes, which is no multiple of {multiple}: {why}")]
    Multiple {
        /// The rank.
        rank: GroupRank,
        /// Bytes given.
        given: usize,
        /// What it has to be a multiple of.
        multiple: usize,
        /// Which parts these are.
        why: &'static str,
    },
    /// Counts or splits are not one for each rank.
    #[error("{given} counts or splits for a group of {ranks}")]
    Counts {
        /// Counts given, or the first row of splits that is wrong.
        given: usize,
        /// Ranks of the group.
        ranks: usize,
    },
    /// The root is not in the group.
    #[error("{root}, which is to be the root, is not in a group of {ranks}")]
    Root {
        /// The root given.
        root: GroupRank,
        /// Ranks of the group.
        ranks: usize,
    },
}

/// The first place where two buffers differ.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum Difference {
    /// They are not of one length.
    #[error("{seen} bytes, expected {expected}")]
    Length {
        /// Bytes expected.
        expected: usize,
        /// Bytes found.
        seen: usize,
    },
    /// An element differs.
    #[error("element {index} is {seen}, expected {expected}")]
    Element {
        /// The element's place in the buffer.
        index: usize,
        /// The value expected, with its bits.
        expected: String,
        /// The value found, with its bits.
        seen: String,
    },
}

/// A rank holds something else than it must.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum Mismatch {
    /// There is no such rank.
    #[error("{rank} is not in a group of {ranks}")]
    NoSuchRank {
        /// The rank asked about.
        rank: GroupRank,
        /// Ranks of the group.
        ranks: usize,
    },
    /// Not one output for each rank.
    #[error("{given} outputs for a group of {ranks}")]
    Outputs {
        /// Outputs given.
        given: usize,
        /// Ranks of the group.
        ranks: usize,
    },
    /// The output differs.
    #[error("output of {rank}: {difference}")]
    Output {
        /// The rank.
        rank: GroupRank,
        /// Where.
        difference: Difference,
    },
}
