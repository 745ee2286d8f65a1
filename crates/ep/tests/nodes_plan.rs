//! Laws of plans across nodes: every row arrives once at each rank that works for its token, relays are where they are said to be, and
//! what cannot be is refused when the plan is made.

use std::collections::BTreeSet;

use anabranch_ep::plan::Plan;
use anabranch_ep::{
    Across, CombineCodec, CombineSource, EpConfig, EpShape, Fp8Format, LinkSpeeds, Mode, Moved, Nodes,
    OnTimeout, Payload, PlacementTable,
};
use anabranch_ranks::GroupRank;
use proptest::prelude::*;

fn nodes() -> impl Strategy<Value = Nodes> {
    prop::collection::vec(0u32..5, 1..14).prop_map(|nodes| Nodes::new(&nodes))
}

proptest! {
    /// Each source has one relay on each other node, which is there; the relay's list has it, at its place; lists fit the window.
    #[test]
    fn every_source_has_one_relay_on_each_other_node(map in nodes()) {
        for source in map.ranks() {
            for node in (0..map.count()).filter(|node| map.node_of(source) != Some(*node)) {
                let relay = map.relay(source, node).unwrap();
                prop_assert_eq!(map.node_of(relay), Some(node));
                let sources = map.relayed_by(relay);
                let place = map.relay_slot(source, node).unwrap();
                prop_assert_eq!(sources[place as usize], source);
                prop_assert!(place < map.relay_slots());
                let index = |rank: GroupRank| map.members_of(map.node_of(rank).unwrap()).iter().position(|one| *one == rank).unwrap();
                prop_assert_eq!(index(relay), index(source) % map.members_of(node).len());
            }
        }
        // No relay has more than its share of a node of the same size.
        let even = (0..map.count()).all(|node| map.members_of(node).len() as u32 == map.largest_size());
        if even { prop_assert_eq!(map.relay_slots(), map.count() - 1); }
    }

    /// Every copy arrives once, whatever the way; by node, a token crosses once to each node, and never more often than direct.
    #[test]
    fn every_row_arrives_once(
        map in nodes(),
        top_k in 1u32..6,
        ids in prop::collection::vec(-1i32..40, 0..60),
        source in any::<prop::sample::Index>(),
    ) {
        let source = GroupRank::new(source.index(map.size() as usize) as u32);
        let plan = |way| {
            let config = EpConfig::new(EpShape { hidden: 128, experts: 31, top_k, max_tokens: 64 }).nodes(map.clone()).across(way);
            Plan::new(config, map.size()).unwrap()
        };
        let [direct, by_node] = [Across::Direct, Across::Node].map(plan);
        let ids = &ids[..ids.len() / top_k as usize * top_k as usize];
        let mut expected = BTreeSet::new();
        for (ids, token) in ids.chunks_exact(top_k as usize).zip(0u32..) {
            expected.extend(ids.iter().filter_map(|id| direct.placement().owner_of_id(*id)).map(|rank| (token, rank)));
        }
        for plan in [&direct, &by_node] {
            let hops = plan.hops(source, ids);
            let arrived: Vec<_> = hops.iter().filter(|hop| hop.arrives).map(|hop| (hop.token, hop.to)).collect();
            prop_assert_eq!(arrived.len(), expected.len());
            prop_assert_eq!(&arrived.into_iter().collect::<BTreeSet<_>>(), &expected);
            // Who forwards has got it before.
            for hop in hops.iter().filter(|hop| hop.from != source) {
                let got = hops.iter().any(|one| one.token == hop.token && one.from == source && one.to == hop.from && !one.arrives);
                prop_assert!(got && map.are_together(hop.from, hop.to));
            }
        }
        let crossings: BTreeSet<_> = expected
            .iter()
            .filter(|(_, rank)| !map.are_together(source, *rank))
            .map(|(token, rank)| (*token, map.node_of(*rank)))
            .collect();
        // Every copy is inside, between, forwarded, or to the rank that has it already.
        for plan in [&direct, &by_node] {
            let hops = plan.hops(source, ids);
            let own = hops.iter().filter(|hop| hop.from == hop.to).count() as u64;
            let each = u64::from(plan.row_bytes() + plan.meta_bytes());
            let moved = plan.bytes_inside_nodes(&hops) + plan.forwarded_inside_nodes(&hops);
            let between = if map.count() > 1 { plan.bytes_between_nodes(&hops) } else { 0 };
            prop_assert_eq!(moved + between + own * each, hops.len() as u64 * each);
            prop_assert_eq!(plan.dispatch_traffic(source, &hops).payload_bytes, between);
            let returned = plan.returned_inside_nodes(&hops) + plan.returned_between_nodes(&hops);
            let elsewhere = hops.iter().filter(|hop| hop.arrives && hop.to != source).count() as u64;
            prop_assert_eq!(returned, elsewhere * u64::from(plan.combine_row_bytes()));
        }
        prop_assert_eq!(direct.forwarded_inside_nodes(&direct.hops(source, ids)), 0);
        let far = expected.iter().filter(|(_, rank)| !map.are_together(source, *rank)).count() as u64;
        let bytes = |rows: u64| rows * u64::from(direct.row_bytes() + direct.meta_bytes());
        prop_assert_eq!(direct.bytes_between_nodes(&direct.hops(source, ids)), bytes(far));
        if map.count() > 1 {
            prop_assert_eq!(by_node.bytes_between_nodes(&by_node.hops(source, ids)), bytes(crossings.len() as u64));
            let returned = far * u64::from(direct.combine_row_bytes());
            prop_assert_eq!(by_node.returned_between_nodes(&by_node.hops(source, ids)), returned);
        }
    }

    /// Parts of a slot do not overlap, and have the rows that the kernels index.
    #[test]
    fn parts_of_a_slot_are_apart(map in nodes(), max_tokens in 1u32..200, cap in 0u32..4, by_node in any::<bool>()) {
        let way = if by_node { Across::Node } else { Across::Direct };
        let config = EpConfig::new(EpShape { hidden: 64, experts: 40, top_k: 3, max_tokens }).nodes(map.clone()).across(way);
        let plan = Plan::new(config.max_recv(cap * map.size()), map.size()).unwrap();
        let layout = *plan.layout();
        let (row, meta) = (u64::from(plan.row_bytes()), u64::from(plan.meta_bytes()));
        let many = map.count() > 1;
        let staged = match (many, by_node) {
            (false, _) => 0,
            (true, false) => u64::from(map.size()) * u64::from(plan.row_stride()),
            (true, true) => u64::from(map.count()) * u64::from(max_tokens),
        };
        let relayed = if many && by_node { u64::from(map.relay_slots()) * u64::from(max_tokens) } else { 0 };
        let returned = if many { plan.rows() * u64::from(plan.combine_row_bytes()) } else { 0 };
        let parts = [
            (layout.returned_rows, returned),
            (layout.staged_rows, staged * row),
            (layout.staged_meta, staged * meta),
            (layout.relay_flags, if relayed > 0 { u64::from(map.size()) * 128 } else { 0 }),
            (layout.relay_rows, relayed * row),
            (layout.relay_meta, relayed * meta),
            (layout.bytes, 0),
        ];
        for (index, (start, bytes)) in parts.iter().enumerate() {
            prop_assert!(start.is_multiple_of(256));
            let next = parts.get(index + 1).map_or(layout.bytes, |(next, _)| *next);
            prop_assert!(start + bytes <= next, "part {}", index);
        }
        prop_assert_eq!(plan.across().is_some(), many);
    }
}

/// Nodes of these sizes, one after the other.
fn sized(sizes: &[u32]) -> Nodes {
    let nodes: Vec<_> =
        sizes.iter().enumerate().flat_map(|(node, size)| vec![node; *size as usize]).collect();
    Nodes::new(&nodes)
}

/// Rows of 14 KiB; an expert a rank at least.
fn usual(sizes: &[u32], top_k: u32, tokens: u32) -> EpConfig {
    let map = sized(sizes);
    EpConfig::new(EpShape { hidden: 7168, experts: map.size().max(256), top_k, max_tokens: tokens })
        .mode(Mode::Slotted)
        .nodes(map)
}

fn chosen(config: &EpConfig) -> Option<Across> {
    let ranks = config.nodes.as_ref().unwrap().size();
    Plan::new(config.clone(), ranks).unwrap().across().map(|(_, way)| way)
}

#[test]
fn chosen_way_depends_on_bytes_saved() {
    let way = |sizes: &[u32], top_k, tokens| chosen(&usual(sizes, top_k, tokens));
    let (direct, by_node) = (Some(Across::Direct), Some(Across::Node));
    assert_eq!(way(&[3], 8, 1000), None, "one node");
    assert_eq!(way(&[1; 4], 8, 4096), direct, "no rank to forward to");
    assert_eq!(way(&[2, 1, 1], 1, 4096), direct, "a token that goes to one rank crosses once either way");
    // Nodes: from some number on a token's ranks hardly share any.
    let of_nodes: Vec<_> = [2, 4, 8, 16, 32, 64, 128].map(|nodes| way(&vec![8; nodes], 8, 4096)).into();
    assert!(of_nodes.is_sorted_by_key(|way| *way == direct), "{of_nodes:?}");
    assert_eq!((of_nodes[0], of_nodes[6]), (by_node, direct));
    // Ranks of a node, of 32 ranks: the more, the more of a token's ranks share a node.
    let of_ranks: Vec<_> = [1, 2, 4, 8, 16].map(|size| way(&vec![size; 32 / size as usize], 8, 4096)).into();
    assert!(of_ranks.is_sorted_by_key(|way| *way == by_node), "{of_ranks:?}");
    assert_eq!((of_ranks[0], of_ranks[4]), (direct, by_node));
    // Experts of a token, and tokens: few rows are not worth a step.
    let of_top_k: Vec<_> = [1, 2, 4, 8].map(|top_k| way(&[8; 8], top_k, 4096)).into();
    assert!(of_top_k.is_sorted_by_key(|way| *way == by_node), "{of_top_k:?}");
    assert_eq!((of_top_k[0], of_top_k[3]), (direct, by_node));
    let of_tokens: Vec<_> = [1, 2, 4, 16, 128, 4096].map(|tokens| way(&[4, 4], 8, tokens)).into();
    assert!(of_tokens.is_sorted_by_key(|way| *way == by_node), "{of_tokens:?}");
    assert_eq!((of_tokens[0], of_tokens[4]), (direct, by_node));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// What is asked for is done; else what takes the rank with most to do no more time.
    #[test]
    fn the_way_chosen_is_not_the_slower_one(
        map in nodes(),
        top_k in 1u32..9,
        tokens in prop::sample::select(vec![1u32, 7, 128, 4096]),
        hidden in prop::sample::select(vec![64u32, 7168]),
    ) {
        let config = EpConfig::new(EpShape { hidden, experts: 40, top_k, max_tokens: tokens }).mode(Mode::Slotted).nodes(map.clone());
        for given in [Across::Direct, Across::Node] {
            prop_assert_eq!(chosen(&config.clone().across(given)), Some(given).filter(|_| map.count() > 1));
        }
        let plan = Plan::new(config.clone(), map.size()).unwrap();
        prop_assert_eq!(chosen(&config), plan.across().map(|(_, way)| way), "the same on all ranks");
        let speeds = LinkSpeeds::default();
        let us = |way| plan.expected_dispatch(way, &speeds).map(|moved| speeds.parts(&moved).in_turn());
        let (direct, node) = (us(Across::Direct), us(Across::Node));
        let own = plan.across().and_then(|(_, way)| us(way));
        prop_assert_eq!(us(Across::Auto), own, "left open, the plan's own");
        match plan.across() {
            None => prop_assert_eq!((direct, node), (None, None)),
            Some((_, Across::Node)) => prop_assert!(node < direct),
            Some(_) => prop_assert!(direct <= node),
        }
    }
}

/// What is expected is what the copies of random routing come to, also of replicas, and of nodes that differ in size.
#[test]
fn expected_traffic_matches_random_routing() {
    const TOKENS: u32 = 4096;
    let placed = |ranks: u32| {
        let owners = |expert: u32| match expert % 3 {
            0 => vec![expert % ranks, (expert + 1) % ranks],
            _ => vec![expert % 2],
        };
        PlacementTable::new((0..64).map(|expert| owners(expert).into_iter().map(GroupRank::new).collect()))
    };
    for sizes in [&[4, 4][..], &[2, 2, 2], &[3, 1, 2], &[1, 5]] {
        for is_placed in [false, true] {
            let (map, speeds) = (sized(sizes), LinkSpeeds::default());
            let base = EpConfig::new(EpShape { hidden: 512, experts: 64, top_k: 6, max_tokens: TOKENS })
                .mode(Mode::Slotted)
                .nodes(map.clone());
            let base = if is_placed { base.placement(placed(map.size())) } else { base };
            for way in [Across::Direct, Across::Node] {
                let plan = Plan::new(base.clone().across(way), map.size()).unwrap();
                let expected = plan.expected_dispatch(way, &speeds).unwrap();
                let mut seed = 0x9E37_79B9_7F4A_7C15_u64;
                let mut random = || {
                    seed ^= seed << 13;
                    seed ^= seed >> 7;
                    seed ^= seed << 17;
                    seed
                };
                let mut hops = Vec::new();
                for source in map.ranks() {
                    let mut ids = Vec::new();
                    for _ in 0..TOKENS {
                        let mut experts: Vec<i32> = (0..64).collect();
                        ids.extend(
                            (0..6).map(|_| experts.swap_remove((random() % experts.len() as u64) as usize)),
                        );
                    }
                    hops.extend(plan.hops(source, &ids));
                }
                let each = f64::from(plan.row_bytes() + plan.meta_bytes());
                let counted = map.ranks().map(|rank| {
                    let count = |is_counted: &dyn Fn(&anabranch_ep::plan::Hop) -> bool| {
                        hops.iter().filter(|hop| hop.from != hop.to && is_counted(hop)).count() as f64 * each
                    };
                    let near = |hop: &anabranch_ep::plan::Hop| map.are_together(hop.from, hop.to);
                    let between = [
                        count(&|hop| hop.from == rank && !near(hop)),
                        count(&|hop| hop.to == rank && !near(hop)),
                    ];
                    let inside = [
                        count(&|hop| hop.from == rank && near(hop)),
                        count(&|hop| hop.to == rank && near(hop)),
                    ];
                    Moved {
                        between_bytes: between[0].max(between[1]),
                        inside_bytes: inside[0].max(inside[1]),
                        ..expected
                    }
                });
                let us = |moved: &Moved| speeds.parts(moved).in_turn();
                let slowest = counted.max_by(|one, other| us(one).total_cmp(&us(other))).unwrap();
                for (found, counted) in [
                    (expected.between_bytes, slowest.between_bytes),
                    (expected.inside_bytes, slowest.inside_bytes),
                ] {
                    let off = (found - counted).abs() / counted.max(each);
                    assert!(off < 0.02, "{sizes:?} {is_placed} {way}: {found} {counted}");
                }
                // Placed evenly, all have something for all: rows, records and a flag.
                let others = match way {
                    Across::Node => vec![map.count() - 1],
                    _ => sizes.iter().map(|size| map.size() - size).collect(),
                };
                let all = others.iter().any(|others| {
                    (expected.messages - 3.0 * f64::from(*others)).abs() < 1e-6 * expected.messages
                });
                assert!(is_placed || all, "{sizes:?} {way}: {expected:?}");
            }
        }
    }
}

#[test]
fn options_without_internode_support_are_refused() {
    let base = || {
        EpConfig::new(EpShape { hidden: 128, experts: 64, top_k: 2, max_tokens: 40 })
            .nodes(Nodes::new(&[0, 0, 1, 1]))
    };
    let refused = |config: EpConfig| Plan::new(config, 4).unwrap_err().to_string();
    let text = refused(base().mode(Mode::Compact));
    assert!(text.starts_with("2 nodes, and mode is compact; allowed then is slotted: "), "{text}");
    let codec = CombineCodec::Fp8Block(Fp8Format::E4m3fn);
    let text = refused(base().combine_source(CombineSource::Buffer).combine_codec(codec));
    assert!(text.contains("combine_codec is") && text.contains("allowed then is none"), "{text}");
    let masks = OnTimeout::Mask { patience: std::time::Duration::from_secs(1) };
    let text = refused(base().on_timeout(masks));
    assert!(text.contains("on_timeout is") && text.contains("allowed then is fault"), "{text}");
    let text = refused(base().combine_weights(true));
    assert!(text.contains("combine_weights is true"), "{text}");
    let text = refused(base().late_weights(true));
    assert!(text.contains("late_weights is true"), "{text}");
    let text = refused(base().payload(Payload::CopyEngine));
    assert!(text.contains("payload is copy-engine"), "{text}");
    let text = Plan::new(base(), 5).unwrap_err().to_string();
    assert_eq!(text, "nodes is a map of 4 ranks; the group has 5");
    assert_eq!(
        "both".parse::<Across>().unwrap_err().to_string(),
        "\"both\" is no way across nodes; allowed are auto, direct, node"
    );
    // On one node everything is as without a map.
    let one = |config: EpConfig| Plan::new(config.nodes(Nodes::new(&[1, 1, 1, 1])), 4).unwrap();
    assert!(one(base().combine_weights(true).mode(Mode::Compact)).across().is_none());
}
