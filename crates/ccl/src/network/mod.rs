//! Collectives across machines: members whose memory is not mapped, reached through a NIC by the device functions of the heap.
//!
//! [`nodes`] says which members are on one machine, [`schedule`] what each member does, as steps over links, [`layout`] where the links
//! are, and `kernels/network_move.hip` and `network_reduce.hip` do the steps, whatever they are. Two forms: *direct*, for any
//! machines, and *by node*, for machines with as many members each, where what concerns several members of a machine goes there
//! once. Both give the same bits as every other algorithm.
//! [`traffic`] counts what either moves.

mod call;
mod chains;
mod direct;
pub(crate) mod form;
mod hierarchical;
pub mod layout;
pub mod lower;
pub mod nodes;
pub mod schedule;
#[cfg(test)]
mod tests;
pub mod traffic;

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

pub(crate) use call::exchange_of;
pub use layout::LinkLayout;
pub use nodes::Nodes;

/// Which way a collective goes between machines.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Across {
    /// By node where that can be done and the message is long, directly otherwise.
    #[default]
    Auto,
    /// Every member sends straight to whom it concerns. For any machines.
    Direct,
    /// What concerns several members of a machine goes there once. For machines with as many members each, two at least, and for
    /// sums only where the group's order goes machine by machine; other calls are an error.
    Node,
}

impl Across {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Auto, Self::Direct, Self::Node];

    /// Its name in configurations.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Direct => "direct",
            Self::Node => "node",
        }
    }
}

impl fmt::Display for Across {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A word that names no way.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{given:?} is no way between machines; allowed are {}", Across::ALL.map(Across::name).join(", "))]
pub struct UnknownAcross {
    /// The word given.
    pub given: String,
}

impl FromStr for Across {
    type Err = UnknownAcross;

    fn from_str(text: &str) -> Result<Self, UnknownAcross> {
        let found = Self::ALL.into_iter().find(|across| across.name() == text);
        found.ok_or_else(|| UnknownAcross { given: text.to_owned() })
    }
}
