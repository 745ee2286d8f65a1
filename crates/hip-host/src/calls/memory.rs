//! Allocations, host memory, addresses and memory shared between processes.

use core::ffi::{c_int, c_uint, c_void};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use anabranch_hip::HipError;
use anabranch_hip::types::{HipIpcMemHandle, HipPointerAttributes, flags, memory_type};

use super::give;
use crate::calls::current::{Current, call};
use crate::memory::ipc::IpcHandle;
use crate::memory::mapping::{Mapping, PAGE, Share};
use crate::memory::regions::{Backing, Region, RegionKind};
use crate::work::scheduler::NewMemory;

pub(super) unsafe extern "C" fn info(free: *mut usize, total: *mut usize) -> HipError {
    call("hipMemGetInfo", |current| {
        let limit = current.machine.config().memory_bytes;
        let used = current.state()?.used.load(Ordering::Acquire);
        // SAFETY: the out pointer.
        unsafe { give(free, limit.saturating_sub(used) as usize) }?;
        // SAFETY: the out pointer.
        unsafe { give(total, limit as usize) }
    })
}

/// Fresh memory reads as zero here; callers must not count on it.
pub(super) unsafe extern "C" fn malloc(pointer: *mut *mut c_void, bytes: usize) -> HipError {
    call("hipMalloc", |current| allocate(current, pointer, bytes, 0))
}

/// All memory is coherent here, so the flags change nothing.
pub(super) unsafe extern "C" fn malloc_with_flags(
    pointer: *mut *mut c_void,
    bytes: usize,
    flags: c_uint,
) -> HipError {
    call("hipExtMallocWithFlags", |current| {
        let known = [0, flags::DEVICE_MALLOC_FINE_GRAINED, flags::DEVICE_MALLOC_UNCACHED];
        if !known.contains(&flags) {
            return Err(HipError::INVALID_VALUE);
        }
        allocate(current, pointer, bytes, flags)
    })
}

fn allocate(
    current: &Current,
    pointer: *mut *mut c_void,
    bytes: usize,
    flags: c_uint,
) -> Result<(), HipError> {
    let machine = &current.machine;
    machine.refuse_in_capture()?;
    machine.check_alive(current.device)?;
    if pointer.is_null() {
        return Err(HipError::INVALID_VALUE);
    }
    if bytes == 0 {
        // SAFETY: the out pointer.
        return unsafe { give(pointer, core::ptr::null_mut()) };
    }
    let size = bytes.checked_next_multiple_of(PAGE).ok_or(HipError::OUT_OF_MEMORY)?;
    let share = Share::take(&current.state()?.used, size as u64, machine.config().memory_bytes)?;
    let mapping = Mapping::shared(bytes, share)?;
    let base = mapping.address();
    add_region(current, RegionKind::Device, base, bytes, current.device, flags, Some(mapping))?;
    // SAFETY: the out pointer.
    unsafe { give(pointer, base as *mut c_void) }
}

fn add_region(
    current: &Current,
    kind: RegionKind,
    base: usize,
    bytes: usize,
    device: u32,
    flags: c_uint,
    mapping: Option<Mapping>,
) -> Result<(), HipError> {
    let backing = mapping.map_or(Backing::Caller, |mapping| Backing::Mapping(Arc::new(mapping)));
    let mapping = if let Backing::Mapping(mapping) = &backing { Some(mapping) } else { None };
    let file = mapping.and_then(|mapping| mapping.file.as_ref()).map(AsFd::as_fd);
    let memory = NewMemory { kind, device, address: base, bytes, mapping, file };
    let model = current.machine.core.scheduler.track(&memory);
    current.machine.regions.insert(Region { base, bytes, kind, device, flags, backing, model })
}

/// Removes a range; its memory goes once the work queued by now is done.
fn remove_region(current: &Current, pointer: *mut c_void, kind: RegionKind) -> Result<(), HipError> {
    let region = current.machine.regions.remove(pointer as usize, kind).ok_or(HipError::INVALID_VALUE)?;
    if let Backing::Mapping(mapping) = &region.backing {
        if region.model.is_some() {
            current.machine.regions.leave(&region, mapping);
        }
        current.machine.release_after_work(mapping);
    }
    Ok(())
}

/// Does not wait: addresses are invalid at once, and the memory goes when the work queued by now, on any
/// stream, is done.
pub(super) unsafe extern "C" fn free(pointer: *mut c_void) -> HipError {
    call("hipFree", |current| {
        current.machine.refuse_in_capture()?;
        if pointer.is_null() { Ok(()) } else { remove_region(current, pointer, RegionKind::Device) }
    })
}

pub(super) unsafe extern "C" fn host_malloc(
    pointer: *mut *mut c_void,
    bytes: usize,
    flags: c_uint,
) -> HipError {
    call("hipHostMalloc", |current| {
        current.machine.refuse_in_capture()?;
        current.machine.check_alive(current.device)?;
        if pointer.is_null() {
            return Err(HipError::INVALID_VALUE);
        }
        if bytes == 0 {
            // SAFETY: the out pointer.
            return unsafe { give(pointer, core::ptr::null_mut()) };
        }
        let mapping = Mapping::private(bytes)?;
        let base = mapping.address();
        add_region(current, RegionKind::Pinned, base, bytes, current.device, flags, Some(mapping))?;
        // SAFETY: the out pointer.
        unsafe { give(pointer, base as *mut c_void) }
    })
}

/// Like `hipFree`, it does not wait.
pub(super) unsafe extern "C" fn host_free(pointer: *mut c_void) -> HipError {
    call("hipHostFree", |current| {
        current.machine.refuse_in_capture()?;
        if pointer.is_null() { Ok(()) } else { remove_region(current, pointer, RegionKind::Pinned) }
    })
}

/// Host memory has the same address on all devices.
pub(super) unsafe extern "C" fn host_device_pointer(
    device: *mut *mut c_void,
    host: *mut c_void,
    flags: c_uint,
) -> HipError {
    call("hipHostGetDevicePointer", |current| {
        let region = current.machine.regions.find(host as usize).ok_or(HipError::INVALID_VALUE)?;
        if flags != 0 || !region.on_host() {
            return Err(HipError::INVALID_VALUE);
        }
        // SAFETY: the out pointer.
        unsafe { give(device, host) }
    })
}

pub(super) unsafe extern "C" fn host_register(pointer: *mut c_void, bytes: usize, flags: c_uint) -> HipError {
    call("hipHostRegister", |current| {
        current.machine.refuse_in_capture()?;
        let base = pointer as usize;
        if base == 0 || bytes == 0 || base.checked_add(bytes).is_none() {
            return Err(HipError::INVALID_VALUE);
        }
        add_region(current, RegionKind::Registered, base, bytes, current.device, flags, None)
    })
}

pub(super) unsafe extern "C" fn host_unregister(pointer: *mut c_void) -> HipError {
    call("hipHostUnregister", |current| {
        current.machine.refuse_in_capture()?;
        match current.machine.regions.remove(pointer as usize, RegionKind::Registered) {
            Some(region) => {
                if let Some((number, _)) = region.model {
                    current.machine.core.scheduler.take_back(number);
                }
                Ok(())
            }
            None => Err(HipError::HOST_MEMORY_NOT_REGISTERED),
        }
    })
}

/// An address that the machine does not know is unregistered host memory, and no error.
pub(super) unsafe extern "C" fn pointer_attributes(
    attributes: *mut HipPointerAttributes,
    pointer: *const c_void,
) -> HipError {
    call("hipPointerGetAttributes", |current| {
        if pointer.is_null() {
            return Err(HipError::INVALID_VALUE);
        }
        let pointer = pointer.cast_mut();
        let mut found = HipPointerAttributes::default();
        if let Some(region) = current.machine.regions.find(pointer as usize) {
            found.device = region.device as c_int;
            found.device_pointer = pointer;
            found.allocation_flags = region.flags;
            found.memory_type = if region.on_device() { memory_type::DEVICE } else { memory_type::HOST };
            if region.on_host() {
                found.host_pointer = pointer;
            }
        } else {
            found.host_pointer = pointer;
        }
        // SAFETY: the out pointer.
        unsafe { give(attributes, found) }
    })
}

pub(super) unsafe extern "C" fn address_range(
    base: *mut *mut c_void,
    bytes: *mut usize,
    pointer: *mut c_void,
) -> HipError {
    call("hipMemGetAddressRange", |current| {
        let region = current.machine.regions.find(pointer as usize).ok_or(HipError::NOT_FOUND)?;
        // HIP allows either to be left out.
        if !base.is_null() {
            // SAFETY: the out pointer.
            unsafe { give(base, region.base as *mut c_void) }?;
        }
        if !bytes.is_null() {
            // SAFETY: the out pointer.
            unsafe { give(bytes, region.bytes) }?;
        }
        Ok(())
    })
}

/// The handle is that of the whole allocation, whichever address in it was given.
pub(super) unsafe extern "C" fn ipc_get(handle: *mut HipIpcMemHandle, pointer: *mut c_void) -> HipError {
    call("hipIpcGetMemHandle", |current| {
        let region = current.machine.regions.find(pointer as usize).ok_or(HipError::INVALID_VALUE)?;
        if region.kind != RegionKind::Device {
            return Err(HipError::INVALID_VALUE);
        }
        let found = IpcHandle::of(&region, current.machine.process)?;
        if let Some((number, _)) = region.model {
            current.machine.core.scheduler.offer(number);
        }
        // SAFETY: the out pointer.
        unsafe { give(handle, found.encode()) }
    })
}

/// A process cannot open its own handle, whichever of its machines made it: as on a GPU, ranks of one process
/// use plain addresses.
pub(super) unsafe extern "C" fn ipc_open(
    pointer: *mut *mut c_void,
    handle: HipIpcMemHandle,
    flags: c_uint,
) -> HipError {
    call("hipIpcOpenMemHandle", |current| {
        let machine = &current.machine;
        machine.refuse_in_capture()?;
        machine.check_alive(current.device)?;
        if pointer.is_null() || flags & !flags::IPC_LAZY_ENABLE_PEER_ACCESS != 0 {
            return Err(HipError::INVALID_VALUE);
        }
        let handle = IpcHandle::decode(&handle)?;
        if handle.is_of(machine.process) {
            return Err(HipError::INVALID_CONTEXT);
        }
        let file = handle.open()?;
        let bytes = handle.bytes as usize;
        let mapping = Mapping::of_file(&file, bytes).map_err(|_| HipError::MAP_FAILED)?;
        let base = mapping.address();
        // The exporter may have more devices than this machine.
        let device =
            if machine.device(handle.device as c_int).is_ok() { handle.device } else { current.device };
        add_region(current, RegionKind::Imported, base, bytes, device, 0, Some(mapping))?;
        // SAFETY: the out pointer.
        unsafe { give(pointer, base as *mut c_void) }
    })
}

pub(super) unsafe extern "C" fn ipc_close(pointer: *mut c_void) -> HipError {
    call("hipIpcCloseMemHandle", |current| {
        current.machine.refuse_in_capture()?;
        remove_region(current, pointer, RegionKind::Imported)
    })
}
