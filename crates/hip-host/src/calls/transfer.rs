//! Copies, fills, and words written or waited for by streams.

use core::ffi::{c_int, c_uint, c_void};
use std::sync::Arc;

use anabranch_hip::HipError;
use anabranch_hip::types::{HipStream, flags, memcpy_kind};

use crate::calls::current::{Current, call};
use crate::machine::HostMachine;
use crate::memory::regions::Place;
use crate::work::operation::{Condition, Operation, Word, copy_bytes, fill_bytes};
use crate::work::stream::{Stream, StreamKind};

/// Where both ends of a copy lie, checked against its kind.
fn places(
    current: &Current,
    target: *mut c_void,
    source: *const c_void,
    bytes: usize,
    kind: c_int,
) -> Result<(Place, Place), HipError> {
    let target = current.machine.regions.place(target as usize, bytes)?;
    let source = current.machine.regions.place(source as usize, bytes)?;
    let fits = match kind {
        memcpy_kind::HOST_TO_HOST | memcpy_kind::DEFAULT => true,
        memcpy_kind::HOST_TO_DEVICE => target != Place::Pageable,
        memcpy_kind::DEVICE_TO_HOST => source != Place::Pageable,
        memcpy_kind::DEVICE_TO_DEVICE => target != Place::Pageable && source != Place::Pageable,
        _ => return Err(HipError::INVALID_MEMCPY_DIRECTION),
    };
    if fits { Ok((target, source)) } else { Err(HipError::INVALID_VALUE) }
}

/// Whether nothing is pending that work given to this stream now would come after, so that the caller's thread may do it itself.
fn is_free(stream: &Stream) -> bool {
    let before = match stream.kind {
        StreamKind::NonBlocking => return stream.is_idle(),
        StreamKind::Blocking => StreamKind::Null,
        StreamKind::Null => StreamKind::Blocking,
    };
    // Beside a captured stream the null stream refuses work, where it is given any.
    let is_passed = |other: &Arc<Stream>| {
        other.is_idle() && HostMachine::capture_status(other) == flags::CAPTURE_STATUS_NONE
    };
    stream.is_idle() && stream.device.streams().iter().filter(|other| other.kind == before).all(is_passed)
}

/// Does it on the caller's thread.
fn do_here(current: &Current, operation: &Operation) {
    let core = &current.machine.core;
    match operation {
        Operation::Copy { target, source, bytes, .. } => copy_bytes(core, *target, *source, *bytes),
        Operation::Fill { target, value, bytes } => fill_bytes(core, *target, *value, *bytes),
        _ => {}
    }
}

/// What HIP does before it looks at anything else, also for no bytes.
fn refuse_null_stream_call(current: &Current) -> Result<(), HipError> {
    current.machine.refuse_beside_captures(HipError::STREAM_CAPTURE_IMPLICIT)
}

fn synchronously(current: &Current, operation: Operation) -> Result<(), HipError> {
    current.machine.check_alive(current.device)?;
    let null = current.stream(core::ptr::null_mut())?;
    if !is_free(&null) {
        let ticket = null.push(operation)?;
        return null.wait(ticket);
    }
    do_here(current, &operation);
    Ok(())
}

/// Ordered on the null stream, and refused beside any capture. Devices need no peer access for it, as in HIP.
pub(super) unsafe extern "C" fn copy(
    target: *mut c_void,
    source: *const c_void,
    bytes: usize,
    kind: c_int,
) -> HipError {
    call("hipMemcpy", |current| {
        refuse_null_stream_call(current)?;
        if bytes == 0 {
            return Ok(());
        }
        places(current, target, source, bytes, kind)?;
        let (target, source) = (target as usize, source as usize);
        synchronously(current, Operation::Copy { target, source, bytes, staged: None })
    })
}

/// Host memory that the machine does not know may be used again when this returns: a source is staged, and
/// for a target the copy is waited for; where nothing is pending, the caller's thread copies. In a capture its address is recorded instead.
pub(super) unsafe extern "C" fn copy_async(
    target: *mut c_void,
    source: *const c_void,
    bytes: usize,
    kind: c_int,
    stream: HipStream,
) -> HipError {
    call("hipMemcpyAsync", |current| {
        let stream = current.stream(stream)?;
        if bytes == 0 {
            return Ok(());
        }
        let (target_place, source_place) = places(current, target, source, bytes, kind)?;
        let captured = HostMachine::capture_status(&stream) != flags::CAPTURE_STATUS_NONE;
        let pageable = target_place == Place::Pageable || source_place == Place::Pageable;
        if pageable && !captured && is_free(&stream) {
            current.machine.check_alive(stream.device.ordinal)?;
            let (target, source) = (target as usize, source as usize);
            do_here(current, &Operation::Copy { target, source, bytes, staged: None });
            return Ok(());
        }
        let staged: Option<Arc<[u8]>> = (source_place == Place::Pageable && !captured).then(|| {
            // SAFETY: hipMemcpyAsync's caller promises `bytes` readable bytes of host memory.
            unsafe { core::slice::from_raw_parts(source.cast::<u8>(), bytes) }.into()
        });
        let (target, source) = (target as usize, source as usize);
        let ticket = stream.push(Operation::Copy { target, source, bytes, staged })?;
        if target_place == Place::Pageable && !captured { stream.wait(ticket) } else { Ok(()) }
    })
}

fn checked_fill(
    current: &Current,
    target: *mut c_void,
    value: c_int,
    bytes: usize,
) -> Result<Operation, HipError> {
    let target = target as usize;
    if current.machine.regions.place(target, bytes)? == Place::Pageable {
        return Err(HipError::INVALID_VALUE);
    }
    Ok(Operation::Fill { target, value: value as u8, bytes })
}

/// Ordered on the null stream, refused beside any capture, and waited for, which HIP leaves open.
pub(super) unsafe extern "C" fn fill(target: *mut c_void, value: c_int, bytes: usize) -> HipError {
    call("hipMemset", |current| {
        refuse_null_stream_call(current)?;
        if bytes == 0 {
            return Ok(());
        }
        synchronously(current, checked_fill(current, target, value, bytes)?)
    })
}

pub(super) unsafe extern "C" fn fill_async(
    target: *mut c_void,
    value: c_int,
    bytes: usize,
    stream: HipStream,
) -> HipError {
    call("hipMemsetAsync", |current| {
        let stream = current.stream(stream)?;
        if bytes == 0 {
            return Ok(());
        }
        stream.push(checked_fill(current, target, value, bytes)?).map(|_| ())
    })
}

fn checked_word(current: &Current, pointer: *mut c_void) -> Result<Word, HipError> {
    let address = pointer as usize;
    if !address.is_multiple_of(8) || current.machine.regions.place(address, 8)? == Place::Pageable {
        return Err(HipError::INVALID_VALUE);
    }
    Ok(Word { address })
}

pub(super) unsafe extern "C" fn write_value64(
    stream: HipStream,
    pointer: *mut c_void,
    value: u64,
    flags: c_uint,
) -> HipError {
    call("hipStreamWriteValue64", |current| {
        let stream = current.stream(stream)?;
        if flags != 0 {
            return Err(HipError::INVALID_VALUE);
        }
        let word = checked_word(current, pointer)?;
        stream.push(Operation::WriteValue { word, value }).map(|_| ())
    })
}

pub(super) unsafe extern "C" fn wait_value64(
    stream: HipStream,
    pointer: *mut c_void,
    value: u64,
    flags: c_uint,
    mask: u64,
) -> HipError {
    call("hipStreamWaitValue64", |current| {
        let stream = current.stream(stream)?;
        let condition = Condition { value, mask, kind: flags };
        if condition.kind > flags::WAIT_VALUE_NOR {
            return Err(HipError::INVALID_VALUE);
        }
        let word = checked_word(current, pointer)?;
        stream.push(Operation::WaitValue { word, condition }).map(|_| ())
    })
}
