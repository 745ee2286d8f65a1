//! The element types of tensors and rows, at run time.

use std::fmt;
use std::str::FromStr;

/// Element type of a tensor or a row. Collectives and expert parallelism each work with a part of them.
///
/// [`Display`](fmt::Display) prints the name of the Rust type, and torch's name of a type that Rust does not have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DataType {
    /// IEEE single.
    F32,
    /// IEEE double.
    F64,
    /// IEEE half.
    F16,
    /// 16 bits, 8 of exponent.
    Bf16,
    /// 8 bits, 4 of exponent, no infinity: torch's `float8_e4m3fn` (OFP8 E4M3).
    F8E4m3,
    /// 8 bits, 5 of exponent: torch's `float8_e5m2` (OFP8 E5M2).
    F8E5m2,
    /// 8 bits, 4 of exponent, no infinity, no negative zero: torch's `float8_e4m3fnuz` (MI300).
    F8E4m3Fnuz,
    /// 8 bits, 5 of exponent, no infinity, no negative zero: torch's `float8_e5m2fnuz` (MI300).
    F8E5m2Fnuz,
    /// Signed, 8 bits.
    I8,
    /// Unsigned, 8 bits.
    U8,
    /// Signed, 16 bits.
    I16,
    /// Unsigned, 16 bits.
    U16,
    /// Signed, 32 bits.
    I32,
    /// Unsigned, 32 bits.
    U32,
    /// Signed, 64 bits.
    I64,
    /// Unsigned, 64 bits.
    U64,
    /// A byte; any value but zero is true. Reductions give 0 or 1.
    Bool,
    /// 4 bits, 2 of exponent; two in a byte, the first in its low half: torch's `float4_e2m1fn_x2` (MX E2M1).
    F4E2m1,
}

/// A type with its bits and names.
struct Row {
    of: DataType,
    bits: u32,
    name: &'static str,
    device_name: &'static str,
    /// Other names that are understood.
    aliases: &'static [&'static str],
}

const fn row(
    of: DataType,
    bits: u32,
    name: &'static str,
    device_name: &'static str,
    aliases: &'static [&'static str],
) -> Row {
    Row { of, bits, name, device_name, aliases }
}

/// In the order of the variants: a test holds them together.
const ROWS: [Row; 18] = [
    row(DataType::F32, 32, "f32", "F32", &["float32"]),
    row(DataType::F64, 64, "f64", "F64", &["float64"]),
    row(DataType::F16, 16, "f16", "F16", &["float16"]),
    row(DataType::Bf16, 16, "bf16", "Bf16", &["bfloat16"]),
    row(DataType::F8E4m3, 8, "float8_e4m3fn", "F8E4m3", &["f8_e4m3fn", "fp8_e4m3fn"]),
    row(DataType::F8E5m2, 8, "float8_e5m2", "F8E5m2", &["f8_e5m2", "fp8_e5m2"]),
    row(DataType::F8E4m3Fnuz, 8, "float8_e4m3fnuz", "F8E4m3Fnuz", &["f8_e4m3fnuz", "fp8_e4m3fnuz"]),
    row(DataType::F8E5m2Fnuz, 8, "float8_e5m2fnuz", "F8E5m2Fnuz", &["f8_e5m2fnuz", "fp8_e5m2fnuz"]),
    row(DataType::I8, 8, "i8", "I8", &["int8"]),
    row(DataType::U8, 8, "u8", "U8", &["uint8"]),
    row(DataType::I16, 16, "i16", "I16", &["int16"]),
    row(DataType::U16, 16, "u16", "U16", &["uint16"]),
    row(DataType::I32, 32, "i32", "I32", &["int32"]),
    row(DataType::U32, 32, "u32", "U32", &["uint32"]),
    row(DataType::I64, 64, "i64", "I64", &["int64"]),
    row(DataType::U64, 64, "u64", "U64", &["uint64"]),
    row(DataType::Bool, 8, "bool", "Bool", &[]),
    row(DataType::F4E2m1, 4, "fp4", "F4E2m1", &["float4_e2m1fn_x2"]),
];

impl DataType {
    /// All types.
    pub const ALL: [Self; 18] = {
        let mut all = [Self::F32; 18];
        let mut index = 0;
        while index < all.len() {
            all[index] = ROWS[index].of;
            index += 1;
        }
        all
    };

    const fn row(self) -> &'static Row {
        &ROWS[self as usize]
    }

    /// Its name in configurations and reports.
    pub const fn name(self) -> &'static str {
        self.row().name
    }

    /// The name of its struct in kernels: that of the variant.
    pub const fn device_name(self) -> &'static str {
        self.row().device_name
    }

    /// Bits of an element.
    pub const fn bits(self) -> u32 {
        self.row().bits
    }

    /// Bytes that hold one element.
    pub const fn bytes(self) -> u32 {
        self.bits().div_ceil(8)
    }

    /// Bytes of this many elements; a half byte at the end counts as one.
    pub const fn bytes_of(self, elements: u64) -> u64 {
        (elements * self.bits() as u64).div_ceil(8)
    }

    /// Elements in 16 bytes, the most that a thread moves at once.
    pub const fn per_unit(self) -> u32 {
        128 / self.bits()
    }

    /// Whether it is a floating-point type.
    pub const fn is_float(self) -> bool {
        matches!(
            self,
            Self::F32
                | Self::F64
                | Self::F16
                | Self::Bf16
                | Self::F8E4m3
                | Self::F8E5m2
                | Self::F8E4m3Fnuz
                | Self::F8E5m2Fnuz
                | Self::F4E2m1
        )
    }

    /// The type with this name or alias, if it is one of `allowed`.
    ///
    /// # Errors
    /// [`UnsupportedDataType`].
    pub fn parse_among(text: &str, allowed: &[Self]) -> Result<Self, UnsupportedDataType> {
        ROWS.iter()
            .find(|row| row.name == text || row.aliases.contains(&text))
            .map(|row| row.of)
            .filter(|found| allowed.contains(found))
            .ok_or_else(|| UnsupportedDataType { given: text.to_owned(), allowed: names(allowed) })
    }

    /// Refuses a type that is not one of `allowed`.
    ///
    /// # Errors
    /// [`UnsupportedDataType`].
    pub fn check(self, allowed: &[Self]) -> Result<(), UnsupportedDataType> {
        if allowed.contains(&self) {
            return Ok(());
        }
        Err(UnsupportedDataType { given: self.name().to_owned(), allowed: names(allowed) })
    }
}

/// The names of these types, with commas.
pub fn names(types: &[DataType]) -> String {
    types.iter().map(|data_type| data_type.name()).collect::<Vec<_>>().join(", ")
}

impl fmt::Display for DataType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for DataType {
    type Err = UnsupportedDataType;

    /// [`DataType::name`] or torch's name: `f32` or `float32`.
    fn from_str(text: &str) -> Result<Self, UnsupportedDataType> {
        Self::parse_among(text, &Self::ALL)
    }
}

/// An element type that does not exist, or is not supported by the operation.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the element type is {given:?}; allowed are {allowed}")]
pub struct UnsupportedDataType {
    /// The name given.
    pub given: String,
    /// The names of the supported types, with commas.
    pub allowed: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_type_has_its_row_and_is_found_by_each_name() {
        for data_type in DataType::ALL {
            let row = data_type.row();
            assert_eq!(row.of, data_type);
            assert_eq!(data_type.device_name(), format!("{data_type:?}"));
            assert_eq!(data_type.to_string(), row.name);
            let all_names: Vec<_> = row.aliases.iter().chain([&row.name]).collect();
            assert!(all_names.iter().all(|name| name.parse() == Ok(data_type)), "{all_names:?}");
            // Torch's name: the family and the bits, but for bool.
            let torch = all_names.iter().find(|name| name.contains("float") || name.contains("int"));
            let torch = torch.map_or("bool8", |name| name);
            assert_eq!(data_type.is_float(), torch.contains("float"), "{torch}");
            let digits: String =
                torch.chars().skip_while(|c| !c.is_ascii_digit()).take_while(char::is_ascii_digit).collect();
            assert_eq!(digits.parse(), Ok(data_type.bits()), "{torch}");
        }
        assert_eq!(DataType::F4E2m1.bytes_of(3584), 1792);
        assert_eq!(DataType::F4E2m1.bytes_of(3), 2);
        assert_eq!(DataType::Bf16.per_unit(), 8);
    }

    #[test]
    fn refusals_name_the_type_and_the_allowed_ones() {
        let refused = "fp6".parse::<DataType>().unwrap_err().to_string();
        assert!(refused.starts_with("the element type is \"fp6\"; allowed are f32, f64,"), "{refused}");
        let allowed = [DataType::Bf16, DataType::F8E4m3];
        let text = "the element type is \"fp4\"; allowed are bf16, float8_e4m3fn";
        assert_eq!(DataType::F4E2m1.check(&allowed).unwrap_err().to_string(), text);
        assert_eq!(DataType::parse_among("fp4", &allowed).unwrap_err().to_string(), text);
        assert_eq!(DataType::parse_among("bfloat16", &allowed), Ok(DataType::Bf16));
    }
}
