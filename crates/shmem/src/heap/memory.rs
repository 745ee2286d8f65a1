//! The segment itself.

use std::sync::Arc;

use anabranch_hip::{Device, DeviceAddress, DeviceBuffer};

use super::allocate::MAX_ALIGNMENT;
use crate::error::{Error, Result};

/// The first bytes of every segment: a word by which peers check that they mapped the right memory.
pub(crate) const HEADER_BYTES: u64 = 256;

/// This rank's segment. Freed when the world and everything that uses it is gone.
#[derive(Debug)]
pub(crate) struct HeapMemory {
    buffer: DeviceBuffer,
}

impl HeapMemory {
    /// Allocates the segment and writes the word that peers probe. The rest stays undefined: [`crate::World::allocate`]
    /// zeroes what it hands out and agrees on that before anybody may write there, and touching a large heap as a whole
    /// takes seconds where memory is backed on first use.
    pub(crate) fn new(device: &Device, bytes: u64, probe: u64) -> Result<Self> {
        let mut buffer = device.allocate_uncached(bytes as usize).map_err(|source| {
            let (free, total) = device.memory_info().unwrap_or_default();
            let device = device.ordinal();
            Error::HeapMemory { bytes, device, free: free as u64, total: total as u64, source }
        })?;
        let address = buffer.address().0;
        if !address.is_multiple_of(MAX_ALIGNMENT) {
            return Err(Error::HeapAlignment { address, alignment: MAX_ALIGNMENT });
        }
        buffer.copy_from_host(0, &probe.to_le_bytes())?;
        Ok(Self { buffer })
    }

    pub(crate) fn address(&self) -> DeviceAddress {
        self.buffer.address()
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.buffer.len() as u64
    }
}

/// Keeps a rank's heap allocated after its world is gone.
///
/// Ranks that share a process reach each other by plain addresses. When one of them fails and its world goes away, kernels
/// of the others may still write to its heap until they notice. Whoever runs several ranks in one process holds the
/// guards of all until all have ended; [`crate::spawn_threads`] does.
#[derive(Clone, Debug)]
pub struct MemoryGuard {
    _heap: Arc<HeapMemory>,
}

impl MemoryGuard {
    pub(crate) fn new(heap: Arc<HeapMemory>) -> Self {
        Self { _heap: heap }
    }
}
