//! Groups whose ranks are on several nodes.
#![allow(dead_code, unreachable_pub, reason = "each test binary uses a part")]

use anabranch_ep::{Across, Nodes};

use crate::common::Case;

/// Both ways.
pub const WAYS: [Across; 2] = [Across::Direct, Across::Node];

/// Ranks of each node, one node after the other: two of two and of four, three of two, and uneven ones.
pub const GROUPS: [&[u32]; 5] = [&[2, 2], &[4, 4], &[2, 2, 2], &[1, 3], &[3, 1, 2]];

/// Nodes of these sizes.
pub fn map(sizes: &[u32]) -> Nodes {
    let nodes: Vec<_> =
        sizes.iter().enumerate().flat_map(|(node, size)| vec![node; *size as usize]).collect();
    Nodes::new(&nodes)
}

/// A case over nodes of these sizes.
pub fn across(sizes: &[u32], wave: u32, way: Across) -> Case {
    on(&map(sizes), wave, way)
}

/// A case over these nodes.
pub fn on(nodes: &Nodes, wave: u32, way: Across) -> Case {
    let mut case = Case::new(nodes.size(), wave);
    case.config = case.config.nodes(nodes.clone()).across(way);
    case
}
