//! The mask of a rank, in device memory.

use std::sync::Mutex;
use std::time::Duration;

use anabranch_hip::{Device, DeviceAddress, DeviceBuffer};
use anabranch_hip_jit::bytemuck::{self, Zeroable};

use super::pointer;
use crate::args::{MaskView, RankMask};
use crate::error::Result;
use crate::lock::lock;
use crate::slot::Slot;

/// One entry a rank, in this rank's own memory.
#[derive(Debug)]
pub(crate) struct MaskTable {
    entries: Mutex<DeviceBuffer>,
    ranks: usize,
    patience: Duration,
}

impl MaskTable {
    pub(super) fn new(device: &Device, ranks: u32, patience: Duration) -> Result<Self> {
        let ranks = ranks as usize;
        let mut entries = device.allocate(ranks * size_of::<RankMask>())?;
        entries.fill(0)?;
        Ok(Self { entries: Mutex::new(entries), ranks, patience })
    }

    pub(crate) fn read(&self) -> Result<Vec<RankMask>> {
        let mut entries = vec![RankMask::zeroed(); self.ranks];
        lock(&self.entries).copy_to_host(0, bytemuck::cast_slice_mut(&mut entries))?;
        Ok(entries)
    }

    pub(crate) fn write(&self, entries: &[RankMask]) -> Result<()> {
        Ok(lock(&self.entries).copy_from_host(0, bytemuck::cast_slice(entries))?)
    }

    /// Where the entries are.
    pub(crate) fn address(&self) -> DeviceAddress {
        lock(&self.entries).address()
    }

    /// The mask as kernels of a slot see it.
    pub(super) fn view(&self, slot: &Slot) -> MaskView {
        MaskView {
            ranks: pointer(lock(&self.entries).address()),
            settled: pointer(slot.settled()),
            patience_ns: u64::try_from(self.patience.as_nanos()).unwrap_or(u64::MAX),
            slot: slot.number(),
            reserved: 0,
        }
    }
}
