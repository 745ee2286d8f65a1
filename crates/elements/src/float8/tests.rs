#![expect(clippy::float_cmp, reason = "conversions are exact, or rounded to one value")]

use super::*;

/// One of the types, by its functions.
struct Type {
    name: &'static str,
    decode: fn(u8) -> f32,
    encode: fn(f32) -> u8,
    largest: f32,
    smallest: f64,
    has_infinity: bool,
    nan_codes: &'static [u8],
}

macro_rules! entry {
    ($name:ident, $largest:literal, $smallest:literal, $infinity:literal, $nans:expr) => {
        Type {
            name: stringify!($name),
            decode: |code| $name::from_bits(code).to_f32(),
            encode: |value| $name::from_f32(value).to_bits(),
            largest: $largest,
            smallest: $smallest,
            has_infinity: $infinity,
            nan_codes: &$nans,
        }
    };
}

// Largest values and smallest subnormals as the OFP8 specification (table 1) and the CDNA 3 ISA print them.
fn all() -> [Type; 4] {
    [
        entry!(F8E4m3, 448.0, 0.001_953_125, false, [0x7f, 0xff]),
        entry!(F8E5m2, 57344.0, 0.000_015_258_789_062_5, true, [0x7d, 0x7e, 0x7f, 0xfd, 0xfe, 0xff]),
        entry!(F8E4m3Fnuz, 240.0, 0.000_976_562_5, false, [0x80]),
        entry!(F8E5m2Fnuz, 57344.0, 0.000_007_629_394_531_25, false, [0x80]),
    ]
}

impl Type {
    /// The finite magnitudes with their codes, ascending.
    fn magnitudes(&self) -> Vec<(u8, f64)> {
        let all = (0..0x80).map(|code| (code, f64::from((self.decode)(code))));
        let mut finite: Vec<_> = all.filter(|(_, value)| value.is_finite()).collect();
        finite.sort_by(|a, b| a.1.total_cmp(&b.1));
        finite
    }

    /// The nearest code by looking at all of them. `finite` is that of `magnitudes`.
    fn nearest(&self, finite: &[(u8, f64)], value: f32) -> u8 {
        let fnuz = self.nan_codes == [0x80];
        let sign = if value.is_sign_negative() { 0x80 } else { 0 };
        if value.is_nan() {
            return if fnuz { 0x80 } else { 0x7f | sign };
        }
        let magnitude = f64::from(value.abs());
        let (largest, before) = (finite[finite.len() - 1], finite[finite.len() - 2]);
        // What the format would have next, if it went on.
        let next = largest.1 + (largest.1 - before.1);
        let middle = f64::midpoint(largest.1, next);
        if magnitude > middle || (magnitude == middle && largest.0 % 2 == 1) {
            return match (fnuz, self.has_infinity) {
                (true, _) => 0x80,
                (false, true) => 0x7c | sign,
                (false, false) => 0x7f | sign,
            };
        }
        let distance = |candidate: &(u8, f64)| (candidate.1 - magnitude).abs();
        let least = finite.iter().map(distance).fold(f64::INFINITY, f64::min);
        let mut nearest =
            finite.iter().filter(|candidate| distance(candidate) == least).map(|(code, _)| *code);
        let first = nearest.next().unwrap();
        let code = nearest.find(|code| code % 2 == 0).unwrap_or(first);
        if fnuz && code == 0 { 0 } else { code | sign }
    }
}

#[test]
fn every_code_comes_back() {
    for of in all() {
        for code in 0..=u8::MAX {
            let value = (of.decode)(code);
            assert_eq!(value.is_nan(), of.nan_codes.contains(&code), "{} {code:#x}", of.name);
            let back = (of.encode)(value);
            if value.is_nan() {
                assert!((of.decode)(back).is_nan(), "{} {code:#x}", of.name);
            } else {
                assert_eq!(back, code, "{} {value}", of.name);
            }
        }
    }
}

#[test]
fn values_are_those_of_the_specifications() {
    for of in all() {
        let finite = of.magnitudes();
        assert_eq!(finite[0], (0, 0.0), "{}", of.name);
        assert_eq!(finite[1], (1, of.smallest), "{}", of.name);
        assert_eq!(finite[finite.len() - 1].1, f64::from(of.largest), "{}", of.name);
        assert!(
            finite.windows(2).all(|pair| pair[0].0 + 1 == pair[1].0 && pair[0].1 < pair[1].1),
            "{}",
            of.name
        );
        let infinite = (0..=u8::MAX).filter(|code| (of.decode)(*code).is_infinite()).count();
        assert_eq!(infinite, if of.has_infinity { 2 } else { 0 }, "{}", of.name);
        for code in 1..0x80 {
            let (positive, negative) = ((of.decode)(code), (of.decode)(code | 0x80));
            assert!(positive.is_nan() || positive == -negative, "{} {code:#x}", of.name);
        }
        // One is the code with the bias in its exponent.
        let one = (of.encode)(1.0);
        assert_eq!(((of.decode)(one), (of.decode)(one + 1) > 1.0), (1.0, true), "{}", of.name);
    }
}

#[test]
fn rounding_is_that_of_a_search_through_all_codes() {
    for of in all() {
        let finite = of.magnitudes();
        let mut checked = 0;
        let mut check = |value: f32| {
            let (seen, expected) = ((of.encode)(value), of.nearest(&finite, value));
            assert_eq!(seen, expected, "{}: {value:e} ({:#x})", of.name, value.to_bits());
            checked += 1;
        };
        // All that is half way between two codes, and its neighbours; beyond the largest too.
        let largest = finite[finite.len() - 1].1;
        let step = largest - finite[finite.len() - 2].1;
        let beyond = [(0, largest + step), (0, largest + 2.0 * step)];
        let steps: Vec<f64> = finite.iter().chain(&beyond).map(|(_, value)| *value).collect();
        for pair in steps.windows(2) {
            for value in [pair[0], f64::midpoint(pair[0], pair[1])].map(|value| value as f32) {
                let bits = value.to_bits();
                for bits in [bits.saturating_sub(1), bits, bits + 1] {
                    check(f32::from_bits(bits));
                    check(-f32::from_bits(bits));
                }
            }
        }
        // The whole range of f32 in its upper halves, with lower halves that decide ties; NaN and infinity among them.
        for upper in 0..=u16::MAX {
            for lower in [0, 1, 0x7fff, 0x8000, 0xffff] {
                check(f32::from_bits(u32::from(upper) << 16 | lower));
            }
        }
        assert!(checked > 5 * 65536);
    }
}

#[test]
fn too_large_is_not_saturated() {
    assert_eq!(F8E4m3::from_f32(464.0).to_bits(), 0x7e);
    assert_eq!(F8E4m3::from_f32(464.1).to_bits(), 0x7f);
    assert_eq!(F8E4m3::from_f32(f32::NEG_INFINITY).to_bits(), 0xff);
    assert_eq!(F8E5m2::from_f32(61439.0).to_bits(), 0x7b);
    assert_eq!(F8E5m2::from_f32(-61440.0).to_bits(), 0xfc);
    assert_eq!(F8E4m3Fnuz::from_f32(247.9).to_bits(), 0x7f);
    assert_eq!(F8E4m3Fnuz::from_f32(-248.0).to_bits(), 0x80);
    assert_eq!(F8E5m2Fnuz::from_f32(f32::INFINITY).to_bits(), 0x80);
    assert_eq!(F8E5m2Fnuz::from_f32(-1e-9).to_bits(), 0);
    assert_eq!(F8E5m2::from_f32(-1e-9).to_bits(), 0x80);
}

#[test]
fn comparison_is_by_value() {
    assert_eq!(F8E5m2::from_bits(0x80), F8E5m2::from_bits(0));
    assert_ne!(F8E4m3::NAN, F8E4m3::NAN);
    assert!(F8E4m3::MAX > F8E4m3::from_f32(1.0));
    assert!(F8E4m3Fnuz::NAN.is_nan() && F8E5m2::from_bits(0x7c).is_infinite() && !F8E5m2::MAX.is_infinite());
    assert_eq!(F8E4m3::from_f32(1.5).to_string(), "1.5");
}
