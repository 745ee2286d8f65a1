//! The arithmetic of reductions, bit for bit as [`ReduceOp`] documents it.

use std::cmp::Ordering;
use std::ops::{Add, Div, Mul};

use anabranch_ranks::GroupRank;
use half::{bf16, f16};

use super::bits::{Bits as _, read};
use super::error::{Difference, OracleError};
use anabranch_ccl::{DataType, ReduceOp};
use anabranch_elements::float8::{F8E4m3, F8E4m3Fnuz, F8E5m2, F8E5m2Fnuz};

/// Reduces integers, which wrap. An average is rounded towards zero.
macro_rules! integers {
    ($op:expr, $inputs:expr, $type:ty) => {{
        let combine: fn($type, $type) -> $type = match $op {
            ReduceOp::Product => |a, b| a.wrapping_mul(b),
            ReduceOp::Min => |a, b| a.min(b),
            ReduceOp::Max => |a, b| a.max(b),
            ReduceOp::BitAnd => |a, b| a & b,
            ReduceOp::BitOr => |a, b| a | b,
            ReduceOp::BitXor => |a, b| a ^ b,
            ReduceOp::Sum | ReduceOp::Avg | ReduceOp::PreMulSum(_) | ReduceOp::PreMulSumAt(_) => {
                |a, b| a.wrapping_add(b)
            }
        };
        // Wide enough for every sum and number of ranks.
        let ranks = $inputs.len() as i128;
        let contribution = |element| {
            let element = <$type>::from_le_bytes(element);
            match $op {
                ReduceOp::PreMulSum(scalar) => element.wrapping_mul(scalar as i128 as $type),
                _ => element,
            }
        };
        let finished = |sum: $type| match $op {
            ReduceOp::Avg => ((i128::from(sum) / ranks) as $type).to_le_bytes(),
            _ => sum.to_le_bytes(),
        };
        fold($inputs, contribution, combine, finished)
    }};
}
/// Reduces buffers of one length, element by element, in the order in which they are given: that of group ranks.
///
/// # Errors
/// [`OracleError`] when nothing is given, lengths differ or are no whole elements, or the operator means nothing for the type.
pub fn reduce<B: AsRef<[u8]>>(
    data_type: DataType,
    op: ReduceOp,
    inputs: &[B],
) -> Result<Vec<u8>, OracleError> {
    let inputs: Vec<&[u8]> = inputs.iter().map(AsRef::as_ref).collect();
    let Some(first) = inputs.first() else { return Err(OracleError::NoRanks) };
    // The host does not read device memory: give the oracle the scalar's value.
    if !op.supports(data_type) || op.device_scalar().is_some() {
        return Err(OracleError::Unsupported { op, data_type });
    }
    if let Some(rank) = inputs.iter().position(|input| input.len() != first.len()) {
        let why = "as many as group rank 0 has";
        let rank = GroupRank::new(rank as u32);
        return Err(OracleError::Length {
            rank,
            given: inputs[rank.index()].len(),
            needed: first.len(),
            why,
        });
    }
    let multiple = data_type.bytes() as usize;
    if !first.len().is_multiple_of(multiple) {
        let why = "whole elements";
        return Err(OracleError::Multiple { rank: GroupRank::new(0), given: first.len(), multiple, why });
    }
    let inputs = &inputs;
    Ok(match data_type {
        DataType::F32 => floats(op, inputs, f32::from_le_bytes, f32::to_le_bytes),
        DataType::F64 => floats(op, inputs, f64::from_le_bytes, f64::to_le_bytes),
        DataType::F16 => {
            floats(op, inputs, |two| f16::from_le_bytes(two).to_f32(), |sum| f16::from_f32(sum).to_le_bytes())
        }
        DataType::Bf16 => floats(
            op,
            inputs,
            |two| bf16::from_le_bytes(two).to_f32(),
            |sum| bf16::from_f32(sum).to_le_bytes(),
        ),
        DataType::F8E4m3 => floats(
            op,
            inputs,
            |[code]| F8E4m3::from_bits(code).to_f32(),
            |sum| [F8E4m3::from_f32(sum).to_bits()],
        ),
        DataType::F8E5m2 => floats(
            op,
            inputs,
            |[code]| F8E5m2::from_bits(code).to_f32(),
            |sum| [F8E5m2::from_f32(sum).to_bits()],
        ),
        DataType::F8E4m3Fnuz => floats(
            op,
            inputs,
            |[code]| F8E4m3Fnuz::from_bits(code).to_f32(),
            |sum| [F8E4m3Fnuz::from_f32(sum).to_bits()],
        ),
        DataType::F8E5m2Fnuz => floats(
            op,
            inputs,
            |[code]| F8E5m2Fnuz::from_bits(code).to_f32(),
            |sum| [F8E5m2Fnuz::from_f32(sum).to_bits()],
        ),
        DataType::F4E2m1 => return Err(OracleError::Unsupported { op, data_type }),
        DataType::I8 => integers!(op, inputs, i8),
        DataType::U8 => integers!(op, inputs, u8),
        DataType::I16 => integers!(op, inputs, i16),
        DataType::U16 => integers!(op, inputs, u16),
        DataType::I32 => integers!(op, inputs, i32),
        DataType::U32 => integers!(op, inputs, u32),
        DataType::I64 => integers!(op, inputs, i64),
        DataType::U64 => integers!(op, inputs, u64),
        DataType::Bool => fold(inputs, |[byte]| byte != 0, truths(op), |truth| [u8::from(truth)]),
    })
}

/// Compares two buffers bit by bit; only where `expected` has a NaN, any NaN will do: which one a sum gives is the hardware's
/// choice. Without an operator the elements were only moved: the same bits are expected, NaN or not.
///
/// # Errors
/// The first [`Difference`].
pub fn equal(
    data_type: DataType,
    op: Option<ReduceOp>,
    expected: &[u8],
    seen: &[u8],
) -> Result<(), Difference> {
    if expected.len() != seen.len() {
        return Err(Difference::Length { expected: expected.len(), seen: seen.len() });
    }
    if expected == seen {
        return Ok(());
    }
    let width = data_type.bytes() as usize;
    let is_nan = |bits| data_type.float_value(bits).is_some_and(f64::is_nan);
    // An odd end is compared as an element of its own.
    for index in 0..expected.len().div_ceil(width) {
        let (wanted, found) = (read(expected, width, index), read(seen, width, index));
        if wanted != found && !(op.is_some() && is_nan(wanted) && is_nan(found)) {
            let (expected, seen) = (data_type.text(wanted), data_type.text(found));
            return Err(Difference::Element { index, expected, seen });
        }
    }
    Ok(())
}

/// Element by element: the first rank's, then each next one's.
fn fold<const N: usize, T>(
    inputs: &[&[u8]],
    decode: impl Fn([u8; N]) -> T,
    combine: impl Fn(T, T) -> T,
    encode: impl Fn(T) -> [u8; N],
) -> Vec<u8> {
    let mut rest: Vec<_> = inputs.iter().map(|input| input.as_chunks::<N>().0.iter()).collect();
    let mut output = Vec::with_capacity(inputs.first().map_or(0, |input| input.len()));
    loop {
        let elements = rest.iter_mut().filter_map(Iterator::next).map(|element| decode(*element));
        let Some(result) = elements.reduce(&combine) else { return output };
        output.extend_from_slice(&encode(result));
    }
}

/// What the accumulation types have in common.
trait Accumulate: Copy + Add<Output = Self> + Mul<Output = Self> + Div<Output = Self> {
    const NAN: Self;
    fn of(value: f64) -> Self;
    fn is_nan(self) -> bool;
    fn order(self, other: Self) -> Ordering;
}

macro_rules! accumulate {
    ($($type:ty),*) => { $(
        impl Accumulate for $type {
            const NAN: Self = <$type>::NAN;
            fn of(value: f64) -> Self {
                value as $type
            }
            fn is_nan(self) -> bool {
                self.is_nan()
            }
            fn order(self, other: Self) -> Ordering {
                self.total_cmp(&other)
            }
        }
    )* };
}
accumulate!(f32, f64);

fn floats<const N: usize, T: Accumulate>(
    op: ReduceOp,
    inputs: &[&[u8]],
    decode: impl Fn([u8; N]) -> T,
    encode: impl Fn(T) -> [u8; N],
) -> Vec<u8> {
    let ranks = T::of(inputs.len() as f64);
    let contribution = |element| match op {
        ReduceOp::PreMulSum(scalar) => decode(element) * T::of(scalar),
        _ => decode(element),
    };
    // In the total order -0 comes before +0; NaN is taken out first.
    let select = |a: T, b: T, wanted: Ordering| {
        let nan = a.is_nan() || b.is_nan();
        if nan {
            T::NAN
        } else if a.order(b) == wanted {
            a
        } else {
            b
        }
    };
    let combine = |a: T, b: T| match op {
        ReduceOp::Product => a * b,
        ReduceOp::Min => select(a, b, Ordering::Less),
        ReduceOp::Max => select(a, b, Ordering::Greater),
        _ => a + b,
    };
    let finished = |result: T| match op {
        ReduceOp::Avg => encode(result / ranks),
        ReduceOp::Min | ReduceOp::Max if result.is_nan() => encode(T::NAN),
        _ => encode(result),
    };
    fold(inputs, contribution, combine, finished)
}

fn truths(op: ReduceOp) -> fn(bool, bool) -> bool {
    match op {
        ReduceOp::Product | ReduceOp::Min | ReduceOp::BitAnd => |a, b| a & b,
        ReduceOp::BitXor => |a, b| a ^ b,
        _ => |a, b| a | b,
    }
}
