//! What decides for attached threads.

use core::fmt::Debug;
use core::time::Duration;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

/// A thread's place in a driver's order. Seats are given out before threads start, so that their order does not
/// depend on how fast the system starts threads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Seat(pub u32);

/// Runs attached threads one at a time and keeps their clock.
///
/// Every function but [`Driver::now`] and [`Driver::seats`] is called by the thread in the seat and may block it for as long as others have
/// the turn. A thread that has the turn keeps it until it calls one of them.
pub trait Driver: Send + Sync + Debug {
    /// Time since the driver's origin.
    fn now(&self) -> Duration;

    /// Gives out a seat for each of these threads, all at once, in their order. Nobody has the turn before all of them have
    /// seats. An owner is the number of the rank that the thread works for: what strikes a rank strikes its threads.
    /// Called by the thread that is about to start them.
    fn seats(&self, owners: &[u32]) -> Vec<Seat>;

    /// The thread in this seat has started; returns when it has its first turn. Once for each seat.
    fn enter(&self, seat: Seat);

    /// The thread in this seat ends, or does no more that the driver has to know of. It must not call again. For a thread that
    /// could not be started, the one that tried says so.
    fn leave(&self, seat: Seat);

    /// Waits until `until`, or until the counter of `signal` differs from the value seen. Without either it waits for
    /// ever. May return early; callers look again.
    fn wait(&self, seat: Seat, signal: Option<(&Arc<AtomicU64>, u64)>, until: Option<Duration>);

    /// Others may go first. `what` is what the thread is about to do, for logs.
    fn give_way(&self, seat: Seat, what: &'static str);
}
