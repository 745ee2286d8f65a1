//! The port, and the way to a peer.

use crate::nics::{GidKind, LinkLayer};

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
    /// What packets with that address look like.
    pub gid_kind: GidKind,
    /// The most bytes of a packet: 256, 512, 1024, 2048 or 4096.
    pub mtu: u32,
    /// The most reads and atomic operations of a peer that a queue pair answers at a time (`max_qp_rd_atom`), at least 1.
    pub most_answered: u32,
    /// The most reads and atomic operations of its own that a queue pair may have under way (`max_qp_init_rd_atom`), at least 1.
    pub most_asked: u32,
}

/// Reads and atomic operations at a time as the NIC counts them: the exponent of a power of two, at most 7, of at most `count`.
pub(super) fn log_reads(count: u32) -> u32 {
    count.max(1).ilog2().min(7)
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
