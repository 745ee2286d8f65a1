//! Room for received rows: how many a rank takes, and how they are shared among the sources.

use crate::error::{Error, Result};

/// Most rows of a window: an entry of the send map has 31 bits for the row.
pub const MAX_ROWS: u64 = (1 << 31) - 1;

/// The rows of a rank's receive windows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Room {
    rows: u64,
    row_stride: u32,
    clamped: bool,
}

impl Room {
    /// Room for the tokens of `ranks` ranks with `max_tokens` each, of which a rank takes in `max_recv` (0: all).
    ///
    /// Each source owns `min(ceil(max_recv / ranks), max_tokens)` rows of each destination's windows.
    ///
    /// # Errors
    /// [`Error::Config`]: windows of more than [`MAX_ROWS`] rows, or a cap that leaves some source without a row.
    pub fn new(ranks: u32, max_tokens: u32, max_recv: u32) -> Result<Self> {
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
        let row_stride = if max_recv == 0 { max_tokens } else { max_recv.div_ceil(ranks).min(max_tokens) };
        Ok(Self {
            rows: u64::from(ranks) * u64::from(row_stride),
            row_stride,
            clamped: u64::from(max_recv) > worst,
        })
    }

    /// Rows of each window.
    pub const fn rows(&self) -> u64 {
        self.rows
    }

    /// Rows of a window that each source owns.
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
            let room = Room::new(ranks, max_tokens, max_recv).unwrap();
            prop_assert_eq!(room.rows(), u64::from(ranks) * u64::from(room.row_stride()));
            prop_assert_eq!(room.is_clamped(), u64::from(max_recv) > worst);
            prop_assert!(room.row_stride() >= 1 && room.row_stride() <= max_tokens);
            // The least share that holds the cap, or everything.
            prop_assert!(room.rows() >= u64::from(max_recv).min(worst));
            prop_assert!(room.rows() < u64::from(max_recv) + u64::from(ranks));
        }

        #[test]
        fn without_a_cap_every_token_has_a_row(ranks in 1u32..300, max_tokens in 1u32..5000) {
            let room = Room::new(ranks, max_tokens, 0).unwrap();
            prop_assert_eq!((room.row_stride(), room.is_clamped()), (max_tokens, false));
        }
    }

    #[test]
    fn what_is_refused_says_what_is_allowed() {
        let error = Room::new(4, 100, 3).unwrap_err().to_string();
        assert!(error.contains("max_recv is 3") && error.contains("4 and more"), "{error}");
        assert_eq!(Room::new(4, 100, 4).unwrap().row_stride(), 1);
        let error = Room::new(1 << 10, 1 << 21, 0).unwrap_err().to_string();
        assert!(error.contains("max_tokens is 2097152") && error.contains("2147483647"), "{error}");
    }
}
