//! Points in time.

use core::time::Duration;

use rustix::time::{ClockId, clock_gettime};

use crate::attach::current;

/// A point in time, by the clock of the thread that asked: the system's monotonic clock, or its driver's.
///
/// Moments of different clocks do not compare to anything useful; no code of this workspace hands one from an attached
/// thread to one that is not.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Moment(Duration);

impl Moment {
    /// Now.
    pub fn now() -> Self {
        match current() {
            Some((driver, _)) => Self(driver.now()),
            None => Self(monotonic()),
        }
    }

    /// The moment this much later; the last one that there is where it would be beyond that.
    #[must_use]
    pub fn after(self, duration: Duration) -> Self {
        Self(self.0.saturating_add(duration))
    }

    /// The time since an earlier moment; zero when that is not earlier.
    pub fn since(self, earlier: Self) -> Duration {
        self.0.saturating_sub(earlier.0)
    }

    /// The time from now until this moment; zero when it has passed.
    pub fn remaining(self) -> Duration {
        self.since(Self::now())
    }

    /// The time since this moment; zero when it is still to come.
    pub fn elapsed(self) -> Duration {
        Self::now().since(self)
    }

    /// The time since the clock's origin.
    pub fn since_origin(self) -> Duration {
        self.0
    }
}

fn monotonic() -> Duration {
    let now = clock_gettime(ClockId::Monotonic);
    // CLOCK_MONOTONIC counts from boot: neither part is negative.
    Duration::new(now.tv_sec as u64, now.tv_nsec as u32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_goes_on_and_does_not_overflow() {
        let begun = Moment::now();
        assert!(Moment::now() >= begun);
        assert_eq!(begun.since(begun.after(Duration::from_secs(1))), Duration::ZERO);
        assert!(begun.after(Duration::MAX).remaining() > Duration::from_secs(1 << 40));
        assert!(begun.after(Duration::from_secs(5)).remaining() > Duration::from_secs(4));
    }
}
