//! Streams and events: order of work on a device.

use core::ffi::{c_uint, c_void};
use std::sync::{Mutex, PoisonError};

use crate::device::Device;
use crate::error::{Error, Result};
use crate::memory::DeviceAddress;
use crate::runtime::RuntimeKind;
use crate::trace::StreamWork;
use crate::types::{HipError, HipEvent, HipStream, flags, memcpy_kind};

/// The codes of calls that have to do with captures.
const REFUSED_IN_CAPTURE: std::ops::RangeInclusive<u32> =
    HipError::STREAM_CAPTURE_UNSUPPORTED.0..=HipError::STREAM_CAPTURE_WRONG_THREAD.0;

/// `hipStreamLegacy`: the null stream by another handle.
pub(crate) const NULL_STREAM_BY_NAME: usize = 1;
/// `hipStreamPerThread`: one handle for a stream of each thread.
const PER_THREAD_STREAM: usize = 2;

/// An in-order queue of work on one device. It does not synchronise with the null stream.
#[derive(Debug)]
pub struct Stream {
    device: Device,
    raw: HipStream,
    owned: bool,
}

// SAFETY: HIP streams may be used from any thread; calls on one stream are serialised by the runtime.
unsafe impl Send for Stream {}
// SAFETY: as above.
unsafe impl Sync for Stream {}

impl Device {
    /// Creates a stream that does not wait for the null stream.
    ///
    /// # Errors
    /// The code of `hipStreamCreateWithFlags`.
    pub fn create_stream(&self) -> Result<Stream> {
        let _guard = self.guard()?;
        let mut raw = std::ptr::null_mut();
        // SAFETY: the call writes one handle.
        let code = unsafe {
            (self.runtime().api().hipStreamCreateWithFlags)(&raw mut raw, flags::STREAM_NON_BLOCKING)
        };
        self.check("hipStreamCreateWithFlags", code)?;
        Ok(Stream { device: self.clone(), raw, owned: true })
    }

    /// Creates a stream of the greatest priority, for control words that must overtake queued work.
    ///
    /// # Errors
    /// The code of the priority query or of `hipStreamCreateWithPriority`.
    pub fn create_priority_stream(&self) -> Result<Stream> {
        let _guard = self.guard()?;
        Ok(Stream { device: self.clone(), raw: self.new_priority_stream()?, owned: true })
    }

    /// The handle of a new stream of the greatest priority. The device is current.
    pub(crate) fn new_priority_stream(&self) -> Result<HipStream> {
        let api = self.runtime().api();
        let (mut least, mut greatest) = (0, 0);
        // SAFETY: the call writes two ints.
        let code = unsafe { (api.hipDeviceGetStreamPriorityRange)(&raw mut least, &raw mut greatest) };
        self.check("hipDeviceGetStreamPriorityRange", code)?;
        let mut raw = std::ptr::null_mut();
        // SAFETY: the call writes one handle; the priority is in the reported range.
        let code =
            unsafe { (api.hipStreamCreateWithPriority)(&raw mut raw, flags::STREAM_NON_BLOCKING, greatest) };
        self.check("hipStreamCreateWithPriority", code)?;
        Ok(raw)
    }

    /// Uses a stream that somebody else (a framework) owns.
    ///
    /// # Safety
    /// `raw` must be a stream of this device that outlives the value.
    pub unsafe fn borrow_stream(&self, raw: HipStream) -> Stream {
        Stream { device: self.clone(), raw, owned: false }
    }

    /// Creates an event without timing, for order only.
    ///
    /// # Errors
    /// The code of `hipEventCreateWithFlags`.
    pub fn create_event(&self) -> Result<Event> {
        self.create_event_with(flags::EVENT_DISABLE_TIMING)
    }

    /// Creates an event that also takes the time.
    ///
    /// # Errors
    /// The code of `hipEventCreateWithFlags`.
    pub fn create_timing_event(&self) -> Result<Event> {
        self.create_event_with(flags::EVENT_DEFAULT)
    }

    fn create_event_with(&self, kind: u32) -> Result<Event> {
        let _guard = self.guard()?;
        let mut raw = std::ptr::null_mut();
        // SAFETY: the call writes one handle.
        let code = unsafe { (self.runtime().api().hipEventCreateWithFlags)(&raw mut raw, kind) };
        self.check("hipEventCreateWithFlags", code)?;
        Ok(Event { device: self.clone(), raw, captured: Mutex::new(None) })
    }

    /// Whether graphs may wait for events and record them: [`Stream::wait_event_in_replays`], [`Stream::record_in_replays`].
    ///
    /// Not on AMD GPUs, whatever functions the runtime has. In a capture such a wait takes an array of pointers for nodes unless it is the
    /// first node (CLR 7.2, `AddExternalEventWaitNode` of `hip_graph_internal.hpp`), and such a record makes a stream that waits for the event
    /// part of the capture (`hipEventRecord_common`).
    pub fn has_events_in_replays(&self) -> bool {
        self.record_in_replays().is_ok()
    }

    fn record_in_replays(&self) -> Result<unsafe extern "C" fn(HipEvent, HipStream, c_uint) -> HipError> {
        let runtime = self.runtime();
        let usable = runtime.api().hipEventRecordWithFlags.filter(|_| runtime.kind() != RuntimeKind::Amd);
        runtime.optional("hipEventRecordWithFlags that works in captures", usable)
    }
}

impl Stream {
    /// The device it belongs to.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// The C handle.
    pub fn raw(&self) -> HipStream {
        self.raw
    }

    /// Waits until all work on it is done.
    ///
    /// # Errors
    /// An error of the work, or of the call.
    pub fn synchronize(&self) -> Result<()> {
        let _guard = self.device.guard()?;
        // SAFETY: the handle is live.
        let code = unsafe { (self.device.runtime().api().hipStreamSynchronize)(self.raw) };
        self.device.check("hipStreamSynchronize", code)
    }

    /// Whether all work on it is done.
    ///
    /// # Errors
    /// An error of the work, or of the call.
    pub fn is_idle(&self) -> Result<bool> {
        let _guard = self.device.guard()?;
        // SAFETY: the handle is live.
        match unsafe { (self.device.runtime().api().hipStreamQuery)(self.raw) } {
            HipError::NOT_READY => Ok(false),
            code => self.device.check("hipStreamQuery", code).map(|()| true),
        }
    }

    /// Makes later work wait for the event, which may be another device's of the same runtime.
    ///
    /// A stream does not wait for an event that it recorded in the capture that it is in: its order has that already, and a second edge to a
    /// kernel of a graph costs each replay 6 to 20 us (two H100, CUDA 13).
    ///
    /// # Preconditions
    /// Each stream of a capture lives until the capture ends: after its end another stream could have its handle. Nobody replaces the
    /// dependencies of such a stream (`cudaStreamUpdateCaptureDependencies`).
    ///
    /// # Errors
    /// [`Error::RuntimeMismatch`], or the codes of `hipStreamWaitEvent` and `hipStreamGetCaptureInfo`.
    pub fn wait_event(&self, event: &Event) -> Result<()> {
        self.device.check_runtime("wait for an event", &event.device)?;
        if let Some((stream, capture)) = event.captured()
            && stream == self.raw as usize
            && event.device.is_same(&self.device)
            && self.capture_number()? == Some(capture)
        {
            return Ok(());
        }
        self.wait_event_with(event, 0)
    }

    /// In a capture: each launch of the graph waits for what the event's last record before the launch came after. In replays an event
    /// orders graphs with each other and with other work, which [`Self::wait_event`] and [`Self::record`] do within one capture.
    ///
    /// # Errors
    /// [`Error::RuntimeMismatch`], [`Error::Missing`] without [`Device::has_events_in_replays`], or the code of `hipStreamWaitEvent`, also
    /// for a stream that is not captured.
    pub fn wait_event_in_replays(&self, event: &Event) -> Result<()> {
        self.device.check_runtime("wait for an event", &event.device)?;
        self.device.record_in_replays()?;
        self.wait_event_with(event, flags::EVENT_WAIT_EXTERNAL)
    }

    fn wait_event_with(&self, event: &Event, flags: u32) -> Result<()> {
        let _guard = self.device.guard()?;
        // SAFETY: both handles are live.
        let code = unsafe { (self.device.runtime().api().hipStreamWaitEvent)(self.raw, event.raw, flags) };
        self.device.check("hipStreamWaitEvent", code)
    }

    /// Records the event behind the work given so far.
    ///
    /// # Errors
    /// [`Error::DeviceMismatch`], or the codes of `hipEventRecord` and `hipStreamGetCaptureInfo`.
    pub fn record(&self, event: &Event) -> Result<()> {
        self.check_device("record an event", event)?;
        // A runtime that cannot number captures keeps all waits.
        let capture = match self.capture_number() {
            Err(Error::Missing { .. }) => None,
            number => number?,
        };
        let _guard = self.device.guard()?;
        // SAFETY: both handles are live and of one device.
        let code = unsafe { (self.device.runtime().api().hipEventRecord)(event.raw, self.raw) };
        self.device.check("hipEventRecord", code)?;
        let is_one_stream = self.raw as usize > PER_THREAD_STREAM;
        event.set_captured(capture.filter(|_| is_one_stream).map(|number| (self.raw as usize, number)));
        Ok(())
    }

    /// In a capture: each launch of the graph records the event. It must live as long as the graph is launched.
    ///
    /// # Errors
    /// [`Error::DeviceMismatch`], [`Error::Missing`] without [`Device::has_events_in_replays`], or the code of `hipEventRecordWithFlags`,
    /// also for a stream that is not captured.
    pub fn record_in_replays(&self, event: &Event) -> Result<()> {
        self.check_device("record an event", event)?;
        let record = self.device.record_in_replays()?;
        let _guard = self.device.guard()?;
        // SAFETY: both handles are live and of one device.
        let code = unsafe { record(event.raw, self.raw, flags::EVENT_RECORD_EXTERNAL) };
        event.set_captured(None);
        self.device.check("hipEventRecordWithFlags", code)
    }

    fn check_device(&self, what: &'static str, event: &Event) -> Result<()> {
        if event.device.is_same(&self.device) {
            return Ok(());
        }
        let (left, right) = (self.device.ordinal(), event.device.ordinal());
        Err(Error::DeviceMismatch { what, left, right })
    }

    /// Copies between any two addresses that this device or the host's pinned memory holds.
    ///
    /// # Errors
    /// The code of `hipMemcpyAsync`.
    ///
    /// # Safety
    /// Both ranges must stay live until the stream has passed the copy, and nobody else may write `source` or
    /// touch `target` meanwhile.
    pub unsafe fn copy_async(
        &self,
        target: DeviceAddress,
        source: DeviceAddress,
        bytes: usize,
    ) -> Result<()> {
        if bytes == 0 {
            return Ok(());
        }
        let work = || StreamWork { name: "copy".into(), grid: None, bytes: Some(bytes as u64) };
        self.device.timed(self, work, || {
            let _guard = self.device.guard()?;
            // SAFETY: the caller's promise.
            let code = unsafe {
                (self.device.runtime().api().hipMemcpyAsync)(
                    target.as_ptr(),
                    source.as_ptr(),
                    bytes,
                    memcpy_kind::DEFAULT,
                    self.raw,
                )
            };
            self.device.check("hipMemcpyAsync", code)
        })
    }

    /// Sets bytes of device memory.
    ///
    /// # Errors
    /// The code of `hipMemsetAsync`.
    ///
    /// # Safety
    /// As for [`Self::copy_async`]'s target.
    pub unsafe fn fill_async(&self, target: DeviceAddress, value: u8, bytes: usize) -> Result<()> {
        if bytes == 0 {
            return Ok(());
        }
        let _guard = self.device.guard()?;
        // SAFETY: the caller's promise.
        let code = unsafe {
            (self.device.runtime().api().hipMemsetAsync)(target.as_ptr(), i32::from(value), bytes, self.raw)
        };
        self.device.check("hipMemsetAsync", code)
    }

    /// Writes an 8-byte word in stream order.
    ///
    /// # Errors
    /// [`Error::Missing`], or the code of the call.
    ///
    /// # Safety
    /// `target` must be a live, 8-byte aligned word that stays so until the stream has passed the write.
    pub unsafe fn write_value64(&self, target: DeviceAddress, value: u64) -> Result<()> {
        let runtime = self.device.runtime();
        let write = runtime.optional("hipStreamWriteValue64", runtime.api().hipStreamWriteValue64)?;
        let _guard = self.device.guard()?;
        // SAFETY: the caller's promise.
        let code = unsafe { write(self.raw, target.as_ptr(), value, 0) };
        self.device.check("hipStreamWriteValue64", code)
    }

    /// Makes later work wait until the word is at least `value`. The wait is the driver's and has no deadline:
    /// the caller must own a watchdog that writes the word.
    ///
    /// # Errors
    /// [`Error::Missing`], or the code of the call.
    ///
    /// # Safety
    /// As for [`Self::write_value64`].
    pub unsafe fn wait_value64_at_least(&self, target: DeviceAddress, value: u64) -> Result<()> {
        let runtime = self.device.runtime();
        let wait = runtime.optional("hipStreamWaitValue64", runtime.api().hipStreamWaitValue64)?;
        let _guard = self.device.guard()?;
        // SAFETY: the caller's promise.
        let code =
            unsafe { wait(self.raw, target.as_ptr(), value, flags::WAIT_VALUE_GREATER_OR_EQUAL, u64::MAX) };
        self.device.check("hipStreamWaitValue64", code)
    }

    /// Whether the stream is being captured into a graph.
    ///
    /// # Errors
    /// The code of `hipStreamIsCapturing`.
    pub fn is_capturing(&self) -> Result<bool> {
        let _guard = self.device.guard()?;
        let mut status = 0;
        // SAFETY: the handle is live; the call writes one int.
        let code = unsafe { (self.device.runtime().api().hipStreamIsCapturing)(self.raw, &raw mut status) };
        self.device.check("hipStreamIsCapturing", code)?;
        Ok(status != flags::CAPTURE_STATUS_NONE)
    }

    /// The number of the capture that the stream is in, which no other capture of the runtime has. `None` outside of captures.
    ///
    /// # Errors
    /// In a capture [`Error::Missing`] for a runtime that does not number captures; the code of `hipStreamGetCaptureInfo`, or of
    /// `hipStreamIsCapturing`.
    pub fn capture_number(&self) -> Result<Option<u64>> {
        // The null stream cannot be captured, and cannot be asked while another stream is.
        if self.raw as usize <= NULL_STREAM_BY_NAME {
            return Ok(None);
        }
        let runtime = self.device.runtime();
        let ask = match runtime.api().hipStreamGetCaptureInfo {
            None if !self.is_capturing()? => return Ok(None),
            ask => runtime.optional("hipStreamGetCaptureInfo", ask)?,
        };
        let _guard = self.device.guard()?;
        let (mut status, mut number) = (0, 0);
        // SAFETY: the handle is live; the call writes an int and a number.
        let code = unsafe { ask(self.raw, &raw mut status, &raw mut number) };
        self.device.check("hipStreamGetCaptureInfo", code)?;
        Ok((status != flags::CAPTURE_STATUS_NONE).then_some(number))
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        if !self.owned {
            return;
        }
        let Ok(_guard) = self.device.guard() else {
            tracing::warn!("stream leaked: its device cannot be made current");
            return;
        };
        // SAFETY: the handle came from a create call and is destroyed once, here; HIP lets queued work finish.
        let code = unsafe { (self.device.runtime().api().hipStreamDestroy)(self.raw) };
        if code != HipError::SUCCESS {
            tracing::warn!(%code, "hipStreamDestroy failed");
        }
    }
}

/// A point in a stream's order.
#[derive(Debug)]
pub struct Event {
    device: Device,
    raw: HipEvent,
    /// The stream and the number of the capture, if the last record was captured.
    captured: Mutex<Option<(usize, u64)>>,
}

// SAFETY: HIP events may be used from any thread.
unsafe impl Send for Event {}
// SAFETY: as above.
unsafe impl Sync for Event {}

impl Event {
    /// The device it belongs to.
    pub fn device(&self) -> &Device {
        &self.device
    }

    fn captured(&self) -> Option<(usize, u64)> {
        *self.captured.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn set_captured(&self, captured: Option<(usize, u64)>) {
        *self.captured.lock().unwrap_or_else(PoisonError::into_inner) = captured;
    }

    /// The C handle. Record the event by [`Stream::record`] alone: [`Stream::wait_event`] does not see a record by the handle.
    pub fn raw(&self) -> *mut c_void {
        self.raw
    }

    /// Whether the point was passed. True for an event that was never recorded.
    ///
    /// # Errors
    /// An error of the work before it, or of the call.
    pub fn is_done(&self) -> Result<bool> {
        let _guard = self.device.guard()?;
        // SAFETY: the handle is live.
        match unsafe { (self.device.runtime().api().hipEventQuery)(self.raw) } {
            HipError::NOT_READY => Ok(false),
            code => self.device.check("hipEventQuery", code).map(|()| true),
        }
    }

    /// Whether the work before it runs no more. Work that ended with an error is over too. A runtime that refuses the query, because of a
    /// capture, gives no answer: the work is not known to be over. A query beside a capture of another thread may end that capture with an
    /// error, unless this thread's capture mode is relaxed.
    pub fn is_over(&self) -> bool {
        self.is_done().unwrap_or_else(|error| {
            let refused = error.code().is_none_or(|code| REFUSED_IN_CAPTURE.contains(&code.0));
            tracing::debug!(%error, refused, "an event after work in flight gave an error");
            !refused
        })
    }

    /// Waits until the point was passed.
    ///
    /// # Errors
    /// An error of the work before it, or of the call.
    pub fn synchronize(&self) -> Result<()> {
        let _guard = self.device.guard()?;
        // SAFETY: the handle is live.
        let code = unsafe { (self.device.runtime().api().hipEventSynchronize)(self.raw) };
        self.device.check("hipEventSynchronize", code)
    }

    /// Microseconds from `self` to `later`; both must take the time and be done.
    ///
    /// # Errors
    /// [`Error::RuntimeMismatch`], or the code of `hipEventElapsedTime`.
    pub fn microseconds_until(&self, later: &Self) -> Result<f64> {
        self.device.check_runtime("compare events", &later.device)?;
        let _guard = self.device.guard()?;
        let mut milliseconds = 0.0f32;
        // SAFETY: both handles are live; the call writes one float.
        let code = unsafe {
            (self.device.runtime().api().hipEventElapsedTime)(&raw mut milliseconds, self.raw, later.raw)
        };
        self.device.check("hipEventElapsedTime", code)?;
        Ok(f64::from(milliseconds) * 1000.0)
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        let Ok(_guard) = self.device.guard() else {
            tracing::warn!("event leaked: its device cannot be made current");
            return;
        };
        // SAFETY: the handle came from a create call and is destroyed once, here.
        let code = unsafe { (self.device.runtime().api().hipEventDestroy)(self.raw) };
        if code != HipError::SUCCESS {
            tracing::warn!(%code, "hipEventDestroy failed");
        }
    }
}
