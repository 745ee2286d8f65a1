//! The only source of chance of a seeded run.

/// SplitMix64: small, quick, and every seed is a good one.
#[derive(Clone, Debug)]
pub(crate) struct Random {
    state: u64,
}

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self { state: seed }
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut word = self.state;
        word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        word ^ (word >> 31)
    }

    /// A number below `end`, which is not 0.
    pub(crate) fn below(&mut self, end: usize) -> usize {
        ((u128::from(self.next()) * end as u128) >> 64) as usize
    }

    /// True `parts` times in 256.
    pub(crate) fn chance(&mut self, parts: u32) -> bool {
        (self.next() >> 56) < u64::from(parts)
    }

    pub(crate) fn pick<T: Copy, const N: usize>(&mut self, all: [T; N]) -> T {
        all[self.below(N)]
    }
}
