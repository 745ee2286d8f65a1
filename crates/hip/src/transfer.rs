//! Copies between the host's memory and a device's, and fills, that are over when the call returns.
//!
//! They go by a stream that each opened device keeps for them, and never by the null stream: HIP refuses `hipMemcpy`, `hipMemset` and
//! `hipDeviceSynchronize` on every thread while any thread captures, in whatever mode, and invalidates that capture. Copies in a
//! stream's order with a wait for that stream are refused only where an allocation is.

use core::ffi::c_void;
use std::sync::OnceLock;
use std::time::Duration;

use crate::device::{Device, DeviceGuard};
use crate::error::Result;
use crate::memory::{DeviceAddress, DeviceBuffer};
use crate::runtime::{DeviceOrdinal, Runtime};
use crate::types::{HipError, HipStream, memcpy_kind};

/// How long after a refusal the wait for a transfer is tried again.
const WAIT_AGAIN: Duration = Duration::from_micros(200);

/// The stream of one opened device for transfers, made with the first of them.
///
/// It has copies and fills only, so that a wait for it is a wait for no kernel and no peer, and threads may share it without a lock:
/// one waits at most for the others' copies.
#[derive(Debug)]
pub(crate) struct Transfers {
    runtime: Runtime,
    ordinal: DeviceOrdinal,
    stream: OnceLock<Raw>,
}

/// The handle of a stream.
#[derive(Clone, Copy, Debug)]
struct Raw(HipStream);

// SAFETY: HIP streams may be used from any thread; calls on one stream are serialised by the runtime.
unsafe impl Send for Raw {}
// SAFETY: as above.
unsafe impl Sync for Raw {}

impl Transfers {
    pub(crate) fn new(runtime: Runtime, ordinal: DeviceOrdinal) -> Self {
        Self { runtime, ordinal, stream: OnceLock::new() }
    }

    /// The stream. The device is current.
    ///
    /// Of the greatest priority: AMD's runtime maps the streams of one priority to a few queues of the hardware, and a copy must not
    /// lie there behind a kernel that waits for a peer.
    fn stream(&self, device: &Device) -> Result<HipStream> {
        if let Some(Raw(stream)) = self.stream.get() {
            return Ok(*stream);
        }
        // Made without a lock, as threads would wait for it during a call of the runtime. Who comes second gives its own back.
        let mine = Raw(device.new_priority_stream()?);
        if self.stream.set(mine).is_err() {
            self.destroy(mine);
        }
        Ok(self.stream.get().map_or(mine.0, |kept| kept.0))
    }

    /// The device is current: CUDA's driver would make a context for device 0 in a thread that has none.
    fn destroy(&self, stream: Raw) {
        // SAFETY: the handle came from a create call, nobody else has it, and it is destroyed once; each transfer was waited for.
        let code = unsafe { (self.runtime.api().hipStreamDestroy)(stream.0) };
        if code != HipError::SUCCESS {
            tracing::warn!(device = %self.ordinal, %code, "hipStreamDestroy failed");
        }
    }
}

impl Drop for Transfers {
    fn drop(&mut self) {
        let Some(stream) = self.stream.take() else { return };
        let Ok(_guard) = DeviceGuard::of(&self.runtime, self.ordinal) else {
            tracing::warn!(device = %self.ordinal, "stream of transfers leaked: its device cannot be made current");
            return;
        };
        self.destroy(stream);
    }
}

impl Device {
    /// Copies device memory to the host and waits for it. The copy is in no order with any stream: work whose results it shall see
    /// was waited for before.
    ///
    /// Another thread may be capturing a stream meanwhile, in the mode of [`Stream::begin_capture`](crate::Stream::begin_capture).
    /// While the calling thread is, the call is refused and its capture invalidated; so it is while any thread captures in global
    /// mode. A global capture that begins during the transfer is invalidated, and the call returns after its end.
    ///
    /// # Errors
    /// The code of a call: nothing is copied, or the device has failed.
    ///
    /// # Safety
    /// `source` must be the start of at least `target.len()` bytes of live device memory.
    pub unsafe fn read_memory(&self, source: DeviceAddress, target: &mut [u8]) -> Result<()> {
        self.copy(target.as_mut_ptr().cast(), source.as_ptr(), target.len(), memcpy_kind::DEVICE_TO_HOST)
    }

    /// Copies host memory to the device and waits for it. Order and captures are as for [`Self::read_memory`]: work that still uses
    /// the memory was waited for before, and work that is given to any stream afterwards finds the bytes.
    ///
    /// # Errors
    /// As for [`Self::read_memory`].
    ///
    /// # Safety
    /// `target` must be the start of at least `source.len()` bytes of live device memory that nobody else uses now.
    pub unsafe fn write_memory(&self, target: DeviceAddress, source: &[u8]) -> Result<()> {
        self.copy(target.as_ptr(), source.as_ptr().cast(), source.len(), memcpy_kind::HOST_TO_DEVICE)
    }

    fn copy(&self, target: *mut c_void, source: *const c_void, bytes: usize, kind: i32) -> Result<()> {
        self.transfer(bytes, "hipMemcpyAsync", |stream| {
            // SAFETY: callers hand in ranges that they checked or whose validity their own callers promise; the host's side is
            // borrowed until the stream was waited for.
            unsafe { (self.runtime().api().hipMemcpyAsync)(target, source, bytes, kind, stream) }
        })
    }

    /// Puts one transfer on the stream and waits for it.
    fn transfer(
        &self,
        bytes: usize,
        call: &'static str,
        put: impl FnOnce(HipStream) -> HipError,
    ) -> Result<()> {
        if bytes == 0 {
            return Ok(());
        }
        let _guard = self.guard()?;
        let stream = self.transfers().stream(self)?;
        // Where waits are refused (this thread captures), nothing may be put that could not be waited for: it would use the host's
        // memory behind the return.
        self.wait_for(stream)?;
        self.check(call, put(stream))?;
        // Another thread may have begun a capture in global mode meanwhile, which refuses the wait on every thread. A refusal says
        // nothing of the transfer, which may still use the host's memory: only another answer lets this return. That capture has
        // failed with the first refusal, so that asking again harms it no more.
        loop {
            match self.try_wait(stream) {
                HipError::STREAM_CAPTURE_UNSUPPORTED | HipError::STREAM_CAPTURE_IMPLICIT => {
                    anabranch_clock::sleep(WAIT_AGAIN);
                }
                code => return self.check("hipStreamSynchronize", code),
            }
        }
    }

    fn wait_for(&self, stream: HipStream) -> Result<()> {
        self.check("hipStreamSynchronize", self.try_wait(stream))
    }

    fn try_wait(&self, stream: HipStream) -> HipError {
        // SAFETY: the handle is live: the device keeps it.
        unsafe { (self.runtime().api().hipStreamSynchronize)(stream) }
    }
}

impl DeviceBuffer {
    /// Copies from the host, and waits for it. Order and captures are as for [`Device::write_memory`].
    ///
    /// # Errors
    /// [`Error::OutOfRange`](crate::Error::OutOfRange), or as for [`Device::write_memory`].
    pub fn copy_from_host(&mut self, offset: usize, source: &[u8]) -> Result<()> {
        self.range("copy from host", offset, source.len())?;
        // SAFETY: the range lies in this live allocation; `&mut self` keeps other host users away.
        unsafe { self.device().write_memory(self.address().offset(offset as u64), source) }
    }

    /// Copies to the host, and waits for it. Order and captures are as for [`Device::read_memory`].
    ///
    /// # Errors
    /// [`Error::OutOfRange`](crate::Error::OutOfRange), or as for [`Device::read_memory`].
    pub fn copy_to_host(&self, offset: usize, target: &mut [u8]) -> Result<()> {
        self.range("copy to host", offset, target.len())?;
        // SAFETY: the range lies in this live allocation.
        unsafe { self.device().read_memory(self.address().offset(offset as u64), target) }
    }

    /// Sets every byte, and waits for it. Order and captures are as for [`Device::write_memory`].
    ///
    /// # Errors
    /// As for [`Device::write_memory`].
    pub fn fill(&mut self, value: u8) -> Result<()> {
        let (device, target, bytes) = (self.device(), self.address().as_ptr(), self.len());
        device.transfer(bytes, "hipMemsetAsync", |stream| {
            // SAFETY: the range is this live allocation.
            unsafe { (device.runtime().api().hipMemsetAsync)(target, i32::from(value), bytes, stream) }
        })
    }
}
