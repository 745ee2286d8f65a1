//! Where packets stand in a ring, so that no packet crosses its end.
//!
//! Positions are bytes since the ring was made and only grow; a position's place in the ring is its remainder by the ring's bytes.
//! The engine reads up to the write pointer and says in the read pointer how far it has read. What a producer takes is a
//! multiple of a unit, and one unit stays free, so that a full ring does not look like an empty one.

use crate::error::{Error, Result};

/// Bytes in which room is taken: a copy with one word more, or an atomic.
pub const UNIT: u64 = 32;

/// A ring's size: a power of two, at least a unit and the one that stays free.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ring {
    bytes: u64,
}

/// Where an operation's words stand: from `start` on there are `padding` bytes that are passed over, then the words up to `end`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Placement {
    /// The position that the operation begins at, the end of the one before.
    pub start: u64,
    /// Bytes up to the ring's end that it leaves.
    pub padding: u64,
    /// The position behind its last unit.
    pub end: u64,
}

impl Placement {
    /// The position of its first word.
    pub const fn first(&self) -> u64 {
        self.start + self.padding
    }
}

impl Ring {
    /// The least bytes of a ring.
    pub const LEAST: u64 = 2 * UNIT;

    /// A ring of the given number of bytes.
    ///
    /// # Errors
    /// [`Error::Ring`].
    pub const fn new(bytes: u64) -> Result<Self> {
        if bytes.is_power_of_two() && bytes >= Self::LEAST {
            Ok(Self { bytes })
        } else {
            Err(Error::Ring { given: bytes, least: Self::LEAST })
        }
    }

    /// Bytes.
    pub const fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The place of a position, in bytes from the ring's start.
    pub const fn place(&self, position: u64) -> u64 {
        position & (self.bytes - 1)
    }

    /// The most words that an operation may have: half the ring, so that it has room wherever the write pointer stands and
    /// whatever it leaves at the end.
    pub(crate) const fn most_words(self) -> u64 {
        self.bytes / 2 / 4
    }

    /// Where an operation of `words` words stands that begins at `start`, a multiple of the unit. All its packets are next to
    /// each other; where they would cross the end they begin at the ring's start, and what is left is passed over.
    ///
    /// # Errors
    /// [`Error::TooManyWords`].
    pub(crate) const fn place_words(self, start: u64, words: u64) -> Result<Placement> {
        if words > self.most_words() {
            return Err(Error::TooManyWords { given: words, bytes: self.bytes, most: self.most_words() });
        }
        let bytes = (words * 4).next_multiple_of(UNIT);
        let left = self.bytes - self.place(start);
        let padding = if bytes > left { left } else { 0 };
        Ok(Placement { start, padding, end: start + padding + bytes })
    }

    /// Whether an operation has room when the engine has read up to `read`. One that would begin before that has been overtaken, and
    /// a producer that takes its range finds it taken.
    pub(crate) const fn has_room(self, placement: &Placement, read: u64) -> bool {
        placement.end.saturating_sub(read) <= self.bytes - UNIT
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_ring_is_a_power_of_two() {
        for bytes in [0, 32, 63, 96, 100, 4095, 4096 + 32] {
            assert_eq!(Ring::new(bytes), Err(Error::Ring { given: bytes, least: 64 }));
        }
        let ring = Ring::new(64).unwrap();
        assert_eq!(ring.most_words(), 8);
        assert!(ring.has_room(&ring.place_words(0, 8).unwrap(), 64), "overtaken");
    }

    proptest! {
        #[test]
        fn an_operation_stands_in_one_piece_and_always_finds_room_in_an_empty_ring(
            power in 6u32..20, unit in 0u64..100_000, share in 0.0f64..=1.0,
        ) {
            let ring = Ring::new(1 << power).unwrap();
            let words = (ring.most_words() as f64 * share) as u64;
            let start = unit * UNIT;
            let placed = ring.place_words(start, words).unwrap();
            prop_assert_eq!(placed.start, start);
            prop_assert!(placed.end.is_multiple_of(UNIT));
            prop_assert!(placed.end - placed.first() >= words * 4);
            prop_assert!(placed.end - placed.first() < words * 4 + UNIT);
            if words > 0 {
                prop_assert!(ring.place(placed.first()) + words * 4 <= ring.bytes());
            }
            prop_assert!(placed.padding == 0 || ring.place(placed.first()) == 0);
            // The engine has read everything before.
            prop_assert!(ring.has_room(&placed, start), "{placed:?}");
        }

        #[test]
        fn a_ring_is_never_filled(power in 7u32..12, lengths in prop::collection::vec(1u64..16, 1..200), reads in 0.0f64..1.0) {
            let ring = Ring::new(1 << power).unwrap();
            let (mut write, mut read) = (0, 0);
            for words in lengths {
                let placed = ring.place_words(write, words).unwrap();
                if !ring.has_room(&placed, read) {
                    read += (((write - read) as f64 * reads) as u64).next_multiple_of(UNIT).min(write - read);
                    continue;
                }
                write = placed.end;
                prop_assert!(write - read < ring.bytes());
            }
        }
    }

    #[test]
    fn what_is_too_long_is_refused() {
        let ring = Ring::new(128).unwrap();
        assert!(ring.place_words(0, 16).is_ok());
        assert_eq!(ring.place_words(0, 17), Err(Error::TooManyWords { given: 17, bytes: 128, most: 16 }));
    }
}
