//! The layout of received rows.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// Most tokens a rank for which [`Mode::Auto`] is slotted.
const MOST_SLOTTED: u32 = 512;

/// The layout of received rows, and when their places are known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum Mode {
    /// Slotted up to 512 tokens per rank, else compact: the memory that slotted windows waste grows with the tokens; the time of the
    /// count does not.
    #[default]
    Auto,
    /// Every source owns a part of each window and knows its rows at once: the lowest latency, for decoding.
    Slotted,
    /// Ranks exchange counts first, then send every row to its final place, without gaps: for prefill and
    /// training. The window keeps the first copies by source rank, then token.
    Compact,
}

impl Mode {
    /// All modes.
    pub const ALL: [Self; 3] = [Self::Auto, Self::Slotted, Self::Compact];

    /// Its name in configurations and reports.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Slotted => "slotted",
            Self::Compact => "compact",
        }
    }

    /// The mode for `max_tokens` tokens per rank: never [`Self::Auto`].
    #[must_use]
    pub const fn chosen(self, max_tokens: u32) -> Self {
        match self {
            Self::Auto if max_tokens <= MOST_SLOTTED => Self::Slotted,
            Self::Auto => Self::Compact,
            given => given,
        }
    }
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A word that names no mode.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{given:?} is no mode of dispatch; allowed are {}", Mode::ALL.map(Mode::name).join(", "))]
pub struct UnknownMode {
    /// The word given.
    pub given: String,
}

impl FromStr for Mode {
    type Err = UnknownMode;

    fn from_str(text: &str) -> Result<Self, UnknownMode> {
        let found = Self::ALL.into_iter().find(|mode| mode.name() == text);
        found.ok_or_else(|| UnknownMode { given: text.to_owned() })
    }
}
