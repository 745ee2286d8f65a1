//! What is refused, and in which words: each message says what was given and what is allowed.

use anabranch_ranks::{Error, GlobalRank, Group, GroupRank, SplitChoice};

fn at(number: u32) -> GroupRank {
    GroupRank::new(number)
}

/// Ranks 10, 12, 14, 16 of a world of 20: a parent whose positions and ranks never coincide.
fn parent() -> Group {
    Group::world(20).unwrap().split_strided(at(10), 2, 4).unwrap()
}

#[test]
fn messages_name_the_input_and_the_bounds() {
    let group = parent();
    let cases: Vec<(Error, &str)> = vec![
        (Group::world(0).unwrap_err(), "world: no members were given; a group needs at least one"),
        (group.subset(&[]).unwrap_err(), "subset: no members were given; a group needs at least one"),
        (
            group.subset(&[at(0), at(4)]).unwrap_err(),
            "subset: group rank 4 is outside the group, which has 4 members (0 to 3)",
        ),
        (
            group.subset(&[at(3), at(1), at(3)]).unwrap_err(),
            "subset: rank 16 is given twice, at positions 0 and 2",
        ),
        (
            group.subset_of_ranks(&[GlobalRank::new(11)]).unwrap_err(),
            "subset_of_ranks: rank 11 of the world is not a member of the group (4 members)",
        ),
        (
            group.split_strided(at(1), 2, 3).unwrap_err(),
            "split_strided: 3 members from group rank 1 in steps of 2 end at position 5; the group has 4 members (0 to 3)",
        ),
        (
            group.split_strided(at(0), 0, 2).unwrap_err(),
            "split_strided: a stride of 0 was given; it must be at least 1",
        ),
        (
            group.split_strided(at(0), 1, 0).unwrap_err(),
            "split_strided: no members were given; a group needs at least one",
        ),
        (
            group.excluding(&[at(0), at(1), at(2), at(3)]).unwrap_err(),
            "excluding: no members were given; a group needs at least one",
        ),
        (
            group.excluding(&[at(0), at(0)]).unwrap_err(),
            "excluding: rank 10 is given twice, at positions 0 and 1",
        ),
        (
            group.by_node(&["a", "b"]).unwrap_err(),
            "by_node: 2 entries were given for a group of 4 members; each member needs exactly one",
        ),
        (
            group.nodes(&["a"; 5]).unwrap_err(),
            "nodes: 5 entries were given for a group of 4 members; each member needs exactly one",
        ),
        (
            group.split(&[SplitChoice { color: None, key: 0 }; 5]).unwrap_err(),
            "split: 5 entries were given for a group of 4 members; each member needs exactly one",
        ),
    ];
    for (error, words) in cases {
        assert_eq!(error.to_string(), words);
    }
}

#[test]
fn messages_about_meshes_name_the_axes() {
    let group = parent();
    let mesh = group.mesh(&[("dp", 2), ("tp", 2)]).unwrap();
    let cases: Vec<(Error, &str)> = vec![
        (group.mesh(&[]).unwrap_err(), "mesh: no axis was given; at least one is needed"),
        (
            group.mesh(&[("dp", 4), ("", 1)]).unwrap_err(),
            "mesh: the axis at position 1 has an empty name; each axis needs a name",
        ),
        (
            group.mesh(&[("dp", 2), ("tp", 1), ("dp", 2)]).unwrap_err(),
            "mesh: axis 'dp' is given twice, at positions 0 and 2",
        ),
        (
            group.mesh(&[("dp", 4), ("tp", 0)]).unwrap_err(),
            "mesh: axis 'tp' has a size of 0; it must be at least 1",
        ),
        (
            group.mesh(&[("dp", 2), ("tp", 4)]).unwrap_err(),
            "mesh: the axes are dp=2, tp=4; their sizes must multiply to the group's size, and the group has 4 members",
        ),
        (mesh.axis("pp").unwrap_err(), "axis: the mesh has no axis 'pp'; its axes are dp=2, tp=2"),
        (
            mesh.all_groups_along("TP").unwrap_err(),
            "all_groups_along: the mesh has no axis 'TP'; its axes are dp=2, tp=2",
        ),
        (
            mesh.group_along("tp", at(4)).unwrap_err(),
            "group_along: group rank 4 is outside the group, which has 4 members (0 to 3)",
        ),
        (
            mesh.group_along("", at(0)).unwrap_err(),
            "group_along: the mesh has no axis ''; its axes are dp=2, tp=2",
        ),
        (mesh.group_over(&[], at(0)).unwrap_err(), "group_over: no axis was given; at least one is needed"),
        (
            mesh.submesh(&["tp", "tp"], at(0)).unwrap_err(),
            "submesh: axis 'tp' is given twice, at positions 0 and 1",
        ),
        (
            mesh.rank_at(&[1]).unwrap_err(),
            "rank_at: 1 coordinates were given; each axis needs exactly one (dp=2, tp=2)",
        ),
        (
            mesh.rank_at(&[0, 2]).unwrap_err(),
            "rank_at: coordinate 2 is outside axis 'tp'; the axis has 2 places (0 to 1)",
        ),
    ];
    for (error, words) in cases {
        assert_eq!(error.to_string(), words);
    }
}

#[test]
fn sizes_of_axes_do_not_wrap() {
    // The product is 2^32 more than the group's size: a wrapped one would fit.
    let group = parent();
    let most = (1 << 30) + 1;
    assert!(matches!(group.mesh(&[("a", 4), ("b", most)]), Err(Error::Invalid { .. })));
    assert!(matches!(group.mesh(&[("a", most), ("b", 2), ("c", 2)]), Err(Error::Invalid { .. })));
    assert!(group.mesh(&[("a", 1), ("b", 4), ("c", 1)]).is_ok());
}

#[test]
fn huge_numbers_do_not_wrap() {
    let group = parent();
    assert!(group.split_strided(at(u32::MAX), u32::MAX, u32::MAX).is_err());
    assert!(group.subset(&[at(u32::MAX)]).is_err());
    assert_eq!(group.rank_of(GlobalRank::new(u32::MAX)), None);
    assert_eq!(group.rotated(at(3), i64::MAX), Some(at(((3_i128 + i128::from(i64::MAX)) % 4) as u32)));
}

#[test]
fn one_alone_works_everywhere() {
    let world = Group::world(5).unwrap();
    let alone = world.subset(&[at(3)]).unwrap();
    assert_eq!(alone.size(), 1);
    assert_eq!(alone.next(at(0)), Some(at(0)));
    assert_eq!(alone.previous(at(0)), Some(at(0)));
    assert_eq!(alone.split(&[SplitChoice { color: Some(7), key: -1 }]).unwrap(), vec![(7, alone.clone())]);
    assert_eq!(alone.by_node(&[0]).unwrap(), vec![alone.clone()]);
    assert_eq!(alone.excluding(&[]).unwrap(), alone);
    assert_eq!(alone.rank_of(GlobalRank::new(3)), Some(at(0)));
}

#[test]
fn there_is_no_maximum_size() {
    for size in [72, 128, 4096] {
        let world = Group::world(size).unwrap();
        let reversed: Vec<GroupRank> = world.ranks().rev().collect();
        let group = world.subset(&reversed).unwrap();
        assert_eq!(group.rank_of(GlobalRank::new(0)), Some(at(size - 1)));
    }
}
