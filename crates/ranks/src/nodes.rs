//! A group divided into nodes: machines whose members reach each other faster than others.

use std::collections::HashMap;
use std::fmt;
use std::hash::Hash;
use std::sync::Arc;

use crate::{Error, Group, GroupRank};

/// Which members of a group share a node. Cheap to clone.
///
/// Nodes are numbered from 0 in the order in which they first occur in the group; the members of a node keep the group's order, and
/// a member's *local index* is its place among them. Nodes may differ in size. Equal on all members that were given the same table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Nodes {
    /// Of each member, in group order.
    numbers: Arc<[u32]>,
    /// Of each node, ascending.
    members: Arc<[Vec<GroupRank>]>,
}

impl Group {
    /// Divides the group into nodes.
    ///
    /// `nodes` has one entry for each member, in group order: any value that distinguishes nodes, as in [`Group::by_node`].
    ///
    /// # Errors
    /// [`Error::Invalid`] when the table's length is not the group's size.
    pub fn nodes<N: Eq + Hash>(&self, nodes: &[N]) -> Result<Nodes, Error> {
        self.one_each("nodes", nodes.len())?;
        Ok(Nodes::new(nodes))
    }
}

impl Nodes {
    /// Of a group whose members, in group order, are on these nodes: any values that distinguish nodes (host identities, say).
    pub fn new<N: Eq + Hash>(nodes: &[N]) -> Self {
        let mut known = HashMap::new();
        let mut members: Vec<Vec<GroupRank>> = Vec::new();
        let number_of = |(node, rank)| {
            let number = *known.entry(node).or_insert(members.len());
            match members.get_mut(number) {
                Some(list) => list.push(GroupRank::new(rank)),
                None => members.push(vec![GroupRank::new(rank)]),
            }
            number as u32
        };
        let numbers: Vec<_> = nodes.iter().zip(0..).map(number_of).collect();
        Self { numbers: numbers.into(), members: members.into() }
    }

    /// How many nodes there are; at least 1, unless there are no members.
    pub fn count(&self) -> u32 {
        self.members.len() as u32
    }

    /// Members of the group.
    pub fn size(&self) -> u32 {
        self.numbers.len() as u32
    }

    /// All members of the group.
    pub fn ranks(&self) -> impl ExactSizeIterator<Item = GroupRank> + Clone + use<> {
        (0..self.size()).map(GroupRank::new)
    }

    /// The node of each member, in group order.
    pub fn numbers(&self) -> &[u32] {
        &self.numbers
    }

    /// The node of a member; `None` when the group has no such position.
    pub fn node_of(&self, rank: GroupRank) -> Option<u32> {
        self.numbers.get(rank.index()).copied()
    }

    /// A member's position among the members of its node; `None` when the group has no such position.
    pub fn local_index(&self, rank: GroupRank) -> Option<u32> {
        // Ascending.
        let place = self.members_of(self.node_of(rank)?).binary_search(&rank);
        place.ok().map(|place| place as u32)
    }

    /// The members of a node, ascending; none of a number that no node has.
    pub fn members_of(&self, node: u32) -> &[GroupRank] {
        self.members.get(node as usize).map_or(&[], Vec::as_slice)
    }

    /// Whether two members share a node. False when the group lacks one of the positions.
    pub fn are_together(&self, first: GroupRank, second: GroupRank) -> bool {
        self.node_of(first).is_some_and(|node| self.node_of(second) == Some(node))
    }

    /// The members of each node when all have equally many; `None` when they differ, or when there are none.
    pub fn even_size(&self) -> Option<u32> {
        let size = self.members.first()?.len();
        self.members.iter().all(|node| node.len() == size).then_some(size as u32)
    }

    /// The members of the largest node; 0 when there are none.
    pub fn largest_size(&self) -> u32 {
        self.members.iter().map(|members| members.len() as u32).max().unwrap_or(0)
    }

    /// The members of the smallest node; 0 when there are none.
    pub fn smallest_size(&self) -> u32 {
        self.members.iter().map(|members| members.len() as u32).min().unwrap_or(0)
    }

    /// Whether the group's order goes node by node: the members of each stand next to each other.
    pub fn are_contiguous(&self) -> bool {
        self.numbers.is_sorted()
    }

    /// The members of each node, by its number, as groups. `group` is the one that was divided.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a group of another size.
    pub fn inside(&self, group: &Group) -> Result<Vec<Group>, Error> {
        let call = "inside";
        group.one_each(call, self.numbers.len())?;
        self.members.iter().map(|members| group.pick(call, members.iter().copied())).collect()
    }

    /// The members with each local index, in the order of their nodes: a *rail*. As many as the largest node has members; nodes
    /// that have no member with an index are not in its rail. `group` is the one that was divided.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a group of another size.
    pub fn rails(&self, group: &Group) -> Result<Vec<Group>, Error> {
        let call = "rails";
        group.one_each(call, self.numbers.len())?;
        let rail = |local: usize| self.members.iter().filter_map(move |members| members.get(local).copied());
        (0..self.largest_size() as usize).map(|local| group.pick(call, rail(local))).collect()
    }
}

/// What goes to a node once, to one of its members, who hands it on inside.
impl Nodes {
    /// The member of a node that hands on what `source`, on another node, sends there: the one with the same local index, or, where the
    /// node has fewer members, with that index modulo its size. `None` when there is no such position, or no such node.
    pub fn relay(&self, source: GroupRank, node: u32) -> Option<GroupRank> {
        let there = self.members_of(node);
        let index = (self.local_index(source)? as usize).checked_rem(there.len())?;
        there.get(index).copied()
    }

    /// The members of other nodes for which a member hands on, ascending.
    pub fn relayed_by(&self, rank: GroupRank) -> Vec<GroupRank> {
        let Some(node) = self.node_of(rank) else { return Vec::new() };
        let is_relayed =
            |source: &GroupRank| !self.are_together(*source, rank) && self.relay(*source, node) == Some(rank);
        self.ranks().filter(is_relayed).collect()
    }

    /// The place of a source among all for which its relay on a node hands on.
    pub fn relay_slot(&self, source: GroupRank, node: u32) -> Option<u32> {
        let sources = self.relayed_by(self.relay(source, node)?);
        sources.iter().position(|other| *other == source).map(|slot| slot as u32)
    }

    /// The most sources for which one member hands on.
    pub fn relay_slots(&self) -> u32 {
        self.ranks().map(|rank| self.relayed_by(rank).len() as u32).max().unwrap_or(0)
    }
}

/// As configurations of ranks are compared: the node of each member.
impl fmt::Display for Nodes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let numbers: Vec<_> = self.numbers.iter().map(ToString::to_string).collect();
        f.write_str(&numbers.join("+"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ranks(numbers: &[u32]) -> Vec<GroupRank> {
        numbers.iter().copied().map(GroupRank::new).collect()
    }

    #[test]
    fn nodes_are_numbered_by_their_first_members() {
        let nodes = Nodes::new(&["x", "x", "a", "x", "a"]);
        assert_eq!((nodes.count(), nodes.size(), nodes.numbers()), (2, 5, &[0, 0, 1, 0, 1][..]));
        assert_eq!((nodes.members_of(0), nodes.members_of(1)), (&ranks(&[0, 1, 3])[..], &ranks(&[2, 4])[..]));
        assert!(nodes.members_of(2).is_empty());
        assert_eq!((nodes.even_size(), nodes.largest_size(), nodes.are_contiguous()), (None, 3, false));
        assert_eq!(nodes.to_string(), "0+0+1+0+1");
        let even = Nodes::new(&[3, 3, 1, 1]);
        assert_eq!((even.even_size(), even.are_contiguous()), (Some(2), true));
        let none = Nodes::new::<u32>(&[]);
        assert_eq!(
            (none.even_size(), none.largest_size(), none.count(), none.relay_slots()),
            (None, 0, 0, 0)
        );
    }

    #[test]
    fn small_nodes_hand_on_for_several() {
        let nodes = Nodes::new(&[0, 0, 0, 1, 2, 2]);
        let [two, three, four, five] = [2, 3, 4, 5].map(GroupRank::new);
        assert_eq!(
            (nodes.relay(two, 1), nodes.relay(two, 2), nodes.relay(three, 0)),
            (Some(three), Some(four), Some(GroupRank::new(0)))
        );
        assert_eq!(nodes.relayed_by(three), ranks(&[0, 1, 2, 4, 5]));
        assert_eq!(
            (nodes.relay_slot(two, 1), nodes.relay_slot(five, 1), nodes.relay_slots()),
            (Some(2), Some(4), 5)
        );
        assert_eq!((nodes.relay(two, 3), nodes.relay(GroupRank::new(6), 0)), (None, None));
    }
}
