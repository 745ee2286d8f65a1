//! Fields of entries by their place.

/// Bits of a word of 32 bits.
#[derive(Clone, Copy, Debug)]
pub(super) struct Field {
    pub(super) name: &'static str,
    word: usize,
    high: u32,
    low: u32,
}

impl Field {
    /// Bits `high` to `low`, both included, of a word counted from the start of its segment.
    pub(super) const fn new(name: &'static str, word: usize, high: u32, low: u32) -> Self {
        Self { name, word, high, low }
    }

    /// Its value in a segment; zero beyond the segment's end.
    pub(super) fn of(self, words: &[u32]) -> u32 {
        let word = words.get(self.word).copied().unwrap_or(0);
        let width = self.high - self.low + 1;
        let mask = if width == 32 { u32::MAX } else { (1 << width) - 1 };
        word >> self.low & mask
    }
}

/// 64 bits, the high half first.
pub(super) fn pair(words: &[u32], word: usize) -> u64 {
    let half = |index: usize| u64::from(words.get(index).copied().unwrap_or(0));
    half(word) << 32 | half(word + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_cut_out() {
        let words = [0x8123_4567, 0xffff_ffff];
        assert_eq!(Field::new("top", 0, 31, 31).of(&words), 1);
        assert_eq!(Field::new("middle", 0, 23, 8).of(&words), 0x2345);
        assert_eq!(Field::new("all", 1, 31, 0).of(&words), u32::MAX);
        assert_eq!(pair(&words, 0), 0x8123_4567_ffff_ffff);
    }
}
