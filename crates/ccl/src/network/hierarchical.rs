//! What concerns several members of a machine goes there once, and is handed on inside. For machines with as many members each.
//!
//! Members with the same place on their machines are a *rail*, one NIC each. With N machines of L members, and S bytes of a message:
//!
//! - all_gather: an input goes to N - 1 members, those of its rail, who hand it on: an Lth of what goes directly.
//! - broadcast: the root's machine cuts the message into L parts, one for each rail: (N - 1) / L S a NIC, and not (N - 1) L S of one.
//! - Sums, which are in group-rank order and rounded once: each machine's members give their contributions to the rail's part to the member
//!   that is on the rail, who adds them *to the sum of the machines before*, which came unrounded, and gives the sum to the next
//!   machine. The last one rounds. An all_reduce sends S / L elements unrounded and S / L rounded at most for each NIC, both ways at once: in
//!   bf16, whose sums are twice as long, 3 S / L bytes, where 2 (N - 1) / N S / L is what sums take that are rounded machine by machine, or
//!   that are added in another order; in f32 2 S / L. Directly it is 2 (N - 1) / N S. The price of the same bits whatever the
//!   machines are is thus a factor of 1 to 3 between machines, and a latency of N hops there. A form that is faster and not bit-equal (each
//!   machine's sum to the owner of the part) needs nothing new here but that it be asked for.
//!
//! An all_to_all has nothing that concerns two members, and neither has what goes to a root or comes from one alone.

use anabranch_ranks::{GroupRank, Nodes};

use super::schedule::{Exchange, FIRST, Port, SECOND, Step, Work, behind, others, part, starts};
use crate::Collective;

/// Whether a collective can be done so among these machines; why not, otherwise.
pub(super) fn allows(nodes: &Nodes, collective: Collective) -> Result<(), &'static str> {
    let Some(size) = nodes.even_size() else { return Err("machines have different numbers of members") };
    if nodes.count() < 2 {
        return Err("all members are on one machine");
    }
    if size < 2 {
        return Err("machines have one member each");
    }
    match collective {
        Collective::AllGather | Collective::Broadcast => Ok(()),
        Collective::AllReduce | Collective::ReduceScatter | Collective::Reduce if nodes.are_contiguous() => {
            Ok(())
        }
        Collective::AllReduce | Collective::ReduceScatter | Collective::Reduce => {
            Err("sums are in group-rank order, and the group's order does not go machine by machine")
        }
        _ => Err("nothing of it concerns several members of a machine"),
    }
}

/// Of machines and a collective that are allowed.
pub(super) fn steps(nodes: &Nodes, me: u32, exchange: &Exchange) -> Vec<Step> {
    let me = GroupRank::new(me);
    let (node, place) = (nodes.node_of(me).unwrap_or(0), nodes.local_index(me).unwrap_or(0));
    let form = Form { nodes, node, place, count: nodes.count(), size: nodes.even_size().unwrap_or(1) };
    match exchange {
        Exchange::AllGather { bytes } => form.all_gather(bytes),
        Exchange::Broadcast { bytes, root } => form.broadcast(*bytes, *root),
        Exchange::AllReduce { bytes } => form.reduce(*bytes, None),
        Exchange::Reduce { bytes, root } => form.reduce(*bytes, Some(*root)),
        Exchange::ReduceScatter { bytes } => form.reduce_scatter(*bytes),
        _ => Vec::new(),
    }
}

struct Form<'a> {
    nodes: &'a Nodes,
    /// This rank's machine, and its place there.
    node: u32,
    place: u32,
    /// Machines, and members of each.
    count: u32,
    size: u32,
}

const fn input(offset: u64) -> Port {
    Port::Input { offset }
}
const fn output(offset: u64) -> Port {
    Port::Output { offset }
}

impl Form<'_> {
    fn member(&self, node: u32, place: u32) -> u32 {
        self.nodes.members_of(node).get(place as usize).map_or(0, |member| member.get())
    }

    fn link(&self, node: u32, place: u32, stream: u32) -> Port {
        Port::Link { peer: self.member(node, place), stream }
    }

    /// Places of this machine's other members.
    fn inside(&self) -> impl Iterator<Item = u32> + Clone {
        others(self.place, self.size)
    }

    /// Other machines; in the same order for all members of this one.
    fn outside(&self) -> impl Iterator<Item = u32> + Clone {
        others(self.node, self.count)
    }

    fn to_inside(&self, stream: u32) -> impl Iterator<Item = Port> {
        self.inside().map(move |place| self.link(self.node, place, stream))
    }

    fn is_last(&self) -> bool {
        self.node + 1 == self.count
    }

    fn all_gather(&self, bytes: &[u64]) -> Vec<Step> {
        let at = starts(bytes);
        let of = |values: &[u64], member: u32| values.get(member as usize).copied().unwrap_or(0);
        let (to, bytes) = (|member| output(of(&at, member)), |member| of(bytes, member));
        let me = self.member(self.node, self.place);
        let rail = self.outside().map(|node| self.link(node, self.place, FIRST));
        let targets = [to(me)].into_iter().chain(rail).chain(self.to_inside(FIRST)).collect();
        let mut steps = vec![Step::moves(input(0), targets, bytes(me), 0)];
        steps.extend(self.inside().map(|place| {
            let member = self.member(self.node, place);
            Step::moves(self.link(self.node, place, FIRST), vec![to(member)], bytes(member), behind(1))
        }));
        // Machine by machine, as a link inside takes a chunk of each at one time.
        for node in self.outside() {
            let member = self.member(node, self.place);
            let targets = [to(member)].into_iter().chain(self.to_inside(SECOND)).collect();
            let source = self.link(node, self.place, FIRST);
            steps.push(Step::moves(source, targets, bytes(member), behind(1)));
            steps.extend(self.inside().map(|place| {
                let member = self.member(node, place);
                let (source, lag) = (self.link(self.node, place, SECOND), behind(1) + behind(self.count - 1));
                Step::moves(source, vec![to(member)], bytes(member), lag)
            }));
        }
        steps
    }

    fn broadcast(&self, bytes: u64, root: u32) -> Vec<Step> {
        let of_root = self.nodes.node_of(GroupRank::new(root)).unwrap_or(0);
        let at_root = (0..self.size).find(|place| self.member(of_root, *place) == root).unwrap_or(0);
        let part = |place| part(bytes, self.size, place);
        let (mine, first) = part(self.place);
        let rail = || self.outside().map(|node| self.link(node, self.place, FIRST));
        let is_root = self.node == of_root && self.place == at_root;
        if is_root {
            let to_rails = self.inside().map(|place| {
                let (bytes, first) = part(place);
                Step::moves(input(first), vec![self.link(of_root, place, FIRST)], bytes, 0)
            });
            let own = Step::moves(input(first), rail().chain(self.to_inside(SECOND)).collect(), mine, 0);
            return to_rails.chain([own]).collect();
        }
        // When this rank, and another one here, has its part: a hop behind who gives it.
        let hops = |place| match (self.node == of_root, place == at_root) {
            (true, true) => 0,
            (true, false) | (false, true) => 1,
            (false, false) => 2,
        };
        let source = if self.node == of_root {
            self.link(of_root, at_root, FIRST)
        } else {
            self.link(of_root, self.place, FIRST)
        };
        let wanting = self.inside().filter(|place| self.node != of_root || *place != at_root);
        let inside = wanting.map(|place| self.link(self.node, place, SECOND));
        let onwards = rail().filter(|_| self.node == of_root);
        let targets = [output(first)].into_iter().chain(onwards).chain(inside).collect();
        let mut steps = vec![Step::moves(source, targets, mine, hops(self.place) * behind(1))];
        steps.extend(self.inside().map(|place| {
            let (bytes, first) = part(place);
            let source = self.link(self.node, place, SECOND);
            Step::moves(source, vec![output(first)], bytes, (hops(place) + 1) * behind(1))
        }));
        steps
    }

    /// The sum up to and with this machine: that of the machines before, unrounded, and this one's members in their order. `first` is where
    /// this rank's own contribution lies.
    fn sum(&self, first: u64, targets: Vec<Port>, bytes: u64, lag: u32) -> Step {
        let before = self.node.checked_sub(1).map(|node| self.link(node, self.place, FIRST));
        let here = (0..self.size)
            .map(|place| if place == self.place { input(first) } else { self.link(self.node, place, FIRST) });
        let onwards = (!self.is_last()).then(|| self.link(self.node + 1, self.place, FIRST));
        let targets = onwards.map_or(targets, |next| vec![next]);
        let sources = before.into_iter().chain(here).collect();
        let (takes_unrounded, gives_unrounded) = (self.node > 0, !self.is_last());
        Step { sources, targets, bytes, lag, work: Work::Sums { takes_unrounded, gives_unrounded } }
    }

    /// Each rail sums one part of the message.
    fn reduce(&self, bytes: u64, root: Option<u32>) -> Vec<Step> {
        let part = |place| part(bytes, self.size, place);
        let (mine, first) = part(self.place);
        let (me, last) = (self.member(self.node, self.place), self.count - 1);
        let mut steps: Vec<Step> = self
            .inside()
            .map(|place| {
                let (bytes, first) = part(place);
                Step::moves(input(first), vec![self.link(self.node, place, FIRST)], bytes, 0)
            })
            .collect();
        let (summed, handed) = (behind(1), 2 * behind(1));
        let Some(root) = root else {
            let everywhere = [output(first)].into_iter().chain(self.to_inside(SECOND));
            // From the last machine to the first, and from there on.
            let next = (self.node + 1) % self.count;
            let onwards = (next != last).then(|| self.link(next, self.place, SECOND));
            let targets: Vec<Port> = everywhere.chain(onwards).collect();
            steps.push(self.sum(first, targets.clone(), mine, summed));
            if !self.is_last() {
                let before = (self.node + last) % self.count;
                steps.push(Step::moves(self.link(before, self.place, SECOND), targets, mine, handed));
            }
            let lag = if self.is_last() { handed } else { handed + behind(1) };
            steps.extend(self.inside().map(|place| {
                let (bytes, first) = part(place);
                Step::moves(self.link(self.node, place, SECOND), vec![output(first)], bytes, lag)
            }));
            return steps;
        };
        let result = if me == root { output(first) } else { Port::Link { peer: root, stream: SECOND } };
        steps.push(self.sum(first, vec![result], mine, summed));
        if me == root {
            let summing = (0..self.size).filter(|place| self.member(last, *place) != root);
            steps.extend(summing.map(|place| {
                let (bytes, first) = part(place);
                Step::moves(self.link(last, place, SECOND), vec![output(first)], bytes, handed)
            }));
        }
        steps
    }

    /// Each rail sums the parts of its members, one of each machine.
    fn reduce_scatter(&self, bytes: u64) -> Vec<Step> {
        let offset = |node, place| bytes * u64::from(self.member(node, place));
        let lag = behind(self.count);
        let mut steps = Vec::new();
        // Machine by machine, as a link takes a chunk for each at one time.
        for node in 0..self.count {
            steps.extend(self.inside().map(|place| {
                let target = self.link(self.node, place, FIRST);
                Step::moves(input(offset(node, place)), vec![target], bytes, 0)
            }));
            let result = if node == self.node { output(0) } else { self.link(node, self.place, SECOND) };
            steps.push(self.sum(offset(node, self.place), vec![result], bytes, lag));
        }
        if !self.is_last() {
            let source = self.link(self.count - 1, self.place, SECOND);
            steps.push(Step::moves(source, vec![output(0)], bytes, lag + behind(1)));
        }
        steps
    }
}
