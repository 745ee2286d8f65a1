//! What can be wrong with a request for a group, or for a rank of one.

use crate::{GlobalRank, GroupRank};

/// Why a group could not be made, or a rank not be found. Nothing was made when one of these is returned.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A count, size, stride or name that the call does not take.
    #[error("{call}: {given}; {allowed}")]
    Invalid {
        /// The call, or the arguments.
        call: String,
        /// What was given.
        given: String,
        /// What is allowed.
        allowed: String,
    },
    /// A rank of the world that is not a member of the group.
    #[error("{call}: {given} of the world is not a member of the group ({size} members)")]
    NotInGroup {
        /// The call, or the argument that the rank was given as.
        call: &'static str,
        /// The rank that was given.
        given: GlobalRank,
        /// The members of the group.
        size: u32,
    },
    /// A position that the group does not have.
    #[error("{call}: {given} is outside the group, which has {size} members (0 to {})", size - 1)]
    OutsideGroup {
        /// The call, or the argument that the position was given as.
        call: &'static str,
        /// The position that was given.
        given: GroupRank,
        /// The members of the group.
        size: u32,
    },
    /// A rank or an axis was given twice.
    #[error("{call}: {given} is given twice, at positions {first} and {second}")]
    Duplicate {
        /// The call.
        call: &'static str,
        /// The rank, by its number in the world, or the axis by its name.
        given: String,
        /// Where it stands first, from 0.
        first: usize,
        /// Where it stands again, from 0.
        second: usize,
    },
}

impl Error {
    pub(crate) fn invalid(call: &str, given: impl Into<String>, allowed: impl Into<String>) -> Self {
        Self::Invalid { call: call.to_owned(), given: given.into(), allowed: allowed.into() }
    }
}
