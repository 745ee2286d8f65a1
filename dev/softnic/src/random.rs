//! Numbers that a seed decides.

/// Xorshift of 64 bits: short, and good enough to draw what an adversary does.
#[derive(Clone, Debug)]
pub(crate) struct Random(u64);

impl Random {
    /// Numbers of a seed and a user.
    pub(crate) fn new(seed: u64, who: u64) -> Self {
        // Neighbouring seeds begin far from each other (splitmix64's constant).
        Self((seed ^ who.wrapping_mul(0x9e37_79b9_7f4a_7c15)).wrapping_mul(0xbf58_476d_1ce4_e5b9) | 1)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 >> 11
    }

    /// A number below `limit`; 0 where that is 0.
    pub(crate) fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit.max(1)
    }

    /// True `of` times in 256.
    pub(crate) fn chance(&mut self, of: u32) -> bool {
        self.below(256) < u64::from(of)
    }
}
