//! NICs: peers on other machines (or on this one) by queue pairs whose entries kernels write.
//!
//! A [`NicDriver`] makes what kernels need: registered memory with its keys, and queue pairs connected to a peer's. Which *provider*
//! a driver is ([`Provider`]) decides the format of the entries that kernels write, and they are compiled for that one: the formats of
//! NICs, or requests that a thread of the host posts ([`Provider::Posted`]). [`RdmaQueue`] is what kernels know of a queue pair
//! ([`device`]), and [`RdmaTransport`] reaches peers by queue pairs of the NIC that a [`NicSource`] opens for the rank.
#![deny(unsafe_code)]

/// The name that shared test code calls this crate by.
#[cfg(test)]
extern crate self as anabranch_transport_rdma;

mod bindings;
mod channel;
pub mod device;
mod driver;
mod endpoint;
mod error;
mod machine;
/// Machines as text, which the tests outside the library share.
#[cfg(test)]
#[allow(dead_code, reason = "the tests outside use the rest")]
#[path = "../tests/machines/mod.rs"]
mod machines;
pub mod mlx5;
pub mod nics;
mod offer;
mod posted;
#[allow(unsafe_code, reason = "reads memory that kernels write")]
pub mod posting;
mod provider;
mod ranges;
mod source;
#[allow(unsafe_code, reason = "looks for symbols of a library")]
pub mod symbols;
mod syndrome;
mod transport;
#[allow(unsafe_code, reason = "calls a C library")]
mod verbs;
mod view;

pub use device::DEVICE_HEADERS;
pub use driver::{
    Atomics, NicDriver, NicLimits, NicQueue, QueueSpec, QueueWords, ReadOrder, Registered, UnansweredRequests,
};
pub use error::{NicError, Result};
pub use machine::{MachineDriver, MachineNics};
pub use nics::RdmaConfig;
pub use posted::{POSTED_COMPLETION_WORDS, POSTED_FENCED, PostedOpcode, PostedRequest};
pub use provider::Provider;
pub use ranges::MOST_RANGES;
pub use source::{NicSource, OpenNic};
pub use syndrome::syndrome_words;
pub use transport::{LocalRange, RdmaTransport};
pub use verbs::PostedDriver;
pub use view::{ROUTE_MAPPING, ROUTE_NIC, RdmaQueue, RdmaRange};
