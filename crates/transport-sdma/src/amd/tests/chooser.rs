//! Engines for recorded kinds of machines.

use std::collections::BTreeSet;

use super::tree::{
    KERNEL_TABLE, MI300X_VIRTUAL, MI308X, Tree, TreeGpu, TreeLink, all_xgmi, connect, eight_mi300x,
    kernel_mask,
};
use crate::amd::{AmdError, Choice, Topology, choose, plan};

fn engines(choices: &[Choice]) -> Vec<u32> {
    choices.iter().map(|choice| choice.engine).collect()
}

fn between(topology: &Topology, from: usize, to: usize, channels: u32) -> Result<Vec<u32>, AmdError> {
    let gpus = topology.gpus();
    choose(topology, &gpus[from], &gpus[to], channels).map(|choices| engines(&choices))
}

fn forget_masks(gpus: &mut [TreeGpu]) {
    for link in gpus.iter_mut().flat_map(|gpu| &mut gpu.links) {
        link.mask = None;
    }
}

/// The reason of a refusal that is one for lack of a recommendation.
fn why(topology: &Topology, from: usize, to: usize) -> String {
    match between(topology, from, to, 1) {
        Err(AmdError::NoRecommendation { why, .. }) => why,
        other => panic!("{other:?}"),
    }
}

#[test]
fn eight_mi300x_with_masks_and_without_choose_the_same() {
    let mut with = eight_mi300x();
    connect(&mut with, kernel_mask);
    let mut without = eight_mi300x();
    connect(&mut without, |_, _| None);
    let (with, without) = (Tree::new(2, &with), Tree::new(2, &without));
    let (masks, table) = (with.read(), without.read());
    for from in 0..8 {
        for to in (0..8).filter(|to| *to != from) {
            let place = |index: usize| masks.gpus()[index].xgmi_physical_id.unwrap() as usize;
            let wanted = KERNEL_TABLE[place(from)][place(to)] as u32;
            assert_eq!(between(&masks, from, to, 1).unwrap(), [wanted], "{from} to {to}");
            assert_eq!(between(&table, from, to, 1).unwrap(), [wanted], "{from} to {to}");
        }
    }
    let gpus = masks.gpus();
    let mask = &choose(&masks, &gpus[0], &gpus[1], 2).unwrap()[1].reason;
    assert!(mask.contains("xGMI") && mask.contains("nodes/2/io_links/0") && mask.contains("0x400"), "{mask}");
    let gpus = table.gpus();
    let table = &choose(&table, &gpus[0], &gpus[1], 1).unwrap()[0].reason;
    assert!(table.contains("table for eight MI300X"), "{table}");
}

/// The mask counts, also where it differs from the table.
#[test]
fn a_mask_goes_before_the_table() {
    let mut gpus = eight_mi300x();
    connect(&mut gpus, |_, _| Some(1 << 5));
    let topology = Tree::new(2, &gpus).read();
    assert_eq!(between(&topology, 0, 1, 2).unwrap(), [5, 5]);
}

type Change<'a> = &'a dyn Fn(&mut Vec<TreeGpu>);

/// What the table may be used for, and nothing else: each change takes it away, and the reason says which.
#[test]
fn the_table_describes_one_machine() {
    let variant = |change: &dyn Fn(&mut Vec<TreeGpu>)| {
        let mut gpus = eight_mi300x();
        change(&mut gpus);
        connect(&mut gpus, |_, _| None);
        why(&Tree::new(2, &gpus).read(), 0, 1)
    };
    let cases: [(&str, Change<'_>); 8] = [
        ("there are 7", &|gpus| drop(gpus.pop())),
        ("node 5 is 0x74b5", &|gpus| gpus[3].device = MI300X_VIRTUAL),
        ("node 4 has 2 + 6", &|gpus| gpus[2].xgmi_engines = 6),
        ("node 3 in 7", &|gpus| gpus[1].hive = 7),
        ("in 0, node 2 in 0", &|gpus| gpus.iter_mut().for_each(|gpu| gpu.hive = 0)),
        ("place of node 9 is not known", &|gpus| gpus[7].physical = None),
        ("nodes 2 and 3 are both at place 3", &|gpus| gpus[1].physical = Some(3)),
        ("node 3 is at 8", &|gpus| gpus[1].physical = Some(8)),
    ];
    for (said, change) in cases {
        let why = variant(change);
        assert!(why.contains(said), "{said}: {why}");
    }
}

#[test]
fn a_machine_of_which_a_part_is_hidden_has_no_table() {
    let mut gpus = eight_mi300x();
    connect(&mut gpus, |_, _| None);
    let tree = Tree::new(2, &gpus);
    let read = |path: &std::path::Path| {
        if path.starts_with(tree.node(9)) {
            return Err(std::io::ErrorKind::PermissionDenied.into());
        }
        std::fs::read_to_string(path)
    };
    let topology = Topology::read_with(&tree.nodes(), &tree.pci(), &read).unwrap();
    let why = why(&topology, 0, 1);
    assert!(why.contains("1 of the eight GPUs are hidden"), "{why}");
}

/// A kernel that knows MI308X recommends the table's engines shifted right, and the whole pool where that would be a general one.
#[test]
fn an_mi308x_has_even_engines_only() {
    let mut gpus = eight_mi300x();
    for gpu in &mut gpus {
        gpu.device = MI308X;
        gpu.xgmi_engines = 6;
    }
    connect(&mut gpus, |from, to| {
        let engine = KERNEL_TABLE[from.physical? as usize][to.physical? as usize] >> 1;
        if engine < 2 { all_xgmi(from, to) } else { Some(1 << engine) }
    });
    let topology = Tree::new(2, &gpus).read();
    let mut seen = BTreeSet::new();
    for from in 0..8 {
        for to in (0..8).filter(|to| *to != from) {
            seen.extend(between(&topology, from, to, 8).unwrap());
        }
    }
    assert_eq!(seen, BTreeSet::from([2, 4, 6]));
    let pool = topology.gpus()[0].links.iter().find(|link| link.recommended_engines == Some(0xfc)).unwrap();
    let to = topology.gpus().iter().position(|gpu| gpu.node == pool.to).unwrap();
    assert_eq!(between(&topology, 0, to, 24).unwrap().len(), 24, "three engines of eight queues");
    assert!(matches!(
        between(&topology, 0, to, 25),
        Err(AmdError::TooManyChannels { asked: 25, allowed: 24, engines: 3, queues_per_engine: 8, .. })
    ));
}

/// Partitions have few engines and links among them that recommend general ones.
#[test]
fn partitions_use_what_their_links_recommend() {
    let part = |index: u32| TreeGpu {
        location: 0xc1 << 8 | index << 28,
        engines: 2,
        xgmi_engines: 0,
        ..TreeGpu::mi300x(1 + index, 0xc1)
    };
    let mut gpus: Vec<TreeGpu> = (0..8).map(part).collect();
    connect(&mut gpus, |_, _| Some(0b11));
    let topology = Tree::new(1, &gpus).read();
    assert_eq!(between(&topology, 0, 1, 4).unwrap(), [0, 1, 0, 1]);
    assert_eq!(between(&topology, 0, 2, 1).unwrap(), [1], "the next peer begins with the next engine");
    assert_eq!(between(&topology, 3, 3, 2).unwrap(), [0, 0]);
    forget_masks(&mut gpus);
    let why = why(&Tree::new(1, &gpus).read(), 0, 1);
    assert!(why.contains("whole GPUs, and node 1 is a partition"), "{why}");
}

/// Virtual machines get every xGMI engine for every peer: peers begin at different ones.
#[test]
fn a_shared_pool_is_spread_over_the_peers() {
    let mut gpus = eight_mi300x();
    for gpu in &mut gpus {
        gpu.device = MI300X_VIRTUAL;
    }
    connect(&mut gpus, all_xgmi);
    let topology = Tree::new(2, &gpus).read();
    let first: Vec<u32> = (1..8).map(|to| between(&topology, 0, to, 1).unwrap()[0]).collect();
    assert_eq!(first, [2, 3, 4, 5, 6, 7, 8]);
    assert_eq!(between(&topology, 0, 7, 16).unwrap()[6..], [14, 15, 2, 3, 4, 5, 6, 7, 8, 9]);
    let all: Vec<_> = topology.gpus()[1..].iter().collect();
    let planned = plan(&topology, &topology.gpus()[0], &all, 14).unwrap();
    let most =
        (0..16).map(|engine| planned.iter().flatten().filter(|choice| choice.engine == engine).count());
    assert_eq!(
        most.max(),
        Some(7),
        "fourteen channels to seven peers use each of fourteen engines seven times"
    );
    assert!(matches!(
        plan(&topology, &topology.gpus()[0], &all, 17),
        Err(AmdError::Oversubscribed { queues_per_engine: 8, peers: 7, asked, .. }) if asked > 8
    ));
}

#[test]
fn two_gpus_need_no_table() {
    let mut gpus = vec![TreeGpu::mi300x(1, 1), TreeGpu::mi300x(2, 2)];
    connect(&mut gpus, all_xgmi);
    let topology = Tree::new(1, &gpus).read();
    assert_eq!(between(&topology, 0, 1, 3).unwrap(), [2, 3, 4]);
    forget_masks(&mut gpus);
    assert!(why(&Tree::new(1, &gpus).read(), 0, 1).contains("there are 2"));
}

#[test]
fn gpus_without_a_link_are_refused() {
    let topology = Tree::new(1, &[TreeGpu::mi300x(1, 1), TreeGpu::mi300x(2, 2)]).read();
    assert!(matches!(
        between(&topology, 0, 1, 1),
        Err(AmdError::NoLink { source_node: 1, destination_node: 2 })
    ));
}

#[test]
fn an_engine_that_is_not_there_is_refused() {
    let mut gpus = vec![TreeGpu::mi300x(1, 1), TreeGpu::mi300x(2, 2)];
    connect(&mut gpus, |_, _| Some(1 << 16 | 1 << 3));
    let topology = Tree::new(1, &gpus).read();
    let error = between(&topology, 0, 1, 1).unwrap_err();
    assert!(
        matches!(error, AmdError::EngineOutOfRange { mask: 0x10008, node: 1, engines: 16, .. }),
        "{error}"
    );
}

#[test]
fn queues_within_a_gpu_go_to_general_engine_0() {
    let topology = Tree::new(1, &[TreeGpu::mi300x(1, 1)]).read();
    assert_eq!(between(&topology, 0, 0, 8).unwrap(), [0; 8]);
    for channels in [0, 9] {
        let error = between(&topology, 0, 0, channels).unwrap_err();
        assert!(matches!(error, AmdError::TooManyChannels { allowed: 8, .. }), "{error}");
    }
    let bare = TreeGpu { engines: 0, ..TreeGpu::mi300x(1, 1) };
    let error = between(&Tree::new(1, &[bare]).read(), 0, 0, 1).unwrap_err();
    assert!(matches!(error, AmdError::NoEngine { node: 1, .. }), "{error}");
}

/// The sixth queue on one engine of a gfx1250 is refused: the engines of the way to the host share the queues.
#[test]
fn queues_within_a_gfx1250_are_spread() {
    let mut gpu =
        TreeGpu { target: 120_500, engines: 16, xgmi_engines: 0, queues: 6, ..TreeGpu::mi300x(1, 1) };
    let bare = Tree::new(1, std::slice::from_ref(&gpu)).read();
    assert!(matches!(between(&bare, 0, 0, 1), Err(AmdError::NoEngine { .. })));
    gpu.links.push(TreeLink { to: 0, kind: 2, mask: Some(0xf), flags: 1 });
    let topology = Tree::new(1, &[gpu]).read();
    assert_eq!(between(&topology, 0, 0, 6).unwrap(), [0, 1, 2, 3, 0, 1]);
}

/// A link over xGMI goes before another to the same node, in whatever order they stand.
#[test]
fn the_better_of_two_links_counts() {
    let mut gpus = vec![TreeGpu::mi300x(1, 1), TreeGpu::mi300x(2, 2)];
    gpus[0].links.push(TreeLink { to: 2, kind: 2, mask: Some(0b11), flags: 1 });
    gpus[0].links.push(TreeLink { to: 2, kind: 11, mask: Some(1 << 9), flags: 1 });
    let topology = Tree::new(1, &gpus).read();
    assert_eq!(between(&topology, 0, 1, 1).unwrap(), [9]);
}

#[test]
fn an_engine_for_several_peers_holds_their_queues_or_refuses() {
    let mut gpus = vec![TreeGpu::mi300x(1, 1), TreeGpu::mi300x(2, 2), TreeGpu::mi300x(3, 3)];
    connect(&mut gpus, |_, _| Some(1 << 4));
    let topology = Tree::new(1, &gpus).read();
    let peers = [&topology.gpus()[1], &topology.gpus()[2]];
    let choices = plan(&topology, &topology.gpus()[0], &peers, 4).unwrap();
    assert_eq!(choices.iter().flatten().filter(|choice| choice.engine == 4).count(), 8);
    let error = plan(&topology, &topology.gpus()[0], &peers, 5).unwrap_err();
    let wanted = AmdError::Oversubscribed { node: 1, engine: 4, asked: 10, peers: 2, queues_per_engine: 8 };
    assert_eq!(error.to_string(), wanted.to_string());
}
