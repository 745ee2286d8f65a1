//! The queue pairs of a rank, with what kernels need beside the NIC's own words.

use std::sync::Arc;

use anabranch_hip::{Device, DeviceAddress, DeviceBuffer};
use anabranch_hip_jit::DevicePointer;
use anabranch_ranks::GlobalRank;
use anabranch_transport::Region;
use bytemuck::Zeroable as _;

use crate::driver::{NicDriver, NicQueue, QueueSpec, Registered};
use crate::error::{NicError, Result};
use crate::nics::RdmaConfig;
use crate::ranges::{MOST_RANGES, Ranges};
use crate::view::{ROUTE_NIC, RdmaQueue};

/// Words of the producers, each in a line of its own: no two are polled and written by different waves.
const LINE: u64 = 128;
const RESERVED: u64 = 0;
const COMMITTED: u64 = LINE;
const COMPLETED: u64 = 2 * LINE;
const WORDS: u64 = 3 * LINE;

/// A queue pair to a peer.
#[derive(Debug)]
pub(crate) struct Channel {
    pub(crate) queue: Arc<dyn NicQueue>,
    view: RdmaQueue,
    /// The queue pair is connected and the peer's heap known.
    reaches: bool,
}

impl Channel {
    /// What kernels get for a group in which the peer has the rank `group_rank`.
    pub(crate) fn view(&self, group_rank: u32) -> RdmaQueue {
        RdmaQueue { peer: group_rank, ..self.view }
    }

    /// Sets the address of the peer's heap, after the queue pair is connected: both ends then agree on the bytes of a packet.
    pub(crate) fn reach(&mut self, base: u64, bytes: u64, key: u32) {
        self.view.path_mtu = self.queue.words().path_mtu;
        self.view.remote_base = base;
        self.view.remote_bytes = bytes;
        self.view.remote_key = key;
        self.reaches = true;
    }

    /// Whether [`Self::reach`] was called.
    pub(crate) fn reaches(&self) -> bool {
        self.reaches
    }
}

/// The memory behind all queue pairs of a rank: words of the producers, and the results of fetching operations.
#[derive(Debug)]
pub(crate) struct QueueMemory {
    results_key: Arc<dyn Registered>,
    results: DeviceBuffer,
    words: DeviceBuffer,
}

impl QueueMemory {
    /// For `count` queue pairs.
    pub(crate) fn new(
        device: &Device,
        driver: &dyn NicDriver,
        config: &RdmaConfig,
        count: u64,
    ) -> Result<Self> {
        let mut words = device.allocate_uncached((count * WORDS).max(WORDS) as usize)?;
        words.fill(0)?;
        let bytes = (count * result_bytes(config)).max(result_bytes(config));
        let mut results = device.allocate_uncached(bytes as usize)?;
        results.fill(0)?;
        let results_key = driver.register(Region { address: results.address().0, bytes })?;
        Ok(Self { results_key, results, words })
    }

    /// Makes the queue pair of a channel to a peer, the `index`th of all.
    pub(crate) fn channel(
        &self,
        driver: &dyn NicDriver,
        config: &RdmaConfig,
        ranges: &Ranges,
        peer: GlobalRank,
        channel: u32,
        index: u64,
    ) -> Result<Channel> {
        let queue = driver.create_queue(QueueSpec { peer, channel, entries: config.entries })?;
        let nic = queue.words();
        if nic.entries != config.entries {
            return Err(NicError::Limit {
                what: "entries of a send queue that was made",
                given: nic.entries.into(),
                allowed: format!("the {} asked for", config.entries),
                nic: driver.describe(),
            });
        }
        let words = self.words.address().offset(index * WORDS);
        let results = self.results.address().offset(index * result_bytes(config));
        let pointer = |address: DeviceAddress| DevicePointer::new(address);
        let view = RdmaQueue {
            ring: DevicePointer::new(nic.ring),
            completions: pointer(nic.completions),
            doorbell_record: DevicePointer::new(nic.doorbell_record),
            doorbell: pointer(nic.doorbell),
            sequence_table: pointer(nic.sequence_table),
            reserved: pointer(words.offset(RESERVED)),
            committed: pointer(words.offset(COMMITTED)),
            completed: pointer(words.offset(COMPLETED)),
            results: pointer(results),
            ranges: DevicePointer::new(ranges.address()),
            doorbell_value: nic.doorbell_value,
            entries: nic.entries,
            number: nic.number,
            results_key: self.results_key.local_key(),
            range_count: MOST_RANGES,
            most_message_bytes: driver.limits().most_message_bytes,
            path_mtu: nic.path_mtu,
            route: ROUTE_NIC,
            immediates: u32::from(driver.takes_immediates()),
            read_order: driver.read_order().number(),
            ..RdmaQueue::zeroed()
        };
        Ok(Channel { queue, view, reaches: false })
    }
}

/// In whole lines.
fn result_bytes(config: &RdmaConfig) -> u64 {
    RdmaQueue::results_bytes(config.entries).next_multiple_of(LINE)
}
