//! Streams, events, values in memory.

use core::ffi::{c_int, c_uint, c_void};

use anabranch_hip::HipError;
use anabranch_hip::types::{HipEvent, HipStream};

use super::memory::number;
use crate::call::{forward, forward_optional, in_context};
use crate::convert::{self, check};
use crate::cuda::flags as cuda;

forward! {
    /// Non-blocking has the same flag in both.
    fn hipStreamCreateWithFlags(stream: *mut HipStream, flags: c_uint) via cuStreamCreate(stream, flags);
    /// A lower number is more urgent, in both.
    fn hipStreamCreateWithPriority(stream: *mut HipStream, flags: c_uint, priority: c_int)
        via cuStreamCreateWithPriority(stream, flags, priority);
    /// The range of priorities of the current device.
    fn hipDeviceGetStreamPriorityRange(least: *mut c_int, greatest: *mut c_int)
        via cuCtxGetStreamPriorityRange(least, greatest);
    /// Orders the stream behind the event.
    fn hipStreamWaitEvent(stream: HipStream, event: HipEvent, flags: c_uint)
        via cuStreamWaitEvent(stream, event, flags);
    /// The event may go while work still refers to it.
    fn hipEventDestroy(event: HipEvent) via cuEventDestroy_v2(event);
    /// Marks a point of the stream.
    fn hipEventRecord(event: HipEvent, stream: HipStream) via cuEventRecord(event, stream);
    /// Waits for the event's last record.
    fn hipEventSynchronize(event: HipEvent) via cuEventSynchronize(event);
    /// `hipErrorNotReady` before the event's last record is reached.
    fn hipEventQuery(event: HipEvent) via cuEventQuery(event);
    /// Milliseconds between two reached events.
    fn hipEventElapsedTime(milliseconds: *mut f32, start: HipEvent, end: HipEvent)
        via cuEventElapsedTime(milliseconds, start, end);
}

/// Waits for the stream. Refused where HIP refuses it.
pub(crate) unsafe extern "C" fn hipStreamSynchronize(stream: HipStream) -> HipError {
    in_context(|driver| {
        driver.captures.refuse_wait(stream)?;
        // SAFETY: the caller gives a live stream.
        check(unsafe { (driver.cuda.cuStreamSynchronize)(stream) })
    })
}

/// `hipErrorNotReady` while there is work. Refused where a wait is.
pub(crate) unsafe extern "C" fn hipStreamQuery(stream: HipStream) -> HipError {
    in_context(|driver| {
        driver.captures.refuse_wait(stream)?;
        // SAFETY: the caller gives a live stream.
        check(unsafe { (driver.cuda.cuStreamQuery)(stream) })
    })
}

/// The stream's resources go when its work is done. A capture that began on it is over.
pub(crate) unsafe extern "C" fn hipStreamDestroy(stream: HipStream) -> HipError {
    in_context(|driver| {
        let _capture = driver.captures.take(stream);
        // SAFETY: the caller gives a live stream, and gives it up.
        check(unsafe { (driver.cuda.cuStreamDestroy_v2)(stream) })
    })
}

forward_optional! {
    /// Marks a point of each launch of a graph; the flag has the same number in both.
    fn hipEventRecordWithFlags(event: HipEvent, stream: HipStream, flags: c_uint)
        via cuEventRecordWithFlags(event, stream, flags);
    /// Writes a value in stream order, after a memory barrier for the stream's earlier writes.
    fn hipStreamWriteValue64(stream: HipStream, place: *mut c_void, value: u64, _flags: c_uint)
        via cuStreamWriteValue64_v2(stream, number(place), value, cuda::STREAM_WRITE_VALUE_DEFAULT);
}

/// Waits in stream order for a value; see [`convert::wait_value`] for masks.
pub(crate) unsafe extern "C" fn hipStreamWaitValue64(
    stream: HipStream,
    place: *mut c_void,
    value: u64,
    flags: c_uint,
    mask: u64,
) -> HipError {
    in_context(|driver| {
        let function = driver.cuda.cuStreamWaitValue64_v2.ok_or(HipError::NOT_SUPPORTED)?;
        let (value, flags) = convert::wait_value(flags, value, mask, u64::MAX)?;
        // SAFETY: the caller gives a live stream and a word that the device can read.
        check(unsafe { function(stream, number(place), value, flags) })
    })
}

/// An event; blocking, timing and inter-process flags have the same numbers in both.
pub(crate) unsafe extern "C" fn hipEventCreateWithFlags(event: *mut HipEvent, flags: c_uint) -> HipError {
    in_context(|driver| {
        let flags = convert::event_flags(flags)?;
        // SAFETY: cuEventCreate writes one handle, and refuses null.
        check(unsafe { (driver.cuda.cuEventCreate)(event, flags) })
    })
}
