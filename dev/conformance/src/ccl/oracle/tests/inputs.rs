//! The data is what it says.

use anabranch_ranks::GroupRank;

use crate::ccl::oracle::Data;
use crate::ccl::oracle::bits::{self, Bits as _};
use anabranch_ccl::{DATA_TYPES, DataType, ReduceOp};

fn values(data: Data, data_type: DataType, op: ReduceOp, ranks: u32) -> Vec<u64> {
    let bytes = data.of(data_type, op, ranks, 3).bytes(GroupRank::new(0), 0..20_000);
    let width = data_type.bytes() as usize;
    (0..bytes.len() / width).map(|index| bits::read(&bytes, width, index)).collect()
}

#[test]
fn parts_are_the_same_as_the_whole_and_differ_by_rank_place_and_seed() {
    for data_type in DATA_TYPES {
        for data in Data::ALL {
            let of = data.of(data_type, ReduceOp::Sum, 4, 11);
            let whole = of.bytes(GroupRank::new(2), 0..300);
            let width = data_type.bytes() as usize;
            assert_eq!(of.bytes(GroupRank::new(2), 100..250), whole[100 * width..250 * width]);
            assert_ne!(of.bytes(GroupRank::new(1), 0..300), whole, "{data_type} {data:?}");
            assert_ne!(of.bytes(GroupRank::new(2), 1..301), whole, "{data_type} {data:?}");
            let other = data.of(data_type, ReduceOp::Sum, 4, 12);
            assert_ne!(other.bytes(GroupRank::new(2), 0..300), whole, "{data_type} {data:?}");
        }
    }
}

#[test]
fn exact_values_have_the_bounds_of_their_significands() {
    for (data_type, bound) in [
        (DataType::Bf16, 32.0),
        (DataType::F16, 256.0),
        (DataType::F8E4m3, 2.0),
        (DataType::F8E5m2, 1.0),
        (DataType::F8E4m3Fnuz, 2.0),
        (DataType::F8E5m2Fnuz, 1.0),
    ] {
        let all: Vec<f64> = values(Data::Exact, data_type, ReduceOp::Sum, 8)
            .into_iter()
            .map(|bits| data_type.float_value(bits).unwrap())
            .collect();
        assert!(all.iter().all(|value| value.fract() == 0.0 && value.abs() <= bound), "{data_type}");
        assert!(all.contains(&bound) && all.contains(&-bound) && all.contains(&0.0), "{data_type}");
    }
    let powers = values(Data::Exact, DataType::F16, ReduceOp::Product, 4);
    let powers: Vec<f64> = powers.into_iter().map(|bits| DataType::F16.float_value(bits).unwrap()).collect();
    assert!(
        powers.iter().all(|value| value.abs().log2().fract() == 0.0 && (0.125..=8.0).contains(&value.abs()))
    );
    assert!([8.0, -8.0, 0.125].iter().all(|extreme| powers.contains(extreme)));
}

#[test]
fn normal_values_have_the_moments_of_a_normal_distribution() {
    for data_type in [DataType::F32, DataType::F64, DataType::F16, DataType::Bf16] {
        let all: Vec<f64> = values(Data::Normal, data_type, ReduceOp::Sum, 2)
            .into_iter()
            .map(|bits| data_type.float_value(bits).unwrap())
            .collect();
        let mean = all.iter().sum::<f64>() / all.len() as f64;
        let variance = all.iter().map(|value| value * value).sum::<f64>() / all.len() as f64;
        // Five standard deviations of the mean and of the variance of 20 000 draws.
        assert!(mean.abs() < 0.036 && (variance - 1.0).abs() < 0.05, "{data_type}: {mean} {variance}");
    }
}

#[test]
fn special_values_are_all_there() {
    for data_type in DATA_TYPES.into_iter().filter(|data_type| data_type.is_float()) {
        let bits = values(Data::Special, data_type, ReduceOp::Sum, 2);
        let all: Vec<f64> = bits.iter().map(|bits| data_type.float_value(*bits).unwrap()).collect();
        let fnuz = matches!(data_type, DataType::F8E4m3Fnuz | DataType::F8E5m2Fnuz);
        let infinite = !fnuz && data_type != DataType::F8E4m3;
        assert!(all.iter().any(|value| value.is_nan()), "{data_type}");
        assert_eq!(all.contains(&f64::INFINITY) && all.contains(&f64::NEG_INFINITY), infinite, "{data_type}");
        let negative_zero = all.iter().any(|value| *value == 0.0 && value.is_sign_negative());
        assert_eq!(negative_zero, !fnuz, "{data_type}");
        assert!(bits.contains(&0) && bits.contains(&1), "{data_type}");
        let few = all.iter().filter(|value| !value.is_finite()).count();
        assert!(few * 5 < all.len(), "{data_type}: {few} of {}", all.len());
    }
    for (data_type, extremes) in [
        (DataType::I16, [0x7fff, 0x8000, 0xffff]),
        (DataType::U8, [0, 0x80, 0xff]),
        (DataType::Bool, [0, 1, 2]),
    ] {
        let all = values(Data::Special, data_type, ReduceOp::Sum, 2);
        assert!(extremes.iter().all(|extreme| all.contains(extreme)), "{data_type}");
    }
}
