//! What is mapped of the peers.

use anabranch_hip::DeviceAddress;
use anabranch_ranks::GlobalRank;
use anabranch_transport::{Origin, PeerMemory, StoppedQueue, Transport};

use super::transports::Transports;

/// The transports, and what is open of the peers. Emptied by `leave`.
#[derive(Debug)]
pub(crate) struct Connections {
    /// In rank order.
    pub(crate) memory: Vec<Box<dyn PeerMemory>>,
    /// The place in the transport order that serves each rank.
    pub(crate) places: Vec<usize>,
    pub(crate) transports: Transports,
}

impl Connections {
    /// The first queue pair that has stopped, to a rank that is not left out.
    pub(crate) fn stopped_nic(&self, is_left_out: impl Fn(GlobalRank) -> bool) -> Option<StoppedQueue> {
        self.transports.all().find_map(|transport| transport.first_stopped(&is_left_out))
    }

    /// The transport that serves a rank.
    pub(crate) fn route_to(&self, rank: GlobalRank) -> Option<&dyn Transport> {
        self.transports.at(*self.places.get(rank.index())?)
    }
}

/// The address for kernels; null for memory that loads and stores do not reach.
pub(crate) fn base_of(memory: &dyn PeerMemory) -> DeviceAddress {
    if is_mapped(memory.origin()) { DeviceAddress(memory.address()) } else { DeviceAddress::NULL }
}

/// Whether loads and stores of a kernel reach memory of this origin.
pub(crate) const fn is_mapped(origin: Origin) -> bool {
    match origin {
        Origin::Own | Origin::SameProcess | Origin::Ipc | Origin::Virtual => true,
        Origin::Remote => false,
    }
}
