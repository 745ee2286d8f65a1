//! Ranks as torch's front ends name them.
//!
//! torch.distributed's `src` and `dst` are ranks of the world, also where a group is given; `group_src` and `group_dst` are
//! ranks of the group; exactly one of the two is to be given (`_canonicalize_group_rank` in
//! `torch/distributed/distributed_c10d.py`). Calls whose documentation has a default when neither is given (`gather`,
//! `scatter` and the calls for objects: "default is global rank 0") pass that as `src` or `dst`.

use crate::{Error, GlobalRank, Group, GroupRank};

/// Where the root of a collective call, or the peer of a message, comes from: torch's two ways of saying it become a rank of
/// the group. There are no values of this type.
#[derive(Clone, Copy, Debug)]
pub enum Root {}

impl Root {
    /// The source in the group: of `broadcast`, `scatter` and `recv`.
    ///
    /// # Errors
    /// [`Error::Invalid`] unless exactly one is given; [`Error::NotInGroup`] for a `src` that is not a member of `group`,
    /// [`Error::OutsideGroup`] for a `group_src` that `group` does not have.
    pub fn from_src(
        group: &Group,
        src: Option<GlobalRank>,
        group_src: Option<GroupRank>,
    ) -> Result<GroupRank, Error> {
        one_of(group, ["src", "group_src"], src, group_src)
    }

    /// The destination in the group: of `reduce`, `gather` and `send`.
    ///
    /// # Errors
    /// [`Error::Invalid`] unless exactly one is given; [`Error::NotInGroup`] for a `dst` that is not a member of `group`,
    /// [`Error::OutsideGroup`] for a `group_dst` that `group` does not have.
    pub fn from_dst(
        group: &Group,
        dst: Option<GlobalRank>,
        group_dst: Option<GroupRank>,
    ) -> Result<GroupRank, Error> {
        one_of(group, ["dst", "group_dst"], dst, group_dst)
    }
}

/// torch's `get_group_rank`: the position in `group` of this rank of the world. [`Group::rank_of`] with an error that says
/// what was given.
///
/// # Errors
/// [`Error::NotInGroup`].
pub fn group_rank_of_global(group: &Group, rank: GlobalRank) -> Result<GroupRank, Error> {
    in_group(group, "group_rank_of_global", rank)
}

/// torch's `get_global_rank`: the rank in the world of the member of `group` at this position. [`Group::global`] with an
/// error that says what was given.
///
/// # Errors
/// [`Error::OutsideGroup`].
pub fn global_rank_of_group(group: &Group, rank: GroupRank) -> Result<GlobalRank, Error> {
    in_world(group, "global_rank_of_group", rank)
}

/// The names are those of the two arguments, which errors begin with.
fn one_of(
    group: &Group,
    [argument, group_argument]: [&'static str; 2],
    global: Option<GlobalRank>,
    in_the_group: Option<GroupRank>,
) -> Result<GroupRank, Error> {
    match (global, in_the_group) {
        (Some(given), Some(in_group)) => {
            let (given, in_group) = (given.get(), in_group.get());
            Err(not_one([argument, group_argument], format!("{given} and {in_group} were both given")))
        }
        (None, None) => Err(not_one([argument, group_argument], "neither was given".to_owned())),
        (Some(given), None) => in_group(group, argument, given),
        (None, Some(given)) => in_world(group, group_argument, given).map(|_| given),
    }
}

fn not_one([argument, group_argument]: [&str; 2], given: String) -> Error {
    let allowed =
        format!("give exactly one: {argument} is a rank of the world, {group_argument} a rank of the group");
    Error::invalid(&format!("{argument} and {group_argument}"), given, allowed)
}

fn in_group(group: &Group, call: &'static str, given: GlobalRank) -> Result<GroupRank, Error> {
    group.rank_of(given).ok_or(Error::NotInGroup { call, given, size: group.size() })
}

fn in_world(group: &Group, call: &'static str, given: GroupRank) -> Result<GlobalRank, Error> {
    group.global(given).ok_or(Error::OutsideGroup { call, given, size: group.size() })
}
