//! Points in time that waits end at.

use std::time::{Duration, Instant};

/// Longer than any wait that is meant; stands in where a duration does not fit the clock.
const FAR: Duration = Duration::from_secs(30 * 365 * 24 * 3600);

/// A point in time at which a wait ends with an error.
///
/// Several calls may share one: it does not start anew for each.
#[derive(Clone, Copy, Debug)]
pub struct Deadline {
    made: Instant,
    end: Instant,
}

impl Deadline {
    /// The point in time this long from now.
    pub fn after(duration: Duration) -> Self {
        let made = Instant::now();
        Self { made, end: made.checked_add(duration).unwrap_or_else(|| made + FAR) }
    }

    /// The time that is left; zero when it has passed.
    pub fn remaining(&self) -> Duration {
        self.end.saturating_duration_since(Instant::now())
    }

    /// Whether it has passed.
    pub fn expired(&self) -> bool {
        self.remaining().is_zero()
    }

    /// The time since it was made, for messages.
    pub fn waited(&self) -> Duration {
        self.made.elapsed()
    }
}
