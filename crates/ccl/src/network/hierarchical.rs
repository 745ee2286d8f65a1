//! What concerns several members of a machine goes there once, and is handed on inside. For any machines of which one has several members.
//!
//! A *relay* takes on a machine what comes from a member of another one: the member with the same place on its machine, or with that
//! place modulo the machine's members where those are fewer ([`Nodes::relay`]). On machines of 8 and 3, what place 5 of the first sends is taken
//! by place 2 of the second. On machines with as many members each, all with the same place are a *rail*, one NIC each. With N machines of L
//! members, and S bytes of a message:
//!
//! - all_gather: an input goes to N - 1 members, its relays, who hand it on: an Lth of what goes directly.
//! - broadcast: the root's machine cuts the message into L parts, one for each rail: (N - 1) / L S a NIC, and not (N - 1) L S of one.
//! - Sums ([`sums`]): the parts of a message go from machine to machine, one for each rail.
//! - all_to_all ([`packed`]): no byte concerns two members, but what goes to one member of another machine goes there in one chunk: an Lth of the
//!   requests. The member of the sending machine that packs is chosen as a relay is, by the place of the one who gets it.
//!
//! Machines with different numbers of members have as many parts of a broadcast as the root's has members, and as many rails of sums as
//! the smallest has; its NICs are those that decide.
//!
//! What goes to a root, or comes from one in parts, has nothing that concerns several members of a machine.

mod packed;
mod sums;

use anabranch_ranks::{GroupRank, Nodes};

use super::schedule::{Exchange, FIRST, Port, SECOND, Step, behind, others, part, starts};
use crate::types::Collective;

/// Why an all_to_all with counts of its own for each pair does not go by node.
pub(super) const PAIRS_ALONE: &str = "counts that pairs alone know are not packed";

/// Whether a collective can be done so among these machines; why not, otherwise.
pub(super) fn allows(nodes: &Nodes, collective: Collective) -> Result<(), &'static str> {
    if nodes.count() < 2 {
        return Err("all members are on one machine");
    }
    if nodes.largest_size() < 2 {
        return Err("machines have one member each");
    }
    match collective {
        Collective::AllGather | Collective::AllToAll | Collective::Broadcast => Ok(()),
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
///
/// # Errors
/// For an all_to_all whose counts are not all the same: who packs knows its own alone.
pub(super) fn steps(nodes: &Nodes, me: u32, exchange: &Exchange) -> Result<Vec<Step>, &'static str> {
    let (node, place) = location(nodes, me);
    let form = Form { nodes, node, place };
    Ok(match exchange {
        Exchange::AllGather { bytes } => form.all_gather(bytes),
        Exchange::AllToAll { sent, received } => {
            let bytes = sent[0];
            if !sent.iter().chain(received).all(|other| *other == bytes) {
                return Err(PAIRS_ALONE);
            }
            form.all_to_all(bytes)
        }
        Exchange::Broadcast { bytes, root } => form.broadcast(*bytes, *root),
        Exchange::AllReduce { bytes } => form.reduce(*bytes, None),
        Exchange::Reduce { bytes, root } => form.reduce(*bytes, Some(*root)),
        Exchange::ReduceScatter { bytes } => form.reduce_scatter(*bytes),
        Exchange::Gather { .. } | Exchange::Scatter { .. } | Exchange::Barrier => Vec::new(),
    })
}

/// The node of a member, and its place there.
#[expect(clippy::expect_used, reason = "nodes list every member of the group")]
fn location(nodes: &Nodes, member: u32) -> (u32, u32) {
    let member = GroupRank::new(member);
    let (node, place) = (nodes.node_of(member), nodes.local_index(member));
    (node.expect("every member has a node"), place.expect("every member has a place on its node"))
}

struct Form<'a> {
    nodes: &'a Nodes,
    /// This rank's machine, and its place there.
    node: u32,
    place: u32,
}

const fn input(offset: u64) -> Port {
    Port::Input { offset }
}
const fn output(offset: u64) -> Port {
    Port::Output { offset }
}

impl Form<'_> {
    /// Machines.
    fn count(&self) -> u32 {
        self.nodes.count()
    }

    /// Members of a machine.
    fn size(&self, node: u32) -> u32 {
        self.nodes.members_of(node).len() as u32
    }

    /// Members of this rank's machine.
    fn here(&self) -> u32 {
        self.size(self.node)
    }

    fn member(&self, node: u32, place: u32) -> u32 {
        self.nodes.members_of(node).get(place as usize).map_or(0, |member| member.get())
    }

    fn me(&self) -> u32 {
        self.member(self.node, self.place)
    }

    fn link(&self, node: u32, place: u32, stream: u32) -> Port {
        Port::Link { peer: self.member(node, place), stream }
    }

    /// The link to who takes on another machine what a member sends there.
    fn relay(&self, member: u32, node: u32) -> Port {
        let peer = self.nodes.relay(GroupRank::new(member), node).map_or(0, GroupRank::get);
        Port::Link { peer, stream: FIRST }
    }

    /// Places of this machine's other members.
    fn inside(&self) -> impl Iterator<Item = u32> + Clone {
        others(self.place, self.here())
    }

    /// Other machines; in the same order for all members of this one.
    fn outside(&self) -> impl Iterator<Item = u32> + Clone {
        others(self.node, self.count())
    }

    fn to_inside(&self, stream: u32) -> impl Iterator<Item = Port> {
        self.inside().map(move |place| self.link(self.node, place, stream))
    }

    fn all_gather(&self, bytes: &[u64]) -> Vec<Step> {
        let at = starts(bytes);
        let of = |values: &[u64], member: u32| values[member as usize];
        let (to, bytes) = (|member| output(of(&at, member)), |member| of(bytes, member));
        let me = self.me();
        let relays = self.outside().map(|node| self.relay(me, node));
        let targets = [to(me)].into_iter().chain(relays).chain(self.to_inside(FIRST)).collect();
        let mut steps = vec![Step::moves(input(0), targets, bytes(me), 0)];
        steps.extend(self.inside().map(|place| {
            let member = self.member(self.node, place);
            Step::moves(self.link(self.node, place, FIRST), vec![to(member)], bytes(member), behind(1))
        }));
        let handed: u32 = self.outside().map(|node| self.size(node).div_ceil(self.here())).sum();
        let lag = behind(1) + behind(handed);
        // Machine by machine, and each in turns in which every member here hands on one input: a link inside takes several chunks at one time.
        for (node, turn) in self.turns() {
            if let Some(place) = turn.of(self.place) {
                let member = self.member(node, place);
                let targets = [to(member)].into_iter().chain(self.to_inside(SECOND)).collect();
                steps.push(Step::moves(self.link(node, place, FIRST), targets, bytes(member), behind(1)));
            }
            steps.extend(self.inside().filter_map(|by| {
                let member = self.member(node, turn.of(by)?);
                let source = self.link(self.node, by, SECOND);
                Some(Step::moves(source, vec![to(member)], bytes(member), lag))
            }));
        }
        steps
    }

    /// Turns over the members of all other machines, of as many as are here.
    fn turns(&self) -> impl Iterator<Item = (u32, Turn)> {
        let turns = move |node| Turn::all(self.size(node), self.here()).map(move |turn| (node, turn));
        self.outside().flat_map(turns)
    }

    fn broadcast(&self, bytes: u64, root: u32) -> Vec<Step> {
        let (of_root, at_root) = location(self.nodes, root);
        let parts = self.size(of_root);
        let part = |place| part(bytes, parts, place);
        let rail = |place| {
            let member = self.member(of_root, place);
            self.outside().map(move |node| self.relay(member, node))
        };
        if self.me() == root {
            let (mine, first) = part(self.place);
            let to_rails = self.inside().map(|place| {
                let (bytes, first) = part(place);
                Step::moves(input(first), vec![self.link(of_root, place, FIRST)], bytes, 0)
            });
            let own =
                Step::moves(input(first), rail(self.place).chain(self.to_inside(SECOND)).collect(), mine, 0);
            return to_rails.chain([own]).collect();
        }
        let at_source = self.node == of_root;
        // When who hands a part on here has it: a hop behind who gives it.
        let hops = |place| match (at_source, place == at_root) {
            (true, true) => 0,
            (true, false) | (false, true) => 1,
            (false, false) => 2,
        };
        let handed = behind(parts.div_ceil(self.here()));
        let mut steps = Vec::new();
        for turn in Turn::all(parts, self.here()) {
            if let Some(place) = turn.of(self.place) {
                let (bytes, first) = part(place);
                let source = self.link(of_root, if at_source { at_root } else { place }, FIRST);
                let wanting = self.inside().filter(|place| !at_source || *place != at_root);
                let inside = wanting.map(|place| self.link(self.node, place, SECOND));
                let onwards = rail(place).filter(|_| at_source);
                let targets = [output(first)].into_iter().chain(onwards).chain(inside).collect();
                steps.push(Step::moves(source, targets, bytes, hops(place) * behind(1)));
            }
            steps.extend(self.inside().filter_map(|by| {
                let place = turn.of(by)?;
                let (bytes, first) = part(place);
                let lag = hops(place) * behind(1) + handed;
                Some(Step::moves(self.link(self.node, by, SECOND), vec![output(first)], bytes, lag))
            }));
        }
        steps
    }
}

/// Some of a list that goes round among members, one for each at most.
#[derive(Clone, Copy, Debug)]
struct Turn {
    first: u32,
    members: u32,
    end: u32,
}

impl Turn {
    /// All turns of a list of so many among so many members.
    fn all(length: u32, members: u32) -> impl Iterator<Item = Self> {
        let members = members.max(1);
        (0..length).step_by(members as usize).map(move |first| Self { first, members, end: length })
    }

    /// Which of the list is this member's.
    fn of(self, member: u32) -> Option<u32> {
        Some(self.first + member).filter(|index| member < self.members && *index < self.end)
    }
}
