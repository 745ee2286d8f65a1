//! Communicators: their memory, the calls that they prepare and launch, and the work that comes back.

mod checker;
mod communicator;
mod config;
mod fingerprint;
mod internode;
mod prepared;
mod sizes;
mod steps;
mod work;

pub use checker::CHECK_OPERATION;
pub use communicator::{Communicator, MESSAGE_OPERATION, OPERATION};
pub use config::{CclConfig, Check, Meetings, UnknownCheck};
pub use prepared::Prepared;
pub use work::Work;
