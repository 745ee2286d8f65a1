//! What time it is, and how a thread waits.
//!
//! Host code of this workspace reads the time with [`Moment::now`], waits for other threads with [`Signal`] and sleeps with
//! [`sleep`]. On an ordinary thread these are the system's monotonic clock, a condition variable, and the system's sleep. On
//! a thread that is *attached* to a [`Driver`], the driver decides: a simulation runs one thread at a time, in an order
//! drawn from a seed, and moves a virtual clock when all of them wait, so that a deadline of seconds expires at once and
//! the same seed gives the same run.
//!
//! Attachment belongs to a thread, as HIP's current device does; there is nothing global. What waits in any other way
//! (a bare condition variable, a channel, a join) stops a simulation: attached threads must not.
//!
//! `anabranch-lockstep` is the driver for tests of host code that need no devices.

mod attach;
mod driver;
mod moment;
mod signal;
pub mod sync;

pub use attach::{Attached, attach, driver_number, give_way, is_attached, sleep};
pub use driver::{Driver, Seat};
pub use moment::Moment;
pub use signal::Signal;
