//! One device: its lanes, its streams, its peers and what it reports about itself.

use std::collections::BTreeSet;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, Weak};

use anabranch_hip::types::HipDeviceProperties;

use crate::config::{HostConfig, MAX_BLOCK_THREADS, MAX_LOCAL_BYTES};
use crate::sync::lock;
use crate::work::launch::Lanes;
use crate::work::stream::Stream;

/// The state of one device.
#[derive(Debug)]
pub(crate) struct DeviceState {
    pub(crate) ordinal: u32,
    pub(crate) lanes: Mutex<Lanes>,
    /// Bytes that live allocations hold.
    pub(crate) used: Arc<AtomicU64>,
    /// Devices whose memory this one may touch.
    pub(crate) peers: Arc<Mutex<BTreeSet<u32>>>,
    /// Every stream that may have work, destroyed ones included until their work is done.
    streams: Mutex<Vec<Weak<Stream>>>,
}

impl DeviceState {
    pub(crate) fn new(ordinal: u32, config: &HostConfig) -> Self {
        Self {
            ordinal,
            lanes: Mutex::new(Lanes::new(config.lanes_per_device())),
            used: Arc::default(),
            peers: Arc::default(),
            streams: Mutex::default(),
        }
    }

    pub(crate) fn remember(&self, stream: &Arc<Stream>) {
        let mut streams = lock(&self.streams);
        streams.retain(|known| known.strong_count() > 0);
        streams.push(Arc::downgrade(stream));
    }

    pub(crate) fn streams(&self) -> Vec<Arc<Stream>> {
        lock(&self.streams).iter().filter_map(Weak::upgrade).collect()
    }

    /// How many blocks of a size one multiprocessor keeps resident.
    pub(crate) fn blocks_per_multiprocessor(config: &HostConfig, block_threads: u32) -> u32 {
        if block_threads == 0 || block_threads > MAX_BLOCK_THREADS {
            return 0;
        }
        config.lanes_per_multiprocessor / block_threads
    }

    /// What `hipGetDeviceProperties` reports.
    pub(crate) fn properties(config: &HostConfig, is_virtual: bool) -> HipDeviceProperties {
        let mut properties = HipDeviceProperties::zeroed();
        properties.set_name("anabranch host device");
        let instrumented = if is_virtual { ":instrumented" } else { "" };
        properties.set_arch(&format!("host:wave{}{instrumented}", config.wave_width));
        properties.set_total_global_memory(config.memory_bytes as usize);
        properties.set_shared_memory_per_block(MAX_LOCAL_BYTES as usize);
        properties.set_warp_size(config.wave_width as i32);
        properties.set_max_threads_per_block(MAX_BLOCK_THREADS as i32);
        properties.set_multiprocessor_count(config.multiprocessors as i32);
        // The clock that kernels read counts nanoseconds.
        properties.set_clock_rate_khz(1_000_000);
        properties.set_major(1);
        properties.set_minor(0);
        properties
    }
}
