//! Bit fields of commands.

/// A field: where it begins, in bits from the start of its structure, most significant bit first, and how many bits it has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Field {
    /// Its name in the programmer's reference.
    pub name: &'static str,
    /// Its first bit.
    pub offset: usize,
    /// Its bits: at most 32 within one word of 32 bits, or 64 from a word's start.
    pub width: usize,
}

impl Field {
    /// A field.
    pub(crate) const fn new(name: &'static str, offset: usize, width: usize) -> Self {
        Self { name, offset, width }
    }

    /// The same field of a structure that begins `bits` further on.
    #[must_use]
    pub(crate) const fn within(self, bits: usize) -> Self {
        Self { name: self.name, offset: bits + self.offset, width: self.width }
    }

    /// Whether it is one that can be written: within a word, or two whole words.
    #[cfg(test)]
    pub(crate) const fn is_sound(self) -> bool {
        match self.width {
            0 => false,
            64 => self.offset.is_multiple_of(32),
            width => width <= 32 && self.offset / 32 == (self.offset + width - 1) / 32,
        }
    }
}

/// A structure: its name, its bits, and the fields that this crate writes or reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Layout {
    /// Its name in the programmer's reference.
    pub name: &'static str,
    /// Its size in bits.
    pub bits: usize,
    /// Its fields, in order.
    pub fields: &'static [Field],
}

/// The bytes of a command or of its answer, words in big-endian order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Command {
    bytes: Vec<u8>,
}

impl Command {
    /// Zeros, as many as the structure has.
    pub(crate) fn new(layout: &Layout) -> Self {
        Self { bytes: vec![0; layout.bits / 8] }
    }

    /// Writes a field. Bits of `value` beyond the field's are left out; a field that is not within the command is not written. Callers
    /// check ranges before, where the error can say what is allowed.
    #[must_use]
    pub(crate) fn set(mut self, field: Field, value: u64) -> Self {
        if field.width == 64 {
            return self.word(field.offset, 32, value >> 32).word(field.offset + 32, 32, value);
        }
        self = self.word(field.offset, field.width, value);
        self
    }

    /// Writes bytes from a field's start on.
    #[must_use]
    pub(crate) fn set_bytes(mut self, offset: usize, value: &[u8]) -> Self {
        let start = offset / 8;
        if let Some(target) = self.bytes.get_mut(start..start + value.len()) {
            target.copy_from_slice(value);
        }
        self
    }

    /// Reads a field; 0 for one that is not within the bytes.
    pub(crate) fn get(&self, field: Field) -> u64 {
        if field.width == 64 {
            let half = |offset| self.get(Field::new(field.name, offset, 32));
            return half(field.offset) << 32 | half(field.offset + 32);
        }
        let start = field.offset / 32 * 4;
        let word = self
            .bytes
            .get(start..start + 4)
            .and_then(|bytes| bytes.try_into().ok())
            .map_or(0, u32::from_be_bytes);
        u64::from(word) >> shift(field.offset, field.width) & mask(field.width)
    }

    /// The bytes.
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// The bytes, for an answer to be written to.
    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.bytes
    }

    fn word(mut self, offset: usize, width: usize, value: u64) -> Self {
        let start = offset / 32 * 4;
        if let Some(bytes) = self.bytes.get_mut(start..start + 4) {
            let old = bytes.iter().fold(0u64, |word, byte| word << 8 | u64::from(*byte));
            let (shift, mask) = (shift(offset, width), mask(width));
            let new = old & !(mask << shift) | (value & mask) << shift;
            bytes.copy_from_slice(&(new as u32).to_be_bytes());
        }
        self
    }
}

const fn shift(offset: usize, width: usize) -> usize {
    (32 - offset % 32).saturating_sub(width)
}

const fn mask(width: usize) -> u64 {
    (1 << width) - 1
}
