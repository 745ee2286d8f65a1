//! The kinds of transport.

use std::fmt;
use std::str::FromStr;

use crate::Error;

/// A way of moving bytes. Every kind exists in every build; joining a world over one that was not compiled in is an error that names the
/// cargo feature.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum TransportKind {
    /// Loads and stores to a peer's memory that is mapped here.
    P2p,
    /// Copy engines.
    Sdma,
    /// A NIC.
    Rdma,
}

impl TransportKind {
    /// Every kind, in the order in which documents list them.
    pub const ALL: [Self; 3] = [Self::P2p, Self::Sdma, Self::Rdma];

    /// The word that configurations use.
    pub const fn word(self) -> &'static str {
        match self {
            Self::P2p => "p2p",
            Self::Sdma => "sdma",
            Self::Rdma => "rdma",
        }
    }
}

impl fmt::Display for TransportKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.word())
    }
}

impl FromStr for TransportKind {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        Self::ALL
            .into_iter()
            .find(|kind| kind.word() == text)
            .ok_or_else(|| Error::UnknownKind { given: text.to_owned() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_and_kinds_go_both_ways() {
        for kind in TransportKind::ALL {
            assert_eq!(kind.to_string().parse::<TransportKind>().unwrap(), kind);
        }
        let error = "P2P".parse::<TransportKind>().unwrap_err();
        assert_eq!(error.to_string(), "\"P2P\" is no transport; allowed are p2p, sdma and rdma");
    }
}
