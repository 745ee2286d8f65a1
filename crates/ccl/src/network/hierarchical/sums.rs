//! Reductions from node to node.
//!
//! Sums are in group-rank order and rounded once. The members of each node send their contributions to the part of a rail to the member on
//! that rail, which adds them *to the unrounded sum of the previous nodes* and sends the sum to the next node. The last node rounds. With N
//! nodes of L members, an all_reduce of S bytes sends S / L elements unrounded and at most S / L rounded per NIC, both at the same time.
//! That is `3 S / L` bytes in bf16, whose sums are twice as long, and `2 S / L` in f32.
//!
//! Rounding per node, or another order of additions, would take `2 (N - 1) S / (N L)`. The direct form takes `2 (N - 1) S / N`.
//! So results with the same bits on any nodes cost a factor of 1 to 3 in internode bytes, and a latency of N internode hops. A faster
//! form that is not bit-equal (each node sends its sum to the owner of the part) would need only steps and a setting.

use super::super::schedule::{FIRST, Port, SECOND, Step, Work, part, receiver_lag, starts};
use super::{Form, Round, input, output};

impl Form<'_> {
    /// Number of rails. Every node has a member on each rail. Members without a rail only send contributions and receive results.
    fn rails(&self) -> u32 {
        self.nodes.smallest_size()
    }

    fn is_last(&self) -> bool {
        self.node + 1 == self.count()
    }

    /// Local indices of the other members of this node that are on rails.
    fn inside_on_rails(&self) -> impl Iterator<Item = u32> + Clone {
        let rails = self.rails();
        self.inside().filter(move |place| *place < rails)
    }

    /// The step that adds the contributions of this node, in order, to the unrounded sum of the previous nodes. `first` is the offset of
    /// the contribution of this rank.
    fn sum(&self, first: u64, targets: Vec<Port>, bytes: u64, lag: u32) -> Step {
        let before = self.node.checked_sub(1).map(|node| self.link(node, self.place, FIRST));
        let here = (0..self.here())
            .map(|place| if place == self.place { input(first) } else { self.link(self.node, place, FIRST) });
        let onwards = (!self.is_last()).then(|| self.link(self.node + 1, self.place, FIRST));
        let targets = onwards.map_or(targets, |next| vec![next]);
        let sources = before.into_iter().chain(here).collect();
        let (takes_unrounded, gives_unrounded) = (self.node > 0, !self.is_last());
        Step { sources, targets, bytes, lag, work: Work::Sums { takes_unrounded, gives_unrounded } }
    }

    /// Each rail reduces one part of the message.
    pub(super) fn reduce(&self, bytes: u64, root: Option<u32>) -> Vec<Step> {
        let part = |place| part(bytes, self.rails(), place);
        let is_on_rail = self.place < self.rails();
        let (me, last) = (self.me(), self.count() - 1);
        let mut steps: Vec<Step> = self
            .inside_on_rails()
            .map(|place| {
                let (bytes, first) = part(place);
                Step::moves(input(first), vec![self.link(self.node, place, FIRST)], bytes, 0)
            })
            .collect();
        let (summed, handed) = (receiver_lag(1), 2 * receiver_lag(1));
        let Some(root) = root else {
            if is_on_rail {
                let (mine, first) = part(self.place);
                let everywhere = [output(first)].into_iter().chain(self.to_inside(SECOND));
                // From the last node to the first, and on from there.
                let next = (self.node + 1) % self.count();
                let onwards = (next != last).then(|| self.link(next, self.place, SECOND));
                let targets: Vec<Port> = everywhere.chain(onwards).collect();
                steps.push(self.sum(first, targets.clone(), mine, summed));
                if !self.is_last() {
                    let before = (self.node + last) % self.count();
                    steps.push(Step::moves(self.link(before, self.place, SECOND), targets, mine, handed));
                }
            }
            let lag = if self.is_last() { handed } else { handed + receiver_lag(1) };
            steps.extend(self.inside_on_rails().map(|place| {
                let (bytes, first) = part(place);
                Step::moves(self.link(self.node, place, SECOND), vec![output(first)], bytes, lag)
            }));
            return steps;
        };
        if is_on_rail {
            let (mine, first) = part(self.place);
            let result = if me == root { output(first) } else { Port::Link { peer: root, stream: SECOND } };
            steps.push(self.sum(first, vec![result], mine, summed));
        }
        if me == root {
            let summing = (0..self.rails()).filter(|place| self.member(last, *place) != root);
            steps.extend(summing.map(|place| {
                let (bytes, first) = part(place);
                Step::moves(self.link(last, place, SECOND), vec![output(first)], bytes, handed)
            }));
        }
        steps
    }

    /// Each rail reduces the parts of its members. The parts of members without a rail are distributed over the rails.
    pub(super) fn reduce_scatter(&self, bytes: &[u64]) -> Vec<Step> {
        let (rails, last) = (self.rails(), self.count() - 1);
        let at = starts(bytes);
        // Offset and bytes of the part of a member.
        let part = |node, place| {
            let member = self.member(node, place) as usize;
            (at[member], bytes[member])
        };
        let lag = receiver_lag((0..self.count()).map(|node| self.size(node).div_ceil(rails)).sum());
        let mut steps = Vec::new();
        // Node by node, each in rounds in which every rail reduces one part. A link has one chunk of each round at one time.
        for (node, round) in (0..self.count())
            .flat_map(|node| Round::all(self.size(node), rails).map(move |round| (node, round)))
        {
            steps.extend(self.inside().filter_map(|by| {
                let (place, target) = (round.of(by)?, self.link(self.node, by, FIRST));
                let (first, bytes) = part(node, place);
                Some(Step::moves(input(first), vec![target], bytes, 0))
            }));
            if let Some(place) = round.of(self.place) {
                let is_mine = (node, place) == (self.node, self.place);
                let result = if is_mine { output(0) } else { self.link(node, place, SECOND) };
                let (first, bytes) = part(node, place);
                steps.push(self.sum(first, vec![result], bytes, lag));
            }
        }
        let summing = self.place % rails;
        if (self.node, self.place) != (last, summing) {
            let source = self.link(last, summing, SECOND);
            let (_, bytes) = part(self.node, self.place);
            steps.push(Step::moves(source, vec![output(0)], bytes, lag + receiver_lag(1)));
        }
        steps
    }
}
