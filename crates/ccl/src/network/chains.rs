//! Chains of hops from inputs to outputs: how often what a member gives was handed on before.

use super::schedule::{Port, Step};

/// Hops one after the other. Ordered by those between machines first, which take longer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Hops {
    /// From one machine to another.
    pub between: u32,
    /// Inside a machine.
    pub inside: u32,
}

impl Hops {
    fn and(self, is_across: bool) -> Self {
        let Self { between, inside } = self;
        Self { between: between + u32::from(is_across), inside: inside + u32::from(!is_across) }
    }
}

/// A link: who gives, who takes, and which of their links.
type Link = (u32, u32, u32);

/// The steps of all members, as far as they are over links.
#[derive(Debug, Default)]
pub(super) struct Chains {
    /// Of each step, where its sources and its targets end in the lists.
    ends: Vec<(usize, usize)>,
    sources: Vec<Link>,
    /// Whether each goes to another machine.
    targets: Vec<(Link, bool)>,
}

impl Chains {
    /// Adds the next step of a member. Those without chunks are left out, at both ends of a link.
    pub(super) fn push(&mut self, me: u32, step: &Step, is_across: impl Fn(u32) -> bool) {
        for port in &step.sources {
            if let Port::Link { peer, stream } = *port {
                self.sources.push((peer, me, stream));
            }
        }
        for port in &step.targets {
            if let Port::Link { peer, stream } = *port {
                self.targets.push(((me, peer, stream), is_across(peer)));
            }
        }
        self.ends.push((self.sources.len(), self.targets.len()));
    }

    /// The longest chain.
    pub(super) fn longest(&self) -> Hops {
        let feeds = self.feeds();
        // Of each source, how many hops what comes there has behind it; a chain ends, so that this settles.
        let mut come = vec![Hops::default(); self.sources.len()];
        let mut changes = true;
        while changes {
            changes = false;
            let (mut source, mut target) = (0, 0);
            for &(last_source, last_target) in &self.ends {
                let before = come[source..last_source].iter().max().copied().unwrap_or_default();
                let given = self.targets[target..last_target].iter().zip(&feeds[target..last_target]);
                for ((_, is_across), taker) in given {
                    let hops = before.and(*is_across);
                    if let Some(come) = come.get_mut(*taker)
                        && *come < hops
                    {
                        *come = hops;
                        changes = true;
                    }
                }
                (source, target) = (last_source, last_target);
            }
        }
        come.into_iter().max().unwrap_or_default()
    }

    /// Of each target, the source that takes what is given there: a link's chunks are taken in the order in which they are given.
    fn feeds(&self) -> Vec<usize> {
        let mut takers: Vec<usize> = (0..self.sources.len()).collect();
        takers.sort_by_key(|index| self.sources[*index]);
        let mut givers: Vec<usize> = (0..self.targets.len()).collect();
        givers.sort_by_key(|index| self.targets[*index].0);
        debug_assert!(
            givers
                .iter()
                .map(|index| self.targets[*index].0)
                .eq(takers.iter().map(|index| self.sources[*index])),
            "every chunk that is given is taken"
        );
        let mut feeds = vec![usize::MAX; givers.len()];
        for (giver, taker) in givers.into_iter().zip(takers) {
            feeds[giver] = taker;
        }
        feeds
    }
}
