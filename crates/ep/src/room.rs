//! Room for received rows: how many a rank takes, and how they are shared among the sources.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};

/// Most rows of a window: an entry of the send map has 31 bits for the row.
pub const MAX_ROWS: u64 = (1 << 31) - 1;

/// Most tokens a rank for which [`Mode::Auto`] is slotted.
pub const MOST_SLOTTED: u32 = 512;

/// How received rows lie, and when their places are known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum Mode {
    /// Slotted up to 512 tokens a rank ([`MOST_SLOTTED`]), else compact: what a slot wastes in memory grows with the tokens,
    /// what counting first costs in time does not.
    #[default]
    Auto,
    /// Every source owns a part of each window and knows its rows at once: the shortest way, for decoding.
    Slotted,
    /// Ranks tell each other how much goes where, then every row goes to its final place, without gaps: for prefill and
    /// training. Copies are kept by source rank and then token, as many as the window holds.
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

    /// The mode that is used for this many tokens a rank: never [`Self::Auto`].
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

/// The rows of a rank's receive windows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Room {
    mode: Mode,
    rows: u64,
    row_stride: u32,
    clamped: bool,
}

impl Room {
    /// Room for the tokens of `ranks` ranks with `max_tokens` each, of which a rank takes in `max_recv` (0: all).
    ///
    /// Slotted, each source owns `min(ceil(max_recv / ranks), max_tokens)` rows of each destination's windows; compact, the
    /// windows have `max_recv` rows.
    ///
    /// # Errors
    /// [`Error::Config`]: windows of more than [`MAX_ROWS`] rows, or a cap that leaves some source without a row.
    pub fn new(mode: Mode, ranks: u32, max_tokens: u32, max_recv: u32) -> Result<Self> {
        let worst = u64::from(ranks) * u64::from(max_tokens);
        if worst > MAX_ROWS {
            return Err(Error::Config {
                field: "max_tokens",
                given: u64::from(max_tokens),
                allowed: format!("{ranks} ranks times it must not be more than {MAX_ROWS} rows"),
            });
        }
        if max_recv != 0 && max_recv < ranks {
            return Err(Error::Config {
                field: "max_recv",
                given: u64::from(max_recv),
                allowed: format!(
                    "allowed are 0 (no cap) and, so that each of {ranks} ranks can send a row, {ranks} and more"
                ),
            });
        }
        let clamped = u64::from(max_recv) > worst;
        let most = if max_recv == 0 { worst } else { worst.min(u64::from(max_recv)) };
        let mode = mode.chosen(max_tokens);
        let (rows, row_stride) = if mode == Mode::Compact {
            (most, 0)
        } else {
            // Not more than max_tokens, because `most` is not more than ranks times it.
            let row_stride = most.div_ceil(u64::from(ranks));
            (u64::from(ranks) * row_stride, row_stride as u32)
        };
        Ok(Self { mode, rows, row_stride, clamped })
    }

    /// Slotted or compact.
    pub const fn mode(&self) -> Mode {
        self.mode
    }

    /// Rows of each window.
    pub const fn rows(&self) -> u64 {
        self.rows
    }

    /// Rows of a window that each source owns; 0 when it owns none (compact).
    pub const fn row_stride(&self) -> u32 {
        self.row_stride
    }

    /// Whether more was asked for than can ever arrive.
    pub const fn is_clamped(&self) -> bool {
        self.clamped
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_cap_is_shared_evenly_and_rounded_up(
            ranks in 1u32..300, max_tokens in 1u32..5000, share in 0.0f64..1.5,
        ) {
            let worst = u64::from(ranks * max_tokens);
            let max_recv = ((worst as f64 * share) as u32).max(ranks);
            let room = Room::new(Mode::Slotted, ranks, max_tokens, max_recv).unwrap();
            prop_assert_eq!(room.rows(), u64::from(ranks) * u64::from(room.row_stride()));
            prop_assert_eq!(room.is_clamped(), u64::from(max_recv) > worst);
            prop_assert!(room.row_stride() >= 1 && room.row_stride() <= max_tokens);
            // The least share that holds the cap, or everything.
            prop_assert!(room.rows() >= u64::from(max_recv).min(worst));
            prop_assert!(room.rows() < u64::from(max_recv) + u64::from(ranks));
            let compact = Room::new(Mode::Compact, ranks, max_tokens, max_recv).unwrap();
            prop_assert_eq!((compact.rows(), compact.row_stride()), (worst.min(u64::from(max_recv)), 0));
        }

        #[test]
        fn without_a_cap_every_token_has_a_row(ranks in 1u32..300, max_tokens in 1u32..5000) {
            let worst = u64::from(ranks * max_tokens);
            let room = Room::new(Mode::Slotted, ranks, max_tokens, 0).unwrap();
            prop_assert_eq!((room.row_stride(), room.rows(), room.is_clamped()), (max_tokens, worst, false));
            let compact = Room::new(Mode::Compact, ranks, max_tokens, 0).unwrap();
            prop_assert_eq!((compact.row_stride(), compact.rows(), compact.is_clamped()), (0, worst, false));
        }
    }

    #[test]
    fn auto_is_slotted_for_few_tokens() {
        let chosen = |max_tokens| Room::new(Mode::Auto, 4, max_tokens, 0).unwrap().mode();
        assert_eq!(
            [1, 512, 513, 4096].map(chosen),
            [Mode::Slotted, Mode::Slotted, Mode::Compact, Mode::Compact]
        );
        for mode in Mode::ALL {
            assert_eq!(mode.name().parse(), Ok(mode));
        }
        let refused = "dense".parse::<Mode>().unwrap_err().to_string();
        assert!(refused.contains("auto, slotted, compact"), "{refused}");
    }

    #[test]
    fn what_is_refused_says_what_is_allowed() {
        let error = Room::new(Mode::Auto, 4, 100, 3).unwrap_err().to_string();
        assert!(error.contains("max_recv is 3") && error.contains("4 and more"), "{error}");
        assert_eq!(Room::new(Mode::Auto, 4, 100, 4).unwrap().row_stride(), 1);
        let error = Room::new(Mode::Auto, 1 << 10, 1 << 21, 0).unwrap_err().to_string();
        assert!(error.contains("max_tokens is 2097152") && error.contains("2147483647"), "{error}");
    }
}
