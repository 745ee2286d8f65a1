//! Points in time that waits end at.

use anabranch_clock::Moment;
use std::time::Duration;

/// Longer than any wait that is meant, and short enough for every system call that takes a time.
const FAR: Duration = Duration::from_secs(30 * 365 * 24 * 3600);

/// A point in time at which a wait ends with an error, by the clock of the thread that made it.
///
/// Several calls may share one: it does not start anew for each.
#[derive(Clone, Copy, Debug)]
pub struct Deadline {
    made: Moment,
    end: Moment,
}

impl Deadline {
    /// The point in time this long from now.
    pub fn after(duration: Duration) -> Self {
        let made = Moment::now();
        Self { made, end: made.after(duration.min(FAR)) }
    }

    /// The time that is left; zero when it has passed.
    pub fn remaining(&self) -> Duration {
        self.end.remaining()
    }

    /// Whether it has passed.
    pub fn expired(&self) -> bool {
        self.remaining().is_zero()
    }

    /// The time since it was made, for messages.
    pub fn waited(&self) -> Duration {
        self.made.elapsed()
    }

    /// The point itself, for waits.
    pub(crate) fn end(&self) -> Moment {
        self.end
    }
}
