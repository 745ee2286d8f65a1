//! Which rank of a group owns which expert.

use anabranch_ranks::GroupRank;
use std::ops::Range;

/// Experts laid out over the ranks of a group: rank `r` of `R` owns the experts from `floor(r * E / R)` up to,
/// not including, `floor((r + 1) * E / R)`.
///
/// Any number of experts goes with any number of ranks. Where `R` divides `E` that is `E / R` each; with fewer
/// experts than ranks some ranks own none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ExpertPlacement {
    experts: u32,
    ranks: u32,
}

impl ExpertPlacement {
    /// `experts` in total over `ranks`. `None` when either is 0, or when there are more experts than an `i32`
    /// id can name.
    pub const fn new(experts: u32, ranks: u32) -> Option<Self> {
        if experts == 0 || ranks == 0 || experts > i32::MAX as u32 {
            return None;
        }
        Some(Self { experts, ranks })
    }

    /// Experts of the whole group.
    pub const fn experts(&self) -> u32 {
        self.experts
    }

    /// Ranks of the group.
    pub const fn ranks(&self) -> u32 {
        self.ranks
    }

    /// The rank that owns this expert. `None` for a number that is no expert.
    pub const fn owner(&self, expert: u32) -> Option<GroupRank> {
        if expert >= self.experts {
            return None;
        }
        // The owner is the last rank with floor(r * E / R) <= e, that is with r * E < (e + 1) * R.
        let rank = ((expert as u64 + 1) * self.ranks as u64 - 1) / self.experts as u64;
        Some(GroupRank::new(rank as u32))
    }

    /// The owner of an id as the routing gives it: `None` for masked and out-of-range ids.
    pub fn owner_of_id(&self, id: i32) -> Option<GroupRank> {
        u32::try_from(id).ok().and_then(|expert| self.owner(expert))
    }

    /// The experts that this rank owns, possibly none. A rank outside the group owns none.
    pub const fn range(&self, rank: GroupRank) -> Range<u32> {
        let first = self.first(rank.get());
        let end = if rank.get() < self.ranks { self.first(rank.get() + 1) } else { first };
        first..end
    }

    /// The first expert at or after the place of rank `r`.
    const fn first(self, rank: u32) -> u32 {
        if rank >= self.ranks {
            return self.experts;
        }
        (rank as u64 * self.experts as u64 / self.ranks as u64) as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn seven_experts_on_three_ranks() {
        let placement = ExpertPlacement::new(7, 3).unwrap();
        let ranges: Vec<_> = (0..3).map(|r| placement.range(GroupRank::new(r))).collect();
        assert_eq!(ranges, [0..2, 2..4, 4..7]);
        let owners: Vec<_> = (0..7).map(|e| placement.owner(e).unwrap().get()).collect();
        assert_eq!(owners, [0, 0, 1, 1, 2, 2, 2]);
    }

    #[test]
    fn three_experts_on_five_ranks_leave_two_ranks_without() {
        let placement = ExpertPlacement::new(3, 5).unwrap();
        let ranges: Vec<_> = (0..5).map(|r| placement.range(GroupRank::new(r))).collect();
        assert_eq!(ranges, [0..0, 0..1, 1..1, 1..2, 2..3]);
    }

    #[test]
    fn invalid_id_has_no_owner() {
        let placement = ExpertPlacement::new(4, 2).unwrap();
        assert_eq!(placement.owner(4), None);
        assert_eq!(placement.owner_of_id(-1), None);
        assert_eq!(placement.owner_of_id(4), None);
        assert_eq!(placement.owner_of_id(i32::MIN), None);
        assert_eq!(placement.owner_of_id(3), Some(GroupRank::new(1)));
        assert!(placement.range(GroupRank::new(2)).is_empty());
        assert!(placement.range(GroupRank::new(u32::MAX)).is_empty());
        assert_eq!(ExpertPlacement::new(0, 1), None);
        assert_eq!(ExpertPlacement::new(1, 0), None);
        assert_eq!(ExpertPlacement::new(1 << 31, 1), None);
    }

    proptest! {
        #[test]
        fn the_ranges_are_the_definition_and_cover_the_experts(experts in 1u32..3000, ranks in 1u32..200) {
            let placement = ExpertPlacement::new(experts, ranks).unwrap();
            let mut next = 0;
            for rank in 0..ranks {
                let range = placement.range(GroupRank::new(rank));
                let floor = |r: u32| (u64::from(r) * u64::from(experts) / u64::from(ranks)) as u32;
                prop_assert_eq!(range.start, floor(rank));
                prop_assert_eq!(range.end, floor(rank + 1));
                prop_assert_eq!(range.start, next);
                next = range.end;
            }
            prop_assert_eq!(next, experts);
        }

        #[test]
        fn the_owner_is_the_rank_whose_range_has_the_expert(experts in 1u32..3000, ranks in 1u32..200) {
            let placement = ExpertPlacement::new(experts, ranks).unwrap();
            for rank in 0..ranks {
                for expert in placement.range(GroupRank::new(rank)) {
                    prop_assert_eq!(placement.owner(expert), Some(GroupRank::new(rank)));
                }
            }
        }

        #[test]
        fn large_numbers_do_not_overflow(
            experts in 1u32..=i32::MAX as u32, ranks in 1u32..=u32::MAX, pick in any::<u32>(),
        ) {
            let placement = ExpertPlacement::new(experts, ranks).unwrap();
            let expert = pick % experts;
            let owner = placement.owner(expert).unwrap();
            prop_assert!(owner.get() < ranks);
            prop_assert!(placement.range(owner).contains(&expert));
        }
    }
}
