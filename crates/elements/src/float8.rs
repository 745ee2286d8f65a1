//! The four 8-bit floating-point types.
//!
//! E4M3 and E5M2 are those of the OCP 8-bit floating point specification (OFP8, revision 1.0); the `fnuz` types are those of
//! AMD's MI300 ("CDNA 3 ISA", 8-bit float formats): finite, unsigned zero, one NaN. Codes and rounding are those of torch's
//! `float8_*` types: to nearest, ties to even, and no saturation, unless it is asked for (OFP8's SAT mode).

use std::cmp::Ordering;
use std::fmt;

use bytemuck::{Pod, Zeroable};

/// What tells the formats apart. Magnitudes are codes without the sign bit; they are in the order of their values.
#[derive(Clone, Copy, Debug)]
struct Format {
    fraction_bits: u32,
    bias: u32,
    /// The code of the largest finite magnitude.
    largest: u32,
    /// What magnitudes become that round to more than that.
    beyond: u32,
    /// No negative zero: its code is the one NaN.
    fnuz: bool,
}

const E4M3: Format = Format { fraction_bits: 3, bias: 7, largest: 0x7e, beyond: 0x7f, fnuz: false };
const E5M2: Format = Format { fraction_bits: 2, bias: 15, largest: 0x7b, beyond: 0x7c, fnuz: false };
const E4M3_FNUZ: Format = Format { fraction_bits: 3, bias: 8, largest: 0x7f, beyond: 0x80, fnuz: true };
const E5M2_FNUZ: Format = Format { fraction_bits: 2, bias: 16, largest: 0x7f, beyond: 0x80, fnuz: true };

impl Format {
    const fn nan(self) -> u8 {
        if self.fnuz { 0x80 } else { 0x7f }
    }

    const fn is_nan(self, code: u8) -> bool {
        // All magnitudes behind the largest, but for infinity where there is one.
        if self.fnuz { code == 0x80 } else { self.is_special(code) && !self.is_infinite(code) }
    }

    const fn is_infinite(self, code: u8) -> bool {
        self.is_special(code) && (code & 0x7f) as u32 == self.beyond && self.beyond != self.nan() as u32
    }

    const fn is_special(self, code: u8) -> bool {
        (code & 0x7f) as u32 > self.largest
    }

    /// Exact.
    fn decode(self, code: u8) -> f32 {
        let sign = if code & 0x80 == 0 { 1.0f32 } else { -1.0 };
        if self.is_nan(code) {
            return f32::NAN.copysign(sign);
        }
        if self.is_infinite(code) {
            return sign * f32::INFINITY;
        }
        let magnitude = u32::from(code & 0x7f);
        let exponent = magnitude >> self.fraction_bits;
        let fraction = magnitude & ((1 << self.fraction_bits) - 1);
        let (significand, exponent) =
            if exponent == 0 { (fraction, 1) } else { (fraction + (1 << self.fraction_bits), exponent) };
        let scale = exponent as i32 - self.bias as i32 - self.fraction_bits as i32;
        sign * significand as f32 * power_of_two(scale)
    }

    /// One rounding, to nearest, ties to even; `beyond` for what rounds to more than the largest finite value.
    fn encode(self, value: f32, beyond: u32) -> u8 {
        if value.is_nan() {
            return if self.fnuz { self.nan() } else { self.nan() | sign_bit(value) };
        }
        // In units of the smallest subnormal the code is counted up by rounding an integer: exact in f64.
        let magnitude = f64::from(value.abs());
        let lowest = 1 - self.bias as i32;
        let exponent = (((magnitude.to_bits() >> 52) as i32) - 1023).clamp(lowest, 128);
        let last_place = f64::from(power_of_two(exponent - self.fraction_bits as i32));
        let steps = (magnitude / last_place).round_ties_even();
        // A significand that rounds up to the next power of two carries into the exponent.
        let base = ((exponent - lowest) as u32) << self.fraction_bits;
        let code = if steps > f64::from(2u32 << self.fraction_bits) { u32::MAX } else { base + steps as u32 };
        let code = if code > self.largest { beyond } else { code } as u8;
        if self.fnuz && code == 0 { 0 } else { code | sign_bit(value) }
    }
}

fn sign_bit(value: f32) -> u8 {
    if value.is_sign_negative() { 0x80 } else { 0 }
}

/// `exponent` is that of a normal f32.
fn power_of_two(exponent: i32) -> f32 {
    f32::from_bits(((exponent + 127) as u32) << 23)
}

macro_rules! float8 {
    ($($(#[$doc:meta])* $name:ident = $format:ident;)*) => { $(
        $(#[$doc])*
        ///
        /// Compares as its value: a NaN equals nothing.
        #[derive(Clone, Copy, Default, Pod, Zeroable)]
        #[repr(transparent)]
        pub struct $name(u8);

        impl $name {
            /// The value with this code.
            pub const fn from_bits(code: u8) -> Self {
                Self(code)
            }

            /// Its code.
            pub const fn to_bits(self) -> u8 {
                self.0
            }

            /// The nearest value, ties to even; see the type for what is too large.
            pub fn from_f32(value: f32) -> Self {
                Self($format.encode(value, $format.beyond))
            }

            /// The nearest value, ties to even, and the largest finite one in place of all above it, infinity too; a NaN stays
            /// one.
            pub fn from_f32_saturating(value: f32) -> Self {
                Self($format.encode(value, $format.largest))
            }

            /// Its value, exactly; a NaN keeps its sign.
            pub fn to_f32(self) -> f32 {
                $format.decode(self.0)
            }

            /// Whether it is a NaN.
            pub const fn is_nan(self) -> bool {
                $format.is_nan(self.0)
            }

            /// Whether it is an infinity.
            pub const fn is_infinite(self) -> bool {
                $format.is_infinite(self.0)
            }

            /// The NaN that arithmetic gives.
            pub const NAN: Self = Self($format.nan());

            /// The largest finite value.
            pub const MAX: Self = Self($format.largest as u8);
        }

        impl From<$name> for f32 {
            fn from(value: $name) -> Self {
                value.to_f32()
            }
        }

        impl PartialEq for $name {
            fn eq(&self, other: &Self) -> bool {
                self.to_f32() == other.to_f32()
            }
        }

        impl PartialOrd for $name {
            fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
                self.to_f32().partial_cmp(&other.to_f32())
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(&self.to_f32(), f)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Debug::fmt(&self.to_f32(), f)
            }
        }
    )* };
}

float8! {
    /// 4 bits of exponent, 3 of fraction, no infinity (OFP8 E4M3, torch's `float8_e4m3fn`). Largest 448; more is NaN.
    F8E4m3 = E4M3;
    /// 5 bits of exponent, 2 of fraction (OFP8 E5M2, torch's `float8_e5m2`). Largest 57344; more is infinity.
    F8E5m2 = E5M2;
    /// 4 bits of exponent, 3 of fraction, finite, no negative zero (torch's `float8_e4m3fnuz`). Largest 240; more is NaN.
    F8E4m3Fnuz = E4M3_FNUZ;
    /// 5 bits of exponent, 2 of fraction, finite, no negative zero (torch's `float8_e5m2fnuz`). Largest 57344; more is NaN.
    F8E5m2Fnuz = E5M2_FNUZ;
}

#[cfg(test)]
mod tests;
