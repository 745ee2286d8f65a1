//! Initialisation, versions, errors and devices.

use core::ffi::{c_char, c_int, c_uint};

use anabranch_hip::HipError;
use anabranch_hip::types::{HipDeviceProperties, device_attribute};

use super::give;
use crate::calls::current::{self, call};
use crate::config::MAX_LOCAL_BYTES;
use crate::sync::lock;
use crate::work::device::DeviceState;

/// What the version calls report: the release of HIP whose calls are imitated, 6.0.
const VERSION: c_int = 60_000_000;

/// Longest name of an error code, with its end.
const NAME_BYTES: usize = 48;

/// The names of all listed codes as C strings; the last one is for the others.
static NAMES: [[u8; NAME_BYTES]; HipError::LISTED.len() + 1] = {
    let mut names = [[0; NAME_BYTES]; HipError::LISTED.len() + 1];
    let mut index = 0;
    while index < names.len() {
        let error =
            if index < HipError::LISTED.len() { HipError::LISTED[index] } else { HipError(c_uint::MAX) };
        let name = error.name().as_bytes();
        assert!(name.len() < NAME_BYTES, "the name and its end fit");
        let mut at = 0;
        while at < name.len() {
            names[index][at] = name[at];
            at += 1;
        }
        index += 1;
    }
    names
};

pub(super) unsafe extern "C" fn init(_flags: c_uint) -> HipError {
    call("hipInit", |_| Ok(()))
}

pub(super) unsafe extern "C" fn version(version: *mut c_int) -> HipError {
    // SAFETY: the out pointer.
    call("hipDriverGetVersion", |_| unsafe { give(version, VERSION) })
}

/// Also serves as `hipGetErrorString`.
pub(super) unsafe extern "C" fn error_name(error: HipError) -> *const c_char {
    let index = HipError::LISTED.iter().position(|listed| *listed == error).unwrap_or(HipError::LISTED.len());
    NAMES[index].as_ptr().cast()
}

pub(super) unsafe extern "C" fn last_error() -> HipError {
    current::take_last_error()
}

pub(super) unsafe extern "C" fn count(count: *mut c_int) -> HipError {
    // SAFETY: the out pointer.
    call("hipGetDeviceCount", |current| unsafe { give(count, current.machine.devices.len() as c_int) })
}

pub(super) unsafe extern "C" fn set(device: c_int) -> HipError {
    call("hipSetDevice", |current| {
        let ordinal = current.machine.device(device)?.ordinal;
        current::set_device(ordinal);
        Ok(())
    })
}

pub(super) unsafe extern "C" fn get(device: *mut c_int) -> HipError {
    // SAFETY: the out pointer.
    call("hipGetDevice", |current| unsafe { give(device, current.device as c_int) })
}

pub(super) unsafe extern "C" fn properties(properties: *mut HipDeviceProperties, device: c_int) -> HipError {
    call("hipGetDevicePropertiesR0600", |current| {
        let machine = &current.machine;
        machine.device(device)?;
        let found = DeviceState::properties(machine.config(), machine.core.scheduler.is_virtual());
        // SAFETY: the out pointer, of a whole `HipDeviceProperties` by the table's type.
        unsafe { give(properties, found) }
    })
}

pub(super) unsafe extern "C" fn attribute(value: *mut c_int, attribute: c_int, device: c_int) -> HipError {
    call("hipDeviceGetAttribute", |current| {
        current.machine.device(device)?;
        let config = current.machine.config();
        let found = match attribute {
            device_attribute::MULTIPROCESSOR_COUNT => config.multiprocessors,
            device_attribute::MAX_SHARED_MEMORY_PER_BLOCK => MAX_LOCAL_BYTES,
            device_attribute::WARP_SIZE => config.wave_width,
            device_attribute::VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED => 1,
            _ => return Err(HipError::INVALID_VALUE),
        };
        // SAFETY: the out pointer.
        unsafe { give(value, found as c_int) }
    })
}

/// An invented address, which distinguishes the devices of a machine, not machines.
pub(super) unsafe extern "C" fn pci_bus_id(id: *mut c_char, length: c_int, device: c_int) -> HipError {
    call("hipDeviceGetPCIBusId", |current| {
        let ordinal = current.machine.device(device)?.ordinal;
        let text = format!("{:04x}:{:02x}:00.0", ordinal >> 8, ordinal & 0xff);
        let length = usize::try_from(length).map_err(|_| HipError::INVALID_VALUE)?;
        if id.is_null() || length <= text.len() {
            return Err(HipError::INVALID_VALUE);
        }
        // SAFETY: the out pointer, of `length` bytes by HIP's contract; the text and its end fit.
        let target = unsafe { core::slice::from_raw_parts_mut(id.cast::<u8>(), text.len() + 1) };
        target[..text.len()].copy_from_slice(text.as_bytes());
        target[text.len()] = 0;
        Ok(())
    })
}

pub(super) unsafe extern "C" fn synchronize() -> HipError {
    call("hipDeviceSynchronize", |current| {
        current.machine.refuse_beside_captures(HipError::STREAM_CAPTURE_UNSUPPORTED)?;
        for stream in &current.state()?.streams() {
            stream.wait(stream.submitted())?;
        }
        current.machine.check_alive(current.device)
    })
}

pub(super) unsafe extern "C" fn can_access_peer(can: *mut c_int, device: c_int, peer: c_int) -> HipError {
    call("hipDeviceCanAccessPeer", |current| {
        current.machine.device(device)?;
        current.machine.device(peer)?;
        // SAFETY: the out pointer.
        unsafe { give(can, c_int::from(device != peer)) }
    })
}

/// Keeps the state and the codes only: a kernel's loads and stores cannot be checked here.
pub(super) unsafe extern "C" fn enable_peer_access(peer: c_int, flags: c_uint) -> HipError {
    call("hipDeviceEnablePeerAccess", |current| {
        let peer = current.machine.device(peer)?.ordinal;
        if flags != 0 {
            return Err(HipError::INVALID_VALUE);
        }
        if peer == current.device {
            return Err(HipError::INVALID_DEVICE);
        }
        if lock(&current.state()?.peers).insert(peer) {
            Ok(())
        } else {
            Err(HipError::PEER_ACCESS_ALREADY_ENABLED)
        }
    })
}
