//! What a dispatch that casts sends, from the definition: each block's scale, each element's nearest code.

use crate::ep::ElementValues as _;
use anabranch_elements::float8::{F8E4m3, F8E4m3Fnuz};

use anabranch_ep::DataType;
use anabranch_ep::DispatchCast;
use anabranch_ep::Fp8Format;

/// The magnitude that a block counts as at least.
const LEAST: f32 = f32::from_bits((127 - 100) << 23);
/// Elements of a block.
const BLOCK: usize = 128;

/// Rows as they travel: what the oracle takes for the tokens of a dispatch that casts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CastRows {
    /// `[T, H]` elements of the dispatch type.
    pub tokens: Vec<u8>,
    /// `[T, H / 128]` f32; empty without a cast.
    pub scales: Vec<u8>,
}

impl CastRows {
    /// What a cast makes of `rows`, whole rows of elements of `from`. Without a cast, the rows.
    pub fn new(cast: DispatchCast, from: DataType, rows: &[u8]) -> Self {
        let DispatchCast::Fp8Block(format) = cast else {
            return Self { tokens: rows.to_vec(), scales: Vec::new() };
        };
        let mut values = vec![0.0; rows.len() * 8 / from.bits() as usize];
        from.decode(rows, &mut values);
        let mut cast = Self::default();
        for block in values.chunks(BLOCK) {
            cast.push(format, block);
        }
        cast
    }

    fn push(&mut self, format: Fp8Format, block: &[f32]) {
        if block.iter().any(|value| !value.is_finite()) {
            self.tokens.extend(block.iter().map(|_| code(format, f32::NAN)));
            self.scales.extend(f32::from_bits(0x7fc0_0000).to_le_bytes());
            return;
        }
        let largest = block.iter().fold(LEAST, |most, value| value.abs().max(most));
        let factor = format.largest() / largest;
        self.tokens.extend(block.iter().map(|value| code(format, value * factor)));
        self.scales.extend((largest / format.largest()).to_le_bytes());
    }
}

/// The nearest code, of all numbers above the largest the largest; of a NaN the format's positive one.
fn code(format: Fp8Format, value: f32) -> u8 {
    match format {
        Fp8Format::E4m3fn if value.is_nan() => 0x7f,
        Fp8Format::E4m3fn => F8E4m3::from_f32_saturating(value).to_bits(),
        Fp8Format::E4m3fnuz if value.is_nan() => 0x80,
        Fp8Format::E4m3fnuz => F8E4m3Fnuz::from_f32_saturating(value).to_bits(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cast(format: Fp8Format, values: &[f32]) -> (Vec<u8>, Vec<f32>) {
        let mut row = vec![0.0; values.len().next_multiple_of(BLOCK)];
        row[..values.len()].copy_from_slice(values);
        let bytes: Vec<u8> = row.iter().flat_map(|value| value.to_le_bytes()).collect();
        let made = CastRows::new(DispatchCast::Fp8Block(format), DataType::F32, &bytes);
        let scales =
            made.scales.chunks_exact(4).map(|one| f32::from_le_bytes([one[0], one[1], one[2], one[3]]));
        (made.tokens, scales.collect())
    }

    #[test]
    fn worked_examples() {
        // 896 / 448 = 2: codes of 448, 1 and -2, then zeros.
        let (codes, scales) = cast(Fp8Format::E4m3fn, &[896.0, 2.0, -3.9]);
        assert_eq!((&codes[..4], scales), (&[0x7e, 0x38, 0xc0, 0][..], vec![2.0]));
        // 480 / 240 = 2; no negative zero.
        let (codes, scales) = cast(Fp8Format::E4m3fnuz, &[480.0, 2.0, -0.0]);
        assert_eq!((&codes[..4], scales), (&[0x7f, 0x40, 0, 0][..], vec![2.0]));
        let (codes, scales) = cast(Fp8Format::E4m3fn, &[0.0, -0.0]);
        assert_eq!((&codes[..3], scales), (&[0, 0x80, 0][..], vec![2f32.powi(-100) / 448.0]));
        // The second block has a scale of its own, the third is no number.
        let mut values = vec![0.0; 300];
        (values[0], values[128], values[299]) = (448.0, 1.0, f32::INFINITY);
        let (codes, scales) = cast(Fp8Format::E4m3fn, &values);
        assert_eq!((codes[0], codes[128], scales[0], scales[1]), (0x7e, 0x7e, 1.0, 1.0 / 448.0));
        assert!(scales[2].is_nan() && codes[256..].iter().all(|code| *code == 0x7f), "{codes:?}");
        assert_eq!(CastRows::new(DispatchCast::None, DataType::Bf16, &[1, 2]).tokens, [1, 2]);
    }
}
