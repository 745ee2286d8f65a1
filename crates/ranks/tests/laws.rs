//! The laws of group arithmetic, over arbitrary groups (not only regular ones that begin at 0).

use anabranch_ranks::{GlobalRank, Group, GroupRank, Layout, SplitChoice};
use proptest::prelude::*;
use std::collections::BTreeSet;

fn global(numbers: &[u32]) -> Vec<GlobalRank> {
    numbers.iter().map(|n| GlobalRank::new(*n)).collect()
}

fn positions(numbers: &[u32]) -> Vec<GroupRank> {
    numbers.iter().map(|n| GroupRank::new(*n)).collect()
}

/// Groups of a world of 97 ranks: shuffled lists, and regular runs so that each layout occurs.
fn any_group() -> impl Strategy<Value = Group> {
    let world = Group::world(97).unwrap();
    let lists = {
        let world = world.clone();
        (Just((0..97).collect::<Vec<u32>>()).prop_shuffle(), 1_usize..=40)
            .prop_map(move |(order, size)| world.subset(&positions(&order[..size])).unwrap())
    };
    let runs = (0_u32..40, 1_u32..=4, 1_u32..=14).prop_map(move |(start, stride, size)| {
        world.split_strided(GroupRank::new(start), stride, size).unwrap()
    });
    prop_oneof![lists, runs]
}

/// A group and some of its positions, distinct, in any order, at least one.
fn group_and_subset() -> impl Strategy<Value = (Group, Vec<GroupRank>)> {
    any_group().prop_flat_map(|group| {
        let size = group.size();
        (Just(group), Just((0..size).collect::<Vec<u32>>()).prop_shuffle(), 1..=size as usize)
            .prop_map(|(group, order, count)| (group, positions(&order[..count])))
    })
}

proptest! {
    #[test]
    fn nodes_and_rails_cross_in_every_member((group, nodes) in any_group().prop_flat_map(|group| {
        let size = group.size() as usize;
        (Just(group), prop::collection::vec(0_u32..5, size))
    })) {
        let divided = group.nodes(&nodes).unwrap();
        let (all_inside, rails) = (divided.inside(&group).unwrap(), divided.rails(&group).unwrap());
        prop_assert_eq!(&all_inside, &group.by_node(&nodes).unwrap());
        prop_assert_eq!(divided.count() as usize, nodes.iter().collect::<BTreeSet<_>>().len());
        for (position, rank) in group.iter() {
            let (node, local) = (divided.node_of(position).unwrap(), divided.local_index(position).unwrap());
            let inside = &all_inside[node as usize];
            prop_assert_eq!(inside.rank_of(rank), Some(GroupRank::new(local)));
            let rail = &rails[local as usize];
            // Before it on its rail are the earlier nodes that have as many members.
            let before = all_inside[..node as usize].iter().filter(|other| other.size() > local).count();
            prop_assert_eq!(rail.rank_of(rank), Some(GroupRank::new(before as u32)));
            for other in group.ranks() {
                let same = nodes[position.index()] == nodes[other.index()];
                prop_assert_eq!(divided.are_together(position, other), same);
            }
        }
        let members: u32 = rails.iter().map(Group::size).sum();
        prop_assert_eq!(members, group.size());
        let sizes: BTreeSet<u32> = all_inside.iter().map(Group::size).collect();
        let even = if sizes.len() == 1 { sizes.first().copied() } else { None };
        prop_assert_eq!(divided.even_size(), even);
        let changes = nodes.windows(2).filter(|pair| pair[0] != pair[1]).count();
        prop_assert_eq!(divided.are_contiguous(), changes + 1 == divided.count() as usize);
        prop_assert_eq!(divided.node_of(GroupRank::new(group.size())), None);
        prop_assert!(!divided.are_together(GroupRank::new(group.size()), GroupRank::new(group.size())));
    }

    #[test]
    fn the_inverse_round_trips(group in any_group()) {
        for (position, rank) in group.iter() {
            prop_assert_eq!(group.rank_of(rank), Some(position));
            prop_assert_eq!(group.global(position), Some(rank));
        }
        let members: BTreeSet<_> = group.members().iter().copied().collect();
        prop_assert_eq!(members.len(), group.size() as usize);
        for rank in (0..120).map(GlobalRank::new) {
            prop_assert_eq!(group.rank_of(rank).is_some(), members.contains(&rank));
        }
        prop_assert_eq!(group.global(GroupRank::new(group.size())), None);
    }

    #[test]
    fn the_layout_hint_agrees_with_every_element(group in any_group()) {
        let at = |start: GlobalRank, stride: u32| {
            group.iter().all(|(p, rank)| rank.get() == start.get() + p.get() * stride)
        };
        match group.layout() {
            Layout::Contiguous { start } => prop_assert!(at(start, 1)),
            Layout::Strided { start, stride } => prop_assert!(stride > 1 && at(start, stride)),
            Layout::List => {
                let start = group.members()[0];
                prop_assert!(group.size() > 1);
                for stride in 1..97 {
                    prop_assert!(!at(start, stride));
                }
            }
        }
    }

    #[test]
    fn a_subset_is_the_members_named((group, chosen) in group_and_subset()) {
        let subset = group.subset(&chosen).unwrap();
        for (i, position) in chosen.iter().enumerate() {
            prop_assert_eq!(subset.global(GroupRank::new(i as u32)), group.global(*position));
        }
        prop_assert_eq!(&group.subset_of_ranks(subset.members()).unwrap(), &subset);
    }

    #[test]
    fn subsets_of_subsets_compose((group, chosen) in group_and_subset()) {
        let subset = group.subset(&chosen).unwrap();
        let reversed: Vec<GroupRank> = subset.ranks().rev().collect();
        let direct: Vec<GroupRank> = chosen.iter().rev().copied().collect();
        prop_assert_eq!(subset.subset(&reversed).unwrap(), group.subset(&direct).unwrap());
    }

    #[test]
    fn swapping_two_members_is_another_group((group, chosen) in group_and_subset()) {
        prop_assume!(chosen.len() > 1);
        let mut swapped = chosen.clone();
        swapped.swap(0, 1);
        prop_assert_ne!(group.subset(&chosen).unwrap(), group.subset(&swapped).unwrap());
    }

    #[test]
    fn translations_compose(a in any_group(), b in any_group(), c in any_group()) {
        for rank in a.ranks() {
            prop_assert_eq!(a.translate(rank, &a), Some(rank));
            if let Some(in_b) = a.translate(rank, &b) {
                prop_assert_eq!(b.translate(in_b, &a), Some(rank));
                prop_assert_eq!(b.translate(in_b, &c), a.translate(rank, &c));
            }
        }
        prop_assert_eq!(a.translate(GroupRank::new(a.size()), &b), None);
    }

    #[test]
    fn split_partitions_in_key_order(
        group in any_group(),
        table in prop::collection::vec((prop::option::of(0_u32..4), -2_i64..3), 40),
    ) {
        let choices: Vec<SplitChoice> =
            table.iter().take(group.size() as usize).map(|(color, key)| SplitChoice { color: *color, key: *key }).collect();
        let parts = group.split(&choices).unwrap();
        prop_assert!(parts.windows(2).all(|pair| pair[0].0 < pair[1].0));
        let mut seen = BTreeSet::new();
        for (color, part) in &parts {
            let order: Vec<_> = part
                .members()
                .iter()
                .map(|rank| {
                    let position = group.rank_of(*rank).unwrap();
                    assert!(seen.insert(*rank));
                    assert_eq!(choices[position.index()].color, Some(*color));
                    (choices[position.index()].key, position)
                })
                .collect();
            prop_assert!(order.windows(2).all(|pair| pair[0] < pair[1]));
        }
        let colored = choices.iter().filter(|choice| choice.color.is_some()).count();
        prop_assert_eq!(seen.len(), colored);
    }

    #[test]
    fn excluding_is_the_complement_in_order((group, chosen) in group_and_subset()) {
        prop_assume!(chosen.len() < group.size() as usize);
        let rest = group.excluding(&chosen).unwrap();
        let gone = group.subset(&chosen).unwrap();
        prop_assert_eq!(rest.size() + gone.size(), group.size());
        prop_assert!(rest.members().iter().all(|rank| group.contains(*rank) && !gone.contains(*rank)));
        let order: Vec<_> = rest.members().iter().map(|rank| group.rank_of(*rank).unwrap()).collect();
        prop_assert!(order.windows(2).all(|pair| pair[0] < pair[1]));
    }

    #[test]
    fn nodes_partition_and_keep_order(group in any_group(), nodes in prop::collection::vec(0_u8..5, 40)) {
        let nodes = &nodes[..group.size() as usize];
        let parts = group.by_node(nodes).unwrap();
        let mut firsts = Vec::new();
        for part in &parts {
            let order: Vec<_> = part.members().iter().map(|rank| group.rank_of(*rank).unwrap()).collect();
            prop_assert!(order.windows(2).all(|pair| pair[0] < pair[1]));
            prop_assert!(order.iter().all(|p| nodes[p.index()] == nodes[order[0].index()]));
            firsts.push(order[0]);
        }
        prop_assert!(firsts.windows(2).all(|pair| pair[0] < pair[1]));
        prop_assert_eq!(parts.len(), nodes.iter().collect::<BTreeSet<_>>().len());
        prop_assert_eq!(parts.iter().map(Group::size).sum::<u32>(), group.size());
    }

    #[test]
    fn rotations_go_around(group in any_group(), by in any::<i64>()) {
        let size = group.size();
        for rank in group.ranks() {
            prop_assert_eq!(group.rotated(rank, 0), Some(rank));
            prop_assert_eq!(group.previous(group.next(rank).unwrap()), Some(rank));
            prop_assert_eq!(group.next(rank).unwrap().get(), (rank.get() + 1) % size);
            let there = group.rotated(rank, by).unwrap();
            let expected = (i128::from(rank.get()) + i128::from(by)).rem_euclid(i128::from(size)) as u32;
            prop_assert_eq!(there.get(), expected);
            let walk: Vec<_> = group.rotation(rank).unwrap().collect();
            prop_assert_eq!(walk[0], rank);
            prop_assert_eq!(walk.iter().collect::<BTreeSet<_>>().len(), size as usize);
            prop_assert!(walk.windows(2).all(|pair| group.next(pair[0]) == Some(pair[1])));
        }
        prop_assert_eq!(group.rotated(GroupRank::new(size), 1), None);
        prop_assert!(group.rotation(GroupRank::new(size)).is_none());
    }

    #[test]
    fn strided_bounds_are_the_parents(group in any_group(), start in 0_u32..50, stride in 1_u32..60, count in 1_u32..50) {
        let last = u64::from(start) + u64::from(count - 1) * u64::from(stride);
        let made = group.split_strided(GroupRank::new(start), stride, count);
        prop_assert_eq!(made.is_ok(), last < u64::from(group.size()));
        if let Ok(made) = made {
            for (i, rank) in made.iter() {
                prop_assert_eq!(group.rank_of(rank), Some(GroupRank::new(start + i.get() * stride)));
            }
        }
    }
}

#[test]
fn equal_lists_made_differently_are_equal_groups() {
    let world = Group::world(8).unwrap();
    let strided = world.split_strided(GroupRank::new(0), 2, 4).unwrap();
    let listed = world.subset_of_ranks(&global(&[0, 2, 4, 6])).unwrap();
    assert_eq!(strided, listed);
    assert_eq!(format!("{strided:?}"), "Group[0, 2, 4, 6]");
}
