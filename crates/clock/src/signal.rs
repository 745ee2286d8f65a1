//! A condition variable that a driver understands.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError};

use crate::Moment;
#[cfg(not(loom))]
use crate::attach::current;
use crate::sync::{Condvar, Mutex, MutexGuard};

/// Tells threads that what a mutex guards has changed. One mutex for each signal, as with a condition variable.
#[derive(Debug, Default)]
pub struct Signal {
    condition: Condvar,
    /// Counts notices, for threads under a driver.
    notices: Arc<AtomicU64>,
}

impl Signal {
    /// A signal that nobody waits for.
    pub fn new() -> Self {
        Self::default()
    }

    /// Wakes all that wait. Change what the mutex guards first, under the mutex.
    pub fn notify_all(&self) {
        self.notices.fetch_add(1, Ordering::SeqCst);
        self.condition.notify_all();
    }

    /// Lets go of the guard, waits for a notice or for `until`, and takes the lock again. May return early: look at what
    /// is guarded, and at the time, in a loop. Poison is ignored.
    #[cfg(not(loom))]
    pub fn wait<'a, T>(
        &self,
        mutex: &'a Mutex<T>,
        guard: MutexGuard<'a, T>,
        until: Option<Moment>,
    ) -> MutexGuard<'a, T> {
        if let Some((driver, seat)) = current() {
            // Read under the lock: a notice that follows a change made after this is seen as a difference.
            let seen = self.notices.load(Ordering::SeqCst);
            drop(guard);
            driver.wait(seat, Some((&self.notices, seen)), until.map(Moment::since_origin));
            return mutex.lock().unwrap_or_else(PoisonError::into_inner);
        }
        self.wait_outside(guard, until)
    }

    /// [`Self::wait`] by the system's clock, also on an attached thread, which keeps its turn meanwhile: for a notice of a
    /// thread that the driver does not know.
    #[cfg(not(loom))]
    #[expect(clippy::disallowed_methods, reason = "the system's wait is what a thread without a driver gets")]
    pub fn wait_outside<'a, T>(&self, guard: MutexGuard<'a, T>, until: Option<Moment>) -> MutexGuard<'a, T> {
        match until {
            None => self.condition.wait(guard).unwrap_or_else(PoisonError::into_inner),
            Some(until) => {
                let waited = self.condition.wait_timeout(guard, until.remaining());
                waited.unwrap_or_else(PoisonError::into_inner).0
            }
        }
    }

    /// In loom's orders time never passes.
    #[cfg(loom)]
    pub fn wait_outside<'a, T>(&self, guard: MutexGuard<'a, T>, _until: Option<Moment>) -> MutexGuard<'a, T> {
        self.condition.wait(guard).unwrap_or_else(PoisonError::into_inner)
    }

    /// In loom's orders time never passes.
    #[cfg(loom)]
    pub fn wait<'a, T>(
        &self,
        _mutex: &'a Mutex<T>,
        guard: MutexGuard<'a, T>,
        _until: Option<Moment>,
    ) -> MutexGuard<'a, T> {
        self.condition.wait(guard).unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use core::time::Duration;

    #[test]
    fn a_notice_wakes_and_a_deadline_ends_a_wait() {
        let shared = (Mutex::new(false), Signal::new());
        std::thread::scope(|scope| {
            scope.spawn(|| {
                *shared.0.lock().unwrap() = true;
                shared.1.notify_all();
            });
            let mut changed = shared.0.lock().unwrap();
            while !*changed {
                changed = shared.1.wait(&shared.0, changed, None);
            }
        });
        let until = Moment::now().after(Duration::from_millis(2));
        let mut guard = shared.0.lock().unwrap();
        while !until.remaining().is_zero() {
            guard = shared.1.wait(&shared.0, guard, Some(until));
        }
        drop(guard);
    }
}
