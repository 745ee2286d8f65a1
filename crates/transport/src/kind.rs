//! The kinds of transport.

anabranch_ranks::word_enum! {
    /// A way of moving bytes. Every kind exists in every build; joining a world over one that was not compiled in is an error that names the
    /// cargo feature.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
    pub enum TransportKind, word, "transport" {
        /// Loads and stores to a peer's memory that is mapped here.
        P2p = "p2p",
        /// Copy engines.
        Sdma = "sdma",
        /// A NIC.
        Rdma = "rdma",
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
        assert_eq!(error.to_string(), "\"P2P\" is no transport; allowed are p2p, sdma, rdma");
    }
}
