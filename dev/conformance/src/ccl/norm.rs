//! What an RMSNorm after a sum must give, from the bytes of the sum, in plain loops. Squares are added one after the other to the partial
//! sums that `ccl/row_norm.h` documents, so that all bits are known.

use anabranch_ccl::DataType;
use anabranch_elements::float8::{F8E4m3, F8E4m3Fnuz};
use half::{bf16, f16};

/// Partial sums of squares: `PARTIALS` in `ccl/row_codes.h`.
const PARTIALS: usize = 1024;

/// The norm of a call, on the host.
#[derive(Clone, Debug)]
pub struct Norm {
    /// Type of the rows.
    pub data_type: DataType,
    /// Elements of a row.
    pub row: usize,
    /// Added to the mean of the squares.
    pub epsilon: f32,
    /// Type of an output in 8 bits.
    pub format: Option<DataType>,
    /// The scale of such an output, or the elements of a group with a scale of its own.
    pub scale: Scale,
}

/// The scale of an output in 8 bits.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Scale {
    /// This one.
    By(f32),
    /// One for each group of so many elements.
    Groups(usize),
}

/// What a call must write.
#[derive(Clone, Debug, PartialEq)]
pub struct Normed {
    /// The sum and the residual.
    pub kept: Vec<u8>,
    /// The output.
    pub output: Vec<u8>,
    /// `[rows][groups]`; empty without groups.
    pub scales: Vec<f32>,
}

/// Values of elements.
pub fn values(data_type: DataType, bytes: &[u8]) -> Vec<f32> {
    match data_type {
        DataType::Bf16 => bytes.chunks(2).map(|raw| bf16::from_le_bytes([raw[0], raw[1]]).to_f32()).collect(),
        DataType::F16 => bytes.chunks(2).map(|raw| f16::from_le_bytes([raw[0], raw[1]]).to_f32()).collect(),
        _ => bytes.chunks(4).map(|raw| f32::from_le_bytes([raw[0], raw[1], raw[2], raw[3]])).collect(),
    }
}

/// Elements of values, each rounded once.
pub fn elements(data_type: DataType, values: &[f32]) -> Vec<u8> {
    match data_type {
        DataType::Bf16 => values.iter().flat_map(|value| bf16::from_f32(*value).to_le_bytes()).collect(),
        DataType::F16 => values.iter().flat_map(|value| f16::from_f32(*value).to_le_bytes()).collect(),
        _ => values.iter().flat_map(|value| value.to_le_bytes()).collect(),
    }
}

impl Norm {
    /// What a call must write for this sum, of `[rows][row]`.
    pub fn of(&self, sum: &[u8], residual: Option<&[u8]>, weight: &[u8]) -> Normed {
        let rounded = |all: &[f32]| values(self.data_type, &elements(self.data_type, all));
        let mut kept = values(self.data_type, sum);
        if let Some(residual) = residual {
            for (kept, residual) in kept.iter_mut().zip(values(self.data_type, residual)) {
                *kept += residual;
            }
            kept = rounded(&kept);
        }
        let weight = values(self.data_type, weight);
        let mut normed = Vec::new();
        for row in kept.chunks(self.row) {
            let mean = self.sum_of_squares(row) / self.row as f32;
            let factor = inverse_root(mean + self.epsilon);
            normed.extend(row.iter().zip(&weight).map(|(kept, weight)| kept * factor * weight));
        }
        let normed = rounded(&normed);
        let kept = elements(self.data_type, &kept);
        let Some(format) = self.format else {
            return Normed { kept, output: elements(self.data_type, &normed), scales: Vec::new() };
        };
        let code = |value: f32| match format {
            DataType::F8E4m3 => F8E4m3::from_f32_saturating(value).to_bits(),
            _ => F8E4m3Fnuz::from_f32_saturating(value).to_bits(),
        };
        let largest = if format == DataType::F8E4m3 { 448.0 } else { 240.0 };
        match self.scale {
            Scale::By(scale) => {
                let output = normed.iter().map(|value| code(value / scale)).collect();
                Normed { kept, output, scales: Vec::new() }
            }
            Scale::Groups(group) => {
                let (mut output, mut scales) = (Vec::new(), Vec::new());
                for group in normed.chunks(group) {
                    // As bits, a NaN is the largest.
                    let most = group.iter().map(|value| value.abs().to_bits());
                    let scale = f32::from_bits(most.fold(1e-10_f32.to_bits(), u32::max)) / largest;
                    scales.push(scale);
                    output.extend(group.iter().map(|value| code(value / scale)));
                }
                Normed { kept, output, scales }
            }
        }
    }

    fn sum_of_squares(&self, row: &[f32]) -> f32 {
        let mut partial = [0.0_f32; PARTIALS];
        let per_unit = 8 / self.data_type.bytes() as usize;
        for (unit, values) in row.chunks(per_unit).enumerate() {
            for value in values {
                partial[unit % PARTIALS] += value * value;
            }
        }
        let sums: Vec<f32> = partial.chunks(32).map(sum_of_32).collect();
        sum_of_32(&sums)
    }
}

/// The sum of 32 values: i and i + 16, then i and i + 8, and so on.
fn sum_of_32(values: &[f32]) -> f32 {
    let mut sums = values.to_vec();
    for step in [16, 8, 4, 2, 1] {
        for number in 0..step {
            sums[number] += sums[number + step];
        }
    }
    sums[0]
}

/// As in `ccl/row_norm.h`.
fn inverse_root(value: f32) -> f32 {
    if value == f32::INFINITY {
        return 0.0;
    }
    let half = value * 0.5;
    let mut root = f32::from_bits(0x5f37_59df_u32.wrapping_sub(value.to_bits() >> 1));
    for _ in 0..4 {
        root *= 1.5 - half * root * root;
    }
    root
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn inverse_root_is_near_that_of_the_standard_library() {
        let mut value = 1e-30_f32;
        while value < 1e30 {
            let exact = 1.0 / f64::from(value).sqrt();
            let error = (f64::from(inverse_root(value)) / exact - 1.0).abs();
            assert!(error < 3e-7, "{value}: {error}");
            value *= 1.37;
        }
    }
}
