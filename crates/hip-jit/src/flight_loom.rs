//! [`SingleFlight`] under loom: in every order of three threads, one compiles and none waits for ever.

use std::sync::Arc;
use std::time::Duration;

use loom::sync::atomic::{AtomicU32, Ordering};
use loom::thread::spawn;

use super::{Flight, Leader, Role, SingleFlight};
use crate::key::CacheKey;
use crate::sync::{Mutex, lock};

#[derive(Default)]
struct Shared {
    flights: SingleFlight,
    /// Whether it is made; stands for the entry on the disk.
    made: Mutex<bool>,
    /// Attempts, of which the first ones fail.
    attempts: AtomicU32,
}

fn key() -> CacheKey {
    "0".repeat(64).parse().unwrap()
}

type Land = fn(Leader<'_>);

fn land(leader: Leader<'_>) {
    drop(leader);
}

/// As `Jit::compile` does it: look, make or wait, look again.
fn want(shared: &Shared, failures: u32, land: Land) -> bool {
    loop {
        if *lock(&shared.made) {
            return true;
        }
        match shared.flights.join(key()) {
            Role::Lead(leader) => {
                // The second look, which the leader makes under the key's lock.
                if !*lock(&shared.made) {
                    if shared.attempts.fetch_add(1, Ordering::Relaxed) < failures {
                        land(leader);
                        return false;
                    }
                    *lock(&shared.made) = true;
                }
                land(leader);
                return true;
            }
            Role::Follow(flight) => assert!(flight.wait(Duration::MAX), "waited in vain"),
        }
    }
}

fn everybody_ends(threads: u32, failures: u32, land: Land) {
    loom::model(move || {
        let shared = Arc::new(Shared::default());
        let others: Vec<_> = (1..threads)
            .map(|_| {
                let shared = Arc::clone(&shared);
                spawn(move || want(&shared, failures, land))
            })
            .collect();
        let mut served = u32::from(want(&shared, failures, land));
        for thread in others {
            served += u32::from(thread.join().unwrap());
        }
        assert_eq!(served, threads - failures);
        assert_eq!(shared.attempts.load(Ordering::Relaxed), failures + 1, "made more than once");
        assert!(lock(&shared.flights.open).is_empty(), "a flight is left behind");
    });
}

#[test]
fn loom_one_makes_for_all() {
    everybody_ends(2, 0, land);
    everybody_ends(3, 0, land);
}

#[test]
fn loom_another_takes_over_from_one_that_fails() {
    everybody_ends(2, 1, land);
    everybody_ends(3, 1, land);
}

/// The parts of a leader whose own end does not come.
fn parts(leader: Leader<'_>) -> (&SingleFlight, CacheKey, Arc<Flight>) {
    let leader = std::mem::ManuallyDrop::new(leader);
    (leader.flights, leader.key, leader.flight.clone())
}

#[test]
#[should_panic(expected = "deadlock")]
fn loom_catches_a_leader_that_notifies_too_early() {
    everybody_ends(2, 0, |leader| {
        let (flights, key, flight) = parts(leader);
        lock(&flights.open).remove(&key);
        flight.changed.notify_all();
        *lock(&flight.done) = true;
    });
}

#[test]
#[should_panic(expected = "deadlock")]
fn loom_catches_a_leader_that_does_not_notify() {
    everybody_ends(2, 0, |leader| {
        let (flights, key, flight) = parts(leader);
        lock(&flights.open).remove(&key);
        *lock(&flight.done) = true;
    });
}

#[test]
#[should_panic(expected = "made more than once")]
fn loom_catches_flights_that_are_looked_up_and_entered_in_two_steps() {
    loom::model(|| {
        let shared = Arc::new(Shared::default());
        let join = |shared: &Shared| {
            if lock(&shared.flights.open).contains_key(&key()) {
                return;
            }
            lock(&shared.flights.open).insert(key(), Arc::default());
            shared.attempts.fetch_add(1, Ordering::Relaxed);
        };
        let other = spawn({
            let shared = Arc::clone(&shared);
            move || join(&shared)
        });
        join(&shared);
        other.join().unwrap();
        assert_eq!(shared.attempts.load(Ordering::Relaxed), 1, "made more than once");
    });
}
