//! Copy engines: the packets that they read, and the arithmetic of the rings in which these stand.
//!
//! A GPU has engines beside its compute units (AMD calls them SDMA) that copy memory. Each reads packets of 32-bit words from a
//! ring in memory. This crate says what the words are: [`Packet`] with its encoder, [`decode`] with a decoder that shares
//! nothing with it, and both after the differences between engines that [`Generation`] holds as data. [`format`](mod@format) is
//! the one table of fields; the constants of the device header `sdma/packets.h` are rendered from it ([`header`]). [`Ring`]
//! is the size of a ring, and [`engine`] an engine in software.
//!
//! Layouts: AMD's public packet headers of the Linux driver (`vega10_sdma_pkt_open.h`, `sdma_pkt_struct.h` of ROCr), and words
//! captured from a runtime that wrote its own queue.
//!
//! [`SoftwareQueue`] is a ring with such an engine running under the host runtime, and `maker` chooses what a device has. [`DeviceQueue`] is
//! a queue whose producers are kernels (`sdma/queue.h`), and [`SdmaTransport`] reaches peers by such queues, or
//! by streams where a runtime does not expose its engines. [`amd`] makes queues on AMD's engines; it has not run on hardware.
#![deny(unsafe_code)]

pub mod amd;
mod config;
pub mod decode;
mod device_queue;
pub mod engine;
mod error;
pub mod format;
mod generation;
pub mod header;
mod maker;
mod packet;
mod ring;
mod software;
mod transport;

use anabranch_hip_jit::Header;

pub use config::SdmaConfig;
pub use device_queue::{
    DeviceQueue, DeviceQueueError, EngineWords, Port, QueueEngine, ROUTE_HOST, ROUTE_MAPPING, ROUTE_QUEUE,
    SdmaQueue,
};
pub use error::{Error, Result};
pub use generation::{GENERATIONS, Generation};
pub use packet::Packet;
pub use ring::{Ring, UNIT};
pub use software::{EngineFaults, SoftwareConfig, SoftwareQueue};
pub use transport::SdmaTransport;

/// The headers `sdma/*.h`, for kernels that put packets into queues. [`SdmaQueue`] is among the layouts of the unit.
pub const DEVICE_HEADERS: &[Header] = &[
    Header { name: "sdma/packets.h", text: include_str!("../device/sdma/packets.h") },
    Header { name: "sdma/queue.h", text: include_str!("../device/sdma/queue.h") },
    Header { name: "sdma/words.h", text: include_str!("../device/sdma/words.h") },
];
