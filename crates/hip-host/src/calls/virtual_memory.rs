//! Virtual memory.

use core::ffi::{c_int, c_ulonglong, c_void};
use std::os::fd::{AsFd, BorrowedFd, IntoRawFd};
use std::sync::Arc;

use anabranch_hip::HipError;
use anabranch_hip::types::{
    HipMemAccessDescriptor, HipMemAllocationProperties, HipMemGenericAllocationHandle, flags,
};

use super::give;
use crate::calls::current::{Current, call};
use crate::memory::mapping::Share;
use crate::memory::regions::RegionKind;
use crate::memory::virtual_memory::{GRANULARITY, Physical};
use crate::work::core::Core;
use crate::work::scheduler::NewMemory;

/// A wanted address is a hint in HIP and is not followed here.
pub(super) unsafe extern "C" fn reserve(
    pointer: *mut *mut c_void,
    bytes: usize,
    alignment: usize,
    _address: *mut c_void,
    flags: c_ulonglong,
) -> HipError {
    call("hipMemAddressReserve", |current| {
        current.machine.refuse_in_capture()?;
        if pointer.is_null() || flags != 0 {
            return Err(HipError::INVALID_VALUE);
        }
        let base = current.machine.reservations.reserve(bytes, alignment)?;
        // SAFETY: the out pointer.
        unsafe { give(pointer, base as *mut c_void) }
    })
}

pub(super) unsafe extern "C" fn free(pointer: *mut c_void, bytes: usize) -> HipError {
    call("hipMemAddressFree", |current| {
        current.machine.reservations.free(pointer as usize, bytes, &current.machine.regions)
    })
}

/// The device that the properties name.
///
/// # Safety
/// `properties` is null or points to a struct of its type.
unsafe fn device_of(
    current: &Current,
    properties: *const HipMemAllocationProperties,
) -> Result<u32, HipError> {
    // SAFETY: null, or valid by the caller's word.
    let properties = unsafe { properties.as_ref() }.ok_or(HipError::INVALID_VALUE)?;
    if properties.location.kind != flags::MEM_LOCATION_TYPE_DEVICE {
        return Err(HipError::INVALID_VALUE);
    }
    Ok(current.machine.device(properties.location.id)?.ordinal)
}

pub(super) unsafe extern "C" fn granularity(
    granularity: *mut usize,
    properties: *const HipMemAllocationProperties,
    _option: c_int,
) -> HipError {
    call("hipMemGetAllocationGranularity", |current| {
        // SAFETY: a pointer argument of HIP's is null or valid.
        unsafe { device_of(current, properties) }?;
        // SAFETY: the out pointer.
        unsafe { give(granularity, GRANULARITY) }
    })
}

pub(super) unsafe extern "C" fn create(
    handle: *mut HipMemGenericAllocationHandle,
    bytes: usize,
    properties: *const HipMemAllocationProperties,
    flags: c_ulonglong,
) -> HipError {
    call("hipMemCreate", |current| {
        let machine = &current.machine;
        machine.refuse_in_capture()?;
        // SAFETY: a pointer argument of HIP's is null or valid.
        let device = unsafe { device_of(current, properties) }?;
        machine.check_alive(device)?;
        if handle.is_null() || flags != 0 || bytes == 0 || !bytes.is_multiple_of(GRANULARITY) {
            return Err(HipError::INVALID_VALUE);
        }
        let used = &machine.device(device as c_int)?.used;
        let share = Share::take(used, bytes as u64, machine.config().memory_bytes)?;
        let physical = Arc::new(Physical::create(bytes, device, share)?);
        // SAFETY: the out pointer.
        unsafe { give(handle, machine.physical.insert(&machine.handles, physical)) }
    })
}

/// Memory that is still mapped stays until it is unmapped.
pub(super) unsafe extern "C" fn release(handle: HipMemGenericAllocationHandle) -> HipError {
    call("hipMemRelease", |current| current.machine.physical.remove(handle).map(|_| ()))
}

/// The number of physical memory under a virtual scheduler.
fn track(core: &Core, physical: &Physical) -> Result<Option<u32>, HipError> {
    let scheduler = &core.scheduler;
    if !scheduler.is_virtual() {
        return Ok(None);
    }
    let seen = physical.seen()?;
    let memory = NewMemory {
        kind: RegionKind::Virtual,
        device: physical.device,
        address: seen.address(),
        bytes: seen.bytes(),
        mapping: Some(seen),
        file: Some(physical.file.as_fd()),
    };
    let number = scheduler.track(&memory).map(|(number, _)| number);
    if let Some(number) = number
        && physical.is_offered()
    {
        scheduler.offer(number);
    }
    Ok(number)
}

pub(super) unsafe extern "C" fn map(
    pointer: *mut c_void,
    bytes: usize,
    offset: usize,
    handle: HipMemGenericAllocationHandle,
    flags: c_ulonglong,
) -> HipError {
    call("hipMemMap", |current| {
        let machine = &current.machine;
        machine.refuse_in_capture()?;
        let physical = machine.physical.get(handle)?;
        if flags != 0 {
            return Err(HipError::INVALID_VALUE);
        }
        let number = track(&machine.core, &physical)?;
        let model = number.map(|number| (number, offset));
        machine.reservations.map(pointer as usize, bytes, offset, &physical, &machine.regions, model)
    })
}

pub(super) unsafe extern "C" fn unmap(pointer: *mut c_void, bytes: usize) -> HipError {
    call("hipMemUnmap", |current| {
        current.machine.reservations.unmap(pointer as usize, bytes, &current.machine.regions)
    })
}

pub(super) unsafe extern "C" fn set_access(
    pointer: *mut c_void,
    bytes: usize,
    access: *const HipMemAccessDescriptor,
    count: usize,
) -> HipError {
    call("hipMemSetAccess", |current| {
        let machine = &current.machine;
        if access.is_null() || count == 0 {
            return Err(HipError::INVALID_VALUE);
        }
        // SAFETY: not null, hence `count` descriptors by HIP's contract.
        let access = unsafe { core::slice::from_raw_parts(access, count) };
        let mut widest = 0;
        for descriptor in access {
            if descriptor.location.kind != flags::MEM_LOCATION_TYPE_DEVICE {
                return Err(HipError::INVALID_VALUE);
            }
            machine.device(descriptor.location.id)?;
            widest = widest.max(descriptor.flags);
        }
        machine.reservations.set_access(pointer as usize, bytes, widest, &machine.regions)
    })
}

pub(super) unsafe extern "C" fn export(
    shareable: *mut c_void,
    handle: HipMemGenericAllocationHandle,
    kind: c_int,
    flags: c_ulonglong,
) -> HipError {
    call("hipMemExportToShareableHandle", |current| {
        let physical = current.machine.physical.get(handle)?;
        if kind != flags::MEM_HANDLE_TYPE_POSIX_FD || flags != 0 || shareable.is_null() {
            return Err(HipError::INVALID_VALUE);
        }
        let shared = physical.export()?;
        track(&current.machine.core, &physical)?;
        // Owned until nothing can fail any more; from here on the caller closes it.
        // SAFETY: the out pointer, of an int for this kind of handle.
        unsafe { give(shareable.cast::<c_int>(), shared.into_raw_fd()) }
    })
}

/// The memory counts as the current device's and takes no share of its limit.
pub(super) unsafe extern "C" fn import(
    handle: *mut HipMemGenericAllocationHandle,
    shareable: *mut c_void,
    kind: c_int,
) -> HipError {
    call("hipMemImportFromShareableHandle", |current| {
        let machine = &current.machine;
        machine.refuse_in_capture()?;
        let descriptor = c_int::try_from(shareable as usize).map_err(|_| HipError::INVALID_VALUE)?;
        if kind != flags::MEM_HANDLE_TYPE_POSIX_FD || handle.is_null() {
            return Err(HipError::INVALID_VALUE);
        }
        // SAFETY: not negative, so not the forbidden -1; HIP's contract is that it stays open during the call,
        // and a number that is not open is refused by the system.
        let descriptor = unsafe { BorrowedFd::borrow_raw(descriptor) };
        let physical = Arc::new(Physical::import(descriptor, current.device)?);
        // SAFETY: the out pointer.
        unsafe { give(handle, machine.physical.insert(&machine.handles, physical)) }
    })
}
