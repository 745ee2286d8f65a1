//! Capture and graphs. Capture modes, capture states and instantiation flags have the same numbers in both.

use core::ffi::{c_int, c_ulonglong};
use core::ptr;

use anabranch_hip::HipError;
use anabranch_hip::types::{HipGraph, HipGraphExec, HipStream};

use crate::call::{forward, give, in_context, with_driver};
use crate::convert::check;

/// Starts to record a stream instead of running it.
pub(crate) unsafe extern "C" fn hipStreamBeginCapture(stream: HipStream, mode: c_int) -> HipError {
    in_context(|driver| {
        // SAFETY: the caller gives a live stream; the driver refuses other modes than its own.
        check(unsafe { (driver.cuda.cuStreamBeginCapture_v2)(stream, mode) })?;
        driver.captures.begun(stream, mode);
        Ok(())
    })
}

/// Ends the recording; the graph is the caller's. There is none, and the capture has been invalidated, where a call was refused
/// beside it.
pub(crate) unsafe extern "C" fn hipStreamEndCapture(stream: HipStream, graph: *mut HipGraph) -> HipError {
    in_context(|driver| {
        // SAFETY: the caller's out pointer.
        unsafe { give(graph, ptr::null_mut()) }?;
        let capture = driver.captures.take(stream);
        let mut recorded = ptr::null_mut();
        // SAFETY: the caller gives a live stream; cuStreamEndCapture writes one handle.
        let ended = check(unsafe { (driver.cuda.cuStreamEndCapture)(stream, &raw mut recorded) });
        if let (Err(HipError::STREAM_CAPTURE_WRONG_THREAD), Some(capture)) = (ended, capture) {
            driver.captures.restore(capture);
        }
        ended?;
        if capture.is_some_and(|capture| capture.invalid) {
            // SAFETY: the driver returned this graph above, and no other code holds it.
            check(unsafe { (driver.cuda.cuGraphDestroy)(recorded) })?;
            return Err(HipError::STREAM_CAPTURE_INVALIDATED);
        }
        // SAFETY: the caller's out pointer.
        unsafe { give(graph, recorded) }
    })
}

/// Whether a stream is being recorded.
pub(crate) unsafe extern "C" fn hipStreamIsCapturing(stream: HipStream, status: *mut c_int) -> HipError {
    in_context(|driver| {
        let mut found = 0;
        // SAFETY: the caller gives a live stream; cuStreamIsCapturing writes one int.
        check(unsafe { (driver.cuda.cuStreamIsCapturing)(stream, &raw mut found) })?;
        // SAFETY: the caller's out pointer.
        unsafe { give(status, driver.captures.status(stream, found)) }
    })
}

/// Sets which captures refuse calls of this thread, and reads what it was. Needs no context, and makes none.
pub(crate) unsafe extern "C" fn hipThreadExchangeStreamCaptureMode(mode: *mut c_int) -> HipError {
    with_driver(|driver| {
        // SAFETY: the caller gives a pointer to an int. Both libraries number the modes alike.
        check(unsafe { (driver.cuda.cuThreadExchangeStreamCaptureMode)(mode) })
    })
}

/// As [`hipStreamIsCapturing`], with the number of the capture.
pub(crate) unsafe extern "C" fn hipStreamGetCaptureInfo(
    stream: HipStream,
    status: *mut c_int,
    number: *mut c_ulonglong,
) -> HipError {
    in_context(|driver| {
        let ask = driver.cuda.cuStreamGetCaptureInfo.ok_or(HipError::NOT_SUPPORTED)?;
        let (mut found, mut of_capture) = (0, 0);
        // SAFETY: the caller gives a live stream; the call writes an int and a number.
        check(unsafe { ask(stream, &raw mut found, &raw mut of_capture) })?;
        // SAFETY: the caller's out pointers.
        unsafe {
            give(number, of_capture)?;
            give(status, driver.captures.status(stream, found))
        }
    })
}

forward! {
    /// Makes a graph launchable.
    fn hipGraphInstantiateWithFlags(exec: *mut HipGraphExec, graph: HipGraph, flags: c_ulonglong)
        via cuGraphInstantiateWithFlags(exec, graph, flags);
    /// Launches a graph in stream order.
    fn hipGraphLaunch(exec: HipGraphExec, stream: HipStream) via cuGraphLaunch(exec, stream);
    /// Destroys a launchable graph.
    fn hipGraphExecDestroy(exec: HipGraphExec) via cuGraphExecDestroy(exec);
    /// Destroys a graph.
    fn hipGraphDestroy(graph: HipGraph) via cuGraphDestroy(graph);
}
