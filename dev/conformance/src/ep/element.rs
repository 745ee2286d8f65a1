//! Values of the element types, and their one rounding.

use anabranch_elements::float4::F4E2m1;
use anabranch_elements::float8::{F8E4m3, F8E4m3Fnuz};
use anabranch_ep::DataType;
use half::{bf16, f16};

/// Values of the element types of token rows, and their one rounding.
pub trait ElementValues: Copy {
    /// The element's value; every value of each type is an f32.
    fn value(self, bits: u32) -> f32;

    /// The bits of the nearest element, ties to even; NaN stays NaN, where there is one, and becomes quiet.
    fn round(self, value: f32) -> u32;

    /// The values of the elements that `bytes` holds, as many as `values` has.
    fn decode(self, bytes: &[u8], values: &mut [f32]);

    /// The values, each rounded once to nearest even, written as elements: of whole bytes, or two in one, the first in its low half.
    /// What an 8-bit type has no code for becomes a NaN, what E2M1 has none for its largest value.
    fn encode(self, values: &[f32], bytes: &mut [u8]);

    /// The bits of the element at this place; 0 beyond the end.
    fn bits_at(self, bytes: &[u8], column: usize) -> u32;

    /// Whether these bits are a NaN that has been through arithmetic.
    fn is_quiet_nan(self, bits: u32) -> bool;
}

impl ElementValues for DataType {
    #[expect(clippy::panic, reason = "plans have no rows of other types")]
    fn value(self, bits: u32) -> f32 {
        match self {
            Self::Bf16 => f32::from_bits(bits << 16),
            Self::F16 => f16::from_bits(bits as u16).to_f32(),
            Self::F32 => f32::from_bits(bits),
            Self::F8E4m3 => F8E4m3::from_bits(bits as u8).to_f32(),
            Self::F8E4m3Fnuz => F8E4m3Fnuz::from_bits(bits as u8).to_f32(),
            Self::F4E2m1 => F4E2m1::from_bits(bits as u8).to_f32(),
            _ => panic!("no element type of token rows: {self}"),
        }
    }

    #[expect(clippy::panic, reason = "plans have no rows of other types")]
    fn round(self, value: f32) -> u32 {
        match self {
            Self::Bf16 => u32::from(bf16::from_f32(value).to_bits()),
            Self::F16 => u32::from(f16::from_f32(value).to_bits()),
            Self::F32 if value.is_nan() => value.to_bits() | 0x0040_0000,
            Self::F32 => value.to_bits(),
            Self::F8E4m3 => u32::from(F8E4m3::from_f32(value).to_bits()),
            Self::F8E4m3Fnuz => u32::from(F8E4m3Fnuz::from_f32(value).to_bits()),
            Self::F4E2m1 => u32::from(F4E2m1::from_f32(value).to_bits()),
            _ => panic!("no element type of token rows: {self}"),
        }
    }

    fn decode(self, bytes: &[u8], values: &mut [f32]) {
        if self.bits() < 8 {
            for (column, value) in values.iter_mut().enumerate() {
                *value = self.value(self.bits_at(bytes, column));
            }
            return;
        }
        for (value, element) in values.iter_mut().zip(bytes.chunks_exact(self.bits() as usize / 8)) {
            *value = self.value(element.iter().rev().fold(0, |bits, byte| bits << 8 | u32::from(*byte)));
        }
    }

    fn encode(self, values: &[f32], bytes: &mut [u8]) {
        if self.bits() < 8 {
            for (pair, byte) in values.chunks(2).zip(bytes) {
                *byte = pair.iter().rev().fold(0, |byte, value| byte << 4 | self.round(*value) as u8);
            }
            return;
        }
        for (value, element) in values.iter().zip(bytes.chunks_exact_mut(self.bits() as usize / 8)) {
            let bits = self.round(*value).to_le_bytes();
            element.copy_from_slice(&bits[..element.len()]);
        }
    }

    fn bits_at(self, bytes: &[u8], column: usize) -> u32 {
        let width = self.bits() as usize;
        let (start, shift) = (column * width / 8, column * width % 8);
        let whole = bytes
            .iter()
            .skip(start)
            .take(width.div_ceil(8))
            .enumerate()
            .fold(0, |bits, (place, byte)| bits | u32::from(*byte) << (8 * place));
        (whole >> shift) & (u32::MAX >> (32 - width))
    }

    fn is_quiet_nan(self, bits: u32) -> bool {
        let value = self.value(bits);
        value.is_nan() && value.to_bits() & 0x0040_0000 != 0
    }
}
