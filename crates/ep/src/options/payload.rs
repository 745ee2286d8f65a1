//! What moves the rows of a plan.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// What moves rows between ranks. Results are the same, bit by bit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Payload {
    /// The stores and loads of dispatch's and combine's own kernels: the shortest time.
    #[default]
    Kernels,
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
    CopyEngine,
}

impl Payload {
    /// All payloads.
    pub const ALL: [Self; 2] = [Self::Kernels, Self::CopyEngine];

    /// Its name in configurations and reports.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Kernels => "kernels",
            Self::CopyEngine => "copy-engine",
        }
    }
}

impl fmt::Display for Payload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A word that names no payload.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{given:?} is no payload; allowed are {}", Payload::ALL.map(Payload::name).join(", "))]
pub struct UnknownPayload {
    /// The word given.
    pub given: String,
}

impl FromStr for Payload {
    type Err = UnknownPayload;

    fn from_str(text: &str) -> Result<Self, UnknownPayload> {
        let found = Self::ALL.into_iter().find(|payload| payload.name() == text);
        found.ok_or_else(|| UnknownPayload { given: text.to_owned() })
    }
}
