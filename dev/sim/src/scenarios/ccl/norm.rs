//! The norm of rows after a sum: what a run draws, its memory and its reference.

use anabranch_ccl::DataType;
use anabranch_ccl::lowered::RowNorm;
use anabranch_conformance::ccl::norm::{Norm, Scale};
use anabranch_weakmem::Allocation;

use super::super::bench::Bench;
use super::round::{Draw, PACKET_UNITS};
use crate::Failure;

/// Elements of a unit of 8 bytes.
const PER_UNIT: u64 = 2;
/// Bytes of an element.
const BYTES: u64 = 4;

/// The rows of a round.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rows {
    /// Elements of a row.
    pub(super) row: u64,
    /// Rows.
    pub(super) count: u64,
    /// Elements with a scale of their own, of an output in 8 bits.
    group: Option<u64>,
    /// Whether there is a residual, which the kept rows replace; else they replace the input.
    pub(super) has_residual: bool,
}

impl Rows {
    /// Rows of at most `most` bytes together: shorter than the packets of a channel, or longer.
    pub(super) fn drawn(draw: &mut Draw, most: u64) -> Self {
        let units = 2 + 2 * draw.below(u64::from(PACKET_UNITS) + 1);
        let row = units * PER_UNIT;
        let count = draw.below(most / (row * BYTES) + 1);
        let group = match draw.below(3) {
            0 => None,
            _ if row.is_multiple_of(16) => Some(8),
            _ => row.is_multiple_of(8).then_some(row),
        };
        Self { row, count, group, has_residual: draw.below(2) == 0 }
    }

    /// Bytes of a round in the memory of norms: the weight, the residual, the output, the scales.
    fn places(&self) -> [u64; 4] {
        let (weight, rows) = (self.row * BYTES, self.count * self.row * BYTES);
        [0, weight, weight + rows, weight + 2 * rows]
    }

    fn residual(&self) -> Vec<u8> {
        (0..self.count * self.row).flat_map(|number| (number as f32 / 4.0 - 3.0).to_le_bytes()).collect()
    }

    fn norm(&self) -> Norm {
        let (format, scale) = match self.group {
            Some(group) => (Some(DataType::F8E4m3), Scale::Groups(group as usize)),
            None => (None, Scale::By(1.0)),
        };
        Norm { data_type: DataType::F32, row: self.row as usize, epsilon: 1e-6, format, scale }
    }

    fn weight(&self) -> Vec<u8> {
        (0..self.row).flat_map(|number| (0.5 + number as f32 / 8.0).to_le_bytes()).collect()
    }

    /// Writes the weight, and returns the norm as kernels see it. The kept rows replace the input, at `input`.
    pub(super) fn arguments(
        &self,
        bench: &mut Bench,
        (memory, start): (Allocation, u64),
        input: u64,
    ) -> Result<RowNorm, Failure> {
        let [weight, residual, output, scales] = self.places().map(|place| start + place);
        bench.put(memory, weight, &self.weight())?;
        if self.has_residual {
            bench.put(memory, residual, &self.residual())?;
        }
        let at = |offset: u64| memory.address() + offset;
        Ok(RowNorm {
            residual: if self.has_residual { at(residual) } else { 0 },
            kept: if self.has_residual { at(residual) } else { input },
            weight: at(weight),
            output: at(output),
            scales: if self.group.is_some() { at(scales) } else { 0 },
            scale_row_stride: self.group.map_or(0, |group| self.row / group),
            scale_group_stride: 1,
            rows: self.count,
            units: (self.row / PER_UNIT) as u32,
            group: self.group.unwrap_or(0) as u32,
            format: u32::from(self.group.is_some()),
            local: 0,
            epsilon: 1e-6,
            padding: 0,
        })
    }

    /// Compares what a call wrote with the norm of this sum.
    pub(super) fn judge(
        &self,
        bench: &Bench,
        (memory, start): (Allocation, u64),
        sum: &[u8],
    ) -> Result<(), String> {
        let residual = self.has_residual.then(|| self.residual());
        let expected = self.norm().of(sum, residual.as_deref(), &self.weight());
        let [_, kept, output, scales] = self.places().map(|place| start + place);
        let all = |place, length| bench.get::<u8>(memory, place, length).map_err(|error| error.to_string());
        if self.has_residual && all(kept, expected.kept.len())? != expected.kept {
            return Err("the kept rows differ".to_owned());
        }
        if all(output, expected.output.len())? != expected.output {
            return Err("the normed rows differ".to_owned());
        }
        let wanted: Vec<u8> = expected.scales.iter().flat_map(|scale| scale.to_le_bytes()).collect();
        if all(scales, wanted.len())? != wanted {
            return Err("the scales differ".to_owned());
        }
        Ok(())
    }

    /// The most bytes of a round in the memory of norms, for rows of at most `most` bytes.
    pub(super) fn most_bytes(most: u64) -> u64 {
        // A row, the rows twice, and a scale for some elements.
        let row = (2 + 2 * (u64::from(PACKET_UNITS) + 1)) * 8;
        (row + 3 * most).next_multiple_of(16)
    }
}
