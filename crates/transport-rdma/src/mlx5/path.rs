//! The port, and the way to a peer.

use crate::nics::LinkLayer;

/// The port that a driver uses, as verbs describes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PortFacts {
    /// Its number, from 1 on.
    pub number: u8,
    /// What its wire is.
    pub link_layer: LinkLayer,
    /// Its local identifier; 0 on Ethernet.
    pub lid: u16,
    /// Its address in use, as an index of its table. The NIC has 8 bits for it.
    pub gid_index: u8,
    /// The address itself, in the order of the wire.
    pub gid: [u8; 16],
    /// The most bytes of a packet: 256, 512, 1024, 2048 or 4096.
    pub mtu: u32,
    /// The most reads and atomic operations of a queue pair that may be under way (`max_qp_rd_atom`), at least 1.
    pub most_reads: u32,
}

impl PortFacts {
    /// [`Self::most_reads`] as the NIC counts them: a power of two, at most 2 to the 7th.
    pub(super) fn log_reads(&self) -> u64 {
        u64::from(self.most_reads.max(1).ilog2().min(7))
    }
}

/// What the system is asked for the way to a peer (`ibv_ah_attr`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PathRequest {
    /// The port's number.
    pub port: u8,
    /// The own address, as an index of the port's table.
    pub gid_index: u8,
    /// The peer's address.
    pub remote_gid: [u8; 16],
    /// Traffic class.
    pub traffic_class: u8,
    /// Priority.
    pub service_level: u8,
}

/// Where packets go first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NextHop {
    /// The Ethernet address of the peer or of the router to it.
    pub mac: [u8; 6],
}
