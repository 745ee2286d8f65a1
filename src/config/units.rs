//! Values with units: sizes and durations, as people write them and exactly.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use serde::de::{Deserializer, Error as _, Visitor};
use serde::{Deserialize, Serialize, Serializer};

/// A number of bytes, written `"2 GiB"`, `"6.5 GiB"`, `"500 MB"` or as a plain integer.
///
/// A fraction that is no whole number of bytes is refused rather than rounded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ByteSize(pub u64);

const BYTE_UNITS: &[(&str, u64)] = &[
    ("TiB", 1 << 40),
    ("GiB", 1 << 30),
    ("MiB", 1 << 20),
    ("KiB", 1 << 10),
    ("TB", 1_000_000_000_000),
    ("GB", 1_000_000_000),
    ("MB", 1_000_000),
    ("kB", 1_000),
    ("B", 1),
];

impl ByteSize {
    /// The number of bytes.
    pub fn bytes(self) -> u64 {
        self.0
    }
}

/// A duration, written with its unit: `"250 ms"`, `"1.5 s"`, `"2 min"`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Period(pub Duration);

const TIME_UNITS: &[(&str, u64)] = &[
    ("h", 3_600_000_000_000),
    ("min", 60_000_000_000),
    ("s", 1_000_000_000),
    ("ms", 1_000_000),
    ("us", 1_000),
    ("ns", 1),
];

impl Period {
    /// As the standard library's type.
    pub fn duration(self) -> Duration {
        self.0
    }
}

/// Why a value with a unit is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum UnitError {
    /// It is no number followed by a unit.
    #[error("{given:?} is not {what}; write it like {example}")]
    Form {
        /// The text.
        given: String,
        /// What was expected.
        what: &'static str,
        /// How it is written.
        example: &'static str,
    },
    /// The unit is unknown.
    #[error("{given:?} has no known unit; known are {units}")]
    Unit {
        /// The text.
        given: String,
        /// The units.
        units: &'static str,
    },
    /// The number is no whole multiple of the smallest unit, or does not fit 64 bits.
    #[error("{given:?} is no whole number of {smallest} below 2^64")]
    Range {
        /// The text.
        given: String,
        /// The smallest unit.
        smallest: &'static str,
    },
}

impl FromStr for ByteSize {
    type Err = UnitError;

    fn from_str(text: &str) -> Result<Self, UnitError> {
        let form = || UnitError::Form { given: text.to_owned(), what: "a size", example: "\"2 GiB\"" };
        let (number, unit) = split(text).ok_or_else(form)?;
        let unit = match unit {
            "" => 1,
            _ => factor(BYTE_UNITS, unit).ok_or_else(|| UnitError::Unit {
                given: text.to_owned(),
                units: "B, KiB, MiB, GiB, TiB, kB, MB, GB and TB",
            })?,
        };
        exact(number, unit)
            .map(Self)
            .ok_or_else(|| UnitError::Range { given: text.to_owned(), smallest: "bytes" })
    }
}

impl FromStr for Period {
    type Err = UnitError;

    fn from_str(text: &str) -> Result<Self, UnitError> {
        let form = || UnitError::Form { given: text.to_owned(), what: "a duration", example: "\"10 s\"" };
        let (number, unit) = split(text).ok_or_else(form)?;
        let unit = factor(TIME_UNITS, unit)
            .ok_or_else(|| UnitError::Unit { given: text.to_owned(), units: "ns, us, ms, s, min and h" })?;
        let nanoseconds = exact(number, unit)
            .ok_or_else(|| UnitError::Range { given: text.to_owned(), smallest: "nanoseconds" })?;
        Ok(Self(Duration::from_nanos(nanoseconds)))
    }
}

impl fmt::Display for ByteSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let binary = BYTE_UNITS.iter().filter(|(name, _)| name.ends_with("iB"));
        match binary.copied().find(|(_, unit)| self.0 >= *unit && self.0.is_multiple_of(*unit)) {
            Some((name, unit)) => write!(f, "{} {name}", self.0 / unit),
            None => write!(f, "{} B", self.0),
        }
    }
}

impl fmt::Display for Period {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let nanoseconds = self.0.as_nanos();
        // Up to seconds: 600 s is not shown as 10 min.
        let short = TIME_UNITS.iter().skip(2).map(|(name, unit)| (name, u128::from(*unit)));
        match short.into_iter().find(|(_, unit)| nanoseconds >= *unit && nanoseconds.is_multiple_of(*unit)) {
            Some((name, unit)) => write!(f, "{} {name}", nanoseconds / unit),
            None => write!(f, "{nanoseconds} ns"),
        }
    }
}

fn factor(units: &[(&str, u64)], name: &str) -> Option<u64> {
    units.iter().find(|(unit, _)| *unit == name).map(|(_, factor)| *factor)
}

/// Number and unit; the number is digits with at most one point.
fn split(text: &str) -> Option<(&str, &str)> {
    let text = text.trim();
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(end);
    let points = number.bytes().filter(|byte| *byte == b'.').count();
    let digits = number.len() - points;
    (digits > 0 && points <= 1).then_some((number, unit.trim()))
}

/// `number * unit` when it is a whole number that fits.
fn exact(number: &str, unit: u64) -> Option<u64> {
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    let whole: u128 = if whole.is_empty() { 0 } else { whole.parse().ok()? };
    let fraction = fraction.trim_end_matches('0');
    let scale = 10_u128.checked_pow(u32::try_from(fraction.len()).ok()?)?;
    let part: u128 = if fraction.is_empty() { 0 } else { fraction.parse().ok()? };
    let scaled = whole.checked_mul(scale)?.checked_add(part)?.checked_mul(u128::from(unit))?;
    scaled.is_multiple_of(scale).then(|| u64::try_from(scaled / scale).ok()).flatten()
}

impl Serialize for ByteSize {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl Serialize for Period {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for ByteSize {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Size;
        impl Visitor<'_> for Size {
            type Value = ByteSize;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a size such as \"2 GiB\", or a number of bytes")
            }

            fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<ByteSize, E> {
                text.parse().map_err(E::custom)
            }

            fn visit_i64<E: serde::de::Error>(self, value: i64) -> Result<ByteSize, E> {
                u64::try_from(value)
                    .map(ByteSize)
                    .map_err(|_| E::custom(format!("{value} bytes is negative")))
            }

            fn visit_u64<E: serde::de::Error>(self, value: u64) -> Result<ByteSize, E> {
                Ok(ByteSize(value))
            }
        }
        deserializer.deserialize_any(Size)
    }
}

impl<'de> Deserialize<'de> for Period {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(D::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_exact_or_refused() {
        for (text, bytes) in [
            ("1 GiB", 1 << 30),
            ("6.5 GiB", 6_979_321_856),
            ("0.5KiB", 512),
            ("12", 12),
            (" 3 MB ", 3_000_000),
            ("1.000 B", 1),
            ("16777215 TiB", 16_777_215 << 40),
        ] {
            assert_eq!(text.parse::<ByteSize>(), Ok(ByteSize(bytes)), "{text}");
        }
        for text in
            ["", "GiB", "1 gib", "1.5 B", "0.0001 KiB", "1..5 GiB", "-1 GiB", "16777216 TiB", "1e9", "."]
        {
            assert!(text.parse::<ByteSize>().is_err(), "{text}");
        }
    }

    #[test]
    fn durations_need_a_unit() {
        for (text, nanoseconds) in
            [("10 s", 10_000_000_000), ("250ms", 250_000_000), ("1.5 us", 1_500), ("2 min", 120_000_000_000)]
        {
            assert_eq!(text.parse::<Period>(), Ok(Period(Duration::from_nanos(nanoseconds))), "{text}");
        }
        for text in ["10", "ten s", "1.5 ns", "3 weeks", "-1 s"] {
            assert!(text.parse::<Period>().is_err(), "{text}");
        }
    }

    #[test]
    fn what_is_shown_parses_to_the_same_value() {
        for bytes in [0, 1, 1023, 1024, 1536, 1 << 30, 6_979_321_856, u64::MAX] {
            assert_eq!(ByteSize(bytes).to_string().parse(), Ok(ByteSize(bytes)));
        }
        for nanoseconds in [0, 1, 999, 1_000, 1_500_000, 60_000_000_000, u64::MAX] {
            let period = Period(Duration::from_nanos(nanoseconds));
            assert_eq!(period.to_string().parse(), Ok(period));
        }
    }
}
