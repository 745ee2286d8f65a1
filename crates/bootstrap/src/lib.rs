//! Ranks find each other, exchange bytes, and notice when one is missing.
//!
//! [`Rendezvous`] is what the layers above see. Its forms:
//!
//! * [`threads`]: the ranks are threads of one process.
//! * [`TcpRendezvous`]: the ranks are processes; rank 0 serves a store over TCP.
//! * [`launcher::from_environment`] reads rank, size and the root's address from what torchrun, SLURM,
//!   Open MPI or MPICH gave the process; [`TcpRendezvous::join`] does the rest.
//!
//! All forms share one state machine (`hub`, no I/O), so that they agree on what fails when:
//!
//! * A collective ends the same way on all members that take part: with the bytes of all, or with one cause
//!   that all get.
//! * Every call has a deadline. On expiry the error lists the ranks that have not come and the phase.
//! * The loss of a rank is reported to all others at once; every wait for it fails at once.
//!
//! ```
//! use anabranch_bootstrap::{Deadline, Rendezvous, threads};
//! use anabranch_ranks::Group;
//! use std::time::Duration;
//!
//! let world = Group::world(3)?;
//! std::thread::scope(|scope| {
//!     for rendezvous in threads(3) {
//!         let world = &world;
//!         scope.spawn(move || {
//!             let mine = [rendezvous.rank().get() as u8];
//!             let all = rendezvous.all_gather(world, "hello", &mine, Deadline::after(Duration::from_secs(5)))?;
//!             assert_eq!(all, [[0], [1], [2]]);
//!             rendezvous.leave()
//!         });
//!     }
//! });
//! # Ok::<(), anabranch_ranks::Error>(())
//! ```
#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod client;
mod deadline;
mod error;
mod frame;
mod hub;
pub mod launcher;
mod loss;
mod mailbox;
mod message;
mod rendezvous;
mod secret;
#[cfg(not(loom))]
#[cfg(test)]
mod seeded;
mod session;
mod sync;
mod tcp;
mod threads;
mod unique_id;
mod wire;

pub use deadline::Deadline;
pub use error::{Error, OtherCall, Refusal};
pub use frame::FrameError;
pub use loss::{Loss, LossKind, LossObserver};
pub use rendezvous::Rendezvous;
pub use secret::Secret;
pub use session::Session;
pub use tcp::{Heartbeat, JoinStop, TcpConfig, TcpRendezvous, TcpRoot};
pub use threads::{ThreadRendezvous, threads};
pub use unique_id::{UniqueId, UniqueIdError};
