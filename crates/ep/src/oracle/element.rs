//! Values of the element types, and their one rounding.

use crate::plan::DataType;
use half::bf16;

impl DataType {
    /// The element's value; every value of either type is an f32.
    pub(super) fn value(self, bits: u32) -> f32 {
        match self {
            Self::Bf16 => f32::from_bits(bits << 16),
            Self::F32 => f32::from_bits(bits),
        }
    }

    /// The bits of the nearest element, ties to even; NaN stays NaN and becomes quiet.
    pub(super) fn round(self, value: f32) -> u32 {
        match self {
            Self::Bf16 => u32::from(bf16::from_f32(value).to_bits()),
            Self::F32 if value.is_nan() => value.to_bits() | 0x0040_0000,
            Self::F32 => value.to_bits(),
        }
    }

    /// The elements' values.
    pub(super) fn decode(self, bytes: &[u8], values: &mut [f32]) {
        match self {
            Self::Bf16 => {
                for (value, pair) in values.iter_mut().zip(bytes.chunks_exact(2)) {
                    *value = self.value(u32::from(u16::from_le_bytes([pair[0], pair[1]])));
                }
            }
            Self::F32 => {
                for (value, four) in values.iter_mut().zip(bytes.chunks_exact(4)) {
                    *value = f32::from_le_bytes([four[0], four[1], four[2], four[3]]);
                }
            }
        }
    }

    /// The values, each rounded once, written as elements.
    pub(super) fn encode(self, values: &[f32], bytes: &mut [u8]) {
        match self {
            Self::Bf16 => {
                for (value, pair) in values.iter().zip(bytes.chunks_exact_mut(2)) {
                    pair.copy_from_slice(&(self.round(*value) as u16).to_le_bytes());
                }
            }
            Self::F32 => {
                for (value, four) in values.iter().zip(bytes.chunks_exact_mut(4)) {
                    four.copy_from_slice(&self.round(*value).to_le_bytes());
                }
            }
        }
    }

    /// The bits of the element at this place; 0 beyond the end.
    pub(super) fn bits_at(self, bytes: &[u8], column: usize) -> u32 {
        let width = self.bytes() as usize;
        bytes
            .iter()
            .skip(column * width)
            .take(width)
            .enumerate()
            .fold(0, |bits, (place, byte)| bits | u32::from(*byte) << (8 * place))
    }

    /// Whether these bits are a NaN that has been through arithmetic.
    pub(super) fn is_quiet_nan(self, bits: u32) -> bool {
        let value = self.value(bits);
        value.is_nan() && value.to_bits() & 0x0040_0000 != 0
    }
}
