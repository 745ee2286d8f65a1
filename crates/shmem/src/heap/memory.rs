//! The segment itself.

use std::sync::Arc;

use anabranch_hip::{Device, DeviceAddress, DeviceBuffer};
use anabranch_ranks::GlobalRank;
use anabranch_transport_p2p::FlatWindow;

use super::MAX_ALIGNMENT;
use crate::error::{Error, Result};

/// The first bytes of every segment: a word by which peers check that they mapped the right memory.
pub(crate) const HEADER_BYTES: u64 = 256;

/// This rank's segment. Freed when the world and everything that uses it is gone.
#[derive(Debug)]
pub(crate) struct HeapMemory {
    segment: Segment,
    bytes: u64,
}

#[derive(Debug)]
enum Segment {
    /// An allocation.
    Static(DeviceBuffer),
    /// A slot of a range that the peers' segments are mapped into too.
    Flat(Arc<FlatWindow>),
}

impl HeapMemory {
    /// Allocates the segment and writes the word that peers probe. The rest stays undefined: [`crate::World::allocate`]
    /// zeroes what it hands out and agrees on that before any rank may write there, and touching a large heap as a whole
    /// takes seconds where memory is backed on first use.
    pub(crate) fn new(device: &Device, bytes: u64, probe: u64) -> Result<Self> {
        let buffer = device.allocate_uncached(bytes as usize).map_err(|source| {
            let problem = match device.memory_info() {
                Ok((free, total)) => format!("{free} of {total} bytes are free"),
                Err(_) => "the runtime does not report how much is free".to_owned(),
            };
            Error::HeapMemory { bytes, device: device.ordinal(), problem, source: Box::new(source) }
        })?;
        Self::probed(device, Segment::Static(buffer), bytes, probe)
    }

    /// The segment in this rank's slot, which has at least `bytes` bytes.
    pub(crate) fn in_window(
        device: &Device,
        window: &Arc<FlatWindow>,
        bytes: u64,
        probe: u64,
    ) -> Result<Self> {
        Self::probed(device, Segment::Flat(Arc::clone(window)), bytes, probe)
    }

    fn probed(device: &Device, segment: Segment, bytes: u64, probe: u64) -> Result<Self> {
        let heap = Self { segment, bytes };
        let address = heap.address();
        if !address.0.is_multiple_of(MAX_ALIGNMENT) {
            let (device, address) = (device.ordinal(), address.0);
            return Err(Error::HeapAlignment { device, address, alignment: MAX_ALIGNMENT });
        }
        // SAFETY: the segment was made just now and has at least a header; no other rank knows it yet.
        unsafe { device.write_memory(address, &probe.to_le_bytes()) }?;
        Ok(heap)
    }

    pub(crate) fn address(&self) -> DeviceAddress {
        match &self.segment {
            Segment::Static(buffer) => buffer.address(),
            Segment::Flat(window) => window.address(),
        }
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    pub(crate) fn window(&self) -> Option<&Arc<FlatWindow>> {
        match &self.segment {
            Segment::Static(_) => None,
            Segment::Flat(window) => Some(window),
        }
    }
}

/// Where the heaps of all ranks lie in the addresses of this one: rank r's at `base + r * stride`.
///
/// The base differs from rank to rank, the stride does not. A rank that is not served by `p2p` has nothing in its slot
/// ([`crate::World::peer_base`] is `None`), and no peer is mapped after [`crate::World::leave`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlatHeap {
    /// Where rank 0's heap starts.
    pub base: DeviceAddress,
    /// Bytes from the start of one rank's heap to that of the next: `heap.bytes` rounded up to what all devices can map in.
    pub stride: u64,
    /// Ranks of the world.
    pub ranks: u32,
}

impl FlatHeap {
    /// Where the byte at `offset` of a rank's heap lies. `None` for a rank that is not of the world, or an offset that is
    /// not in a slot.
    pub fn address(&self, rank: GlobalRank, offset: u64) -> Option<DeviceAddress> {
        let inside = rank.get() < self.ranks && offset < self.stride;
        inside.then(|| self.base.offset(u64::from(rank.get()) * self.stride + offset))
    }
}

/// Keeps a rank's heap allocated after its world is gone.
///
/// Ranks that share a process reach each other by plain addresses. When one of them fails and its world goes away, kernels
/// of the others may still write to its heap until they notice. [`crate::spawn_threads`] holds the guards
/// of all ranks until all have ended.
#[derive(Clone, Debug)]
pub(crate) struct MemoryGuard {
    _heap: Arc<HeapMemory>,
}

impl MemoryGuard {
    pub(crate) fn new(heap: Arc<HeapMemory>) -> Self {
        Self { _heap: heap }
    }
}
