//! The NICs in software of a run's ranks, in the place of copy engines.

use std::sync::Arc;

use anabranch_hip::{Device, DeviceAddress, DeviceBuffer};
use anabranch_ranks::GlobalRank;
use anabranch_softnic::SoftNics;
use anabranch_transport::{
    Audience, HostIdentity, PeerInfo, PeerMemory, ProcessIdentity, Region, Transport as _,
};
use anabranch_transport_rdma::{LocalRange, OpenNic as _, RdmaQueue, RdmaTransport};

use super::choice::Choice;
use super::life::text;

/// How a rank reaches the others by its NIC.
pub(super) struct Nic {
    // Ended in this order.
    _known: LocalRange,
    _opened: Vec<Box<dyn PeerMemory>>,
    rdma: RdmaTransport,
    pub(super) table: DeviceBuffer,
}

/// A rank's memory: its heap, and what else kernels give to the NIC.
pub(super) struct Known {
    pub(super) heap: DeviceAddress,
    pub(super) heap_bytes: u64,
    pub(super) own: DeviceAddress,
    pub(super) own_bytes: u64,
}

/// Each rank has a machine of its own, as far as it says.
fn peer_info(rank: u32) -> PeerInfo {
    PeerInfo {
        rank: GlobalRank::new(rank),
        host: HostIdentity(format!("machine {rank}")),
        nics_of: HostIdentity(format!("machine {rank}")),
        process: ProcessIdentity { pid: 1, nonce: 1 },
        runtime: "host".to_owned(),
        instance: 1,
        device: rank,
        pci: String::new(),
        arch: String::new(),
    }
}

/// Opens and connects the NICs of all ranks, in the order of their numbers.
pub(super) fn connect(devices: &[Device], known: &[Known], choice: &Choice) -> Result<Vec<Nic>, String> {
    let size = devices.len() as u32;
    let config = choice.rdma();
    let mut opener = SoftNics::in_process(choice.soft_nic());
    if let Some((rank, faults)) = choice.nic_faults() {
        opener = opener.with_faults(GlobalRank::new(rank), faults);
    }
    let mut transports = Vec::new();
    let mut offers = Vec::new();
    for ((device, known), rank) in devices.iter().zip(known).zip(0..) {
        let driver = opener.open(device, &peer_info(rank), &[], &config);
        let rdma = RdmaTransport::new(device.clone(), peer_info(rank), size, driver, config.clone());
        let heap = Region { address: known.heap.0, bytes: known.heap_bytes };
        offers.push(rdma.export(heap, Audience::ThisHost).map_err(text)?);
        let own = Region { address: known.own.0, bytes: known.own_bytes };
        let range = rdma.register_local(own).map_err(text)?;
        transports.push((rdma, range));
    }
    let offers = Arc::new(offers);
    let mut nics = Vec::new();
    for (rdma, known) in transports {
        let device = devices.get(nics.len()).ok_or("a device for each rank")?;
        let open = |(offer, peer): (&Vec<u8>, u32)| rdma.open(&peer_info(peer), offer, 8).map_err(text);
        let opened = offers.iter().zip(0..).map(open).collect::<Result<_, _>>()?;
        let views: Vec<RdmaQueue> =
            (0..size).flat_map(|peer| rdma.queues(GlobalRank::new(peer), peer)).collect();
        let mut table = device.allocate(size_of_val(views.as_slice())).map_err(text)?;
        table.copy_from_host(0, bytemuck::cast_slice(&views)).map_err(text)?;
        nics.push(Nic { _known: known, _opened: opened, rdma, table });
    }
    Ok(nics)
}

impl Nic {
    /// Peers to which queue pairs have stopped, and why.
    pub(super) fn stopped(&self, size: u32) -> Vec<(u32, String)> {
        let of_peer = |peer| {
            let queues = self.rdma.describe_queues(GlobalRank::new(peer)).into_iter();
            queues.filter_map(move |(_, stopped)| Some((peer, stopped?)))
        };
        (0..size).flat_map(of_peer).collect()
    }
}
