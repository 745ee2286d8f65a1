//! What can be wrong with an oracle's inputs, and with the results it judges.

use anabranch_ranks::GroupRank;
use thiserror::Error;

use anabranch_ccl::{DataType, ReduceOp};

/// The oracle was asked about inputs that no collective could have had. Ranks are those of the group.
#[derive(Clone, Debug, Error, PartialEq)]
#[non_exhaustive]
pub enum OracleError {
    #[error("a group has at least one rank, and no inputs were given")]
    NoRanks,
    #[error("{op} is not defined for {data_type}")]
    Unsupported { op: ReduceOp, data_type: DataType },
    #[error("the input of {rank} has {given} bytes, but {needed} are needed: {why}")]
    Length { rank: GroupRank, given: usize, needed: usize, why: &'static str },
    #[error("the input of {rank} has {given} bytes, which is no multiple of {multiple}: {why}")]
    Multiple { rank: GroupRank, given: usize, multiple: usize, why: &'static str },
    #[error("{given} counts or splits for a group of {ranks}")]
    Counts {
        /// Counts given, or the first row of splits that is wrong.
        given: usize,
        ranks: usize,
    },
    #[error("{root}, which is to be the root, is not in a group of {ranks}")]
    Root { root: GroupRank, ranks: usize },
}

/// The first place where two buffers differ.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum Difference {
    #[error("{seen} bytes, expected {expected}")]
    Length { expected: usize, seen: usize },
    #[error("element {index} is {seen}, expected {expected}")]
    Element { index: usize, expected: String, seen: String },
}

/// A rank holds something else than it must.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum Mismatch {
    #[error("{rank} is not in a group of {ranks}")]
    NoSuchRank { rank: GroupRank, ranks: usize },
    #[error("{given} outputs for a group of {ranks}")]
    Outputs { given: usize, ranks: usize },
    #[error("output of {rank}: {difference}")]
    Output { rank: GroupRank, difference: Difference },
}
