//! The host's side of queues whose requests a thread of the host posts ([`Provider::Posted`](crate::Provider::Posted)), whatever it posts
//! them to.
//!
//! A ring is what kernels write, a post queue takes requests from it and gives completions back, [`Progress`] is the thread that serves the
//! post queues of a rank, and [`Served`] is a queue with all of these, from creation to its end. What a driver brings is a
//! [`WorkQueue`].

mod post_queue;
mod progress;
mod request;
mod ring;
mod served;

pub use post_queue::{Completion, Fault, TURN, WorkQueue};
pub use progress::Progress;
pub use request::opcode;
pub use served::{Making, Served};

/// The numbers of failures that are reported to kernels: `enum ibv_wc_status`, whichever thread posts.
pub mod status {
    use crate::bindings as verbs;

    /// It is done.
    pub const SUCCESS: u32 = verbs::IBV_WC_SUCCESS;
    /// Something local that is not registered.
    pub const LOCAL_PROTECTION: u32 = verbs::IBV_WC_LOC_PROT_ERR;
    /// It was ended, as something else had failed before.
    pub const FLUSHED: u32 = verbs::IBV_WC_WR_FLUSH_ERR;
    /// No completion arrived within the patience.
    pub const TIMEOUT: u32 = verbs::IBV_WC_RESP_TIMEOUT_ERR;
    /// The NIC cannot be asked any more.
    pub const FATAL: u32 = verbs::IBV_WC_FATAL_ERR;
    /// The peer's memory is not given to this rank.
    pub const REMOTE_ACCESS: u32 = verbs::IBV_WC_REM_ACCESS_ERR;
    /// The NIC reports that the peer does not answer.
    pub const NO_ANSWER: u32 = verbs::IBV_WC_RETRY_EXC_ERR;
    /// Anything else.
    pub const GENERAL: u32 = verbs::IBV_WC_GENERAL_ERR;
}
