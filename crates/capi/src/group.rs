//! Groups of ranks.

use std::sync::Arc;

use anabranch::ranks::SplitChoice;
use anabranch::{GlobalRank, Group};

use crate::handle::{Handle, OfWorld, Out, destroy, get, put_all, slice, with};
use crate::state::State;
use crate::status::{Failure, Result, anabranch_status};
use crate::world::anabranch_world;

/// Ranks of a world, in an order of their own. Not changed after it was made: any thread may use it.
#[derive(Debug)]
pub struct anabranch_group {
    state: Arc<State>,
    group: Group,
}

impl Handle for anabranch_group {
    const NAME: &'static str = "group";
}

impl OfWorld for anabranch_group {
    fn state(&self) -> &State {
        &self.state
    }
}

impl anabranch_group {
    /// The group, for a call of this world.
    pub(crate) fn of(&self, state: &State) -> Result<Group> {
        if !std::ptr::eq(state, Arc::as_ptr(&self.state)) {
            return Err(Failure::usage("group is of another world"));
        }
        Ok(self.group.clone())
    }
}

/// The group of these ranks of the world, in this order. Not collective. Ranks that are not in it may make it too.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn anabranch_group_create(
    world: *const anabranch_world,
    ranks: *const u32,
    count: usize,
    group: *mut *mut anabranch_group,
) -> anabranch_status {
    let out = Out::new(group);
    with(world, |world| {
        let out = out?;
        let ranks = slice(ranks, count, "ranks")?.iter().copied().map(GlobalRank::new).collect::<Vec<_>>();
        let group = world.state.live()?.group().subset_of_ranks(&ranks)?;
        out.give(anabranch_group { state: Arc::clone(&world.state), group });
        Ok(())
    })
}

fn encode(color: i64, key: i64) -> Vec<u8> {
    [color.to_le_bytes(), key.to_le_bytes()].concat()
}

fn decode(bytes: &[u8], rank: GlobalRank) -> Result<SplitChoice> {
    let word = |from: usize| Some(i64::from_le_bytes(bytes.get(from..from + 8)?.try_into().ok()?));
    let (Some(color), Some(key)) = (word(0), word(8)) else {
        return Err(Failure::usage(format!("{rank} made another call than anabranch_group_split")));
    };
    Ok(SplitChoice { color: u32::try_from(color).ok(), key })
}

/// Splits a group (NULL: the world): ranks with equal colors form a group, ordered by key, then by rank in the parent. Collective over the
/// parent, like `MPI_Comm_split`. A rank with a color below 0 joins none and gets NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn anabranch_group_split(
    world: *const anabranch_world,
    parent: *const anabranch_group,
    color: i64,
    key: i64,
    group: *mut *mut anabranch_group,
) -> anabranch_status {
    let out = Out::new(group);
    with(world, |world| {
        let out = out?;
        if color > i64::from(u32::MAX) {
            return Err(Failure::usage(format!(
                "color is {color}; allowed are 0 to {}, and less for no group",
                u32::MAX
            )));
        }
        let parent = world.state.group(parent)?;
        let choices = world.state.live()?.exchange(&parent, "split a group", &encode(color, key))?;
        let choices = choices.iter().zip(parent.members()).map(|(bytes, rank)| decode(bytes, *rank));
        let groups = parent.split(&choices.collect::<Result<Vec<_>>>()?)?;
        let own = groups.into_iter().find(|(of, _)| i64::from(*of) == color);
        if let Some((_, group)) = own {
            out.give(anabranch_group { state: Arc::clone(&world.state), group });
        }
        Ok(())
    })
}

/// Ranks of the group.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn anabranch_group_size(group: *const anabranch_group) -> u32 {
    get(group).map_or(0, |group| group.group.size())
}

/// This rank in the group, or `UINT32_MAX` where it is not in it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn anabranch_group_rank(group: *const anabranch_group) -> u32 {
    let own = |group: &anabranch_group| group.group.rank_of(group.state.world.rank());
    get(group).ok().and_then(own).map_or(u32::MAX, anabranch::GroupRank::get)
}

/// Its ranks of the world, in its order: the first `capacity` of them, and their number to `count`. `ranks` may be NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn anabranch_group_members(
    group: *const anabranch_group,
    ranks: *mut u32,
    capacity: usize,
    count: *mut usize,
) -> anabranch_status {
    with(group, |group| {
        let members = group.group.members().iter().map(|rank| rank.get()).collect::<Vec<_>>();
        put_all(&members, ranks, capacity, count)
    })
}

/// Frees it. What was made with it stays.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn anabranch_group_destroy(group: *mut anabranch_group) {
    destroy(group);
}
