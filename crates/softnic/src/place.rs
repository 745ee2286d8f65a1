//! Where a NIC in software runs, and where its queues lie.

use std::sync::Arc;

use anabranch_hip::{Device, DeviceAddress, DeviceBuffer, SoftwareEngines};
use anabranch_transport_rdma::{NicError, QueueWords};

use crate::nic::{Shared, actor};

/// Where a NIC runs.
#[derive(Debug)]
pub(crate) enum Place {
    /// Under the scheduler of the runtime that is made of CPU threads.
    Runtime { device: Device, engines: SoftwareEngines },
}

/// The memory of a queue pair: completions, doorbell record and doorbell each on a line of their own, then the ring.
#[derive(Debug)]
pub(crate) struct QueueMemory {
    base: DeviceAddress,
    _kept: DeviceBuffer,
}

const LINE: u64 = 128;
const COMPLETIONS: u64 = 0;
const DOORBELL_RECORD: u64 = LINE;
const DOORBELL: u64 = 2 * LINE;
const RING: u64 = 4096;
const BLOCK: u64 = 64;

impl Place {
    pub(crate) fn start(&self, shared: &Arc<Shared>) -> Result<(), NicError> {
        match self {
            Self::Runtime { engines, .. } => {
                engines.starter.start(actor(shared));
                Ok(())
            }
        }
    }

    pub(crate) fn allocate(&self, entries: u32) -> Result<QueueMemory, NicError> {
        match self {
            Self::Runtime { device, .. } => {
                let bytes = RING + u64::from(entries) * BLOCK;
                let mut kept = device.allocate_uncached(bytes as usize)?;
                kept.fill(0)?;
                Ok(QueueMemory { base: kept.address(), _kept: kept })
            }
        }
    }

    /// Something has changed that the NIC may not notice by itself.
    pub(crate) fn wake(&self) {
        match self {
            Self::Runtime { engines, .. } => engines.starter.wake(),
        }
    }

    /// The NIC has ended.
    pub(crate) fn end(&self) {
        self.wake();
    }
}

impl QueueMemory {
    pub(crate) fn words(&self, entries: u32, number: u32, path_mtu: u32) -> QueueWords {
        let at = |offset| self.base.offset(offset);
        QueueWords {
            ring: at(RING),
            entries,
            completions: at(COMPLETIONS),
            doorbell_record: at(DOORBELL_RECORD),
            doorbell: at(DOORBELL),
            sequence_table: DeviceAddress::NULL,
            number,
            path_mtu,
            doorbell_value: 0,
        }
    }
}
