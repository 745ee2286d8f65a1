//! Copy engines: the packets that they read, and the arithmetic of the rings in which these stand.
//!
//! A GPU has engines beside its compute units (AMD calls them SDMA) that copy memory. Each reads packets of 32-bit words from a
//! ring in memory. This crate says what the words are: [`Packet`] with its encoder, [`decode`] with a decoder that shares
//! nothing with it, and both after the differences between engines that [`Generation`] holds as data. [`format`](mod@format) is
//! the one table of fields; the constants of the device header `sdma/packets.h` are rendered from it ([`header`]). [`cut`]
//! divides a length into copies that an engine takes, and [`Ring`] says where packets stand so that none crosses the end.
//! [`Queue`] is the producers' side of a ring, for any number of threads; [`engine`] is an engine in software.
//!
//! Layouts: AMD's public packet headers of the Linux driver (`vega10_sdma_pkt_open.h`, `sdma_pkt_struct.h` of ROCr), and words
//! captured from a runtime that wrote its own queue.
//!
//! [`amd`] finds AMD's engines and makes queues on them; it has not run on hardware. There are no routes here yet: a configuration
//! that asks for the transport `sdma` is refused where the transports are made.
#![deny(unsafe_code)]

pub mod amd;
mod cut;
pub mod decode;
pub mod engine;
mod error;
pub mod format;
mod generation;
pub mod header;
mod packet;
mod queue;
mod ring;

pub use cut::{Piece, cut};
pub use error::{Error, Result};
pub use generation::{GENERATIONS, Generation};
pub use packet::{Compare, Packet};
pub use queue::{Port, Queue, QueueError};
pub use ring::{Placement, Ring, UNIT};
