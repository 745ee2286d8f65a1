//! Threads of one process that want the same thing: one makes it, the others wait.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use anabranch_clock::{Moment, Signal};

use crate::key::CacheKey;
use crate::sync::{Mutex, lock};

#[derive(Debug, Default)]
pub(crate) struct Flights {
    open: Mutex<HashMap<CacheKey, Arc<Flight>>>,
}

#[derive(Debug, Default)]
pub(crate) struct Flight {
    done: Mutex<bool>,
    changed: Signal,
}

/// What a thread that asks is to do.
#[derive(Debug)]
pub(crate) enum Role<'a> {
    /// Make it; dropping this lets the others look.
    Lead(Leader<'a>),
    /// Wait for the one who does.
    Follow(Arc<Flight>),
}

#[derive(Debug)]
pub(crate) struct Leader<'a> {
    flights: &'a Flights,
    key: CacheKey,
    flight: Arc<Flight>,
}

impl Flights {
    pub(crate) fn join(&self, key: CacheKey) -> Role<'_> {
        let mut open = lock(&self.open);
        if let Some(flight) = open.get(&key) {
            return Role::Follow(flight.clone());
        }
        let flight = Arc::new(Flight::default());
        open.insert(key, flight.clone());
        Role::Lead(Leader { flights: self, key, flight })
    }
}

impl Flight {
    /// Whether the leader was done within the time.
    pub(crate) fn wait(&self, longest: Duration) -> bool {
        let until = Moment::now().after(longest);
        let mut done = lock(&self.done);
        while !*done {
            if until.remaining().is_zero() {
                return false;
            }
            done = self.changed.wait(&self.done, done, Some(until));
        }
        true
    }
}

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
