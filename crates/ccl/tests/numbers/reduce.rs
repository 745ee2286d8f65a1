//! Reductions, against the oracle.

use anabranch_ccl::{DATA_TYPES, DataType, ReduceOp};
use anabranch_conformance::ccl::oracle::{self, Data};
use anabranch_ranks::GroupRank;

use crate::numbers::device::{Launch, Numbers};

/// Elements of each class; a multiple of 16, and more than a grid's threads handle at once.
const COUNT: u64 = 16 * 21;

/// The operators of the type. Scalars: a power of two, one that needs rounding, and extremes of floats and of integers.
fn operators(data_type: DataType) -> Vec<ReduceOp> {
    let scalars = [1.0 / 3.0, -0.5, 1e-30, 3e38, -3.0, 9_007_199_254_740_991.0].map(ReduceOp::PreMulSum);
    let all = ReduceOp::all(2.0).into_iter().chain(scalars);
    all.filter(|op| op.supports(data_type)).collect()
}

fn widths(data_type: DataType) -> impl Iterator<Item = u32> {
    [1, 2, 4, 8, 16].into_iter().filter(move |width| *width >= data_type.bytes())
}

/// The inputs of all ranks: concatenated classes.
fn inputs(data_type: DataType, op: ReduceOp, size: u32) -> Vec<Vec<u8>> {
    let of_rank = |rank| {
        let parts = Data::ALL.iter().flat_map(move |class| {
            class.of(data_type, op, size, u64::from(size)).bytes(GroupRank::new(rank), 0..COUNT)
        });
        parts.collect()
    };
    (0..size).map(of_rank).collect()
}

fn judge(numbers: &Numbers, launch: Launch, size: u32, expected: &[u8], seen: &[u8]) {
    let data_type = numbers.data_type;
    if let Err(difference) = oracle::equal(data_type, Some(launch.op), expected, seen) {
        panic!("{data_type} over {size} ranks, {launch:?}: {difference}");
    }
    // The bits of a NaN depend on the hardware in sums only.
    if matches!(launch.op, ReduceOp::Min | ReduceOp::Max) {
        assert_eq!(expected, seen, "{data_type} over {size} ranks, {launch:?}: another NaN");
    }
}

/// Every operator, group size and width of one type.
fn all_of(data_type: DataType, wave_width: u32) {
    let numbers = Numbers::new(data_type, wave_width);
    for op in operators(data_type) {
        for size in 1..=5 {
            let inputs = inputs(data_type, op, size);
            let expected = oracle::reduce(data_type, op, &inputs).unwrap();
            let uploaded = numbers.upload(&inputs);
            for unit_bytes in widths(data_type) {
                let launch = Launch { op, unit_bytes, sum_only: false };
                judge(&numbers, launch, size, &expected, &numbers.reduce(launch, &uploaded));
                if op == ReduceOp::Sum {
                    let launch = Launch { sum_only: true, ..launch };
                    judge(&numbers, launch, size, &expected, &numbers.reduce(launch, &uploaded));
                }
            }
        }
    }
}

macro_rules! types {
    ($($test:ident: $data_type:ident),* $(,)?) => {
        $(
            #[test]
            fn $test() {
                all_of(DataType::$data_type, 1);
            }
        )*

        #[test]
        fn every_type_has_its_test() {
            assert_eq!([$(DataType::$data_type),*], DATA_TYPES);
        }
    };
}

types! {
    f32_gives_the_oracles_bits: F32,
    f64_gives_the_oracles_bits: F64,
    f16_gives_the_oracles_bits: F16,
    bf16_gives_the_oracles_bits: Bf16,
    f8_e4m3fn_gives_the_oracles_bits: F8E4m3,
    f8_e5m2_gives_the_oracles_bits: F8E5m2,
    f8_e4m3fnuz_gives_the_oracles_bits: F8E4m3Fnuz,
    f8_e5m2fnuz_gives_the_oracles_bits: F8E5m2Fnuz,
    i8_gives_the_oracles_bits: I8,
    u8_gives_the_oracles_bits: U8,
    i16_gives_the_oracles_bits: I16,
    u16_gives_the_oracles_bits: U16,
    i32_gives_the_oracles_bits: I32,
    u32_gives_the_oracles_bits: U32,
    i64_gives_the_oracles_bits: I64,
    u64_gives_the_oracles_bits: U64,
    bool_gives_the_oracles_bits: Bool,
}

#[test]
fn wave_width_does_not_change_results() {
    all_of(DataType::Bf16, 64);
}

/// All pairs of bytes, which are all sums of two for one-byte types.
#[test]
fn one_byte_types_match_the_oracle_for_every_pair() {
    let first: Vec<u8> = (0..=u8::MAX).flat_map(|byte| [byte; 256]).collect();
    let second: Vec<u8> = (0..256).flat_map(|_| 0..=u8::MAX).collect();
    let inputs = [first, second];
    for data_type in DATA_TYPES.into_iter().filter(|data_type| data_type.bytes() == 1) {
        let numbers = Numbers::new(data_type, 1);
        let uploaded = numbers.upload(&inputs);
        for op in operators(data_type) {
            let expected = oracle::reduce(data_type, op, &inputs).unwrap();
            let launch = Launch { op, unit_bytes: 16, sum_only: op == ReduceOp::Sum };
            judge(&numbers, launch, 2, &expected, &numbers.reduce(launch, &uploaded));
        }
    }
}

/// The comparison detects contributions in another order, a missing rank, and an unwritten tail.
#[test]
fn wrong_reductions_are_detected() {
    let (data_type, op) = (DataType::F32, ReduceOp::Sum);
    let numbers = Numbers::new(data_type, 1);
    let launch = Launch { op, unit_bytes: 16, sum_only: true };
    let inputs = inputs(data_type, op, 4);
    let expected = oracle::reduce(data_type, op, &inputs).unwrap();
    let differs = |inputs: &[Vec<u8>], launch: Launch| {
        let seen = numbers.reduce(launch, &numbers.upload(inputs));
        oracle::equal(data_type, Some(op), &expected, &seen).is_err()
    };
    assert!(!differs(&inputs, launch));
    let mut rotated = inputs.clone();
    rotated.rotate_left(1);
    assert!(differs(&rotated, launch));
    assert!(differs(&inputs[..3], launch));
    assert!(differs(&inputs, Launch { op: ReduceOp::Avg, sum_only: false, ..launch }));
    // A unit narrower than an element: the kernel does nothing.
    assert!(differs(&inputs, Launch { unit_bytes: 2, ..launch }));
}
