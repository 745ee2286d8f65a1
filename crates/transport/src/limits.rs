//! The ranges of the settings of transports, which builds without a transport check too.

use std::fmt;
use std::ops::RangeInclusive;
use std::time::Duration;

/// The numbers that a setting may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// The least.
    pub least: u64,
    /// The most.
    pub most: u64,
    step: Step,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    PowerOfTwo,
    MultipleOf(u64),
}

/// Queues, or queue pairs, to each peer.
pub const QUEUES: Limits = Limits { least: 1, most: 64, step: Step::MultipleOf(1) };
/// Bytes of the ring of a copy engine's queue: half of the least one holds a copy, a signal and a fence.
pub const RING_BYTES: Limits = Limits { least: 256, most: 64 << 20, step: Step::PowerOfTwo };
/// The most bytes of one copy packet.
pub const COPY_BYTES: Limits =
    Limits { least: 32, most: u32::MAX as u64 / 32 * 32, step: Step::MultipleOf(32) };
/// Entries of a NIC's send queue. Entries are counted in 16 bits, and half of what they count must be more than a queue holds.
pub const SEND_ENTRIES: Limits = Limits { least: 16, most: 32 << 10, step: Step::PowerOfTwo };
/// Service levels of InfiniBand, which has 4 bits for them.
pub const SERVICE_LEVEL: Limits = Limits { least: 0, most: 15, step: Step::MultipleOf(1) };
/// How long a peer's NIC may take to answer.
pub const PATIENCE: RangeInclusive<Duration> = Duration::from_millis(1)..=Duration::from_secs(3600);

/// A setting that is equal on all ranks: its key, its value, and what is allowed if the value is not.
pub type SharedSetting = (&'static str, String, Option<String>);

impl Limits {
    /// A setting with these limits.
    pub fn setting(&self, name: &'static str, value: impl Into<u64>) -> SharedSetting {
        let value = value.into();
        (name, value.to_string(), (!self.allows(value)).then(|| self.to_string()))
    }

    /// Whether a number is allowed.
    pub const fn allows(&self, number: u64) -> bool {
        let fits = match self.step {
            Step::PowerOfTwo => number.is_power_of_two(),
            Step::MultipleOf(step) => number.is_multiple_of(step),
        };
        fits && self.least <= number && number <= self.most
    }
}

impl fmt::Display for Limits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { least, most, step } = self;
        match step {
            Step::MultipleOf(1) => write!(f, "{least} to {most}"),
            Step::MultipleOf(step) => write!(f, "a multiple of {step} from {least} to {most}"),
            Step::PowerOfTwo => write!(f, "a power of two from {least} to {most}"),
        }
    }
}
