//! Groups: an ordered list of global ranks and its inverse.

use crate::{Error, GlobalRank, GroupRank, Layout};
use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

/// An ordered list of distinct global ranks. It has at least one member; there is no maximum.
///
/// Two groups are equal when they have the same members in the same order. Cloning is cheap (the lists are
/// shared).
#[derive(Clone)]
pub struct Group {
    members: Arc<[GlobalRank]>,
    /// Members with their positions, sorted by member; only where the layout gives no shorter inverse.
    inverse: Option<Arc<[(GlobalRank, GroupRank)]>>,
    layout: Layout,
}

impl Group {
    /// The group of all ranks `0..size` of a world.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a size of 0.
    pub fn world(size: u32) -> Result<Self, Error> {
        Self::checked("world", (0..size).map(GlobalRank::new).collect())
    }

    /// The members at these positions of `self`, in the order given.
    ///
    /// # Errors
    /// [`Error::OutsideGroup`] for a position that `self` does not have, [`Error::Duplicate`],
    /// [`Error::Invalid`] without members.
    pub fn subset(&self, ranks: &[GroupRank]) -> Result<Self, Error> {
        self.pick("subset", ranks.iter().copied())
    }

    /// These members of `self`, named by their ranks in the world, in the order given.
    ///
    /// # Errors
    /// [`Error::NotInGroup`] for a rank that is not a member of `self`, [`Error::Duplicate`],
    /// [`Error::Invalid`] without members.
    pub fn subset_of_ranks(&self, ranks: &[GlobalRank]) -> Result<Self, Error> {
        let call = "subset_of_ranks";
        if let Some(given) = ranks.iter().find(|rank| !self.contains(**rank)) {
            return Err(Error::NotInGroup { call, given: *given, size: self.size() });
        }
        Self::checked(call, ranks.to_vec())
    }

    /// The `count` members at positions `start, start + stride, ...` of `self`.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a count or stride of 0, and when the last position is not in `self`.
    pub fn split_strided(&self, start: GroupRank, stride: u32, count: u32) -> Result<Self, Error> {
        let call = "split_strided";
        if count == 0 {
            return Err(empty(call));
        }
        if stride == 0 {
            return Err(Error::invalid(call, "a stride of 0 was given", "it must be at least 1"));
        }
        let last = u64::from(start.get()) + u64::from(count - 1) * u64::from(stride);
        if last >= u64::from(self.size()) {
            let given = format!("{count} members from {start} in steps of {stride} end at position {last}");
            let size = self.size();
            return Err(Error::invalid(
                call,
                given,
                format!("the group has {size} members (0 to {})", size - 1),
            ));
        }
        // Every position is at most `last`, which is below the size and so fits.
        self.pick(call, (0..count).map(|i| GroupRank::new(start.get() + i * stride)))
    }

    /// All members of `self` but those at these positions, in the order of `self`.
    ///
    /// # Errors
    /// [`Error::OutsideGroup`], [`Error::Duplicate`], and [`Error::Invalid`] when no member remains.
    pub fn excluding(&self, ranks: &[GroupRank]) -> Result<Self, Error> {
        let call = "excluding";
        if ranks.is_empty() {
            return Ok(self.clone());
        }
        let excluded = Self::checked(call, self.globals(call, ranks.iter().copied())?)?;
        Self::checked(call, self.members.iter().copied().filter(|rank| !excluded.contains(*rank)).collect())
    }

    /// How many members there are; at least 1.
    pub fn size(&self) -> u32 {
        self.members.len() as u32
    }

    /// The members in group order.
    pub fn members(&self) -> &[GlobalRank] {
        &self.members
    }

    /// The members in group order, each with its position.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = (GroupRank, GlobalRank)> + ExactSizeIterator + '_ {
        self.members.iter().enumerate().map(|(position, rank)| (GroupRank::new(position as u32), *rank))
    }

    /// The positions `0..size`.
    pub fn ranks(&self) -> impl DoubleEndedIterator<Item = GroupRank> + use<> {
        (0..self.size()).map(GroupRank::new)
    }

    /// How the members lie. A hint; see [`Layout`].
    pub fn layout(&self) -> Layout {
        self.layout
    }

    /// The rank in the world of the member at this position; `None` when there is no such position.
    pub fn global(&self, rank: GroupRank) -> Option<GlobalRank> {
        self.members.get(rank.index()).copied()
    }

    /// The position of this rank; `None` when it is not a member.
    pub fn rank_of(&self, rank: GlobalRank) -> Option<GroupRank> {
        match (self.layout, &self.inverse) {
            (Layout::Contiguous { start }, _) => self.regular_position(rank, start, 1),
            (Layout::Strided { start, stride }, _) => self.regular_position(rank, start, stride),
            (Layout::List, Some(inverse)) => {
                let found = inverse.binary_search_by_key(&rank, |(member, _)| *member).ok()?;
                inverse.get(found).map(|(_, position)| *position)
            }
            (Layout::List, None) => None,
        }
    }

    /// Whether this rank is a member.
    pub fn contains(&self, rank: GlobalRank) -> bool {
        self.rank_of(rank).is_some()
    }

    /// The position in `to` of the member of `self` at `rank`; `None` when `self` has no such position or the
    /// member is not in `to`.
    pub fn translate(&self, rank: GroupRank, to: &Self) -> Option<GroupRank> {
        to.rank_of(self.global(rank)?)
    }

    /// The member after this one in group order, the first after the last. `None` when there is no such
    /// position.
    pub fn next(&self, rank: GroupRank) -> Option<GroupRank> {
        self.rotated(rank, 1)
    }

    /// The member before this one in group order, the last before the first. `None` when there is no such
    /// position.
    pub fn previous(&self, rank: GroupRank) -> Option<GroupRank> {
        self.rotated(rank, -1)
    }

    /// The member `by` places after this one around the group (before it, when negative; any distance).
    /// `None` when there is no such position.
    pub fn rotated(&self, rank: GroupRank, by: i64) -> Option<GroupRank> {
        let size = i64::from(self.size());
        (rank.index() < self.members.len())
            .then(|| GroupRank::new((i64::from(rank.get()) + by.rem_euclid(size)).rem_euclid(size) as u32))
    }

    /// All positions in group order beginning with this one and going around once, so that ranks which walk
    /// their peers at the same time each meet another one first. `None` when there is no such position.
    pub fn rotation(&self, from: GroupRank) -> Option<impl DoubleEndedIterator<Item = GroupRank> + use<>> {
        let (start, size) = (u64::from(from.get()), u64::from(self.size()));
        (start < size).then(|| (0..size).map(move |i| GroupRank::new(((start + i) % size) as u32)))
    }

    /// The members at these positions as a group.
    pub(crate) fn pick(
        &self,
        call: &'static str,
        ranks: impl Iterator<Item = GroupRank>,
    ) -> Result<Self, Error> {
        Self::checked(call, self.globals(call, ranks)?)
    }

    /// Makes a group of ranks that are known to be the parent's, after checking what is left to check.
    fn checked(call: &'static str, members: Vec<GlobalRank>) -> Result<Self, Error> {
        if members.is_empty() {
            return Err(empty(call));
        }
        let layout = Layout::of(&members);
        let inverse = match layout {
            // A regular layout rises, so nothing in it is there twice and the inverse is a division.
            Layout::Contiguous { .. } | Layout::Strided { .. } => None,
            Layout::List => {
                let mut sorted: Vec<(GlobalRank, GroupRank)> =
                    members.iter().enumerate().map(|(i, rank)| (*rank, GroupRank::new(i as u32))).collect();
                sorted.sort_unstable();
                for pair in sorted.windows(2) {
                    if let [(rank, first), (next, second)] = pair
                        && rank == next
                    {
                        return Err(Error::Duplicate {
                            call,
                            given: rank.to_string(),
                            first: first.index(),
                            second: second.index(),
                        });
                    }
                }
                Some(sorted.into())
            }
        };
        Ok(Self { members: members.into(), inverse, layout })
    }

    fn globals(
        &self,
        call: &'static str,
        ranks: impl Iterator<Item = GroupRank>,
    ) -> Result<Vec<GlobalRank>, Error> {
        ranks
            .map(|given| self.global(given).ok_or(Error::OutsideGroup { call, given, size: self.size() }))
            .collect()
    }

    fn regular_position(&self, rank: GlobalRank, start: GlobalRank, stride: u32) -> Option<GroupRank> {
        let distance = rank.get().checked_sub(start.get())?;
        let position = distance / stride;
        (distance % stride == 0 && position < self.size()).then(|| GroupRank::new(position))
    }
}

fn empty(call: &str) -> Error {
    Error::invalid(call, "no members were given", "a group needs at least one")
}

impl PartialEq for Group {
    fn eq(&self, other: &Self) -> bool {
        self.members == other.members
    }
}

impl Eq for Group {}

impl Hash for Group {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.members.hash(state);
    }
}

impl fmt::Debug for Group {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Group")?;
        f.debug_list().entries(self.members.iter().map(|rank| rank.get())).finish()
    }
}
