//! Element types of collectives.

use std::fmt;
use std::str::FromStr;

/// Element type of a tensor that a collective moves or reduces.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
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
    /// A byte; whatever is not zero is true. Reductions give 0 or 1.
    Bool,
}

/// Type, name, torch's name, name in kernels.
const NAMES: [(DataType, &str, &str, &str); 17] = [
    (DataType::F32, "f32", "float32", "F32"),
    (DataType::F64, "f64", "float64", "F64"),
    (DataType::F16, "f16", "float16", "F16"),
    (DataType::Bf16, "bf16", "bfloat16", "Bf16"),
    (DataType::F8E4m3, "f8_e4m3fn", "float8_e4m3fn", "F8E4m3"),
    (DataType::F8E5m2, "f8_e5m2", "float8_e5m2", "F8E5m2"),
    (DataType::F8E4m3Fnuz, "f8_e4m3fnuz", "float8_e4m3fnuz", "F8E4m3Fnuz"),
    (DataType::F8E5m2Fnuz, "f8_e5m2fnuz", "float8_e5m2fnuz", "F8E5m2Fnuz"),
    (DataType::I8, "i8", "int8", "I8"),
    (DataType::U8, "u8", "uint8", "U8"),
    (DataType::I16, "i16", "int16", "I16"),
    (DataType::U16, "u16", "uint16", "U16"),
    (DataType::I32, "i32", "int32", "I32"),
    (DataType::U32, "u32", "uint32", "U32"),
    (DataType::I64, "i64", "int64", "I64"),
    (DataType::U64, "u64", "uint64", "U64"),
    (DataType::Bool, "bool", "bool", "Bool"),
];

impl DataType {
    /// All types.
    pub const ALL: [Self; 17] = {
        let mut all = [Self::F32; 17];
        let mut index = 0;
        while index < all.len() {
            all[index] = NAMES[index].0;
            index += 1;
        }
        all
    };

    /// Bytes of an element.
    pub const fn bytes(self) -> u32 {
        match self {
            Self::F8E4m3
            | Self::F8E5m2
            | Self::F8E4m3Fnuz
            | Self::F8E5m2Fnuz
            | Self::I8
            | Self::U8
            | Self::Bool => 1,
            Self::F16 | Self::Bf16 | Self::I16 | Self::U16 => 2,
            Self::F32 | Self::I32 | Self::U32 => 4,
            Self::F64 | Self::I64 | Self::U64 => 8,
        }
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
        )
    }

    /// The name of the type in kernels (namespace `ccl`): that of the variant.
    pub const fn device_name(self) -> &'static str {
        self.names().3
    }

    const fn names(self) -> &'static (Self, &'static str, &'static str, &'static str) {
        // The table is in the order of the variants; a test holds them together.
        &NAMES[self as usize]
    }
}

impl fmt::Display for DataType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.names().1)
    }
}

/// A word that names no element type.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{given:?} is no element type of collectives; allowed are {}", allowed())]
pub struct UnknownDataType {
    /// The word given.
    pub given: String,
}

fn allowed() -> String {
    let words: Vec<_> = NAMES.iter().map(|(_, name, torch, _)| format!("{name} ({torch})")).collect();
    words.join(", ")
}

impl FromStr for DataType {
    type Err = UnknownDataType;

    /// The type's own name, or torch's: `f32` or `float32`.
    fn from_str(text: &str) -> Result<Self, UnknownDataType> {
        NAMES
            .iter()
            .find(|(_, name, torch, _)| text == *name || text == *torch)
            .map(|row| row.0)
            .ok_or_else(|| UnknownDataType { given: text.to_owned() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_lead_back_to_their_types() {
        for data_type in DataType::ALL {
            let (of, name, torch, device) = *data_type.names();
            assert_eq!(of, data_type);
            assert_eq!(device, format!("{data_type:?}"));
            assert_eq!((name.parse(), torch.parse()), (Ok(data_type), Ok(data_type)));
            assert_eq!(data_type.to_string(), name);
            assert_eq!(data_type.device_name(), device);
            assert_eq!(data_type.is_float(), torch.contains("float"));
            // Bits are in the name, but for bool.
            let digits: String =
                torch.split("_e").next().unwrap_or("").chars().filter(char::is_ascii_digit).collect();
            assert_eq!(data_type.bytes() * 8, digits.parse().unwrap_or(8), "{torch}");
        }
        let unknown = "F32".parse::<DataType>().unwrap_err();
        assert_eq!(unknown.given, "F32");
        assert!(unknown.to_string().contains("f32 (float32)"), "{unknown}");
    }
}
