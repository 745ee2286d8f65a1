//! Test data as a function of seed, rank and place: any rank can make any part of any rank's input.

use std::ops::Range;

use anabranch_ranks::GroupRank;

use super::bits::{Bits as _, push};
use anabranch_ccl::{DataType, ReduceOp};

/// A class of test data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Data {
    /// Floats: whole numbers so small that every sum over the group, in any order and rounded after each step, is exact; for
    /// products powers of two (with signs) whose products are all normal. (In groups of more than 2^p ranks, p bits in the
    /// significand, sums are exact in the accumulation type, and rounded once.) Integers: any bits, as wrapping does not depend on
    /// the order either. Bool: 0 and 1. Neighbours differ, so that what was put in the wrong place shows.
    Exact,
    /// Floats: a normal distribution, rounded; the order of additions shows. The others as [`Data::Exact`].
    Normal,
    /// Zeros of both signs, the smallest and largest, subnormals, infinities, NaNs of several kinds, and any bits; of integers
    /// the extremes; of Bool any byte.
    Special,
}

/// The inputs of all ranks of a group. Made by [`Data::of`].
#[derive(Clone, Copy, Debug)]
pub struct Inputs {
    data: Data,
    data_type: DataType,
    product: bool,
    ranks: u32,
    seed: u64,
}

impl Data {
    /// All classes.
    pub const ALL: [Self; 3] = [Self::Exact, Self::Normal, Self::Special];

    /// This class for one collective over a group of `ranks`, at least 1. Other seeds give other data.
    pub const fn of(self, data_type: DataType, op: ReduceOp, ranks: u32, seed: u64) -> Inputs {
        let product = matches!(op, ReduceOp::Product) && data_type.is_float();
        Inputs { data: self, data_type, product, ranks, seed }
    }
}

impl Inputs {
    /// The elements at these places of a rank's input, as bytes.
    pub fn bytes(&self, rank: GroupRank, elements: Range<u64>) -> Vec<u8> {
        let width = self.data_type.bytes() as usize;
        let mut bytes = Vec::with_capacity((elements.end.saturating_sub(elements.start)) as usize * width);
        for index in elements {
            push(&mut bytes, width, self.bits(rank, index));
        }
        bytes
    }

    /// The largest magnitude of a whole number ([`Data::Exact`]), so that a group's sum has at most as many bits as a
    /// significand.
    fn bound(&self) -> u64 {
        let precision = match self.data_type {
            DataType::F32 => 24,
            DataType::F64 => 53,
            DataType::F16 => 11,
            DataType::Bf16 => 8,
            DataType::F8E4m3 | DataType::F8E4m3Fnuz => 4,
            _ => 3,
        };
        // A group too large for that has sums that are exact in the accumulation type only.
        ((1u64 << precision) / u64::from(self.ranks.max(1))).max(1)
    }

    /// The largest magnitude of a power of two ([`Data::Exact`] products): the group's product stays normal.
    fn exponent(&self) -> u64 {
        let normal = match self.data_type {
            DataType::F32 | DataType::Bf16 => 126,
            DataType::F64 => 1022,
            DataType::F16 | DataType::F8E5m2 => 14,
            DataType::F8E5m2Fnuz => 15,
            DataType::F8E4m3 => 6,
            _ => 7,
        };
        normal / u64::from(self.ranks.max(1))
    }

    fn bits(&self, rank: GroupRank, index: u64) -> u64 {
        let hash = mixed(mixed(self.seed ^ mixed(u64::from(rank.get()) + 1)).wrapping_add(index));
        match self.data {
            Data::Special => self.special(hash),
            _ if self.data_type == DataType::Bool => hash & 1,
            _ if !self.data_type.is_float() => hash & self.data_type.mask(),
            Data::Exact if self.product => {
                let exponent = below(hash >> 1, 2 * self.exponent() + 1) as i32 - self.exponent() as i32;
                self.data_type.bits_of(signed(2f64.powi(exponent), hash))
            }
            Data::Exact => {
                let bound = self.bound();
                self.data_type.bits_of(below(hash, 2 * bound + 1) as f64 - bound as f64)
            }
            Data::Normal => self.data_type.bits_of(normal(hash)),
        }
    }

    fn special(&self, hash: u64) -> u64 {
        let any = mixed(hash) & self.data_type.mask();
        let pick =
            |from: &[u64]| from.get(below(hash >> 8, from.len() as u64) as usize).copied().unwrap_or(any);
        if !self.data_type.is_float() {
            let top = (self.data_type.mask() >> 1) + 1;
            let extremes = [0, 1, 2, top - 1, top, top + 1, self.data_type.mask() - 1, self.data_type.mask()];
            return if hash.is_multiple_of(2) { pick(&extremes) } else { any };
        }
        let (finite, infinite, nan) = specials(self.data_type);
        // Few that swallow all others: most results must still be numbers.
        match hash % 32 {
            0 => pick(nan),
            1 => pick(infinite),
            2..=17 => pick(finite),
            _ => any,
        }
    }
}

/// Finite values, infinities and NaNs worth a test, as bits.
fn specials(data_type: DataType) -> (&'static [u64], &'static [u64], &'static [u64]) {
    match data_type {
        // Zeros, smallest and largest subnormals, smallest normals, ones, largest.
        DataType::F32 => (
            &[
                0,
                0x8000_0000,
                1,
                0x8000_0001,
                0x7f_ffff,
                0x80_0000,
                0x8080_0000,
                0x3f80_0000,
                0xbf80_0000,
                0x3f80_0001,
                0x7f7f_ffff,
                0xff7f_ffff,
            ],
            &[0x7f80_0000, 0xff80_0000],
            &[0x7fc0_0000, 0xffc0_0000, 0x7f80_0001, 0xffff_ffff],
        ),
        DataType::F64 => (
            &[
                0,
                1 << 63,
                1,
                (1 << 63) + 1,
                0xf_ffff_ffff_ffff,
                1 << 52,
                0x8010_0000_0000_0000,
                0x3ff << 52,
                0xbff << 52,
                (0x3ff << 52) + 1,
                0x7fef_ffff_ffff_ffff,
                0xffef_ffff_ffff_ffff,
            ],
            &[0x7ff << 52, 0xfff << 52],
            &[0x7ff8 << 48, 0xfff8 << 48, (0x7ff << 52) + 1, u64::MAX],
        ),
        DataType::F16 => (
            &[0, 0x8000, 1, 0x8001, 0x3ff, 0x400, 0x8400, 0x3c00, 0xbc00, 0x3c01, 0x7bff, 0xfbff],
            &[0x7c00, 0xfc00],
            &[0x7e00, 0xfe00, 0x7c01, 0xffff],
        ),
        DataType::Bf16 => (
            &[0, 0x8000, 1, 0x8001, 0x7f, 0x80, 0x8080, 0x3f80, 0xbf80, 0x3f81, 0x7f7f, 0xff7f],
            &[0x7f80, 0xff80],
            &[0x7fc0, 0xffc0, 0x7f81, 0xffff],
        ),
        DataType::F8E4m3 => (&[0, 0x80, 1, 0x81, 7, 8, 0x88, 0x38, 0xb8, 0x7e, 0xfe], &[], &[0x7f, 0xff]),
        DataType::F8E5m2 => {
            (&[0, 0x80, 1, 0x81, 3, 4, 0x84, 0x3c, 0xbc, 0x7b, 0xfb], &[0x7c, 0xfc], &[0x7d, 0x7f, 0xfe])
        }
        DataType::F8E4m3Fnuz => (&[0, 1, 0x81, 7, 8, 0x88, 0x40, 0xc0, 0x7f, 0xff], &[], &[0x80]),
        _ => (&[0, 1, 0x81, 3, 4, 0x84, 0x40, 0xc0, 0x7f, 0xff], &[], &[0x80]),
    }
}

fn signed(value: f64, hash: u64) -> f64 {
    if hash & 1 == 0 { value } else { -value }
}

/// A number below `bound`, from the upper bits; `bound` is far below 2^64.
fn below(hash: u64, bound: u64) -> u64 {
    ((u128::from(mixed(hash)) * u128::from(bound)) >> 64) as u64
}

/// Nearly a normal distribution: the sum of twelve uniform numbers (Irwin-Hall), whose variance is 1. Unlike a logarithm it is
/// the same on every machine.
fn normal(hash: u64) -> f64 {
    let uniform = |draw: u64| (mixed(hash.wrapping_add(draw)) >> 11) as f64 / (1u64 << 53) as f64;
    (1..=12).map(uniform).sum::<f64>() - 6.0
}

/// The finaliser of splitmix64 behind its increment (Steele, Lea, Flood, "Fast splittable pseudorandom number generators").
pub(crate) fn mixed(value: u64) -> u64 {
    let value = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ (value >> 31)
}
