//! The settings of a rank's copy engines.

use std::time::Duration;

use anabranch_transport::limits::{self, SharedSetting};

use crate::software::SoftwareConfig;

/// How a rank uses its copy engines. Equal on all ranks, but for what engines in software do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SdmaConfig {
    /// Queues to each peer, within [`limits::QUEUES`]. Waves of a kernel are spread over them.
    pub queues: u32,
    /// Bytes of a queue's ring, within [`limits::RING_BYTES`].
    pub ring_bytes: u64,
    /// The most bytes of one copy packet, within [`limits::COPY_BYTES`]; the engines' own limit where that is less.
    pub most_copy_bytes: u32,
    /// How long an engine has for its first packets.
    pub patience: Duration,
    /// Of engines in software.
    pub software: SoftwareConfig,
}

impl SdmaConfig {
    /// The settings that are equal on all ranks.
    pub fn shared(&self) -> [SharedSetting; 3] {
        [
            limits::QUEUES.setting("transport.sdma.queues", self.queues),
            limits::RING_BYTES.setting("transport.sdma.ring_bytes", self.ring_bytes),
            limits::COPY_BYTES.setting("transport.sdma.most_copy_bytes", self.most_copy_bytes),
        ]
    }
}

impl Default for SdmaConfig {
    fn default() -> Self {
        Self {
            queues: 2,
            ring_bytes: 64 << 10,
            most_copy_bytes: limits::COPY_BYTES.most as u32,
            patience: Duration::from_secs(10),
            software: SoftwareConfig::default(),
        }
    }
}
