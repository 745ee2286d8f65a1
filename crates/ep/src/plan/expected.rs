//! The cost model of a dispatch between nodes: what each way moves, and which takes less time. Host arithmetic; all experts of a token
//! are equally likely.

use anabranch_ranks::{Across, GroupRank, LinkSpeeds, Moved, Nodes};

use super::{EpConfig, ExpertPlacement, Plan, numbers_at, row_bytes};

impl EpConfig {
    /// The way of rows between nodes; `None` on one node. Depends on the configuration alone, whose fields must have been checked.
    pub(crate) fn way(&self) -> Option<Across> {
        let nodes = self.nodes.as_ref().filter(|nodes| nodes.count() > 1)?;
        if self.across != Across::Auto {
            return Some(self.across);
        }
        let expected = Expected::new(self, nodes);
        // Of the device, where the plan is made on a world.
        let speeds = self.links.on("");
        let us = |way| speeds.parts(&expected.slowest(way, &speeds)).in_turn();
        Some(if us(Across::Node) < us(Across::Direct) { Across::Node } else { Across::Direct })
    }
}

impl Plan {
    /// What the slowest rank is expected to move in a dispatch of `max_tokens` by this way; `None` on one node. Dropped rows are
    /// included. [`Across::Auto`] is the plan's own way ([`Plan::across`]): for a configuration with `Auto`, the way that takes less
    /// time at the speeds of [`EpConfig::links`].
    pub fn expected_dispatch(&self, way: Across, speeds: &LinkSpeeds) -> Option<Moved> {
        let (nodes, own) = self.across()?;
        let way = if way == Across::Auto { own } else { way };
        Some(Expected::new(&self.config, nodes).slowest(way, speeds))
    }
}

/// Probabilities for one token.
struct Expected<'a> {
    nodes: &'a Nodes,
    tokens: u32,
    /// Bytes of a row and its record.
    copy_bytes: f64,
    /// Of going to a rank, for each rank; and their sum.
    to_rank: Vec<f64>,
    to_any_rank: f64,
    /// Of going to some rank of a node, for each node; and their sum.
    to_node: Vec<f64>,
    to_any_node: f64,
    /// The sum of the probabilities of a node's ranks.
    in_node: Vec<f64>,
    /// Ranks of other nodes for which each rank forwards.
    relayed: Vec<u32>,
}

impl<'a> Expected<'a> {
    fn new(config: &EpConfig, nodes: &'a Nodes) -> Self {
        let shares = shares(config, nodes.size());
        let chance = |share| chance(share, f64::from(config.experts), config.top_k);
        let to_rank: Vec<f64> = shares.iter().map(|share| chance(*share)).collect();
        let of_members = |values: &[f64], node| -> f64 {
            nodes.members_of(node).iter().filter_map(|rank| values.get(rank.index())).sum()
        };
        let to_node: Vec<f64> = (0..nodes.count()).map(|node| chance(of_members(&shares, node))).collect();
        let mut relayed = vec![0; nodes.size() as usize];
        for source in nodes.ranks() {
            let others = (0..nodes.count()).filter(|node| nodes.node_of(source) != Some(*node));
            for relay in others.filter_map(|node| nodes.relay(source, node)) {
                if let Some(count) = relayed.get_mut(relay.index()) {
                    *count += 1;
                }
            }
        }
        Self {
            nodes,
            tokens: config.max_tokens,
            copy_bytes: (row_bytes(config, config.dispatch_type)
                + u64::from(numbers_at(config).next_multiple_of(16))) as f64,
            to_any_rank: to_rank.iter().sum(),
            to_any_node: to_node.iter().sum(),
            in_node: (0..nodes.count()).map(|node| of_members(&to_rank, node)).collect(),
            to_rank,
            to_node,
            relayed,
        }
    }

    /// What the slowest rank moves.
    fn slowest(&self, way: Across, speeds: &LinkSpeeds) -> Moved {
        let all = (0..self.nodes.size()).map(|rank| self.moved(rank, way));
        let us = |moved: &Moved| speeds.parts(moved).in_turn();
        all.max_by(|one, other| us(one).total_cmp(&us(other))).unwrap_or_default()
    }

    fn moved(&self, rank: u32, way: Across) -> Moved {
        let node = self.nodes.node_of(GroupRank::new(rank)).unwrap_or(0);
        let of = |values: &[f64], index: u32| values.get(index as usize).copied().unwrap_or(0.0);
        let (own, in_node) = (of(&self.to_rank, rank), of(&self.in_node, node));
        let near = self.nodes.members_of(node).len() as u32;
        let far = self.nodes.size() - near;
        // Sent and received, for each token of a rank.
        let neighbours = (in_node - own, f64::from(near - 1) * own);
        if way == Across::Node {
            let forwarded = self.relayed.get(rank as usize).copied().unwrap_or(0);
            let sent = (self.to_any_node - of(&self.to_node, node), neighbours.0 * f64::from(1 + forwarded));
            let received = (
                f64::from(forwarded) * of(&self.to_node, node),
                neighbours.1 + f64::from(far - forwarded) * own,
            );
            let filled = self.filled(&self.to_node, |other| other != node);
            return Moved {
                between_bytes: self.bytes(sent.0.max(received.0)),
                inside_bytes: self.bytes(sent.1.max(received.1)),
                messages: 2.0 * filled + f64::from(self.nodes.count() - 1),
                inside_hops: 1,
                between_hops: 1,
                launches: 2,
            };
        }
        let is_far = |other| self.nodes.node_of(GroupRank::new(other)) != Some(node);
        Moved {
            between_bytes: self.bytes((self.to_any_rank - in_node).max(f64::from(far) * own)),
            inside_bytes: self.bytes(neighbours.0.max(neighbours.1)),
            messages: 2.0 * self.filled(&self.to_rank, is_far) + f64::from(far),
            inside_hops: 0,
            between_hops: 1,
            launches: 1,
        }
    }

    fn bytes(&self, copies_of_token: f64) -> f64 {
        copies_of_token * f64::from(self.tokens) * self.copy_bytes
    }

    /// How many of these get a token at all.
    fn filled(&self, chances: &[f64], is_counted: impl Fn(u32) -> bool) -> f64 {
        let counted = (0..).zip(chances).filter(|(index, _)| is_counted(*index));
        counted.map(|(_, chance)| 1.0 - power(1.0 - chance, self.tokens)).sum()
    }
}

/// Experts that each rank works on; those on several ranks in equal parts.
fn shares(config: &EpConfig, ranks: u32) -> Vec<f64> {
    let mut shares = vec![0.0; ranks as usize];
    if let Some(table) = &config.placement {
        for expert in 0..table.experts() as u32 {
            let owners = table.ranks_of(expert);
            for owner in owners {
                if let Some(share) = shares.get_mut(owner.index()) {
                    *share += 1.0 / owners.len() as f64;
                }
            }
        }
    } else if let Some(placement) = ExpertPlacement::new(config.experts, ranks) {
        for (rank, share) in (0..).map(GroupRank::new).zip(&mut shares) {
            *share = placement.range(rank).len() as f64;
        }
    }
    shares
}

/// The probability that one of a token's experts, which are distinct, is among `share` of all.
fn chance(share: f64, experts: f64, top_k: u32) -> f64 {
    let mut missed = 1.0;
    for named in (0..top_k).map(f64::from).take_while(|named| *named < experts) {
        missed *= ((experts - share - named) / (experts - named)).max(0.0);
    }
    1.0 - missed
}

/// By squaring: all hosts round multiplications alike, but not library functions.
fn power(mut base: f64, mut exponent: u32) -> f64 {
    let mut power = 1.0;
    while exponent > 0 {
        if exponent % 2 == 1 {
            power *= base;
        }
        base *= base;
        exponent /= 2;
    }
    power
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chances_are_those_of_drawing_without_putting_back() {
        for (share, experts, top_k, expected) in [
            (1.0, 8.0, 1, 0.125),
            (4.0, 8.0, 1, 0.5),
            // One minus 4 / 8 * 3 / 7.
            (4.0, 8.0, 2, 1.0 - 12.0 / 56.0),
            // Seven of eight are never all missed by two.
            (7.0, 8.0, 2, 1.0),
            (0.0, 8.0, 3, 0.0),
            // All are named.
            (1.0, 4.0, 8, 1.0),
        ] {
            let found = chance(share, experts, top_k);
            assert!((found - expected).abs() < 1e-12, "{share} of {experts}, {top_k}: {found}");
        }
        assert!((power(0.5, 10) - 1.0 / 1024.0).abs() < 1e-15 && (power(0.3, 0) - 1.0).abs() < 1e-15);
    }
}
