//! Which transport serves a peer, and why.

use std::fmt;

use anabranch_ranks::GlobalRank;

use crate::{Refusal, TransportKind};

/// The decision for one peer, with everything that was considered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Route {
    /// The peer.
    pub peer: GlobalRank,
    /// The transport taken.
    pub kind: TransportKind,
    /// Why it reaches the peer: the mechanism, and what was probed.
    pub reason: String,
    /// The transports that come earlier in the configured order and why each was not taken.
    pub considered: Vec<(TransportKind, Refusal)>,
}

impl fmt::Display for Route {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {} ({})", self.peer, self.kind, self.reason)?;
        for (kind, refusal) in &self.considered {
            write!(f, "; not {kind}: {refusal}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_route_names_refused_transports() {
        let route = Route {
            peer: GlobalRank::new(3),
            kind: TransportKind::P2p,
            reason: "IPC".to_owned(),
            considered: vec![(TransportKind::Sdma, Refusal::Failed { cause: "no engine".to_owned() })],
        };
        assert_eq!(route.to_string(), "rank 3: p2p (IPC); not sdma: no engine");
    }
}
