//! What a peer is told of a queue pair.

use anabranch_ranks::GlobalRank;
use serde::{Deserialize, Serialize};

use super::path::PortFacts;
use crate::error::{NicError, Result};
use crate::nics::LinkLayer;

/// The driver's word in endpoints and errors.
pub(super) const DRIVER: &str = "mlx5";

/// A queue pair as its peer needs to know it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Endpoint {
    driver: String,
    /// Number of the queue pair.
    pub(super) number: u32,
    /// Whether the port is one of Ethernet.
    ethernet: bool,
    /// Local identifier; 0 on Ethernet.
    pub(super) lid: u16,
    /// Address.
    pub(super) gid: [u8; 16],
    /// The most bytes of a packet.
    pub(super) mtu: u32,
}

impl Endpoint {
    pub(super) fn new(number: u32, port: &PortFacts) -> Self {
        let ethernet = port.link_layer == LinkLayer::Ethernet;
        Self { driver: DRIVER.to_owned(), number, ethernet, lid: port.lid, gid: port.gid, mtu: port.mtu }
    }

    /// As bytes. (A structure of numbers and a word always has a form as text.)
    pub(super) fn to_bytes(&self) -> Vec<u8> {
        serde_json::to_vec(self).unwrap_or_default()
    }

    /// Reads a peer's, and whether a port can reach it.
    pub(super) fn read(peer: GlobalRank, bytes: &[u8], port: &PortFacts) -> Result<Self> {
        let wrong = |problem: String| NicError::Endpoint { peer, driver: DRIVER.to_owned(), problem };
        let other: Self = serde_json::from_slice(bytes).map_err(|error| wrong(error.to_string()))?;
        if other.driver != DRIVER {
            return Err(wrong(format!("it is one of {:?}", other.driver)));
        }
        if other.number == 0 || other.number > 0x00ff_ffff {
            return Err(wrong(format!("queue pair number {:#x}, 1 to 0xffffff allowed", other.number)));
        }
        if !is_mtu(other.mtu) {
            return Err(wrong(format!(
                "packets of {} bytes, 256, 512, 1024, 2048 or 4096 allowed",
                other.mtu
            )));
        }
        let own = port.link_layer;
        let their = if other.ethernet { LinkLayer::Ethernet } else { LinkLayer::Infiniband };
        if own != their {
            return Err(wrong(format!("its port is one of {their}, this rank's of {own}")));
        }
        if own == LinkLayer::Infiniband && other.lid == 0 {
            return Err(wrong("its port has no local identifier: is a subnet manager running?".to_owned()));
        }
        Ok(other)
    }
}

/// Whether packets may have so many bytes.
pub(super) fn is_mtu(bytes: u32) -> bool {
    bytes.is_power_of_two() && (256..=4096).contains(&bytes)
}
