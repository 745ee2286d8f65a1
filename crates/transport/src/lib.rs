//! What a way of moving bytes must offer: the trait, plain data, errors. No HIP and no `unsafe` here.
//!
//! A [`Transport`] gives peers what they need to reach a region of memory (an *offer*: opaque bytes that travel
//! out of band), says whether it reaches a peer and why not, and opens a peer's offer as [`PeerMemory`]. Which
//! transport serves which peer is a [`Route`], kept with its reasons for people to read. What a transport can do
//! from inside kernels is its row in the [operation matrix](operation_table).
#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod capability;
mod error;
mod kind;
pub mod limits;
mod pci;
mod peer;
mod route;
mod transport;

pub use capability::{Operation, Scope, Support, operation_table};
pub use error::{Error, Refusal, Result};
pub use kind::TransportKind;
pub use pci::{PciAddress, UnknownPciAddress};
pub use peer::{HostIdentity, PeerInfo, ProcessIdentity};
pub use route::Route;
pub use transport::{
    Audience, Explanation, LocalMemory, Origin, PeerMemory, Reach, Region, StoppedQueue, Transport,
    UnansweredQueue,
};
