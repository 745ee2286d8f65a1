//! The form by node: data for several members of a node is sent there once and forwarded within the node. For any nodes of which at least
//! one has several members.
//!
//! A *relay* receives on one node what a member of another node sends to that node. It is the member with the same local index as the
//! sender, modulo the number of members of its node ([`Nodes::relay`]). With nodes of 8 and 3 members, member 2 of the second node receives
//! what member 5 of the first sends. If all nodes have as many members, the members with one local index are a *rail*, with one NIC on each
//! node. With N nodes of L members, and S bytes of a message:
//!
//! - all_gather: a member sends its input to N - 1 members, its relays, which forward it: 1 / L of the bytes of the direct form.
//! - broadcast: the node of the root cuts the message into L parts, one for each rail: (N - 1) / L S per NIC, instead of (N - 1) L S on
//!   one.
//! - Reductions ([`sums`]): partial sums of the parts move from node to node, one part for each rail.
//! - all_to_all ([`packed`]): no byte is for two members, but all pieces for one member of another node are sent in one chunk: 1 / L of the
//!   requests. The local index of the receiver selects the member of the sending node that packs, as it selects a relay.
//!
//! With different numbers of members per node, a broadcast has as many parts as the node of the root has members, and reductions have as
//! many rails as the smallest node has members; its NICs are the bottleneck.
//!
//! Gather and scatter have no data for several members of a node.

mod packed;
mod sums;

use anabranch_ranks::{GroupRank, Nodes};

use super::schedule::{Exchange, FIRST, Port, SECOND, Step, others, part, receiver_lag, starts};
use crate::types::Collective;

/// The error for an all_to_all with different counts.
pub(super) const PAIRS_ALONE: &str = "counts that only pairs know cannot be packed";

/// Whether a collective can run by node on these nodes. The error is the reason why not.
pub(super) fn allows(nodes: &Nodes, collective: Collective) -> Result<(), &'static str> {
    if nodes.count() < 2 {
        return Err("all members are on one node");
    }
    if nodes.largest_size() < 2 {
        return Err("nodes have one member each");
    }
    match collective {
        Collective::AllGather | Collective::AllToAll | Collective::Broadcast => Ok(()),
        Collective::AllReduce | Collective::ReduceScatter | Collective::Reduce if nodes.are_contiguous() => {
            Ok(())
        }
        Collective::AllReduce | Collective::ReduceScatter | Collective::Reduce => {
            Err("sums are in group-rank order, and the members of each node are not contiguous in the group")
        }
        _ => Err("none of its data is for several members of a node"),
    }
}

/// The steps of member `me`. Nodes and collective must be allowed.
///
/// # Errors
/// An all_to_all with different counts: the member that packs knows only its own.
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
        Exchange::ReduceScatter { bytes } => form.reduce_scatter(bytes),
        Exchange::Gather { .. } | Exchange::Scatter { .. } | Exchange::Barrier => Vec::new(),
    })
}

/// The node of a member, and its local index there.
#[expect(clippy::expect_used, reason = "nodes list every member of the group")]
fn location(nodes: &Nodes, member: u32) -> (u32, u32) {
    let member = GroupRank::new(member);
    let (node, place) = (nodes.node_of(member), nodes.local_index(member));
    (node.expect("every member has a node"), place.expect("every member has a place on its node"))
}

struct Form<'a> {
    nodes: &'a Nodes,
    /// The node of this rank, and its local index there.
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
    /// Number of nodes.
    fn count(&self) -> u32 {
        self.nodes.count()
    }

    /// Members of a node.
    fn size(&self, node: u32) -> u32 {
        self.nodes.members_of(node).len() as u32
    }

    /// Members of the node of this rank.
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

    /// The link to the relay of `member` on `node`.
    fn relay(&self, member: u32, node: u32) -> Port {
        let peer = self.nodes.relay(GroupRank::new(member), node).map_or(0, GroupRank::get);
        Port::Link { peer, stream: FIRST }
    }

    /// Local indices of the other members of this node.
    fn inside(&self) -> impl Iterator<Item = u32> + Clone {
        others(self.place, self.here())
    }

    /// Other nodes, in the same order for all members of this node.
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
            Step::moves(self.link(self.node, place, FIRST), vec![to(member)], bytes(member), receiver_lag(1))
        }));
        let handed: u32 = self.outside().map(|node| self.size(node).div_ceil(self.here())).sum();
        let lag = receiver_lag(1) + receiver_lag(handed);
        // Node by node, each in rounds in which every member of this node forwards one input. A link within the node takes several chunks at
        // one time, one of each round.
        for (node, round) in self.rounds() {
            if let Some(place) = round.of(self.place) {
                let member = self.member(node, place);
                let targets = [to(member)].into_iter().chain(self.to_inside(SECOND)).collect();
                steps.push(Step::moves(
                    self.link(node, place, FIRST),
                    targets,
                    bytes(member),
                    receiver_lag(1),
                ));
            }
            steps.extend(self.inside().filter_map(|by| {
                let member = self.member(node, round.of(by)?);
                let source = self.link(self.node, by, SECOND);
                Some(Step::moves(source, vec![to(member)], bytes(member), lag))
            }));
        }
        steps
    }

    /// Rounds over the members of all other nodes, with as many members each as this node has.
    fn rounds(&self) -> impl Iterator<Item = (u32, Round)> {
        let rounds = move |node| Round::all(self.size(node), self.here()).map(move |round| (node, round));
        self.outside().flat_map(rounds)
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
        // Hops before the member that forwards a part on this node has it.
        let hops = |place| match (at_source, place == at_root) {
            (true, true) => 0,
            (true, false) | (false, true) => 1,
            (false, false) => 2,
        };
        let handed = receiver_lag(parts.div_ceil(self.here()));
        let mut steps = Vec::new();
        for round in Round::all(parts, self.here()) {
            if let Some(place) = round.of(self.place) {
                let (bytes, first) = part(place);
                let source = self.link(of_root, if at_source { at_root } else { place }, FIRST);
                let wanting = self.inside().filter(|place| !at_source || *place != at_root);
                let inside = wanting.map(|place| self.link(self.node, place, SECOND));
                let onwards = rail(place).filter(|_| at_source);
                let targets = [output(first)].into_iter().chain(onwards).chain(inside).collect();
                steps.push(Step::moves(source, targets, bytes, hops(place) * receiver_lag(1)));
            }
            steps.extend(self.inside().filter_map(|by| {
                let place = round.of(by)?;
                let (bytes, first) = part(place);
                let lag = hops(place) * receiver_lag(1) + handed;
                Some(Step::moves(self.link(self.node, by, SECOND), vec![output(first)], bytes, lag))
            }));
        }
        steps
    }
}

/// A round: consecutive entries of a list, at most one for each member.
#[derive(Clone, Copy, Debug)]
struct Round {
    first: u32,
    members: u32,
    end: u32,
}

impl Round {
    /// All rounds of a list of `length` entries over `members` members.
    fn all(length: u32, members: u32) -> impl Iterator<Item = Self> {
        let members = members.max(1);
        (0..length).step_by(members as usize).map(move |first| Self { first, members, end: length })
    }

    /// The entry of this member in the round.
    fn of(self, member: u32) -> Option<u32> {
        Some(self.first + member).filter(|index| member < self.members && *index < self.end)
    }
}
