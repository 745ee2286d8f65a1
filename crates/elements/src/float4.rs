//! The four-bit floating-point type.
//!
//! E2M1 is that of the OCP microscaling formats specification (MX, version 1.0, section 5.3.3): a sign, 2 bits of exponent with bias
//! 1, one of fraction, subnormals, no infinity and no NaN. Two lie in a byte, the first in its low half, as in torch's
//! `float4_e2m1fn_x2`.

use std::fmt;

/// The magnitudes of the codes.
const MAGNITUDES: [f32; 8] = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0];

/// An E2M1 value: a code in the low four bits.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct F4E2m1(u8);

impl F4E2m1 {
    /// The largest value.
    pub const MAX: Self = Self(7);

    /// The value with the code in the low four bits.
    pub const fn from_bits(code: u8) -> Self {
        Self(code & 15)
    }

    /// Its code.
    pub const fn to_bits(self) -> u8 {
        self.0
    }

    /// Its value, exactly.
    pub const fn to_f32(self) -> f32 {
        let magnitude = MAGNITUDES[(self.0 & 7) as usize];
        if self.0 & 8 == 0 { magnitude } else { -magnitude }
    }

    /// The nearest value, ties to the even code; what is larger than 6 becomes 6, as the specification has it for conversions. A NaN,
    /// which has no code, becomes 6 too, with its sign.
    #[expect(clippy::float_cmp, reason = "the middles are exact, and a tie is one")]
    pub fn from_f32(value: f32) -> Self {
        let magnitude = value.abs();
        // A code's upper neighbour is nearer from their middle on; in the middle it is taken if its code is even.
        let above = |code: usize| {
            let middle = f32::midpoint(MAGNITUDES[code - 1], MAGNITUDES[code]);
            magnitude > middle || magnitude == middle && code.is_multiple_of(2)
        };
        let code = if magnitude.is_nan() { 7 } else { (1..8).take_while(|code| above(*code)).count() as u8 };
        Self(code | if value.is_sign_negative() { 8 } else { 0 })
    }

    /// The two values of a byte.
    pub const fn pair(byte: u8) -> [Self; 2] {
        [Self(byte & 15), Self(byte >> 4)]
    }
}

impl fmt::Debug for F4E2m1 {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.to_f32(), f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    #[expect(clippy::float_cmp, reason = "values are exact")]
    fn codes_are_those_of_the_specification() {
        let values = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0];
        for (code, value) in (0u8..).zip(values) {
            assert_eq!(F4E2m1::from_bits(code).to_f32(), value);
            assert_eq!(F4E2m1::from_bits(code | 8).to_f32(), -value);
            assert_eq!(F4E2m1::from_f32(value).to_bits(), code);
            assert_eq!(F4E2m1::from_f32(-value).to_bits(), code | 8);
        }
        assert!(F4E2m1::from_bits(8).to_f32().is_sign_negative());
        assert_eq!(F4E2m1::pair(0x2f).map(F4E2m1::to_bits), [15, 2]);
        let ties =
            [(0.25, 0), (0.75, 2), (1.25, 2), (1.75, 4), (2.5, 4), (3.5, 6), (5.0, 6), (f32::INFINITY, 7)];
        for (value, code) in ties {
            assert_eq!(F4E2m1::from_f32(value).to_bits(), code, "{value}");
        }
        assert_eq!(F4E2m1::from_f32(f32::NAN), F4E2m1::MAX);
    }

    proptest! {
        #[test]
        fn the_nearest_code_is_taken(value in -8.0f32..8.0) {
            let taken = F4E2m1::from_f32(value).to_f32();
            for code in 0..16 {
                let other = F4E2m1::from_bits(code).to_f32();
                prop_assert!((taken - value).abs() <= (other - value).abs());
            }
        }
    }
}
