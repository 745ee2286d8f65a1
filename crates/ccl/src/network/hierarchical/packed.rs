//! What the members of a machine have for one member of another goes there packed: one chunk, one counter, one answer, and not one of each for
//! every member. Inside it takes a hop more.
//!
//! Who packs for member q of another machine is the member of this one with the same place, or with q modulo this machine's members. It takes
//! a piece from each member here, in the order of their places, and who gets them takes them apart.

use std::collections::BTreeMap;

use super::super::schedule::{FIRST, SECOND, Step, behind};
use super::{Form, input, output};

impl Form<'_> {
    /// Of `bytes` bytes from each to each.
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
        // Machine by machine, and each in turns in which every member here packs for one of there: a link inside takes several chunks at
        // one time.
        for (node, turn) in self.turns() {
            steps.extend(self.inside().filter_map(|by| {
                let (to, target) = (turn.of(by)?, self.link(self.node, by, FIRST));
                Some(Step::moves(input(part(node, to)), vec![target], bytes, 0))
            }));
            if let Some(to) = turn.of(place) {
                let of = |from| {
                    if from == place { input(part(node, to)) } else { self.link(self.node, from, FIRST) }
                };
                let (pieces, target) = ((0..self.here()).map(of).collect(), self.link(node, to, FIRST));
                steps.push(Step::packs(pieces, target, bytes, packed_here));
            }
        }
        steps.extend(self.inside().map(|from| {
            let (source, target) = (self.link(self.node, from, SECOND), output(part(self.node, from)));
            Step::moves(source, vec![target], bytes, behind(1))
        }));
        let mut packed_at = BTreeMap::new();
        steps.extend(self.outside().map(|node| {
            let members = self.size(node);
            let targets = (0..members).map(|from| output(part(node, from))).collect();
            let source = self.link(node, place % members.max(1), FIRST);
            let packed = *packed_at.entry(members).or_insert_with(|| self.packed_at(members));
            Step::unpacks(source, targets, bytes, packed + behind(1))
        }));
        steps
    }

    /// When the members of a machine of this size pack chunk 0: so far behind who gives pieces as their links allow.
    fn packed_at(&self, size: u32) -> u32 {
        let turns: u32 = (0..self.count()).map(|node| self.size(node).div_ceil(size.max(1))).sum();
        // Its own takes one, and is not packed for.
        behind(turns - 1)
    }
}
