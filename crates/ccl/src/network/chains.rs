//! Chains of hops from inputs to outputs. The longest chain bounds the latency of a call.

use super::schedule::{Port, Step};

/// Hops of a chain. Ordered by internode hops first, which take longer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Hops {
    /// Internode hops.
    pub between: u32,
    /// Hops within a node.
    pub inside: u32,
}

impl Hops {
    fn and(self, is_internode: bool) -> Self {
        let Self { between, inside } = self;
        Self { between: between + u32::from(is_internode), inside: inside + u32::from(!is_internode) }
    }
}

/// A link: (sender, receiver, stream).
type Link = (u32, u32, u32);

/// The link ports of the steps of all members.
#[derive(Debug, Default)]
pub(super) struct Chains {
    /// End of the sources and of the targets of each step in the lists.
    ends: Vec<(usize, usize)>,
    sources: Vec<Link>,
    /// Links, and whether each is internode.
    targets: Vec<(Link, bool)>,
}

impl Chains {
    /// Adds the next step of a member. Steps without chunks are left out, at both ends of a link.
    pub(super) fn push(&mut self, me: u32, step: &Step, is_internode: impl Fn(u32) -> bool) {
        for port in &step.sources {
            if let Port::Link { peer, stream } = *port {
                self.sources.push((peer, me, stream));
            }
        }
        for port in &step.targets {
            if let Port::Link { peer, stream } = *port {
                self.targets.push(((me, peer, stream), is_internode(peer)));
            }
        }
        self.ends.push((self.sources.len(), self.targets.len()));
    }

    /// The longest chain.
    pub(super) fn longest(&self) -> Hops {
        let feeds = self.feeds();
        // Hops before each source. Chains are finite, so the iteration converges.
        let mut hops_before = vec![Hops::default(); self.sources.len()];
        let mut changes = true;
        while changes {
            changes = false;
            let (mut source, mut target) = (0, 0);
            for &(last_source, last_target) in &self.ends {
                let before = hops_before[source..last_source].iter().max().copied().unwrap_or_default();
                let targets = self.targets[target..last_target].iter().zip(&feeds[target..last_target]);
                for ((_, is_internode), receiver) in targets {
                    let hops = before.and(*is_internode);
                    if let Some(hops_before) = hops_before.get_mut(*receiver)
                        && *hops_before < hops
                    {
                        *hops_before = hops;
                        changes = true;
                    }
                }
                (source, target) = (last_source, last_target);
            }
        }
        hops_before.into_iter().max().unwrap_or_default()
    }

    /// The source that receives each target. Chunks of a link arrive in order.
    fn feeds(&self) -> Vec<usize> {
        let mut receivers: Vec<usize> = (0..self.sources.len()).collect();
        receivers.sort_by_key(|index| self.sources[*index]);
        let mut senders: Vec<usize> = (0..self.targets.len()).collect();
        senders.sort_by_key(|index| self.targets[*index].0);
        debug_assert!(
            senders
                .iter()
                .map(|index| self.targets[*index].0)
                .eq(receivers.iter().map(|index| self.sources[*index])),
            "every chunk that is sent is received"
        );
        let mut feeds = vec![usize::MAX; senders.len()];
        for (sender, receiver) in senders.into_iter().zip(receivers) {
            feeds[sender] = receiver;
        }
        feeds
    }
}
