//! Who moves the rows of a plan.

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
    /// Copy engines: between the halves of an operation no kernel of it is on the device, and other work has all its units. Dispatch
    /// writes what it sends into a staging area first. By queues that kernels write where the route has them (transport `sdma`),
    /// exactly the rows that there are; else by copies of streams, which move to every rank as many as there may be, whatever the routing
    /// (of `max_tokens`, or the share of [`EpConfig::max_recv`](crate::EpConfig::max_recv)): for few tokens plan for few.
    ///
    /// Whole operations are their halves, one after the other. A first half that is captured needs its second half in the same capture
    /// where copies of streams move rows. All members of an operation combine it, or all release it; else the world has a fault that
    /// says so. After a fault engines may still read what an operation was given, until the world is dropped.
    ///
    /// For the slotted mode, without masks, combined weights, combine codecs, and saved routings.
    CopyEngine,
}

impl Payload {
    /// All of them.
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

/// A word that names none.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{given:?} moves no payload; allowed are {}", Payload::ALL.map(Payload::name).join(", "))]
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
