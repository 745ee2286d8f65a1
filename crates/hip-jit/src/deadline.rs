//! Points in real time that waits for files, compilers and other processes end at.

#![expect(clippy::disallowed_methods, reason = "files and compilers live in the machine's time")]

use std::time::{Duration, Instant};

/// A point in time; one beyond the clock's range never comes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Deadline(Option<Instant>);

impl Deadline {
    pub(crate) fn after(duration: Duration) -> Self {
        Self(Instant::now().checked_add(duration))
    }

    pub(crate) fn passed(self) -> bool {
        self.left().is_zero()
    }

    pub(crate) fn left(self) -> Duration {
        self.0.map_or(Duration::MAX, |end| end.saturating_duration_since(Instant::now()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_duration_will_do() {
        assert!(Deadline::after(Duration::ZERO).passed());
        for long in [Duration::from_secs(60), Duration::MAX] {
            let deadline = Deadline::after(long);
            assert!(!deadline.passed() && deadline.left() > Duration::from_secs(50));
        }
    }
}
