//! Communicators: their memory, prepared calls, launches, and the returned work.

mod checker;
mod communicator;
mod config;
mod fingerprint;
#[cfg(feature = "rdma")]
mod internode;
mod nodes;
mod prepared;
mod sizes;
mod steps;
mod work;

pub use checker::CHECK_OPERATION;
pub use communicator::{Communicator, MESSAGE_OPERATION, OPERATION};
pub use config::{BarrierMode, CclConfig, Check};
pub use prepared::Prepared;
pub use work::Work;
