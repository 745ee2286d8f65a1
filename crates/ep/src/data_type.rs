//! Element types of token rows.

use std::fmt;
use std::str::FromStr;

/// Element type of token rows. Dispatch sends rows of any of them as they are; combine sums those of [`Self::COMBINED`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum DataType {
    /// 16 bits, 8 of exponent.
    Bf16,
    /// IEEE half.
    F16,
    /// IEEE single.
    F32,
    /// 8 bits, 4 of exponent, no infinity: torch's `float8_e4m3fn` (OFP8 E4M3).
    F8E4m3,
    /// 8 bits, 4 of exponent, no infinity, no negative zero: torch's `float8_e4m3fnuz` (MI300).
    F8E4m3Fnuz,
    /// 4 bits, 2 of exponent; two in a byte, the first in its low half: torch's `float4_e2m1fn_x2` (MX E2M1).
    F4E2m1,
}

/// Type, name, name in kernels, bits.
const NAMES: [(DataType, &str, &str, u32); 6] = [
    (DataType::Bf16, "bf16", "Bf16", 16),
    (DataType::F16, "f16", "F16", 16),
    (DataType::F32, "f32", "F32", 32),
    (DataType::F8E4m3, "fp8_e4m3fn", "F8E4m3", 8),
    (DataType::F8E4m3Fnuz, "fp8_e4m3fnuz", "F8E4m3Fnuz", 8),
    (DataType::F4E2m1, "fp4", "F4E2m1", 4),
];

impl DataType {
    /// All types.
    pub const ALL: [Self; 6] =
        [Self::Bf16, Self::F16, Self::F32, Self::F8E4m3, Self::F8E4m3Fnuz, Self::F4E2m1];
    /// Those that combine sums.
    pub const COMBINED: [Self; 3] = [Self::Bf16, Self::F16, Self::F32];

    const fn names(self) -> (Self, &'static str, &'static str, u32) {
        NAMES[self as usize]
    }

    /// Its name in configurations and reports.
    pub const fn name(self) -> &'static str {
        self.names().1
    }

    /// The name of the type in the kernels.
    pub const fn device_name(self) -> &'static str {
        self.names().2
    }

    /// Bits of an element.
    pub const fn bits(self) -> u32 {
        self.names().3
    }

    /// Bytes of this many elements; a half byte at the end counts as one.
    pub const fn bytes_of(self, elements: u64) -> u64 {
        (elements * self.bits() as u64).div_ceil(8)
    }

    /// Elements in 16 bytes.
    pub const fn per_unit(self) -> u32 {
        128 / self.bits()
    }

    /// Whether combine sums rows of this type.
    pub fn is_combined(self) -> bool {
        Self::COMBINED.contains(&self)
    }
}

impl fmt::Display for DataType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A word that names no element type.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{given:?} is no element type of token rows; allowed are {}", DataType::ALL.map(DataType::name).join(", "))]
pub struct UnknownDataType {
    /// The word given.
    pub given: String,
}

impl FromStr for DataType {
    type Err = UnknownDataType;

    fn from_str(text: &str) -> Result<Self, UnknownDataType> {
        let found = Self::ALL.into_iter().find(|element| element.name() == text);
        found.ok_or_else(|| UnknownDataType { given: text.to_owned() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_type_has_its_own_line_and_is_found_by_its_name() {
        for (element, line) in DataType::ALL.into_iter().zip(NAMES) {
            assert_eq!(element, line.0);
            assert_eq!(element.names().0, element);
            assert_eq!(element.name().parse(), Ok(element));
        }
        assert_eq!(DataType::F4E2m1.bytes_of(3584), 1792);
        assert_eq!(DataType::F4E2m1.bytes_of(3), 2);
        assert_eq!(DataType::Bf16.per_unit(), 8);
        let refused = "fp6".parse::<DataType>().unwrap_err().to_string();
        assert!(refused.contains("fp8_e4m3fnuz, fp4"), "{refused}");
    }
}
