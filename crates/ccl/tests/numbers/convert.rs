//! The rounding and the widening, against the conversions of this crate and of the half crate.

use anabranch_ccl::DataType;
use anabranch_ccl::float8::{F8E4m3, F8E4m3Fnuz, F8E5m2, F8E5m2Fnuz};
use half::{bf16, f16};

use crate::numbers::device::Numbers;

/// All upper halves of an f32, each with lower halves that decide the rounding.
fn sweep() -> Vec<f32> {
    let lower = [0, 1, 0x0fff, 0x1000, 0x1001, 0x7fff, 0x8000, 0x8001, 0xffff];
    let upper = 0..=u16::MAX;
    upper.flat_map(|upper| lower.map(|lower| f32::from_bits(u32::from(upper) << 16 | lower))).collect()
}

/// Rounds the sweep on the device, and compares elements and their values.
fn compare(data_type: DataType, round: fn(f32) -> u16, value: fn(u16) -> f32) {
    let values = sweep();
    let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
    let (elements, widened) = Numbers::new(data_type, 1).convert(&bytes, 4);
    let mut elements = elements.chunks_exact(data_type.bytes() as usize);
    let mut widened = widened.as_chunks::<4>().0.iter();
    for given in values {
        let bits = elements.next().unwrap().iter().rev().fold(0, |bits, byte| bits << 8 | u16::from(*byte));
        let back = f32::from_le_bytes(*widened.next().unwrap());
        let expected = round(given);
        let what = || {
            format!("{data_type} of {given:e} ({:#x}): {bits:#x}, expected {expected:#x}", given.to_bits())
        };
        if given.is_nan() {
            assert!(value(bits).is_nan() && back.is_nan(), "{}", what());
            continue;
        }
        assert_eq!(bits, expected, "{}", what());
        let same = back.to_bits() == value(bits).to_bits() || (back.is_nan() && value(bits).is_nan());
        assert!(same, "{}: {back} is not its value", what());
    }
    assert!(elements.next().is_none() && widened.next().is_none());
}

#[test]
fn f16_rounds_as_ieee() {
    compare(DataType::F16, |value| f16::from_f32(value).to_bits(), |bits| f16::from_bits(bits).to_f32());
}

#[test]
fn bf16_rounds_as_ieee() {
    compare(DataType::Bf16, |value| bf16::from_f32(value).to_bits(), |bits| bf16::from_bits(bits).to_f32());
}

macro_rules! float8 {
    ($($test:ident: $name:ident),* $(,)?) => { $(
        #[test]
        fn $test() {
            compare(
                DataType::$name,
                |value| $name::from_f32(value).to_bits().into(),
                |bits| $name::from_bits(bits as u8).to_f32(),
            );
        }
    )* };
}

float8! {
    f8_e4m3fn_rounds_as_documented: F8E4m3,
    f8_e5m2_rounds_as_documented: F8E5m2,
    f8_e4m3fnuz_rounds_as_documented: F8E4m3Fnuz,
    f8_e5m2fnuz_rounds_as_documented: F8E5m2Fnuz,
}

#[test]
fn f32_and_f64_pass_unchanged() {
    let singles: Vec<u8> = sweep().iter().flat_map(|value| value.to_le_bytes()).collect();
    let (elements, widened) = Numbers::new(DataType::F32, 1).convert(&singles, 4);
    assert!(elements == singles && widened == singles);
    let doubles: Vec<u8> = sweep().iter().flat_map(|value| f64::from(*value).to_le_bytes()).collect();
    let (elements, widened) = Numbers::new(DataType::F64, 1).convert(&doubles, 8);
    assert!(elements == doubles && widened == doubles);
}
