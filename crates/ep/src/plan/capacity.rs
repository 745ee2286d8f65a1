//! Capacity of the receive windows: the rows of a rank, and the share of each source.

use crate::error::{Error, Result};
use crate::options::Mode;

/// Most rows of a window: an entry of the send map has 31 bits for the row.
const MAX_ROWS: u64 = (1 << 31) - 1;

/// The rows of a rank's receive windows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Capacity {
    mode: Mode,
    rows: u64,
    row_stride: u32,
    clamped: bool,
}

impl Capacity {
    /// The capacity for the tokens of `ranks` ranks with `max_tokens` each, of which a rank receives `max_recv` (0: all).
    ///
    /// In the slotted mode each source owns `min(ceil(max_recv / ranks), max_tokens)` rows of each destination's windows; in the compact
    /// mode the windows have `max_recv` rows.
    ///
    /// # Errors
    /// [`Error::Config`]: windows of more than [`MAX_ROWS`] rows, or a cap that leaves some source without a row.
    pub(super) fn new(mode: Mode, ranks: u32, max_tokens: u32, max_recv: u32) -> Result<Self> {
        let worst = u64::from(ranks) * u64::from(max_tokens);
        if worst > MAX_ROWS {
            let allowed = format!("{ranks} ranks times it must not be more than {MAX_ROWS} rows");
            return Err(Error::config("max_tokens", max_tokens, allowed));
        }
        if max_recv != 0 && max_recv < ranks {
            let allowed = format!(
                "allowed are 0 (no cap) and, so that each of {ranks} ranks can send a row, {ranks} and more"
            );
            return Err(Error::config("max_recv", max_recv, allowed));
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
    pub(super) const fn mode(&self) -> Mode {
        self.mode
    }

    /// Rows of each window.
    pub(super) const fn rows(&self) -> u64 {
        self.rows
    }

    /// Rows of a window that each source owns; 0 when it owns none (compact).
    pub(super) const fn row_stride(&self) -> u32 {
        self.row_stride
    }

    /// Whether `max_recv` is above the worst case.
    pub(super) const fn is_clamped(&self) -> bool {
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
            let capacity = Capacity::new(Mode::Slotted, ranks, max_tokens, max_recv).unwrap();
            prop_assert_eq!(capacity.rows(), u64::from(ranks) * u64::from(capacity.row_stride()));
            prop_assert_eq!(capacity.is_clamped(), u64::from(max_recv) > worst);
            prop_assert!(capacity.row_stride() >= 1 && capacity.row_stride() <= max_tokens);
            // The least share that holds the cap, or everything.
            prop_assert!(capacity.rows() >= u64::from(max_recv).min(worst));
            prop_assert!(capacity.rows() < u64::from(max_recv) + u64::from(ranks));
            let compact = Capacity::new(Mode::Compact, ranks, max_tokens, max_recv).unwrap();
            prop_assert_eq!((compact.rows(), compact.row_stride()), (worst.min(u64::from(max_recv)), 0));
        }

        #[test]
        fn without_a_cap_every_token_has_a_row(ranks in 1u32..300, max_tokens in 1u32..5000) {
            let worst = u64::from(ranks * max_tokens);
            let capacity = Capacity::new(Mode::Slotted, ranks, max_tokens, 0).unwrap();
            prop_assert_eq!((capacity.row_stride(), capacity.rows(), capacity.is_clamped()), (max_tokens, worst, false));
            let compact = Capacity::new(Mode::Compact, ranks, max_tokens, 0).unwrap();
            prop_assert_eq!((compact.row_stride(), compact.rows(), compact.is_clamped()), (0, worst, false));
        }
    }

    #[test]
    fn auto_is_slotted_for_few_tokens() {
        let chosen = |max_tokens| Capacity::new(Mode::Auto, 4, max_tokens, 0).unwrap().mode();
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
    fn errors_name_the_allowed_values() {
        let error = Capacity::new(Mode::Auto, 4, 100, 3).unwrap_err().to_string();
        assert!(error.contains("max_recv is 3") && error.contains("4 and more"), "{error}");
        assert_eq!(Capacity::new(Mode::Auto, 4, 100, 4).unwrap().row_stride(), 1);
        let error = Capacity::new(Mode::Auto, 1 << 10, 1 << 21, 0).unwrap_err().to_string();
        assert!(error.contains("max_tokens is 2097152") && error.contains("2147483647"), "{error}");
    }
}
