//! What moves the rows of a plan.

use serde::{Deserialize, Serialize};

anabranch_ranks::word_enum! {
    /// What moves rows between ranks. Results are the same, bit by bit.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
    #[serde(rename_all = "kebab-case")]
    #[non_exhaustive]
    pub enum Payload, name, "payload" {
        /// The stores and loads of dispatch's and combine's own kernels: the shortest time.
        #[default]
        Kernels = "kernels",
        /// Copy engines: between send and receive no kernel of the operation is on the device, and other work has all its units. Dispatch
        /// writes its rows into a staging area first. Where the route has queues that kernels write (transport `sdma`), the engines copy
        /// exactly the rows that are sent. Elsewhere copies on streams move a fixed number of rows to every rank, whatever the routing:
        /// `max_tokens`, or the source's share of [`EpConfig::max_recv`](crate::EpConfig::max_recv). For few tokens, make a plan with a small
        /// `max_tokens`.
        ///
        /// A whole operation is its send, then its receive. Where copies on streams move rows, a captured send needs its receive in the
        /// same capture. Either all members combine an operation or all release it; a mix is a fault of the world. After a fault engines
        /// may read an operation's buffers until the world is dropped.
        ///
        /// Only for the slotted mode, without masks, combined weights, combine codecs and saved routings.
        CopyEngine = "copy-engine",
    }
}
