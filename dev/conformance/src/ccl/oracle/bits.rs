//! Elements as numbers: their bits in the low end of a u64, and the values of floats.

use half::{bf16, f16};

use anabranch_ccl::DataType;
use anabranch_elements::float8::{F8E4m3, F8E4m3Fnuz, F8E5m2, F8E5m2Fnuz};

/// The bits of the element at this place.
pub(super) fn read(bytes: &[u8], width: usize, index: usize) -> u64 {
    let element = bytes.iter().skip(index * width).take(width);
    element.enumerate().fold(0, |bits, (place, byte)| bits | u64::from(*byte) << (8 * place))
}

/// Appends the element with these bits.
pub(super) fn push(bytes: &mut Vec<u8>, width: usize, bits: u64) {
    bytes.extend_from_slice(&bits.to_le_bytes()[..width]);
}

/// What the oracle knows of a type's elements.
pub(super) trait Bits {
    /// The value of a float, exactly; `None` for the other types.
    fn float_value(self, bits: u64) -> Option<f64>;

    /// The bits of the nearest float of this type, by way of f32 for the narrow ones; the low bits of the whole number for the
    /// other types.
    fn bits_of(self, value: f64) -> u64;

    /// All bits of an element.
    fn mask(self) -> u64;

    /// The element as text: its value, and its bits.
    fn text(self, bits: u64) -> String;
}

impl Bits for DataType {
    fn float_value(self, bits: u64) -> Option<f64> {
        Some(match self {
            Self::F32 => f32::from_bits(bits as u32).into(),
            Self::F64 => f64::from_bits(bits),
            Self::F16 => f16::from_bits(bits as u16).into(),
            Self::Bf16 => bf16::from_bits(bits as u16).into(),
            Self::F8E4m3 => F8E4m3::from_bits(bits as u8).to_f32().into(),
            Self::F8E5m2 => F8E5m2::from_bits(bits as u8).to_f32().into(),
            Self::F8E4m3Fnuz => F8E4m3Fnuz::from_bits(bits as u8).to_f32().into(),
            Self::F8E5m2Fnuz => F8E5m2Fnuz::from_bits(bits as u8).to_f32().into(),
            _ => return None,
        })
    }

    fn bits_of(self, value: f64) -> u64 {
        let single = value as f32;
        match self {
            Self::F32 => single.to_bits().into(),
            Self::F64 => value.to_bits(),
            Self::F16 => f16::from_f32(single).to_bits().into(),
            Self::Bf16 => bf16::from_f32(single).to_bits().into(),
            Self::F8E4m3 => F8E4m3::from_f32(single).to_bits().into(),
            Self::F8E5m2 => F8E5m2::from_f32(single).to_bits().into(),
            Self::F8E4m3Fnuz => F8E4m3Fnuz::from_f32(single).to_bits().into(),
            Self::F8E5m2Fnuz => F8E5m2Fnuz::from_f32(single).to_bits().into(),
            _ => value as i64 as u64 & self.mask(),
        }
    }

    fn mask(self) -> u64 {
        u64::MAX >> (64 - 8 * self.bytes())
    }

    fn text(self, bits: u64) -> String {
        let unused = 64 - 8 * self.bytes();
        let value = match self {
            Self::I8 | Self::I16 | Self::I32 | Self::I64 => (((bits << unused) as i64) >> unused).to_string(),
            Self::Bool => (bits != 0).to_string(),
            _ => self.float_value(bits).map_or_else(|| bits.to_string(), |value| format!("{value:?}")),
        };
        format!("{value} ({bits:#0width$x})", width = 2 + 2 * self.bytes() as usize)
    }
}
