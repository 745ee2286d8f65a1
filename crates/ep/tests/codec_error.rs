//! What the codecs cost in accuracy: sums of rows that went through a codec against sums of rows that did not, over random data.
//! `cargo test -p anabranch-ep --test it -- --nocapture codec_error::` prints the table of `docs/performance.md`, which must be what is
//! measured here.

use anabranch_ep::CombineCodec;
use half::bf16;

/// Rows that a token's sum has, and sums.
const ROWS: usize = 4;
const SUMS: usize = 16;
const HIDDEN: usize = 7168;

/// Normal numbers, the same in every run: Box and Muller's, from a multiplicative generator.
struct Normal(u64);

impl Normal {
    fn uniform(&mut self) -> f64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (((z ^ (z >> 31)) >> 11) as f64 + 0.5) / (1u64 << 53) as f64
    }

    fn next(&mut self) -> f64 {
        let radius = (-2.0 * self.uniform().ln()).sqrt();
        radius * (std::f64::consts::TAU * self.uniform()).cos()
    }
}

/// How elements are distributed.
#[derive(Clone, Copy)]
enum Data {
    Normal,
    /// The same, 1024 times smaller.
    Small,
    /// One element in 64 is 32 times larger; the error is that of the others.
    Outliers,
}

impl Data {
    fn is_outlier(self, column: usize) -> bool {
        matches!(self, Self::Outliers) && column % 64 == 17
    }

    fn row(self, numbers: &mut Normal) -> Vec<f32> {
        let element = |column: usize| {
            let factor = match self {
                Self::Small => 1.0 / 1024.0,
                Self::Outliers if self.is_outlier(column) => 32.0,
                Self::Normal | Self::Outliers => 1.0,
            };
            bf16::from_f64(numbers.next() * factor).to_f32()
        };
        (0..HIDDEN).map(element).collect()
    }
}

/// The root of the mean square error of bf16 sums, divided by that of the sums without a codec, which are not rounded.
fn error(codec: CombineCodec, data: Data) -> f64 {
    let mut numbers = Normal(1);
    let (mut squares, mut of_values) = (0.0, 0.0);
    for _ in 0..SUMS {
        let (mut sum, mut exact) = (vec![0.0f32; HIDDEN], vec![0.0f64; HIDDEN]);
        for _ in 0..ROWS {
            let mut row = data.row(&mut numbers);
            exact.iter_mut().zip(&row).for_each(|(sum, value)| *sum += f64::from(*value));
            anabranch_conformance::ep::oracle::pass(codec, &mut row);
            sum.iter_mut().zip(&row).for_each(|(sum, value)| *sum += value);
        }
        for (column, (sum, exact)) in sum.into_iter().zip(exact).enumerate() {
            if data.is_outlier(column) {
                continue;
            }
            squares += (bf16::from_f32(sum).to_f64() - exact).powi(2);
            of_values += exact * exact;
        }
    }
    (squares / of_values).sqrt()
}

fn table() -> Vec<String> {
    let percent = |error: f64| format!("{:.2} %", error * 100.0);
    let line = |codec: CombineCodec| {
        let errors = [Data::Normal, Data::Small, Data::Outliers].map(|data| percent(error(codec, data)));
        let bytes = codec.wire_bytes(anabranch_ep::DataType::Bf16, HIDDEN as u32);
        format!("| `{codec}` | {bytes} | {} |", errors.join(" | "))
    };
    CombineCodec::ALL.map(line).to_vec()
}

#[test]
fn the_documented_errors_are_those_measured() {
    let page = include_str!("../../../docs/performance.md");
    let lines = table();
    for line in &lines {
        println!("{line}");
    }
    for line in lines {
        assert!(page.contains(&line), "docs/performance.md does not have: {line}");
    }
}

#[test]
fn scales_preserve_small_rows() {
    let of = |name: &str, data| error(name.parse().unwrap(), data);
    // Without a codec only the rounding of the sum is left.
    assert!(of("none", Data::Normal) < 0.003);
    // A power of two changes nothing for blocks with a scale, and takes a row without one into the subnormals.
    assert!((of("fp8_block", Data::Normal) - of("fp8_block", Data::Small)).abs() < 1e-9);
    assert!((of("fp4_block", Data::Normal) - of("fp4_block", Data::Small)).abs() < 1e-9);
    assert!(of("fp8_direct", Data::Small) > 5.0 * of("fp8_direct", Data::Normal));
    assert!(of("fp8_block", Data::Normal) < 0.04 && of("fp4_block", Data::Normal) > 0.05);
}
