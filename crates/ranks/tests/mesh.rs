//! The laws of meshes, over arbitrary groups and up to four axes.

use anabranch_ranks::{GlobalRank, Group, GroupRank, Mesh};
use proptest::prelude::*;
use std::collections::BTreeSet;

const NAMES: [&str; 4] = ["pp", "dp", "cp", "tp"];

/// A mesh over shuffled ranks of a larger world, so that positions and ranks have nothing in common.
fn any_mesh() -> impl Strategy<Value = Mesh> {
    let sizes = prop::collection::vec(1_u32..=4, 1..=NAMES.len());
    (sizes, Just((0..300).map(GlobalRank::new).collect::<Vec<_>>()).prop_shuffle()).prop_map(
        |(sizes, order)| {
            let count: u32 = sizes.iter().product();
            let group = Group::world(300).unwrap().subset_of_ranks(&order[..count as usize]).unwrap();
            let axes: Vec<(&str, u32)> = NAMES.into_iter().zip(sizes).collect();
            group.mesh(&axes).unwrap()
        },
    )
}

/// A mesh and some of its axes, distinct, in any order, at least one.
fn mesh_and_axes() -> impl Strategy<Value = (Mesh, Vec<&'static str>)> {
    any_mesh().prop_flat_map(|mesh| {
        let count = mesh.axes().len();
        (Just(mesh), Just(NAMES[..count].to_vec()).prop_shuffle(), 1..=count)
            .prop_map(|(mesh, names, count)| (mesh, names[..count].to_vec()))
    })
}

/// All coordinates in row-major order, found by counting up as an odometer does: the last wheel turns first.
fn odometer(mesh: &Mesh) -> Vec<Vec<u32>> {
    let sizes: Vec<u32> = mesh.axes().iter().map(anabranch_ranks::Axis::size).collect();
    let mut all = vec![vec![0; sizes.len()]];
    loop {
        let mut next = all.last().unwrap().clone();
        let mut wheel = sizes.len();
        loop {
            if wheel == 0 {
                return all;
            }
            wheel -= 1;
            next[wheel] += 1;
            if next[wheel] < sizes[wheel] {
                break;
            }
            next[wheel] = 0;
        }
        all.push(next);
    }
}

fn place(mesh: &Mesh, axis: &str) -> usize {
    mesh.axes().iter().position(|candidate| candidate.name() == axis).unwrap()
}

/// The members that agree with `rank` but on these axes, ordered by their coordinates on the axes as given: by definition,
/// without strides.
fn by_definition(mesh: &Mesh, axes: &[&str], rank: GroupRank) -> Vec<GlobalRank> {
    let places: Vec<usize> = axes.iter().map(|axis| place(mesh, axis)).collect();
    let all = odometer(mesh);
    let mine = &all[rank.index()];
    let mut chosen: Vec<(Vec<u32>, GlobalRank)> = all
        .iter()
        .zip(mesh.group().members())
        .filter(|(theirs, _)| {
            (0..mine.len()).all(|axis| places.contains(&axis) || theirs[axis] == mine[axis])
        })
        .map(|(theirs, member)| (places.iter().map(|axis| theirs[*axis]).collect(), *member))
        .collect();
    chosen.sort_unstable();
    chosen.into_iter().map(|(_, member)| member).collect()
}

proptest! {
    #[test]
    fn coordinates_count_up_with_the_last_axis_fastest(mesh in any_mesh()) {
        let all = odometer(&mesh);
        prop_assert_eq!(all.len(), mesh.group().size() as usize);
        for (rank, coordinates) in mesh.group().ranks().zip(&all) {
            prop_assert_eq!(mesh.coordinates(rank), Some(coordinates.clone()));
            prop_assert_eq!(mesh.rank_at(coordinates), Ok(rank));
        }
        prop_assert_eq!(mesh.coordinates(GroupRank::new(mesh.group().size())), None);
        for (index, axis) in mesh.axes().iter().enumerate() {
            prop_assert_eq!(mesh.axis(axis.name()), Ok(axis));
            let mut outside = vec![0; mesh.axes().len()];
            outside[index] = axis.size();
            prop_assert!(mesh.rank_at(&outside).is_err());
        }
    }

    #[test]
    fn groups_hold_who_agrees_on_the_other_axes((mesh, axes) in mesh_and_axes()) {
        for rank in mesh.group().ranks() {
            let group = mesh.group_over(&axes, rank).unwrap();
            prop_assert_eq!(group.members(), by_definition(&mesh, &axes, rank));
            let along = mesh.group_along(axes[0], rank).unwrap();
            prop_assert_eq!(along.members(), by_definition(&mesh, &axes[..1], rank));
            // The rank in the group along an axis is the coordinate.
            let coordinate = mesh.coordinates(rank).unwrap()[place(&mesh, axes[0])];
            let member = mesh.group().global(rank).unwrap();
            prop_assert_eq!(along.rank_of(member), Some(GroupRank::new(coordinate)));
        }
    }

    #[test]
    fn groups_along_an_axis_partition_the_mesh(mesh in any_mesh()) {
        for axis in mesh.axes() {
            let groups = mesh.all_groups_along(axis.name()).unwrap();
            prop_assert_eq!(groups.len() as u32 * axis.size(), mesh.group().size());
            let mut seen = BTreeSet::new();
            let mut firsts = Vec::new();
            for group in &groups {
                prop_assert_eq!(group.size(), axis.size());
                for member in group.members() {
                    prop_assert!(seen.insert(*member));
                    let rank = mesh.group().rank_of(*member).unwrap();
                    prop_assert_eq!(&mesh.group_along(axis.name(), rank).unwrap(), group);
                }
                firsts.push(mesh.group().rank_of(group.members()[0]).unwrap());
            }
            prop_assert_eq!(seen.len() as u32, mesh.group().size());
            prop_assert!(firsts.windows(2).all(|pair| pair[0] < pair[1]));
        }
    }

    #[test]
    fn all_axes_in_order_are_the_group_itself(mesh in any_mesh()) {
        let names: Vec<&str> = mesh.axes().iter().map(anabranch_ranks::Axis::name).collect();
        for rank in mesh.group().ranks() {
            prop_assert_eq!(&mesh.group_over(&names, rank).unwrap(), mesh.group());
            prop_assert_eq!(&mesh.submesh(&names, rank).unwrap(), &mesh);
        }
    }

    #[test]
    fn a_submesh_gives_the_groups_of_its_mesh((mesh, axes) in mesh_and_axes()) {
        for rank in mesh.group().ranks() {
            let sub = mesh.submesh(&axes, rank).unwrap();
            prop_assert_eq!(sub.group(), &mesh.group_over(&axes, rank).unwrap());
            let names: Vec<&str> = sub.axes().iter().map(anabranch_ranks::Axis::name).collect();
            prop_assert_eq!(&names, &axes);
            let mine = mesh.group().translate(rank, sub.group()).unwrap();
            for axis in &axes {
                prop_assert_eq!(sub.axis(axis).unwrap().size(), mesh.axis(axis).unwrap().size());
                prop_assert_eq!(sub.group_along(axis, mine).unwrap(), mesh.group_along(axis, rank).unwrap());
            }
            // Coordinates are those of the mesh, in the order of the submesh's axes.
            let all = mesh.coordinates(rank).unwrap();
            let picked: Vec<u32> = axes.iter().map(|axis| all[place(&mesh, axis)]).collect();
            prop_assert_eq!(sub.coordinates(mine), Some(picked));
            // A submesh of a submesh is the submesh.
            let last = &axes[axes.len() - 1..];
            prop_assert_eq!(sub.submesh(last, mine).unwrap(), mesh.submesh(last, rank).unwrap());
        }
    }

    #[test]
    fn groups_along_different_axes_meet_in_one_member(mesh in any_mesh()) {
        for rank in mesh.group().ranks() {
            let member = mesh.group().global(rank).unwrap();
            for (one, other) in mesh.axes().iter().flat_map(|one| mesh.axes().iter().map(move |other| (one, other))) {
                if one.name() != other.name() {
                    let there = mesh.group_along(other.name(), rank).unwrap();
                    let here = mesh.group_along(one.name(), rank).unwrap();
                    let both: Vec<_> = here.members().iter().copied().filter(|m| there.contains(*m)).collect();
                    prop_assert_eq!(both, [member]);
                }
            }
        }
    }
}

#[test]
fn a_mesh_of_one_is_a_mesh() {
    let alone = Group::world(5).unwrap().subset(&[GroupRank::new(3)]).unwrap();
    let mesh = alone.mesh(&[("dp", 1), ("tp", 1)]).unwrap();
    assert_eq!(mesh.group_along("tp", GroupRank::new(0)).unwrap(), alone);
    assert_eq!(mesh.all_groups_along("dp").unwrap(), [alone]);
}

#[test]
fn there_is_no_maximum_size() {
    let world = Group::world(4096).unwrap();
    let mesh = world.mesh(&[("pp", 8), ("dp", 16), ("tp", 32)]).unwrap();
    let last = GroupRank::new(4095);
    assert_eq!(mesh.coordinates(last), Some(vec![7, 15, 31]));
    let columns = mesh.group_over(&["pp", "tp"], last).unwrap();
    assert_eq!(columns.size(), 256);
    assert_eq!(columns.rank_of(GlobalRank::new(4095)), Some(GroupRank::new(255)));
}
