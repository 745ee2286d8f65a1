//! The scale of a block of small floats.
//!
//! E8M0 is that of the OCP microscaling formats specification (MX, version 1.0, section 5.4.1): a biased exponent of 8 bits, no sign,
//! no fraction, one NaN; torch's `float8_e8m0fnu`.

use std::fmt;

/// A power of two from 2^-127 to 2^127, or NaN.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct E8m0(u8);

impl E8m0 {
    /// The one NaN.
    pub const NAN: Self = Self(0xff);

    /// The smallest scale, 2^-127.
    pub const MIN: Self = Self(0);

    /// The scale with this code.
    pub const fn from_bits(code: u8) -> Self {
        Self(code)
    }

    /// Its code.
    pub const fn to_bits(self) -> u8 {
        self.0
    }

    /// Its value, exactly.
    pub fn to_f32(self) -> f32 {
        if self == Self::NAN {
            return f32::NAN;
        }
        // Also the smallest, which is a subnormal f32.
        2f64.powi(i32::from(self.0) - 127) as f32
    }

    /// The scale of a block with this largest magnitude, whose element type has 2^`element_exponent` as its largest power of two
    /// (MX, section 6.3): 2^(floor(log2 `largest`) - `element_exponent`), or [`Self::MIN`] where that is smaller, for 0 too; NaN
    /// for what is not finite.
    pub fn of_largest(largest: f32, element_exponent: i32) -> Self {
        if !largest.is_finite() {
            return Self::NAN;
        }
        // Down from the largest power of two: exact, and plain.
        let fits =
            |code: &u8| 2f64.powi(i32::from(*code) - 127 + element_exponent) <= f64::from(largest.abs());
        (0..Self::NAN.0).rev().find(fits).map_or(Self::MIN, Self)
    }
}

impl fmt::Debug for E8m0 {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.to_f32(), f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::float4::F4E2m1;

    #[test]
    #[expect(clippy::float_cmp, reason = "powers of two are exact")]
    fn codes_are_those_of_the_specification() {
        assert_eq!(E8m0::from_bits(127).to_f32(), 1.0);
        assert_eq!(E8m0::from_bits(128).to_f32(), 2.0);
        assert_eq!(E8m0::MIN.to_f32().to_bits(), 0x0040_0000);
        assert_eq!(E8m0::from_bits(254).to_f32(), 2f32.powi(127));
        assert!(E8m0::NAN.to_f32().is_nan());
        for code in 0..254u8 {
            assert_eq!(E8m0::from_bits(code).to_f32() * 2.0, E8m0::from_bits(code + 1).to_f32(), "{code}");
        }
    }

    #[test]
    fn the_scale_puts_the_largest_magnitude_into_the_last_binade() {
        for bits in (0..0x7f80_0000u32).step_by(0x1fff1) {
            let largest = f32::from_bits(bits);
            let scale = E8m0::of_largest(largest, 2);
            let scaled = f64::from(largest) / f64::from(scale.to_f32());
            assert!(scaled < 8.0, "{largest:e} by {scale:?}");
            assert!(scale == E8m0::MIN || scaled >= 4.0, "{largest:e} by {scale:?}");
            assert_eq!(E8m0::of_largest(-largest, 2), scale);
        }
        assert_eq!(E8m0::of_largest(F4E2m1::MAX.to_f32(), 2), E8m0::from_bits(127));
        assert_eq!(E8m0::of_largest(0.0, 2), E8m0::MIN);
        assert_eq!(E8m0::of_largest(f32::INFINITY, 2), E8m0::NAN);
        assert_eq!(E8m0::of_largest(f32::NAN, 2), E8m0::NAN);
    }
}
