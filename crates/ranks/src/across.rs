//! By which way something goes between nodes.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// By which way something goes to other nodes. What each means for an operation, and when [`Self::Auto`] is which, the operation says.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum Across {
    /// What is expected to be faster.
    #[default]
    Auto,
    /// From every member straight to whom it concerns: the fewest steps, on any nodes.
    Direct,
    /// What concerns several members of a node goes there once, to one of them, who hands it on inside, or what concerns one goes there
    /// together: fewer bytes, or fewer requests, between nodes, and more steps.
    Node,
}

impl Across {
    /// All ways.
    pub const ALL: [Self; 3] = [Self::Auto, Self::Direct, Self::Node];

    /// Its name in configurations and reports.
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
#[error("{given:?} is no way across nodes; allowed are {}", Across::ALL.map(Across::name).join(", "))]
pub struct UnknownAcross {
    /// The word given.
    pub given: String,
}

impl FromStr for Across {
    type Err = UnknownAcross;

    fn from_str(text: &str) -> Result<Self, UnknownAcross> {
        let found = Self::ALL.into_iter().find(|way| way.name() == text);
        found.ok_or_else(|| UnknownAcross { given: text.to_owned() })
    }
}
