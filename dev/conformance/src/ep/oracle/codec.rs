//! What a codec leaves of a row, from the definitions: each block's scale, each element's nearest code.

use anabranch_elements::float4::F4E2m1;
use anabranch_elements::float8::{F8E4m3, F8E4m3Fnuz};
use anabranch_elements::scale::E8m0;

use anabranch_ep::{CombineCodec, Fp8Format};

/// The magnitude that a block of [`CombineCodec::Fp8Block`] has at least.
const LEAST: f32 = f32::from_bits((127 - 100) << 23);
/// The largest power of two of E2M1 is 2^2.
const E2M1_EXPONENT: i32 = 2;

/// Puts in place of each value what its code stands for after the way over the wire. `row` is whole blocks.
///
/// # Panics
/// A codec that the oracle does not know.
#[expect(clippy::panic, reason = "a codec that the oracle lacks is a mistake in it")]
pub fn pass(codec: CombineCodec, row: &mut [f32]) {
    match codec {
        CombineCodec::None => {}
        CombineCodec::Fp8Direct(format) => {
            for value in row {
                *value = nearest(format, *value);
            }
        }
        CombineCodec::Fp8Block(format) => {
            for block in row.chunks_mut(codec.block_elements() as usize) {
                pass_scaled(format, block);
            }
        }
        CombineCodec::Fp4Block => {
            for block in row.chunks_mut(codec.block_elements() as usize) {
                pass_four_bits(block);
            }
        }
        _ => panic!("the oracle does not know the codec {codec}"),
    }
}

fn nearest(format: Fp8Format, value: f32) -> f32 {
    match format {
        Fp8Format::E4m3fn => F8E4m3::from_f32_saturating(value).to_f32(),
        Fp8Format::E4m3fnuz => F8E4m3Fnuz::from_f32_saturating(value).to_f32(),
    }
}

/// The largest magnitude of a block, or `None` if one of its values is no finite number.
fn largest(block: &[f32]) -> Option<f32> {
    block.iter().all(|value| value.is_finite()).then(|| block.iter().fold(0.0, |most, v| v.abs().max(most)))
}

fn pass_scaled(format: Fp8Format, block: &mut [f32]) {
    let Some(largest) = largest(block) else { return block.fill(f32::NAN) };
    let largest = largest.max(LEAST);
    let (scale, factor) = (largest / format.largest(), format.largest() / largest);
    for value in block {
        *value = nearest(format, *value * factor) * scale;
    }
}

fn pass_four_bits(block: &mut [f32]) {
    let Some(largest) = largest(block) else { return block.fill(f32::NAN) };
    let scale = E8m0::of_largest(largest, E2M1_EXPONENT).to_f32();
    for value in block {
        // Exact: the scale is a power of two, and the quotient at most 8.
        *value = F4E2m1::from_f32(*value / scale).to_f32() * scale;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn passed(codec: CombineCodec, values: &[f32]) -> Vec<f32> {
        let mut row = vec![0.0; codec.block_elements().max(values.len() as u32) as usize];
        row[..values.len()].copy_from_slice(values);
        pass(codec, &mut row);
        row[..values.len()].to_vec()
    }

    #[test]
    fn worked_examples() {
        let direct = CombineCodec::Fp8Direct(Fp8Format::E4m3fn);
        assert_eq!(passed(direct, &[1.0, 1.06, -500.0, f32::INFINITY]), [1.0, 1.0, -448.0, 448.0]);
        assert!(passed(direct, &[f32::NAN])[0].is_nan());
        let fnuz = CombineCodec::Fp8Direct(Fp8Format::E4m3fnuz);
        assert_eq!(passed(fnuz, &[0.1, 250.0, f32::NEG_INFINITY]), [0.101_562_5, 240.0, -240.0]);
        let block = CombineCodec::Fp8Block(Fp8Format::E4m3fn);
        // A scale of 1/448 * 896 = 2.
        assert_eq!(passed(block, &[896.0, 2.0, 2.1, -3.9]), [896.0, 2.0, 2.0, -4.0]);
        assert_eq!(passed(block, &[0.0, -0.0]), [0.0, 0.0]);
        assert!(passed(block, &[1.0, f32::INFINITY]).iter().all(|value| value.is_nan()));
        // Blocks have scales of their own.
        let mut two = vec![0.0; 256];
        (two[0], two[1], two[128]) = (896.0, 0.001, 0.001);
        pass(block, &mut two);
        assert!((two[1] - 0.001).abs() > 1e-4 && (two[128] - 0.001).abs() < 1e-6, "{two:?}");
        // A largest magnitude of 7: 2^(2 - 2) leaves it at 7, which becomes 6.
        assert_eq!(passed(CombineCodec::Fp4Block, &[7.0, 1.2, -0.2, 2.6]), [6.0, 1.0, 0.0, 3.0]);
        assert_eq!(passed(CombineCodec::Fp4Block, &[48.0, 3.0]), [48.0, 4.0]);
        assert_eq!(passed(CombineCodec::Fp4Block, &[0.0]), [0.0]);
        assert!(passed(CombineCodec::Fp4Block, &[1.0, f32::NAN]).iter().all(|value| value.is_nan()));
        assert_eq!(passed(CombineCodec::None, &[0.3]), [0.3]);
    }
}
