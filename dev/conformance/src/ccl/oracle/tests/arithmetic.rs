//! Results that were worked out by hand, and laws.

use anabranch_ranks::GroupRank;
use half::{bf16, f16};

use crate::ccl::oracle::{Data, Difference, OracleError, equal, reduce};
use anabranch_ccl::{DATA_TYPES, DataType, ReduceOp};

fn f32s(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_le_bytes()).collect()
}

fn reduced_f32(op: ReduceOp, inputs: &[&[f32]]) -> Vec<f32> {
    let inputs: Vec<_> = inputs.iter().map(|input| f32s(input)).collect();
    let bytes = reduce(DataType::F32, op, &inputs).unwrap();
    bytes.as_chunks::<4>().0.iter().map(|four| f32::from_le_bytes(*four)).collect()
}

#[test]
fn sums_are_taken_in_group_order() {
    let tiny = f32::EPSILON / 2.0;
    // 1 + e/2 is 1, twice; e/2 + e/2 + 1 is 1 + e.
    assert_eq!(
        reduced_f32(ReduceOp::Sum, &[&[1.0, tiny], &[tiny, tiny], &[tiny, 1.0]]),
        [1.0, 1.0 + f32::EPSILON]
    );
    // The scalar comes first, and its products are rounded: a third of 3, in f32, is 1 again.
    assert_eq!(reduced_f32(ReduceOp::PreMulSum(1.0 / 3.0), &[&[3.0], &[3.0]]), [2.0]);
    assert_eq!(reduced_f32(ReduceOp::Avg, &[&[1.0], &[2.0], &[4.0]]), [7.0 / 3.0]);
    assert_eq!(reduced_f32(ReduceOp::Product, &[&[-3.0], &[5.0]]), [-15.0]);
}

#[test]
fn narrow_floats_are_rounded_once() {
    // 256 + 1 + 1: in bf16 after each step 256 + 1 would fall back to 256.
    let inputs: Vec<_> = [256.0, 1.0, 1.0].map(|value| bf16::from_f32(value).to_le_bytes()).into();
    let sum = reduce(DataType::Bf16, ReduceOp::Sum, &inputs).unwrap();
    assert_eq!(sum, bf16::from_f32(258.0).to_le_bytes());
    // 65504 + 65504 overflows f16 but not its accumulator.
    let inputs = [f16::MAX, f16::MAX].map(f16::to_le_bytes);
    assert_eq!(reduce(DataType::F16, ReduceOp::Avg, &inputs).unwrap(), f16::MAX.to_le_bytes());
    assert_eq!(reduce(DataType::F16, ReduceOp::Sum, &inputs).unwrap(), f16::INFINITY.to_le_bytes());
    // 448 + 448 has no code in E4M3, nor 1.0625 (0x38 and half a step): the even neighbour.
    assert_eq!(reduce(DataType::F8E4m3, ReduceOp::Sum, &[[0x7e], [0x7e]]).unwrap(), [0x7f]);
    assert_eq!(reduce(DataType::F8E4m3, ReduceOp::Sum, &[[0x38], [0x18]]).unwrap(), [0x38]);
}

#[test]
fn extremes_know_signs_of_zero_and_nan() {
    let zeros: [&[f32]; 2] = [&[0.0, -0.0, 1.0, f32::NAN, 3.0], &[-0.0, 0.0, -1.0, 2.0, -f32::NAN]];
    let bits = |values: Vec<f32>| values.into_iter().map(f32::to_bits).collect::<Vec<_>>();
    let nan = 0x7fc0_0000;
    let minus = 0x8000_0000;
    assert_eq!(bits(reduced_f32(ReduceOp::Min, &zeros)), [minus, minus, (-1.0f32).to_bits(), nan, nan]);
    assert_eq!(bits(reduced_f32(ReduceOp::Max, &zeros)), [0, 0, 1.0f32.to_bits(), nan, nan]);
    // One contribution alone.
    assert_eq!(reduce(DataType::F8E5m2, ReduceOp::Max, &[[0xfe]]).unwrap(), [0x7f]);
}

#[test]
fn integers_wrap_and_truths_are_zero_or_one() {
    let of = |data_type, op, inputs: &[[u8; 2]]| reduce(data_type, op, inputs).unwrap();
    assert_eq!(of(DataType::I8, ReduceOp::Sum, &[[0x7f, 0xff], [1, 1]]), [0x80, 0]);
    assert_eq!(of(DataType::I8, ReduceOp::Min, &[[0x7f, 0xff], [0x80, 0]]), [0x80, 0xff]);
    assert_eq!(of(DataType::U8, ReduceOp::Min, &[[0x7f, 0xff], [0x80, 0]]), [0x7f, 0]);
    assert_eq!(of(DataType::U16, ReduceOp::Product, &[[0xff, 0xff], [0xff, 0xff]]), [1, 0]);
    assert_eq!(of(DataType::I16, ReduceOp::BitXor, &[[0xf0, 0x0f], [0xff, 0xff]]), [0x0f, 0xf0]);
    for (op, expected) in [
        (ReduceOp::Sum, [1, 1]),
        (ReduceOp::Max, [1, 1]),
        (ReduceOp::BitOr, [1, 1]),
        (ReduceOp::Product, [1, 0]),
        (ReduceOp::Min, [1, 0]),
        (ReduceOp::BitAnd, [1, 0]),
        (ReduceOp::BitXor, [0, 1]),
    ] {
        assert_eq!(of(DataType::Bool, op, &[[2, 0], [1, 0x80]]), expected, "{op}");
    }
    assert_eq!(of(DataType::Bool, ReduceOp::Sum, &[[2, 0]]), [1, 0]);
}

#[test]
fn exact_data_is_exact_in_any_order_and_after_any_rounding() {
    for data_type in DATA_TYPES {
        for op in [ReduceOp::Sum, ReduceOp::Product] {
            for ranks in [1, 2, 3, 5, 8] {
                let data = Data::Exact.of(data_type, op, ranks, 7);
                let mut inputs: Vec<_> =
                    (0..ranks).map(|rank| data.bytes(GroupRank::new(rank), 0..400)).collect();
                let expected = reduce(data_type, op, &inputs).unwrap();
                for _ in 0..ranks {
                    inputs.rotate_left(1);
                    assert_eq!(reduce(data_type, op, &inputs).unwrap(), expected, "{data_type} {op} {ranks}");
                    let stepwise = inputs[1..]
                        .iter()
                        .fold(inputs[0].clone(), |sum, next| reduce(data_type, op, &[&sum, next]).unwrap());
                    assert_eq!(
                        equal(data_type, Some(op), &expected, &stepwise),
                        Ok(()),
                        "{data_type} {op} {ranks}"
                    );
                }
            }
        }
    }
}

#[test]
fn normal_data_distinguishes_orders() {
    for data_type in DATA_TYPES.into_iter().filter(|data_type| data_type.is_float()) {
        let data = Data::Normal.of(data_type, ReduceOp::Sum, 4, 7);
        let mut inputs: Vec<_> = (0..4).map(|rank| data.bytes(GroupRank::new(rank), 0..4000)).collect();
        let expected = reduce(data_type, ReduceOp::Sum, &inputs).unwrap();
        inputs.rotate_left(1);
        let rotated = reduce(data_type, ReduceOp::Sum, &inputs).unwrap();
        // f32 holds every sum of a few 8-bit floats of this size exactly.
        assert_eq!(rotated != expected, matches!(data_type, DataType::F32 | DataType::F64), "{data_type}");
    }
}

#[test]
fn what_cannot_be_reduced_is_refused() {
    let refused = |op, inputs: &[&[u8]]| reduce(DataType::F32, op, inputs).unwrap_err();
    assert_eq!(refused(ReduceOp::Sum, &[]), OracleError::NoRanks);
    let op = ReduceOp::BitAnd;
    assert_eq!(refused(op, &[&[0; 4]]), OracleError::Unsupported { op, data_type: DataType::F32 });
    let length = refused(ReduceOp::Sum, &[&[0; 8], &[0; 4]]).to_string();
    assert_eq!(
        length,
        "the input of group rank 1 has 4 bytes, but 8 are needed: as many as group rank 0 has"
    );
    let length = refused(ReduceOp::Sum, &[&[0; 7]]).to_string();
    assert_eq!(length, "the input of group rank 0 has 7 bytes, which is no multiple of 4: whole elements");
}

#[test]
fn only_a_nan_that_was_computed_may_be_another() {
    let (quiet, other) = (f32s(&[1.0, f32::NAN]), f32s(&[1.0, f32::from_bits(0xffc0_0001)]));
    assert_eq!(equal(DataType::F32, Some(ReduceOp::Sum), &quiet, &other), Ok(()));
    let moved = equal(DataType::F32, None, &quiet, &other).unwrap_err();
    assert_eq!(moved.to_string(), "element 1 is NaN (0xffc00001), expected NaN (0x7fc00000)");
    let number = equal(DataType::F32, Some(ReduceOp::Sum), &quiet, &f32s(&[1.0, 2.5])).unwrap_err();
    assert_eq!(number.to_string(), "element 1 is 2.5 (0x40200000), expected NaN (0x7fc00000)");
    let zero = equal(DataType::Bf16, Some(ReduceOp::Min), &[0, 0x80], &[0, 0]).unwrap_err();
    assert_eq!(zero.to_string(), "element 0 is 0.0 (0x0000), expected -0.0 (0x8000)");
    let signed = equal(DataType::I16, None, &[0xff, 0xff], &[0xfe, 0xff]).unwrap_err();
    assert_eq!(signed.to_string(), "element 0 is -2 (0xfffe), expected -1 (0xffff)");
    let short = equal(DataType::I16, None, &[0; 4], &[0; 2]).unwrap_err();
    assert_eq!(short, Difference::Length { expected: 4, seen: 2 });
}
