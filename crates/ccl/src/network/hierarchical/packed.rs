//! The packed all_to_all: the pieces of all members of a node for one member of another node are sent in one chunk, with one counter update
//! each way instead of one per member. It takes one hop more within the node.
//!
//! Pieces for the member with local index q of another node are packed by the member of this node with local index q modulo its number of
//! members. It receives a piece from each member of its node, in the order of local indices, and the receiver unpacks them.

use std::collections::BTreeMap;

use super::super::schedule::{FIRST, SECOND, Step, receiver_lag};
use super::{Form, input, output};

impl Form<'_> {
    /// The steps for `bytes` bytes from each member to each.
    pub(super) fn all_to_all(&self, bytes: u64) -> Vec<Step> {
        let part = |node, place| bytes * u64::from(self.member(node, place));
        let (mine, place) = (part(self.node, self.place), self.place);
        let gives = self.inside().map(|to| {
            let target = self.link(self.node, to, SECOND);
            Step::moves(input(part(self.node, to)), vec![target], bytes, 0)
        });
        let own = Step::moves(input(mine), vec![output(mine)], bytes, 0);
        let mut steps: Vec<Step> = gives.chain([own]).collect();
        let packed_here = self.packed_at(self.here());
        // Node by node, each in rounds in which every member of this node packs for one member of the other. A link within the node has one
        // chunk of each round at one time.
        for (node, round) in self.rounds() {
            steps.extend(self.inside().filter_map(|by| {
                let (to, target) = (round.of(by)?, self.link(self.node, by, FIRST));
                Some(Step::moves(input(part(node, to)), vec![target], bytes, 0))
            }));
            if let Some(to) = round.of(place) {
                let of = |from| {
                    if from == place { input(part(node, to)) } else { self.link(self.node, from, FIRST) }
                };
                let (pieces, target) = ((0..self.here()).map(of).collect(), self.link(node, to, FIRST));
                steps.push(Step::packs(pieces, target, bytes, packed_here));
            }
        }
        steps.extend(self.inside().map(|from| {
            let (source, target) = (self.link(self.node, from, SECOND), output(part(self.node, from)));
            Step::moves(source, vec![target], bytes, receiver_lag(1))
        }));
        let mut packed_at = BTreeMap::new();
        steps.extend(self.outside().map(|node| {
            let members = self.size(node);
            let targets = (0..members).map(|from| output(part(node, from))).collect();
            let source = self.link(node, place % members.max(1), FIRST);
            let packed = *packed_at.entry(members).or_insert_with(|| self.packed_at(members));
            Step::unpacks(source, targets, bytes, packed + receiver_lag(1))
        }));
        steps
    }

    /// The time at which the members of a node with `size` members pack chunk 0: their lag behind the senders of pieces, as their links
    /// allow.
    fn packed_at(&self, size: u32) -> u32 {
        let rounds: u32 = (0..self.count()).map(|node| self.size(node).div_ceil(size.max(1))).sum();
        // One round is for the own node, for which nothing is packed.
        receiver_lag(rounds - 1)
    }
}
