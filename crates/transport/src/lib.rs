//! What a way of moving bytes must offer: the trait, plain data, errors. No HIP and no `unsafe` here.
//!
//! A [`Transport`] gives peers what they need to reach a region of memory (an *offer*: opaque bytes that travel
//! out of band), says whether it reaches a peer and why not, and opens a peer's offer as [`PeerMemory`]. Which
//! transport serves which peer is a [`Route`], kept with its reasons for people to read. What a transport can do
//! from inside kernels is its row in the [operation matrix](operation_table).
//!
//! # The trait as the seam
//!
//! Crates above hold transports in an enum and dispatch to them with `enum_dispatch`, which has to read the
//! trait's text. It cannot do so across crates by itself, so the text exists once, inside the exported macro
//! [`transport_trait!`]: this crate invokes it plainly, the crate with the enum invokes it once more with the
//! attribute, in a private module, and imports the real trait under the same name.
#![forbid(unsafe_code)]

// The macro's text names its types by this crate's own name, also in this crate.
extern crate self as anabranch_transport;

mod capability;
mod error;
mod kind;
mod pci;
mod peer;
mod replay;
mod route;

pub use capability::{Operation, Scope, Support, operation_table};
pub use error::{Error, Refusal, Result};
pub use kind::TransportKind;
pub use pci::{PciAddress, UnknownPciAddress};
pub use peer::{HostIdentity, PeerInfo, ProcessIdentity};
pub use replay::{Audience, Origin, PeerMemory, Reach, Region, Transport};
pub use route::Route;
