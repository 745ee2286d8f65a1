//! What a rank's use of copy engines is made with.

use std::time::Duration;

use crate::device_queue::DeviceQueue;
use crate::software::SoftwareConfig;

/// How a rank uses its copy engines. Equal on all ranks, but for what engines in software do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SdmaConfig {
    /// Queues to each peer, at least one. Waves of a kernel are spread over them.
    pub queues: u32,
    /// Bytes of a queue's ring, a power of two from [`Self::LEAST_RING`] on.
    pub ring_bytes: u64,
    /// The most bytes of one copy packet, a multiple of 32; the engines' own limit where that is less.
    pub most_copy_bytes: u32,
    /// How long an engine has for its first packets.
    pub patience: Duration,
    /// Of engines in software.
    pub software: SoftwareConfig,
}

impl SdmaConfig {
    /// The least ring: half of it holds a copy, a signal and a fence.
    pub const LEAST_RING: u64 = DeviceQueue::LEAST_RING;
}

impl Default for SdmaConfig {
    fn default() -> Self {
        Self {
            queues: 2,
            ring_bytes: 64 << 10,
            most_copy_bytes: u32::MAX / 32 * 32,
            patience: Duration::from_secs(10),
            software: SoftwareConfig::default(),
        }
    }
}
