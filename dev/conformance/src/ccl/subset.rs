//! Ordered groups of a world, which tests of groups go through.

use std::fmt;

use anabranch_ranks::{Group, GroupRank};

/// Members of a group, in its order, as ranks of the world that it is a part of.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Subset(Vec<u32>);

impl Subset {
    /// These members of a world.
    pub fn new(members: impl IntoIterator<Item = u32>) -> Self {
        Self(members.into_iter().collect())
    }

    /// Members.
    pub fn len(&self) -> u32 {
        self.0.len() as u32
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// As a group within `world`.
    ///
    /// # Errors
    /// Members that the world does not have, or twice.
    pub fn group(&self, world: &Group) -> Result<Group, anabranch_ranks::Error> {
        let members: Vec<_> = self.0.iter().map(|member| GroupRank::new(*member)).collect();
        world.subset(&members)
    }
}

impl fmt::Display for Subset {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(&self.0).finish()
    }
}

/// Worlds up to this size show all their ordered groups.
const EVERY_GROUP_OF: u32 = 4;

/// Every ordered group of a world of up to four ranks: 64 of four. Of larger worlds, whose ordered groups are too many, the runs of
/// neighbours of every length from every rank on, forwards and backwards.
pub fn ordered_subsets(size: u32) -> Vec<Subset> {
    if size <= EVERY_GROUP_OF {
        let mut all: Vec<Vec<u32>> = vec![Vec::new()];
        let mut next = 0;
        // Each group, longer by each rank that it lacks, until the list has no new ones.
        while let Some(group) = all.get(next).cloned() {
            next += 1;
            let longer = (0..size).filter(|rank| !group.contains(rank));
            all.extend(longer.map(|rank| group.iter().copied().chain([rank]).collect()));
        }
        return all.into_iter().filter(|group| !group.is_empty()).map(Subset).collect();
    }
    let run = |first: u32, length: u32| (0..length).map(move |step| (first + step) % size);
    let runs = (1..=size).flat_map(|length| (0..size).map(move |first| (first, length)));
    runs.flat_map(|(first, length)| {
        let forwards: Vec<_> = run(first, length).collect();
        let backwards = (length > 1).then(|| Subset(forwards.iter().rev().copied().collect()));
        [Some(Subset(forwards)), backwards].into_iter().flatten()
    })
    .collect()
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn four_ranks_have_sixty_four_ordered_groups() {
        // 4 + 4 * 3 + 4 * 3 * 2 + 4 * 3 * 2 * 1.
        for (size, groups) in [(1, 1), (2, 4), (3, 15), (4, 64)] {
            let all = ordered_subsets(size);
            assert_eq!(all.len(), groups, "{size}");
            assert_eq!(all.iter().collect::<HashSet<_>>().len(), groups);
            let world = Group::world(size).unwrap();
            for subset in all {
                assert_eq!(subset.group(&world).unwrap().size(), subset.len());
            }
        }
    }

    #[test]
    fn larger_worlds_show_runs_in_both_directions() {
        let all = ordered_subsets(8);
        assert_eq!(all.iter().collect::<HashSet<_>>().len(), all.len());
        assert_eq!(all.len(), 8 + 7 * 8 * 2);
        assert!(all.contains(&Subset::new([7, 0, 1])) && all.contains(&Subset::new([1, 0, 7])));
    }
}
