//! The types that settings may have, and how they are written.

use std::fmt;
use std::net::IpAddr;
use std::ops::{Bound, RangeBounds};
use std::path::PathBuf;

use anabranch_ccl::{Across, Algorithm, BarrierMode, Check};
use anabranch_ep::Mode;
use anabranch_hip::RuntimeKind;
use anabranch_hip_jit::{CompileMode, ConstantsMode};
use anabranch_shmem::HeapMode;
use anabranch_transport::TransportKind;
use serde::Deserialize as _;

use super::units::{ByteSize, Period};

/// What a setting's value looks like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum SettingKind {
    /// Any text.
    Text,
    /// One of a few words.
    Word(&'static [&'static str]),
    /// A path.
    Path,
    /// `true` or `false`, and no other spelling.
    Boolean,
    /// A whole number that is not negative.
    Integer,
    /// A number above zero, with a fraction or without.
    Number,
    /// A size with its unit.
    Size,
    /// A duration with its unit.
    Duration,
    /// A list of texts.
    Texts,
    /// A list of whole numbers.
    Integers,
    /// A list of words out of a few.
    Words(&'static [&'static str]),
}

impl SettingKind {
    /// Whether the value is written between brackets.
    pub fn is_list(self) -> bool {
        matches!(self, Self::Texts | Self::Integers | Self::Words(_))
    }

    /// A list of such values.
    const fn list(self) -> Self {
        match self {
            Self::Integer => Self::Integers,
            Self::Word(words) => Self::Words(words),
            _ => Self::Texts,
        }
    }
}

impl fmt::Display for SettingKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Text => f.write_str("text"),
            Self::Word(allowed) => f.write_str(&allowed.join(", ")),
            Self::Path => f.write_str("path"),
            Self::Boolean => f.write_str("true, false"),
            Self::Integer => f.write_str("number"),
            Self::Number => f.write_str("number above 0"),
            Self::Size => f.write_str("size"),
            Self::Duration => f.write_str("duration"),
            Self::Texts => f.write_str("list of texts"),
            Self::Integers => f.write_str("list of numbers"),
            Self::Words(allowed) => write!(f, "list of {}", allowed.join(", ")),
        }
    }
}

/// A value that a setting always has.
pub(super) trait Value: Sized {
    const KIND: SettingKind;

    fn show(&self) -> toml::Value;

    /// Reads it; the error names what was given and what is allowed.
    fn read(value: toml::Value) -> Result<Self, String>;
}

/// The field of a setting: a value, or none where the setting may be absent.
pub(super) trait Leaf {
    const KIND: SettingKind;

    fn get(&self) -> Option<toml::Value>;

    fn set(&mut self, value: toml::Value) -> Result<(), String>;
}

impl<T: Value> Leaf for T {
    const KIND: SettingKind = T::KIND;

    fn get(&self) -> Option<toml::Value> {
        Some(self.show())
    }

    fn set(&mut self, value: toml::Value) -> Result<(), String> {
        *self = T::read(value)?;
        Ok(())
    }
}

impl<T: Value> Leaf for Option<T> {
    const KIND: SettingKind = T::KIND;

    fn get(&self) -> Option<toml::Value> {
        self.as_ref().map(T::show)
    }

    fn set(&mut self, value: toml::Value) -> Result<(), String> {
        *self = Some(T::read(value)?);
        Ok(())
    }
}

impl<T: Value> Value for Vec<T> {
    const KIND: SettingKind = T::KIND.list();

    fn show(&self) -> toml::Value {
        self.iter().map(T::show).collect::<Vec<_>>().into()
    }

    fn read(value: toml::Value) -> Result<Self, String> {
        match value {
            toml::Value::Array(values) => values.into_iter().map(T::read).collect(),
            other => Err(format!("{other} is no list; write it like [...]")),
        }
    }
}

/// Types that serde reads and that are shown by an expression.
macro_rules! plain {
    ($($Type:ty: $Kind:ident, $show:expr;)+) => {$(
        impl Value for $Type {
            const KIND: SettingKind = SettingKind::$Kind;

            fn show(&self) -> toml::Value {
                let show: fn(&Self) -> toml::Value = $show;
                show(self)
            }

            fn read(value: toml::Value) -> Result<Self, String> {
                Self::deserialize(value).map_err(|error| error.message().to_owned())
            }
        }
    )+};
}

plain! {
    String: Text, |text| text.clone().into();
    // A path that was given in a configuration is text.
    PathBuf: Path, |path| path.to_string_lossy().into_owned().into();
    IpAddr: Text, |address| address.to_string().into();
    bool: Boolean, |truth| (*truth).into();
    u8: Integer, |number| (*number).into();
    u16: Integer, |number| i64::from(*number).into();
    u32: Integer, |number| (*number).into();
    // TOML has no larger numbers; such a value was set in code.
    u64: Integer, |number| i64::try_from(*number).map_or_else(|_| number.to_string().into(), Into::into);
    ByteSize: Size, |size| size.to_string().into();
    Period: Duration, |period| period.to_string().into();
}

impl Value for f64 {
    const KIND: SettingKind = SettingKind::Number;

    fn show(&self) -> toml::Value {
        (*self).into()
    }

    fn read(value: toml::Value) -> Result<Self, String> {
        let number = Self::deserialize(value).map_err(|error| error.message().to_owned())?;
        let is_positive = number > 0.0 && number.is_finite();
        is_positive.then_some(number).ok_or_else(|| format!("is {number}; allowed are numbers above 0"))
    }
}

/// Enums that list all their values, each of which has a word in configurations.
macro_rules! by_word {
    ($($Type:ident.$word:ident),+ $(,)?) => {$(
        impl Value for $Type {
            const KIND: SettingKind = SettingKind::Word(&const {
                let mut words = [""; $Type::ALL.len()];
                let mut index = 0;
                while index < words.len() {
                    words[index] = $Type::ALL[index].$word();
                    index += 1;
                }
                words
            });

            fn show(&self) -> toml::Value {
                self.$word().into()
            }

            fn read(value: toml::Value) -> Result<Self, String> {
                let known = |one: &Self| value.as_str() == Some(one.$word());
                Self::ALL.into_iter().find(known).ok_or_else(|| not_allowed(&value, <Self as Value>::KIND))
            }
        }
    )+};
}

by_word!(
    RuntimeKind.word,
    HeapMode.word,
    TransportKind.word,
    CompileMode.word,
    ConstantsMode.word,
    Schedule.word,
    NicDriverName.word,
    BarrierMode.name,
    Check.name,
    Across.name,
    Mode.name,
);

fn not_allowed(given: &toml::Value, allowed: SettingKind) -> String {
    format!("is {given}; allowed are {allowed}")
}

/// `None` is written `"auto"`.
impl Leaf for Option<Algorithm> {
    const KIND: SettingKind = SettingKind::Word(
        &const {
            let mut words = [AUTO; Algorithm::ALL.len() + 1];
            let mut index = 0;
            while index < Algorithm::ALL.len() {
                words[index + 1] = Algorithm::ALL[index].name();
                index += 1;
            }
            words
        },
    );

    fn get(&self) -> Option<toml::Value> {
        Some(self.map_or(AUTO, Algorithm::name).into())
    }

    fn set(&mut self, value: toml::Value) -> Result<(), String> {
        *self = match value.as_str() {
            Some(AUTO) => None,
            name => Some(
                Algorithm::ALL
                    .into_iter()
                    .find(|one| name == Some(one.name()))
                    .ok_or_else(|| not_allowed(&value, <Self as Leaf>::KIND))?,
            ),
        };
        Ok(())
    }
}

/// The word for no algorithm in particular.
const AUTO: &str = "auto";

anabranch_ranks::word_enum! {
    /// Who decides which lane of the host runtime runs next.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    #[non_exhaustive]
    pub enum Schedule, word, "schedule" {
        /// Worker threads, as they get to run.
        Free = "free",
        /// One step at a time, in an order drawn from the seed, with a weak memory and a virtual clock
        /// (`docs/memory-model.md`). The ranks of a world are threads of one process.
        Seeded = "seeded",
    }
}

anabranch_ranks::word_enum! {
    /// What serves as a rank's NIC.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    #[non_exhaustive]
    pub enum NicDriverName, word, "NIC driver" {
        /// The machine's NICs, by libibverbs: a thread of the host posts what kernels ask for.
        Verbs = "verbs",
        /// The machine's ConnectX, by libmlx5: kernels write its queues. Nothing else is taken in its place.
        Mlx5 = "mlx5",
        /// `mlx5` where that can be opened and makes a queue pair, else `verbs`, with the reason in reports and in the log.
        Auto = "auto",
        /// A network of libfabric's: a thread of the host posts what kernels ask for.
        Libfabric = "libfabric",
        /// NICs in software, which talk over sockets: for trials without hardware.
        Software = "software",
    }
}

/// Whether a value that is set is within a range.
pub(super) fn within<T: PartialOrd + fmt::Display>(
    value: impl Into<Option<T>>,
    range: impl RangeBounds<T>,
) -> Result<(), String> {
    let Some(value) = value.into().filter(|value| !range.contains(value)) else { return Ok(()) };
    Err(format!("is {value}; allowed is {}", range_text(&range)))
}

/// The values in a range: `1 to 3`, `at least 1`, `at most 3`.
pub(super) fn range_text<T: fmt::Display>(range: &impl RangeBounds<T>) -> String {
    match (range.start_bound(), range.end_bound()) {
        (Bound::Included(least), Bound::Included(most)) => format!("{least} to {most}"),
        (Bound::Included(least), _) => format!("at least {least}"),
        (_, Bound::Included(most) | Bound::Excluded(most)) => format!("at most {most}"),
        (_, Bound::Unbounded) => unreachable!("a range without bounds holds every value"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_finite_and_above_zero() {
        for (given, number) in [(toml::Value::Float(0.5), 0.5), (toml::Value::Integer(400), 400.0)] {
            assert_eq!(f64::read(given), Ok(number));
        }
        for given in [0.0, -1.0, f64::NAN, f64::INFINITY] {
            assert!(f64::read(given.into()).is_err_and(|error| error.contains("above 0")), "{given}");
        }
    }

    #[test]
    fn ranges_refuse_values_outside_with_what_is_allowed() {
        assert_eq!(within(Some(3), 1..=3), Ok(()));
        assert_eq!(within(None, 1..=3), Ok(()));
        assert_eq!(within(4, 1..=3), Err("is 4; allowed is 1 to 3".into()));
        assert_eq!(within(0, 1..), Err("is 0; allowed is at least 1".into()));
        assert_eq!(within(ByteSize(5), ..=ByteSize(4)), Err("is 5 B; allowed is at most 4 B".into()));
    }
}
