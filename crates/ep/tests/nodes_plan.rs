//! Laws of plans across nodes: every row arrives once at each rank that works for its token, relays are where they are said to be, and
//! what cannot be is refused when the plan is made.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

use std::collections::BTreeSet;

use anabranch_ep::plan::Plan;
use anabranch_ep::{
    Across, CombineCodec, CombineSource, EpConfig, Fp8Format, Mode, NodeMap, OnTimeout, Payload,
};
use anabranch_ranks::GroupRank;
use proptest::prelude::*;

fn nodes() -> impl Strategy<Value = NodeMap> {
    prop::collection::vec(0u32..5, 1..14).prop_map(|nodes| NodeMap::new(&nodes))
}

proptest! {
    /// Each source has one relay on each other node, which is there; the relay's list has it, at its place; lists fit the window.
    #[test]
    fn every_source_has_one_relay_on_each_other_node(map in nodes()) {
        for source in (0..map.ranks()).map(GroupRank::new) {
            for node in (0..map.count()).filter(|node| map.node_of(source) != Some(*node)) {
                let relay = map.relay(source, node).unwrap();
                prop_assert_eq!(map.node_of(relay), Some(node));
                let sources = map.relayed_by(relay);
                let place = map.relay_slot(source, node).unwrap();
                prop_assert_eq!(sources[place as usize], source);
                prop_assert!(place < map.relay_slots());
                let index = |rank: GroupRank| map.members(map.node_of(rank).unwrap()).iter().position(|one| *one == rank).unwrap();
                prop_assert_eq!(index(relay), index(source) % map.members(node).len());
            }
        }
        // No relay has more than its share of a node of the same size.
        let even = (0..map.count()).all(|node| map.members(node).len() as u32 == map.most_members());
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
        let source = GroupRank::new(source.index(map.ranks() as usize) as u32);
        let plan = |way| {
            let config = EpConfig::new(128, 31, top_k, 64).nodes(map.clone()).across(way);
            Plan::new(config, map.ranks()).unwrap()
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
                prop_assert!(got && map.is_near(hop.from, hop.to));
            }
        }
        let crossings: BTreeSet<_> = expected
            .iter()
            .filter(|(_, rank)| !map.is_near(source, *rank))
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
        let far = expected.iter().filter(|(_, rank)| !map.is_near(source, *rank)).count() as u64;
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
        let config = EpConfig::new(64, 40, 3, max_tokens).nodes(map.clone()).across(way);
        let plan = Plan::new(config.max_recv(cap * map.ranks()), map.ranks()).unwrap();
        let layout = *plan.layout();
        let (row, meta) = (u64::from(plan.row_bytes()), u64::from(plan.meta_bytes()));
        let many = map.count() > 1;
        let staged = match (many, by_node) {
            (false, _) => 0,
            (true, false) => u64::from(map.ranks()) * u64::from(plan.row_stride()),
            (true, true) => u64::from(map.count()) * u64::from(max_tokens),
        };
        let relayed = if many && by_node { u64::from(map.relay_slots()) * u64::from(max_tokens) } else { 0 };
        let returned = if many { plan.rows() * u64::from(plan.combine_row_bytes()) } else { 0 };
        let parts = [
            (layout.returned_rows, returned),
            (layout.staged_rows, staged * row),
            (layout.staged_meta, staged * meta),
            (layout.relay_flags, if relayed > 0 { u64::from(map.ranks()) * 128 } else { 0 }),
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

#[test]
fn the_way_is_chosen_by_tokens_and_nodes() {
    let way = |nodes: &[u32], tokens| {
        let map = NodeMap::new(nodes);
        Plan::new(EpConfig::new(128, 64, 2, tokens).nodes(map.clone()), map.ranks())
            .unwrap()
            .across()
            .map(|(_, way)| way)
    };
    assert_eq!(way(&[3, 3, 3], 1000), None, "one node");
    assert_eq!(way(&[0, 0, 1, 1], 128), Some(Across::Direct));
    assert_eq!(way(&[0, 0, 1, 1], 129), Some(Across::Node));
    assert_eq!(way(&[0, 1, 2, 3], 4000), Some(Across::Direct), "nobody to forward to");
}

#[test]
fn what_does_not_go_across_nodes_is_refused() {
    let base = || EpConfig::new(128, 64, 2, 40).nodes(NodeMap::new(&[0, 0, 1, 1]));
    let refused = |config: EpConfig| Plan::new(config, 4).unwrap_err().to_string();
    let text = refused(base().mode(Mode::Compact));
    assert!(text.starts_with("2 nodes, and mode is compact; allowed across nodes is slotted: "), "{text}");
    let codec = CombineCodec::Fp8Block(Fp8Format::E4m3fn);
    let text = refused(base().combine_source(CombineSource::Buffer).combine_codec(codec));
    assert!(text.contains("combine_codec is") && text.contains("allowed across nodes is none"), "{text}");
    let masks = OnTimeout::Mask { patience: std::time::Duration::from_secs(1) };
    let text = refused(base().on_timeout(masks));
    assert!(text.contains("on_timeout is") && text.contains("allowed across nodes is fault"), "{text}");
    let text = refused(base().combine_weights(true));
    assert!(text.contains("combine_weights is true"), "{text}");
    let text = refused(base().payload(Payload::CopyEngine));
    assert!(text.contains("payload is copy-engine"), "{text}");
    let text = Plan::new(base(), 5).unwrap_err().to_string();
    assert_eq!(text, "the map of nodes has 4 ranks, and the group has 5");
    assert_eq!(
        "both".parse::<Across>().unwrap_err().to_string(),
        "\"both\" is no way across nodes; allowed are auto, direct, node"
    );
    // On one node everything is as without a map.
    let one = |config: EpConfig| Plan::new(config.nodes(NodeMap::new(&[1, 1, 1, 1])), 4).unwrap();
    assert!(one(base().combine_weights(true).mode(Mode::Compact)).across().is_none());
}
