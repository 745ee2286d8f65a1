//! What can be wrong with a request for a group.

use crate::{GlobalRank, GroupRank};

/// Why a group could not be made. Nothing was made when one of these is returned.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A group without members was asked for.
    #[error("{call}: a group needs at least one member")]
    Empty {
        /// The constructor.
        call: &'static str,
    },
    /// A position does not exist in the parent group.
    #[error("{call}: {given} is outside the parent group, which has {size} members (0 to {})", size - 1)]
    OutsideParent {
        /// The constructor.
        call: &'static str,
        /// The position that was given.
        given: GroupRank,
        /// The members of the parent.
        size: u32,
    },
    /// A global rank is not a member of the parent group.
    #[error("{call}: {given} is not a member of the parent group ({size} members)")]
    NotInParent {
        /// The constructor.
        call: &'static str,
        /// The rank that was given.
        given: GlobalRank,
        /// The members of the parent.
        size: u32,
    },
    /// A rank was given twice.
    #[error("{call}: {rank} is given twice, at positions {first} and {second}")]
    Duplicate {
        /// The constructor.
        call: &'static str,
        /// The rank, by its number in the world.
        rank: GlobalRank,
        /// Where it stands first, from 0.
        first: usize,
        /// Where it stands again, from 0.
        second: usize,
    },
    /// A table with one entry for each member has another length.
    #[error(
        "{call}: {given} entries were given for a group of {size} members; each member needs exactly one"
    )]
    WrongCount {
        /// The constructor.
        call: &'static str,
        /// The entries that were given.
        given: usize,
        /// The members of the parent.
        size: u32,
    },
    /// A stride of zero.
    #[error("{call}: a stride of 0 was given; it must be at least 1")]
    ZeroStride {
        /// The constructor.
        call: &'static str,
    },
    /// A strided selection runs past the parent's last member.
    #[error(
        "{call}: {count} members from {start} in steps of {stride} end at position {last}, \
         but the parent group has {size} members (0 to {})", size - 1
    )]
    StridedRange {
        /// The constructor.
        call: &'static str,
        /// The first position.
        start: GroupRank,
        /// The step.
        stride: u32,
        /// The members asked for.
        count: u32,
        /// The last position that this would need.
        last: u64,
        /// The members of the parent.
        size: u32,
    },
    /// A mesh without columns.
    #[error("{call}: an x range of 0 was given; it must be at least 1")]
    ZeroRange {
        /// The constructor.
        call: &'static str,
    },
}
