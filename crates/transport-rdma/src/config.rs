//! What a rank's use of its NIC is made with.

use std::time::Duration;

/// How a rank uses its NIC. Equal on all ranks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RdmaConfig {
    /// Queue pairs to each peer, at least one. Waves of a kernel are spread over them.
    pub queues: u32,
    /// Entries of a send queue (of 64 bytes each; a request takes one or two), a power of two from [`Self::LEAST_ENTRIES`] to
    /// [`Self::MOST_ENTRIES`].
    pub entries: u32,
    /// How long a peer's NIC has to answer before its queue pair fails.
    pub patience: Duration,
}

impl RdmaConfig {
    /// The least send queue.
    pub const LEAST_ENTRIES: u32 = 16;
    /// The largest: entries are counted in 16 bits, and half of what they count must be more than a queue holds.
    pub const MOST_ENTRIES: u32 = 32 << 10;
}

impl Default for RdmaConfig {
    fn default() -> Self {
        Self { queues: 2, entries: 256, patience: Duration::from_secs(10) }
    }
}
