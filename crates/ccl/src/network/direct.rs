//! The direct form: every member sends each chunk directly to the members that need it. For any nodes.
//!
//! Bytes that a member sends, with n members and a message of S bytes: all_reduce 2 (n - 1) / n S, reduce_scatter and all_to_all (n - 1) /
//! n S, all_gather n - 1 times its input. Contributions are sent unreduced, and their owner reduces them in group-rank order.

use super::schedule::{Exchange, FIRST, Port, SECOND, Step, others, part, receiver_lag, starts};

/// The most bytes that a member sends in an all_reduce of one hop. Longer messages take two hops. Arithmetic, not measured: at 400 Gbit/s
/// they take about as long as a hop through two NICs, some microseconds.
const ONE_HOP_BYTES: u64 = 128 << 10;

const ONE_HOP: u32 = receiver_lag(1);
const TWO_HOPS: u32 = 2 * receiver_lag(1);

pub(super) fn steps(members: u32, me: u32, exchange: &Exchange) -> Vec<Step> {
    let form = Form { members, me, peers: others(me, members).collect() };
    match exchange {
        Exchange::AllGather { bytes } => form.all_gather(bytes),
        Exchange::AllToAll { sent, received } => form.all_to_all(sent, received),
        Exchange::Broadcast { bytes, root } => form.broadcast(*bytes, *root),
        Exchange::Gather { bytes, root } => form.gather(*bytes, *root),
        Exchange::Scatter { bytes, root } => form.scatter(*bytes, *root),
        Exchange::AllReduce { bytes } if goes_in_one_hop(members, *bytes) => form.one_hop(*bytes),
        Exchange::AllReduce { bytes } => form.reduce(*bytes, None),
        Exchange::Reduce { bytes, root } => form.reduce(*bytes, Some(*root)),
        Exchange::ReduceScatter { bytes } => form.reduce_scatter(bytes),
        Exchange::Barrier => form.barrier(),
    }
}

/// Whether an all_reduce takes one hop.
pub(super) fn goes_in_one_hop(members: u32, bytes: u64) -> bool {
    u64::from(members.saturating_sub(1)) * bytes <= ONE_HOP_BYTES
}

struct Form {
    members: u32,
    me: u32,
    /// The other members, from the next one on.
    peers: Vec<u32>,
}

const fn link(peer: u32, stream: u32) -> Port {
    Port::Link { peer, stream }
}
const fn input(offset: u64) -> Port {
    Port::Input { offset }
}
const fn output(offset: u64) -> Port {
    Port::Output { offset }
}

impl Form {
    fn links(&self, stream: u32) -> impl Iterator<Item = Port> {
        self.peers.iter().map(move |peer| link(*peer, stream))
    }

    /// The entry of `member`.
    fn of(values: &[u64], member: u32) -> u64 {
        values[member as usize]
    }

    fn all_gather(&self, bytes: &[u64]) -> Vec<Step> {
        let at = starts(bytes);
        let targets = [output(Self::of(&at, self.me))].into_iter().chain(self.links(FIRST)).collect();
        let mut steps = vec![Step::moves(input(0), targets, Self::of(bytes, self.me), 0)];
        steps.extend(self.peers.iter().map(|peer| {
            let (to, bytes) = (output(Self::of(&at, *peer)), Self::of(bytes, *peer));
            Step::moves(link(*peer, FIRST), vec![to], bytes, ONE_HOP)
        }));
        steps
    }

    fn all_to_all(&self, sent: &[u64], received: &[u64]) -> Vec<Step> {
        let (from, to) = (starts(sent), starts(received));
        let source = |member| input(Self::of(&from, member));
        let target = |member| output(Self::of(&to, member));
        let gives = self
            .peers
            .iter()
            .map(|peer| Step::moves(source(*peer), vec![link(*peer, FIRST)], Self::of(sent, *peer), 0));
        let own = Step::moves(source(self.me), vec![target(self.me)], Self::of(sent, self.me), 0);
        let takes = self.peers.iter().map(|peer| {
            Step::moves(link(*peer, FIRST), vec![target(*peer)], Self::of(received, *peer), ONE_HOP)
        });
        gives.chain([own]).chain(takes).collect()
    }

    fn broadcast(&self, bytes: u64, root: u32) -> Vec<Step> {
        if self.me == root {
            return vec![Step::moves(input(0), self.links(FIRST).collect(), bytes, 0)];
        }
        vec![Step::moves(link(root, FIRST), vec![output(0)], bytes, ONE_HOP)]
    }

    fn gather(&self, bytes: u64, root: u32) -> Vec<Step> {
        if self.me != root {
            return vec![Step::moves(input(0), vec![link(root, FIRST)], bytes, 0)];
        }
        let own = Step::moves(input(0), vec![output(bytes * u64::from(root))], bytes, 0);
        let takes = self.peers.iter().map(|peer| {
            Step::moves(link(*peer, FIRST), vec![output(bytes * u64::from(*peer))], bytes, ONE_HOP)
        });
        [own].into_iter().chain(takes).collect()
    }

    fn scatter(&self, bytes: u64, root: u32) -> Vec<Step> {
        if self.me != root {
            return vec![Step::moves(link(root, FIRST), vec![output(0)], bytes, ONE_HOP)];
        }
        let gives = self
            .peers
            .iter()
            .map(|peer| Step::moves(input(bytes * u64::from(*peer)), vec![link(*peer, FIRST)], bytes, 0));
        gives.chain([Step::moves(input(bytes * u64::from(root)), vec![output(0)], bytes, 0)]).collect()
    }

    /// The contributions of all members to the part at `offset` of the input, in group-rank order.
    fn contributions(&self, offset: u64) -> Vec<Port> {
        let of = |member| if member == self.me { input(offset) } else { link(member, FIRST) };
        (0..self.members).map(of).collect()
    }

    /// Every member sends its input to all, and reduces the whole message.
    fn one_hop(&self, bytes: u64) -> Vec<Step> {
        let gives = Step::moves(input(0), self.links(FIRST).collect(), bytes, 0);
        vec![gives, Step::sums(self.contributions(0), vec![output(0)], bytes, ONE_HOP)]
    }

    /// Every member reduces one part, and sends the result to all, or to the root.
    fn reduce(&self, bytes: u64, root: Option<u32>) -> Vec<Step> {
        let part = |member| part(bytes, self.members, member);
        let gives = self.peers.iter().map(|peer| {
            let (bytes, first) = part(*peer);
            Step::moves(input(first), vec![link(*peer, FIRST)], bytes, 0)
        });
        let (mine, first) = part(self.me);
        let targets: Vec<Port> = match root {
            None => [output(first)].into_iter().chain(self.links(SECOND)).collect(),
            Some(root) if root == self.me => vec![output(first)],
            Some(root) => vec![link(root, SECOND)],
        };
        let sums = Step::sums(self.contributions(first), targets, mine, ONE_HOP);
        let gets = root.is_none_or(|root| root == self.me);
        let takes = self.peers.iter().filter(|_| gets).map(|peer| {
            let (bytes, first) = part(*peer);
            Step::moves(link(*peer, SECOND), vec![output(first)], bytes, TWO_HOPS)
        });
        gives.chain([sums]).chain(takes).collect()
    }

    fn reduce_scatter(&self, bytes: &[u64]) -> Vec<Step> {
        let at = starts(bytes);
        let gives = self.peers.iter().map(|peer| {
            let source = input(Self::of(&at, *peer));
            Step::moves(source, vec![link(*peer, FIRST)], Self::of(bytes, *peer), 0)
        });
        let mine = self.contributions(Self::of(&at, self.me));
        gives.chain([Step::sums(mine, vec![output(0)], Self::of(bytes, self.me), ONE_HOP)]).collect()
    }

    /// A chunk without bytes to and from every member.
    fn barrier(&self) -> Vec<Step> {
        let links = || self.links(FIRST).collect();
        vec![Step::barrier(Vec::new(), links()), Step::barrier(links(), Vec::new())]
    }
}
