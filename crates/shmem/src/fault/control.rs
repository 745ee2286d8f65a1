//! The words by which kernels learn that the world has failed, and in which they report faults.

use std::sync::Mutex;
use std::sync::atomic::Ordering;
use std::time::Duration;

use anabranch_hip::{Device, DeviceAddress, DeviceBuffer, HostBuffer, Stream};
use anabranch_hip_jit::DevicePointer;
use anabranch_hip_jit::control::{FaultRecord, WaitControl};
use bytemuck::Zeroable as _;

use crate::error::Result;

const RECORD_BYTES: usize = size_of::<FaultRecord>();
/// After the record: the word that is copied over the abort word.
const ABORT_SOURCE: usize = RECORD_BYTES;
/// What the host writes into the abort word; kernels write 1.
const ABORT_BY_HOST: u64 = 2;
/// The value of `FaultRecord::state` when it is complete.
const STATE_COMPLETE: u64 = 2;

#[derive(Debug)]
pub(crate) struct Control {
    words: DeviceBuffer,
    record: HostBuffer,
    /// Only the abort word goes over it, so that it overtakes everything.
    priority: Mutex<Stream>,
}

impl Control {
    pub(crate) fn new(device: &Device, budget: Duration) -> Result<Self> {
        let record = device.allocate_host(RECORD_BYTES + 8)?;
        record.write(0, &[0; RECORD_BYTES])?;
        record.atomic_u64(ABORT_SOURCE)?.store(ABORT_BY_HOST, Ordering::Release);
        // Uncached where that exists: kernels poll the abort word while the host writes it.
        let mut words = device.allocate_uncached(size_of::<WaitControl>())?;
        let control = WaitControl {
            abort: 0,
            budget_ns: u64::try_from(budget.as_nanos()).unwrap_or(u64::MAX),
            fault: DevicePointer::new(record.device_address()),
            claimed: 0,
            reserved: 0,
        };
        words.copy_from_host(0, bytemuck::bytes_of(&control))?;
        Ok(Self { words, record, priority: Mutex::new(device.create_priority_stream()?) })
    }

    pub(crate) fn address(&self) -> DeviceAddress {
        self.words.address()
    }

    /// Makes every kernel of this rank that waits end. Returns at once; kernels see it within microseconds.
    pub(crate) fn abort(&self) -> Result<()> {
        let stream = self.priority.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let target = self.words.address().offset(std::mem::offset_of!(WaitControl, abort) as u64);
        let source = self.record.device_address().offset(ABORT_SOURCE as u64);
        // SAFETY: both words live as long as `self`, whose drop frees them after the stream was destroyed or drained (see
        // Drop); the source is never written again; kernels read the target with atomic loads.
        unsafe { stream.copy_async(target, source, 8) }?;
        Ok(())
    }

    /// The record of the first wait that failed on this device, when there is one.
    pub(crate) fn fault(&self) -> Result<Option<FaultRecord>> {
        if self.record.atomic_u64(0)?.load(Ordering::Acquire) != STATE_COMPLETE {
            return Ok(None);
        }
        let mut record = FaultRecord::zeroed();
        self.record.read(0, bytemuck::bytes_of_mut(&mut record))?;
        Ok(Some(record))
    }
}

impl Drop for Control {
    fn drop(&mut self) {
        let stream = self.priority.get_mut().unwrap_or_else(std::sync::PoisonError::into_inner);
        // An abort on its way is a copy of eight bytes; it must not outlive its words.
        if let Err(error) = stream.synchronize() {
            tracing::warn!(%error, "the control stream could not be drained");
        }
    }
}
