//! One of the two: its NIC, its memory, and its queues to the other.

use core::time::Duration;
use std::path::Path;
use std::sync::Arc;

use anabranch_hip::{DeviceAddress, DeviceBuffer, DeviceOrdinal};
use anabranch_hip_host::{HostConfig, HostMachine};
use anabranch_ranks::GlobalRank;
use anabranch_transport::Region;
use anabranch_transport_rdma::nics::{ChosenPort, Machine, SYSTEM_FOLDER};
use anabranch_transport_rdma::{
    NicDriver, PostedDriver, PostedOpcode, PostedRequest, QueueSpec, RdmaConfig, Registered,
};
use anyhow::{Context as _, Result};
use serde::{Deserialize, Serialize};

use crate::kernel::Producer;
use crate::link::Link;

/// Bytes of each member's memory.
pub(crate) const HEAP_BYTES: usize = 8 << 20;
/// Entries of each queue: as many requests as the full rings have on their way.
pub(crate) const ENTRIES: u32 = 64;
/// Queues to the other.
const QUEUES: u32 = 5;
/// How long a NIC retries.
pub(crate) const PATIENCE: Duration = Duration::from_secs(2);

/// What one tells the other.
#[derive(Serialize, Deserialize)]
struct Offer {
    endpoints: Vec<Vec<u8>>,
    base: u64,
    key: u32,
}

pub(crate) struct Member {
    driver: PostedDriver,
    registered: Arc<dyn Registered>,
    pub(crate) heap: DeviceBuffer,
    pub(crate) queues: Vec<Producer>,
    pub(crate) link: Link,
    peer_base: u64,
    peer_key: u32,
}

impl Member {
    pub(crate) fn join(nic: &str, mut link: Link, own: u32, peer: u32) -> Result<Self> {
        let machine = HostMachine::new(HostConfig { devices: 1, ..HostConfig::default() })?;
        let device = machine.runtime().device(DeviceOrdinal(0))?;
        let shown = Machine::read(Path::new(SYSTEM_FOLDER))?;
        let found = shown.nics().iter().find(|found| found.name == nic).context("no NIC of this name")?;
        let chosen = ChosenPort::new(found, 1, None, "named by the caller".to_owned())?;
        let config =
            RdmaConfig { queues: QUEUES, entries: ENTRIES, patience: PATIENCE, ..RdmaConfig::default() };
        let driver = PostedDriver::open(&device, &chosen, &config)?;
        let mut heap = device.allocate(HEAP_BYTES)?;
        heap.fill(0)?;
        let registered = driver.register(Region { address: heap.address().0, bytes: HEAP_BYTES as u64 })?;
        let spec = |channel| QueueSpec { peer: GlobalRank::new(peer), channel, entries: ENTRIES };
        let queues =
            (0..QUEUES).map(|channel| driver.create_queue(spec(channel))).collect::<Result<Vec<_>, _>>()?;
        let endpoints = queues.iter().map(|queue| queue.endpoint()).collect();
        link.tell(&Offer { endpoints, base: heap.address().0, key: registered.remote_key() })?;
        let offer: Offer = link.hear()?;
        for (queue, endpoint) in queues.iter().zip(&offer.endpoints) {
            queue.connect(GlobalRank::new(peer), endpoint)?;
        }
        tracing::debug!(own, "connected");
        link.meet()?;
        let queues = queues.into_iter().map(Producer::new).collect();
        Ok(Self { driver, registered, heap, queues, link, peer_base: offer.base, peer_key: offer.key })
    }

    pub(crate) fn describe(&self) -> String {
        format!("{}; {:?}", self.driver.describe(), self.driver.limits())
    }

    /// A request between an offset of this member's memory and one of the other's.
    pub(crate) fn request(
        &self,
        opcode: PostedOpcode,
        local: usize,
        remote: usize,
        bytes: usize,
    ) -> PostedRequest {
        PostedRequest {
            stamp: 0,
            local: self.heap.address().0 + local as u64,
            remote: self.peer_base + remote as u64,
            value: 0,
            compare: 0,
            bytes: bytes as u32,
            opcode: opcode as u32,
            local_key: self.registered.local_key(),
            remote_key: self.peer_key,
            immediate: 0,
            flags: 0,
        }
    }

    /// The same with a value.
    pub(crate) fn value(
        &self,
        opcode: PostedOpcode,
        local: usize,
        remote: usize,
        value: u64,
    ) -> PostedRequest {
        PostedRequest { value, ..self.request(opcode, local, remote, 8) }
    }

    /// An address of this member's memory.
    pub(crate) fn address(&self, offset: usize) -> DeviceAddress {
        self.heap.address().offset(offset as u64)
    }

    pub(crate) fn read(&self, offset: usize, bytes: usize) -> Result<Vec<u8>> {
        let mut found = vec![0; bytes];
        self.heap.copy_to_host(offset, &mut found)?;
        Ok(found)
    }

    pub(crate) fn words(&self, offset: usize, count: usize) -> Result<Vec<u64>> {
        let mut words = vec![0u64; count];
        self.heap.copy_to_host(offset, bytemuck::cast_slice_mut(&mut words))?;
        Ok(words)
    }

    pub(crate) fn write(&mut self, offset: usize, bytes: &[u8]) -> Result<()> {
        Ok(self.heap.copy_from_host(offset, bytes)?)
    }
}
