//! The words by which kernels learn that the world has failed, and in which they report faults.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anabranch_hip::{Device, DeviceAddress, DeviceBuffer, HostBuffer, Stream};
use anabranch_hip_jit::DevicePointer;
use anabranch_hip_jit::control::{FaultRecord, WAIT_NOTES, WaitControl};
use bytemuck::Zeroable as _;

use crate::error::Result;
use crate::fault::notes::{NOTE_BYTES, Notes};

const RECORD_BYTES: usize = size_of::<FaultRecord>();
/// After the record: the word that is copied over the abort word.
const ABORT_SOURCE: usize = RECORD_BYTES;
/// After it: the addresses that are copied over that of the ring of notes, none and the ring's.
const NO_RING_SOURCE: usize = ABORT_SOURCE + 8;
const RING_SOURCE: usize = ABORT_SOURCE + 16;
/// What the host writes into the abort word; kernels write 1.
const ABORT_BY_HOST: u64 = 2;
/// The value of `FaultRecord::state` when it is complete.
const STATE_COMPLETE: u64 = 2;

#[derive(Debug)]
pub(crate) struct Control {
    words: DeviceBuffer,
    record: HostBuffer,
    /// Only single words go over it: an abort overtakes everything.
    priority: Mutex<Stream>,
    /// Where kernels note their waits, and whether they do. It stays: kernels may keep its address after a trace.
    notes: Mutex<NotesState>,
}

#[derive(Debug, Default)]
struct NotesState {
    made: Option<Arc<Notes>>,
    is_taken: bool,
}

impl Control {
    pub(crate) fn new(device: &Device, budget: Duration) -> Result<Self> {
        let record = device.allocate_host(RECORD_BYTES + 24)?;
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
            notes: 0,
            noted: 0,
        };
        words.copy_from_host(0, bytemuck::bytes_of(&control))?;
        record.atomic_u64(NO_RING_SOURCE)?.store(0, Ordering::Release);
        let priority = Mutex::new(device.create_priority_stream()?);
        Ok(Self { words, record, priority, notes: Mutex::default() })
    }

    pub(crate) fn address(&self) -> DeviceAddress {
        self.words.address()
    }

    /// Makes every kernel of this rank that waits end. Returns at once; kernels see it within microseconds.
    pub(crate) fn abort(&self) -> Result<()> {
        self.set(std::mem::offset_of!(WaitControl, abort), ABORT_SOURCE)
    }

    /// Copies a word of the record's memory over one that kernels read.
    fn set(&self, target: usize, source: usize) -> Result<()> {
        let stream = self.priority.lock().unwrap_or_else(PoisonError::into_inner);
        let target = self.words.address().offset(target as u64);
        let source = self.record.device_address().offset(source as u64);
        // SAFETY: both words live as long as `self`, whose drop frees them after the stream was destroyed or drained (see
        // Drop); the source is written once, before the first copy of it; kernels read the target with loads of eight bytes.
        unsafe { stream.copy_async(target, source, 8) }?;
        Ok(())
    }

    /// Where kernels note their waits from [`Self::note_waits`] to [`Self::end_notes`]; `None` while a trace has it.
    pub(crate) fn start_notes(&self, device: &Device) -> Result<Option<Arc<Notes>>> {
        let mut state = self.notes.lock().unwrap_or_else(PoisonError::into_inner);
        if state.is_taken {
            return Ok(None);
        }
        let notes = if let Some(notes) = &state.made {
            Arc::clone(notes)
        } else {
            let zeroed = |bytes: usize| -> Result<HostBuffer> {
                let buffer = device.allocate_host(bytes)?;
                buffer.write(0, &vec![0; bytes])?;
                Ok(buffer)
            };
            let ring = zeroed(WAIT_NOTES as usize * NOTE_BYTES)?;
            self.record.atomic_u64(RING_SOURCE)?.store(ring.device_address().0, Ordering::Release);
            let notes = Notes { ring, clock: zeroed(16)?, looks: AtomicU64::new(0) };
            Arc::clone(state.made.insert(Arc::new(notes)))
        };
        state.is_taken = true;
        Ok(Some(notes))
    }

    /// Lets kernels note their waits.
    pub(crate) fn note_waits(&self) -> Result<()> {
        self.set(std::mem::offset_of!(WaitControl, notes), RING_SOURCE)
    }

    /// Waits that begin from now on are not noted.
    pub(crate) fn end_notes(&self) -> Result<()> {
        let mut state = self.notes.lock().unwrap_or_else(PoisonError::into_inner);
        state.is_taken = false;
        self.set(std::mem::offset_of!(WaitControl, notes), NO_RING_SOURCE)
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
        let stream = self.priority.get_mut().unwrap_or_else(PoisonError::into_inner);
        // A copy of eight bytes on its way must not outlive its words.
        if let Err(error) = stream.synchronize() {
            tracing::warn!(%error, "the control stream could not be drained");
        }
    }
}
