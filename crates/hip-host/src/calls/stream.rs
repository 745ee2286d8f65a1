//! Streams and events.

use core::ffi::{c_int, c_uint};
use std::sync::Arc;

use anabranch_hip::HipError;
use anabranch_hip::types::{HipEvent, HipStream, flags};

use super::give;
use crate::calls::current::{Current, call};
use crate::machine::HostMachine;
use crate::sync::lock;
use crate::work::event::{Event, Mark, Recording};
use crate::work::operation::Operation;
use crate::work::stream::{Stream, StreamKind};

fn create_stream(current: &Current, stream: *mut HipStream, flags: c_uint) -> Result<(), HipError> {
    let kind = match flags {
        0 => StreamKind::Blocking,
        flags::STREAM_NON_BLOCKING => StreamKind::NonBlocking,
        _ => return Err(HipError::INVALID_VALUE),
    };
    current.machine.check_alive(current.device)?;
    if stream.is_null() {
        return Err(HipError::INVALID_VALUE);
    }
    let device = Arc::clone(current.state()?);
    let created = Stream::new(device, kind, Arc::clone(&current.machine.core));
    // SAFETY: the out pointer.
    unsafe { give(stream, current.machine.streams.insert(&current.machine.handles, created)) }
}

pub(super) unsafe extern "C" fn create(stream: *mut HipStream, flags: c_uint) -> HipError {
    call("hipStreamCreateWithFlags", |current| create_stream(current, stream, flags))
}

/// All streams have the same priority.
pub(super) unsafe extern "C" fn create_with_priority(
    stream: *mut HipStream,
    flags: c_uint,
    _priority: c_int,
) -> HipError {
    call("hipStreamCreateWithPriority", |current| create_stream(current, stream, flags))
}

pub(super) unsafe extern "C" fn priority_range(least: *mut c_int, greatest: *mut c_int) -> HipError {
    call("hipDeviceGetStreamPriorityRange", |_| {
        // SAFETY: the out pointer.
        unsafe { give(least, 0) }?;
        // SAFETY: the out pointer.
        unsafe { give(greatest, 0) }
    })
}

/// Work that the stream still has goes on without it.
pub(super) unsafe extern "C" fn destroy(stream: HipStream) -> HipError {
    call("hipStreamDestroy", |current| {
        let stream = current.machine.streams.remove(stream)?;
        current.machine.abandon_capture(&stream);
        Ok(())
    })
}

pub(super) unsafe extern "C" fn synchronize(stream: HipStream) -> HipError {
    call("hipStreamSynchronize", |current| {
        let stream = current.stream(stream)?;
        current.machine.refuse_captured(&stream)?;
        stream.wait(stream.submitted())
    })
}

pub(super) unsafe extern "C" fn query(stream: HipStream) -> HipError {
    call("hipStreamQuery", |current| {
        let stream = current.stream(stream)?;
        current.machine.refuse_captured(&stream)?;
        if stream.is_lost() {
            Err(HipError::LAUNCH_FAILURE)
        } else if stream.is_idle() {
            Ok(())
        } else {
            Err(HipError::NOT_READY)
        }
    })
}

/// Adds to the capture that the stream is in what a stream outside of captures refuses.
fn push_captured(stream: &Arc<Stream>, operation: Operation) -> Result<(), HipError> {
    if HostMachine::capture_status(stream) == flags::CAPTURE_STATUS_NONE {
        return Err(HipError::INVALID_VALUE);
    }
    stream.push(operation).map(|_| ())
}

pub(super) unsafe extern "C" fn wait_event(stream: HipStream, event: HipEvent, flags: c_uint) -> HipError {
    call("hipStreamWaitEvent", |current| {
        let stream = current.stream(stream)?;
        let event = current.machine.events.get(event)?;
        current.machine.check_alive(stream.device.ordinal)?;
        if flags == flags::EVENT_WAIT_EXTERNAL {
            return push_captured(&stream, Operation::AwaitEvent(event));
        }
        if flags != 0 {
            return Err(HipError::INVALID_VALUE);
        }
        match event.mark() {
            // As in HIP, an event that was never recorded delays nothing.
            Mark::Nothing => Ok(()),
            Mark::Recorded(recording) => {
                HostMachine::refuse_isolation(&stream)?;
                stream.push(Operation::Await(recording)).map(|_| ())
            }
            Mark::Captured(point) => HostMachine::await_captured(&stream, &point),
        }
    })
}

pub(super) unsafe extern "C" fn event_create(event: *mut HipEvent, flags: c_uint) -> HipError {
    call("hipEventCreateWithFlags", |current| {
        // Blocking synchronisation (1) is what every event here does.
        if event.is_null() || flags & !(flags::EVENT_DISABLE_TIMING | 1) != 0 {
            return Err(HipError::INVALID_VALUE);
        }
        let timed = flags & flags::EVENT_DISABLE_TIMING == 0;
        let created = Arc::new(Event::new(current.device, timed));
        // SAFETY: the out pointer.
        unsafe { give(event, current.machine.events.insert(&current.machine.handles, created)) }
    })
}

pub(super) unsafe extern "C" fn event_destroy(event: HipEvent) -> HipError {
    call("hipEventDestroy", |current| current.machine.events.remove(event).map(|_| ()))
}

/// On a captured stream the event marks a point of the capture and is not recorded in replays.
pub(super) unsafe extern "C" fn event_record(event: HipEvent, stream: HipStream) -> HipError {
    call("hipEventRecord", |current| {
        let event = current.machine.events.get(event)?;
        let stream = current.stream(stream)?;
        if event.device != stream.device.ordinal {
            return Err(HipError::INVALID_HANDLE);
        }
        current.machine.check_alive(stream.device.ordinal)?;
        if HostMachine::record_captured(&stream, &event)? {
            return Ok(());
        }
        let recording = Recording::new(stream.device.ordinal);
        stream.push(Operation::Record(Arc::clone(&recording)))?;
        *lock(&event.mark) = Mark::Recorded(recording);
        Ok(())
    })
}

/// Without flags as [`event_record`].
pub(super) unsafe extern "C" fn event_record_with_flags(
    event: HipEvent,
    stream: HipStream,
    flags: c_uint,
) -> HipError {
    if flags == 0 {
        // SAFETY: the caller's contract is the same.
        return unsafe { event_record(event, stream) };
    }
    call("hipEventRecordWithFlags", |current| {
        let event = current.machine.events.get(event)?;
        let stream = current.stream(stream)?;
        if event.device != stream.device.ordinal {
            return Err(HipError::INVALID_HANDLE);
        }
        if flags != flags::EVENT_RECORD_EXTERNAL {
            return Err(HipError::INVALID_VALUE);
        }
        current.machine.check_alive(stream.device.ordinal)?;
        push_captured(&stream, Operation::RecordEvent(event))
    })
}

pub(super) unsafe extern "C" fn event_synchronize(event: HipEvent) -> HipError {
    call("hipEventSynchronize", |current| {
        let event = current.machine.events.get(event)?;
        match event.mark() {
            Mark::Nothing => Ok(()),
            Mark::Recorded(recording) => {
                recording.wait(&current.machine.core);
                current.machine.check_recorded(&event, &recording)
            }
            Mark::Captured(_) => Err(HipError::CAPTURED_EVENT),
        }
    })
}

pub(super) unsafe extern "C" fn event_query(event: HipEvent) -> HipError {
    call("hipEventQuery", |current| {
        let event = current.machine.events.get(event)?;
        match event.mark() {
            Mark::Nothing => Ok(()),
            Mark::Recorded(recording) if !recording.is_reached() => Err(HipError::NOT_READY),
            Mark::Recorded(recording) => current.machine.check_recorded(&event, &recording),
            Mark::Captured(_) => Err(HipError::CAPTURED_EVENT),
        }
    })
}

pub(super) unsafe extern "C" fn event_elapsed(
    milliseconds: *mut f32,
    start: HipEvent,
    end: HipEvent,
) -> HipError {
    call("hipEventElapsedTime", |current| {
        let time = |event: HipEvent| {
            let event = current.machine.events.get(event)?;
            match event.mark() {
                Mark::Recorded(recording) if event.timed => {
                    let time = recording.time().ok_or(HipError::NOT_READY)?;
                    current.machine.check_recorded(&event, &recording).map(|()| time)
                }
                _ => Err(HipError::INVALID_HANDLE),
            }
        };
        let (start, end) = (time(start)?, time(end)?);
        let nanoseconds = end as i64 - start as i64;
        // SAFETY: the out pointer.
        unsafe { give(milliseconds, (nanoseconds as f64 / 1e6) as f32) }
    })
}
