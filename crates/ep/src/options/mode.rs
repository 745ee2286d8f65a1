//! The layout of received rows.

use serde::{Deserialize, Serialize};

/// Most tokens a rank for which [`Mode::Auto`] is slotted.
const MOST_SLOTTED: u32 = 512;

anabranch_ranks::word_enum! {
    /// The layout of received rows, and when their places are known.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
    #[serde(rename_all = "lowercase")]
    #[non_exhaustive]
    pub enum Mode, name, "mode of dispatch" {
        /// Slotted up to 512 tokens per rank, else compact: the memory that slotted windows waste grows with the tokens; the time of the
        /// count does not.
        #[default]
        Auto = "auto",
        /// Every source owns a part of each window and knows its rows at once: the lowest latency, for decoding.
        Slotted = "slotted",
        /// Ranks exchange counts first, then send every row to its final place, without gaps: for prefill and
        /// training. The window keeps the first copies by source rank, then token.
        Compact = "compact",
    }
}

impl Mode {
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
