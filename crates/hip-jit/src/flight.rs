//! Threads of one process that need the same kernel: one compiles it, the others wait.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

#[cfg(not(loom))]
use anabranch_clock::Moment;
use anabranch_clock::Signal;

use crate::deadline::Deadline;
use crate::key::CacheKey;
use crate::sync::{Mutex, MutexGuard, lock};

#[derive(Debug, Default)]
pub(crate) struct SingleFlight {
    open: Mutex<HashMap<CacheKey, Arc<Flight>>>,
}

#[derive(Debug, Default)]
pub(crate) struct Flight {
    done: Mutex<bool>,
    changed: Signal,
    /// The clock driver of the leader's thread.
    #[cfg(not(loom))]
    driver: Option<usize>,
}

/// The role of a calling thread.
#[derive(Debug)]
pub(crate) enum Role<'a> {
    /// Compile it; dropping this wakes the others.
    Lead(Leader<'a>),
    /// Wait for the leader.
    Follow(Arc<Flight>),
}

#[derive(Debug)]
pub(crate) struct Leader<'a> {
    flights: &'a SingleFlight,
    key: CacheKey,
    flight: Arc<Flight>,
}

impl SingleFlight {
    pub(crate) fn join(&self, key: CacheKey) -> Role<'_> {
        let mut open = lock(&self.open);
        if let Some(flight) = open.get(&key) {
            return Role::Follow(flight.clone());
        }
        let flight = Arc::new(Flight {
            #[cfg(not(loom))]
            driver: anabranch_clock::driver_number(),
            ..Flight::default()
        });
        open.insert(key, flight.clone());
        Role::Lead(Leader { flights: self, key, flight })
    }
}

impl Flight {
    /// Whether the leader finished within the time, which is wall-clock time: compilers run in it, and the leader may be a
    /// thread that the caller's driver does not schedule.
    pub(crate) fn wait(&self, longest: Duration) -> bool {
        let deadline = Deadline::after(longest);
        let mut done = lock(&self.done);
        while !*done {
            if deadline.passed() {
                return false;
            }
            done = self.wait_a_little(done, deadline.left());
        }
        true
    }

    #[cfg(not(loom))]
    fn wait_a_little<'a>(&'a self, done: MutexGuard<'a, bool>, left: Duration) -> MutexGuard<'a, bool> {
        let mine = anabranch_clock::driver_number();
        if mine.is_none() || mine == self.driver {
            return self.changed.wait(&self.done, done, Some(Moment::now().after(left)));
        }
        // The leader is outside this thread's driver, whose order must not depend on when the wait ends.
        drop(done);
        #[expect(clippy::disallowed_methods, reason = "the leader compiles outside the driver's order")]
        std::thread::sleep(REST);
        lock(&self.done)
    }

    #[cfg(loom)]
    fn wait_a_little<'a>(&'a self, done: MutexGuard<'a, bool>, _left: Duration) -> MutexGuard<'a, bool> {
        self.changed.wait(&self.done, done, None)
    }
}

/// Between two checks of a thread under a driver.
#[cfg(not(loom))]
const REST: Duration = Duration::from_millis(1);

impl Drop for Leader<'_> {
    fn drop(&mut self) {
        lock(&self.flights.open).remove(&self.key);
        *lock(&self.flight.done) = true;
        self.flight.changed.notify_all();
    }
}

#[cfg(all(test, loom))]
#[path = "flight_loom.rs"]
mod loom_tests;
