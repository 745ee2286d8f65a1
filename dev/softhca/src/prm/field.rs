//! Fields of big-endian structures, placed by bit as in Linux's `mlx5_ifc.h` or by double word as in tables of the PRM.

/// A field of at most 64 bits.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Field {
    /// Bits before it; the most significant bit of the first byte is bit 0.
    at: usize,
    width: usize,
}

impl Field {
    /// At the offset of `mlx5_ifc.h`, from the structure's begin.
    pub(crate) const fn new(at: usize, width: usize) -> Self {
        Self { at, width }
    }

    /// From bit `high` to bit `low` of a double word, as tables of the PRM name them.
    pub(crate) const fn of_word(word: usize, high: usize, low: usize) -> Self {
        Self { at: 32 * word + 31 - high, width: high - low + 1 }
    }

    /// The same field of a structure that begins `bits` later.
    pub(crate) const fn within(self, bits: usize) -> Self {
        Self { at: self.at + bits, width: self.width }
    }

    /// The value; `bytes` must reach to the field's end.
    pub(crate) fn get(self, bytes: &[u8]) -> u64 {
        (self.at..self.at + self.width)
            .fold(0, |value, bit| value << 1 | u64::from(bytes[bit / 8] >> (7 - bit % 8) & 1))
    }

    /// Puts a value there; `bytes` must reach to the field's end.
    pub(crate) fn set(self, bytes: &mut [u8], value: u64) {
        for (index, bit) in (self.at..self.at + self.width).enumerate() {
            let mask = 1 << (7 - bit % 8);
            if value >> (self.width - 1 - index) & 1 == 1 {
                bytes[bit / 8] |= mask;
            } else {
                bytes[bit / 8] &= !mask;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_big_endian() {
        let mut bytes = [0u8; 8];
        Field::of_word(1, 31, 8).set(&mut bytes, 0x0012_3456);
        Field::of_word(1, 5, 0).set(&mut bytes, 3);
        assert_eq!(bytes, [0, 0, 0, 0, 0x12, 0x34, 0x56, 3]);
        assert_eq!(Field::of_word(1, 31, 8).get(&bytes), 0x0012_3456);
        assert_eq!(Field::new(0x20, 8).get(&bytes), 0x12);
        assert_eq!(Field::new(0, 64).get(&bytes), 0x1234_5603);
        assert_eq!(Field::new(4, 4).within(32).get(&bytes), 2);
    }
}
