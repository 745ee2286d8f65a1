//! A group divided into nodes: machines whose members reach each other faster than others.

use crate::{Error, Group, GroupRank};
use std::hash::Hash;

/// Which members of a group share a node, and the groups along and across nodes.
///
/// Nodes are numbered from 0 in the order in which they first occur in the group; the members of a node keep the group's order, and
/// a member's *local index* is its place among them. Nodes may differ in size. Equal on all members that were given the same table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Nodes {
    inside: Vec<Group>,
    rails: Vec<Group>,
    /// Node and local index of each member, in group order.
    places: Vec<(u32, u32)>,
}

impl Group {
    /// Divides the group into nodes.
    ///
    /// `nodes` has one entry for each member, in group order: any value that tells nodes apart, as in [`Group::by_node`].
    ///
    /// # Errors
    /// [`Error::WrongCount`] when the table's length is not the group's size.
    pub fn nodes<N: Eq + Hash>(&self, nodes: &[N]) -> Result<Nodes, Error> {
        let call = "nodes";
        let inside = self.by_node(nodes)?;
        let mut places = vec![(0, 0); self.members().len()];
        let mut rails: Vec<Vec<GroupRank>> = Vec::new();
        for (node, members) in (0..).zip(&inside) {
            for (local, rank) in members.iter() {
                // Each member of a node is one of the group.
                let Some(position) = self.rank_of(rank) else { continue };
                if let Some(place) = places.get_mut(position.index()) {
                    *place = (node, local.get());
                }
                match rails.get_mut(local.index()) {
                    Some(rail) => rail.push(position),
                    None => rails.push(vec![position]),
                }
            }
        }
        let rails =
            rails.into_iter().map(|rail| self.pick(call, rail.into_iter())).collect::<Result<_, _>>()?;
        Ok(Nodes { inside, rails, places })
    }
}

impl Nodes {
    /// How many nodes there are; at least 1.
    pub fn count(&self) -> u32 {
        self.inside.len() as u32
    }

    /// The node of a member; `None` when the group has no such position.
    pub fn node_of(&self, rank: GroupRank) -> Option<u32> {
        self.places.get(rank.index()).map(|(node, _)| *node)
    }

    /// A member's place among those of its node; `None` when the group has no such position.
    pub fn local_index(&self, rank: GroupRank) -> Option<u32> {
        self.places.get(rank.index()).map(|(_, local)| *local)
    }

    /// The members of each node, by its number.
    pub fn inside(&self) -> &[Group] {
        &self.inside
    }

    /// The members with each local index, in the order of their nodes: a *rail*. As many as the largest node has members; nodes
    /// that have no member with an index are not in its rail.
    pub fn rails(&self) -> &[Group] {
        &self.rails
    }

    /// Whether two members share a node. False when the group lacks one of the positions.
    pub fn are_together(&self, first: GroupRank, second: GroupRank) -> bool {
        self.node_of(first).is_some_and(|node| self.node_of(second) == Some(node))
    }

    /// The members of each node when all have equally many; `None` when they differ.
    pub fn even_size(&self) -> Option<u32> {
        let size = self.inside.first()?.size();
        self.inside.iter().all(|node| node.size() == size).then_some(size)
    }

    /// Whether the members of each node stand next to each other in the group.
    pub fn are_contiguous(&self) -> bool {
        self.places.windows(2).all(|pair| matches!(pair, [(first, _), (second, _)] if first <= second))
    }
}
