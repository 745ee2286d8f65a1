//! Which members of a group are on one machine. Pure arithmetic.

use std::collections::BTreeMap;

/// The machines of a group's members. Machines are numbered by their first members; a member's *place* is its index among those of its
/// machine, in group order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Nodes {
    of_member: Vec<u32>,
    members: Vec<Vec<u32>>,
}

impl Nodes {
    /// Of what names each member's machine, in group order; which numbers these are means nothing.
    pub fn new(machines: &[u32]) -> Self {
        let mut numbers = BTreeMap::new();
        let mut members: Vec<Vec<u32>> = Vec::new();
        let mut of_member = Vec::with_capacity(machines.len());
        for (member, machine) in (0..).zip(machines) {
            let node = *numbers.entry(*machine).or_insert_with(|| {
                members.push(Vec::new());
                members.len() as u32 - 1
            });
            if let Some(of_node) = members.get_mut(node as usize) {
                of_node.push(member);
            }
            of_member.push(node);
        }
        Self { of_member, members }
    }

    /// How many machines.
    pub fn count(&self) -> u32 {
        self.members.len() as u32
    }

    /// Members of the group.
    pub fn size(&self) -> u32 {
        self.of_member.len() as u32
    }

    /// The machine of each member, in group order.
    pub fn machines(&self) -> &[u32] {
        &self.of_member
    }

    /// A member's machine; the first one's for nobody's rank.
    pub fn node_of(&self, member: u32) -> u32 {
        self.of_member.get(member as usize).copied().unwrap_or(0)
    }

    /// A machine's members, in group order.
    pub fn members_of(&self, node: u32) -> &[u32] {
        self.members.get(node as usize).map_or(&[], Vec::as_slice)
    }

    /// Whether two members are on different machines.
    pub fn is_across(&self, one: u32, other: u32) -> bool {
        self.node_of(one) != self.node_of(other)
    }

    /// Members of each machine, if all have as many.
    pub fn even_size(&self) -> Option<u32> {
        let first = self.members.first()?.len();
        self.members.iter().all(|members| members.len() == first).then_some(first as u32)
    }

    /// Whether group order goes machine by machine: sums over one machine after the other are in group order then.
    pub fn are_in_order(&self) -> bool {
        self.of_member.is_sorted()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn machines_are_numbered_by_their_first_members() {
        let nodes = Nodes::new(&[7, 7, 2, 7, 2]);
        assert_eq!((nodes.count(), nodes.size(), nodes.machines()), (2, 5, &[0, 0, 1, 0, 1][..]));
        assert_eq!((nodes.members_of(0), nodes.members_of(1)), (&[0, 1, 3][..], &[2, 4][..]));
        assert!(nodes.is_across(0, 2) && !nodes.is_across(2, 4));
        assert_eq!((nodes.even_size(), nodes.are_in_order()), (None, false));
        let even = Nodes::new(&[3, 3, 1, 1]);
        assert_eq!((even.even_size(), even.are_in_order()), (Some(2), true));
        assert_eq!(Nodes::new(&[0, 1, 0, 1]).even_size(), Some(2));
        assert_eq!(Nodes::new(&[]).even_size(), None);
    }
}
