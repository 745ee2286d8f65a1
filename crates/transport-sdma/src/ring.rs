//! The size of a ring of packets.
//!
//! Positions are bytes since the ring was made and only grow; a position's place in the ring is its remainder by the ring's bytes.
//! The engine reads up to the write pointer and says in the read pointer how far it has read. What a producer takes
//! (`sdma/queue.h`) is a multiple of a unit, and one unit stays free, so that a full ring does not look like an empty one.

use crate::error::{Error, Result};

/// Bytes in which room is taken: a copy with one word more, or an atomic.
pub const UNIT: u64 = 32;

/// A ring's size: a power of two, at least a unit and the one that stays free.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ring {
    bytes: u64,
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
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ring_is_a_power_of_two() {
        for bytes in [0, 32, 63, 96, 100, 4095, 4096 + 32] {
            assert_eq!(Ring::new(bytes), Err(Error::Ring { given: bytes, least: 64 }));
        }
        assert!(Ring::new(64).is_ok());
    }
}
