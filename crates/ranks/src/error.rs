//! What can be wrong with a request for a group, or for a rank of one.

use crate::{GlobalRank, GroupRank};

/// Why a group could not be made, or a rank not be found. Nothing was made when one of these is returned.
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
    /// A rank of the world that is not in a group.
    #[error("{call}: {given} of the world is not a member of the group ({size} members)")]
    NotInGroup {
        /// The call, or the argument that the rank was given as.
        call: &'static str,
        /// The rank that was given.
        given: GlobalRank,
        /// The members of the group.
        size: u32,
    },
    /// A position that a group does not have.
    #[error("{call}: {given} is outside the group, which has {size} members (0 to {})", size - 1)]
    OutsideGroup {
        /// The call, or the argument that the position was given as.
        call: &'static str,
        /// The position that was given.
        given: GroupRank,
        /// The members of the group.
        size: u32,
    },
    /// No axis was given.
    #[error("{call}: no axis was given; at least one is needed")]
    NoAxes {
        /// The call.
        call: &'static str,
    },
    /// An axis without a name.
    #[error("{call}: the axis at position {position} has an empty name")]
    UnnamedAxis {
        /// The constructor.
        call: &'static str,
        /// Which, from 0.
        position: usize,
    },
    /// An axis was named twice.
    #[error("{call}: axis '{axis}' is given twice, at positions {first} and {second}")]
    DuplicateAxis {
        /// The call.
        call: &'static str,
        /// The name.
        axis: String,
        /// Where it stands first, from 0.
        first: usize,
        /// Where it stands again, from 0.
        second: usize,
    },
    /// An axis of no ranks.
    #[error("{call}: axis '{axis}' has a size of 0; it must be at least 1")]
    ZeroAxis {
        /// The constructor.
        call: &'static str,
        /// The name.
        axis: String,
    },
    /// A mesh has more or fewer places than its group has members.
    #[error(
        "{call}: the sizes of the axes ({axes}) must multiply to the group's size, and the group has {size} members"
    )]
    MeshSize {
        /// The constructor.
        call: &'static str,
        /// The axes that were given, as in `dp=2, tp=4`.
        axes: String,
        /// The members of the group.
        size: u32,
    },
    /// A mesh has no axis of this name.
    #[error("{call}: the mesh has no axis '{given}'; its axes are {axes}")]
    UnknownAxis {
        /// The call.
        call: &'static str,
        /// The name that was given.
        given: String,
        /// The mesh's axes, as in `dp=2, tp=4`.
        axes: String,
    },
    /// Coordinates for another number of axes than the mesh has.
    #[error("{call}: {given} coordinates were given; each axis needs exactly one ({axes})")]
    CoordinateCount {
        /// The call.
        call: &'static str,
        /// How many were given.
        given: usize,
        /// The mesh's axes, as in `dp=2, tp=4`.
        axes: String,
    },
    /// A coordinate past the end of its axis.
    #[error("{call}: coordinate {given} is outside axis '{axis}', which has {size} places (0 to {})", size - 1)]
    OutsideAxis {
        /// The call.
        call: &'static str,
        /// The coordinate that was given.
        given: u32,
        /// The axis.
        axis: String,
        /// The places of the axis.
        size: u32,
    },
    /// Both the world's and the group's number of a rank were given, where one of them is expected.
    #[error(
        "{argument} = {} and group_{argument} = {} were both given; give exactly one: {argument} is a rank of the world, \
         group_{argument} a rank of the group",
        given.get(),
        given_in_group.get()
    )]
    BothRanks {
        /// The argument for the rank of the world: `src` or `dst`. With `group_` before it, that for the rank of the group.
        argument: &'static str,
        /// Its value.
        given: GlobalRank,
        /// The value for the group.
        given_in_group: GroupRank,
    },
    /// Neither the world's nor the group's number of a rank was given.
    #[error(
        "neither {argument} (a rank of the world) nor group_{argument} (a rank of the group) was given; give exactly one"
    )]
    NoRank {
        /// The argument for the rank of the world: `src` or `dst`.
        argument: &'static str,
    },
}
