//! Addresses and physical memory apart: reserve, create, map, give access, share by file descriptor.

use core::ffi::{c_int, c_ulonglong, c_void};

use anabranch_hip::HipError;
use anabranch_hip::types::{
    HipMemAccessDescriptor, HipMemAllocationProperties, HipMemGenericAllocationHandle,
};

use super::memory::{number, pointer};
use crate::call::{forward, give, in_context};
use crate::convert::{self, check};
use crate::cuda::CuMemHandle;

/// HIP's handle is a pointer, the driver's a number; both are opaque.
fn raw(handle: HipMemGenericAllocationHandle) -> CuMemHandle {
    number(handle)
}

forward! {
    /// Gives reserved addresses back.
    fn hipMemAddressFree(address: *mut c_void, bytes: usize) via cuMemAddressFree(number(address), bytes);
    /// Drops a reference to physical memory; mappings keep it alive.
    fn hipMemRelease(handle: HipMemGenericAllocationHandle) via cuMemRelease(raw(handle));
    /// Maps physical memory to reserved addresses.
    fn hipMemMap(
        address: *mut c_void, bytes: usize, offset: usize, handle: HipMemGenericAllocationHandle,
        flags: c_ulonglong,
    ) via cuMemMap(number(address), bytes, offset, raw(handle), flags);
    /// Undoes `hipMemMap`.
    fn hipMemUnmap(address: *mut c_void, bytes: usize) via cuMemUnmap(number(address), bytes);
}

/// Reserves addresses.
pub(crate) unsafe extern "C" fn hipMemAddressReserve(
    place: *mut *mut c_void,
    bytes: usize,
    alignment: usize,
    address: *mut c_void,
    flags: c_ulonglong,
) -> HipError {
    in_context(|driver| {
        let mut reserved = 0;
        // SAFETY: cuMemAddressReserve writes one address; the driver checks sizes and the wish.
        check(unsafe {
            (driver.cuda.cuMemAddressReserve)(&raw mut reserved, bytes, alignment, number(address), flags)
        })?;
        // SAFETY: the caller's out pointer.
        unsafe { give(place, pointer(reserved)) }
    })
}

/// The unit of sizes and offsets; minimum and recommended have the same numbers in both.
pub(crate) unsafe extern "C" fn hipMemGetAllocationGranularity(
    granularity: *mut usize,
    properties: *const HipMemAllocationProperties,
    option: c_int,
) -> HipError {
    in_context(|driver| {
        // SAFETY: the caller's properties, or null.
        let properties = unsafe { properties.as_ref() }.ok_or(HipError::INVALID_VALUE)?;
        let properties = convert::allocation_properties(properties)?;
        // SAFETY: the properties live across the call; one size is written, null refused.
        check(unsafe {
            (driver.cuda.cuMemGetAllocationGranularity)(granularity, &raw const properties, option)
        })
    })
}

/// Physical memory of a device; see [`convert::allocation_properties`].
pub(crate) unsafe extern "C" fn hipMemCreate(
    handle: *mut HipMemGenericAllocationHandle,
    bytes: usize,
    properties: *const HipMemAllocationProperties,
    flags: c_ulonglong,
) -> HipError {
    in_context(|driver| {
        // SAFETY: the caller's properties, or null.
        let properties = unsafe { properties.as_ref() }.ok_or(HipError::INVALID_VALUE)?;
        let properties = convert::allocation_properties(properties)?;
        let mut created = 0;
        // SAFETY: the properties live across the call; one handle is written.
        check(unsafe { (driver.cuda.cuMemCreate)(&raw mut created, bytes, &raw const properties, flags) })?;
        // SAFETY: the caller's out pointer.
        unsafe { give(handle, pointer(created)) }
    })
}

/// Says which devices may use a mapped range.
pub(crate) unsafe extern "C" fn hipMemSetAccess(
    address: *mut c_void,
    bytes: usize,
    access: *const HipMemAccessDescriptor,
    count: usize,
) -> HipError {
    in_context(|driver| {
        if access.is_null() || count == 0 {
            return Err(HipError::INVALID_VALUE);
        }
        // SAFETY: the caller gives `count` descriptors.
        let given = unsafe { core::slice::from_raw_parts(access, count) };
        let given = given.iter().map(convert::access).collect::<Result<Vec<_>, _>>()?;
        // SAFETY: the converted descriptors live across the call.
        check(unsafe { (driver.cuda.cuMemSetAccess)(number(address), bytes, given.as_ptr(), given.len()) })
    })
}

/// Writes a file descriptor (an `int`) for physical memory; the caller owns and closes it.
pub(crate) unsafe extern "C" fn hipMemExportToShareableHandle(
    shareable: *mut c_void,
    handle: HipMemGenericAllocationHandle,
    kind: c_int,
    flags: c_ulonglong,
) -> HipError {
    in_context(|driver| {
        let kind = convert::handle_type(kind)?;
        // SAFETY: the caller gives a place for an int and a live handle.
        check(unsafe { (driver.cuda.cuMemExportToShareableHandle)(shareable, raw(handle), kind, flags) })
    })
}

/// Physical memory from a file descriptor, which is passed *as* the pointer (the documented form, in CUDA and
/// in ROCm from 7.1; earlier ROCm took its address). The descriptor stays the caller's.
pub(crate) unsafe extern "C" fn hipMemImportFromShareableHandle(
    handle: *mut HipMemGenericAllocationHandle,
    shareable: *mut c_void,
    kind: c_int,
) -> HipError {
    in_context(|driver| {
        let kind = convert::handle_type(kind)?;
        let mut imported = 0;
        // SAFETY: one handle is written; the driver checks the descriptor.
        check(unsafe { (driver.cuda.cuMemImportFromShareableHandle)(&raw mut imported, shareable, kind) })?;
        // SAFETY: the caller's out pointer.
        unsafe { give(handle, pointer(imported)) }
    })
}

/// Writes a DMA-BUF file descriptor for a range of device memory; the caller owns and closes it.
pub(crate) unsafe extern "C" fn hipMemGetHandleForAddressRange(
    handle: *mut c_void,
    address: *mut c_void,
    bytes: usize,
    kind: c_int,
    flags: c_ulonglong,
) -> HipError {
    in_context(|driver| {
        let function = driver.cuda.cuMemGetHandleForAddressRange.ok_or(HipError::NOT_SUPPORTED)?;
        let kind = convert::range_handle_type(kind)?;
        // SAFETY: the caller gives a place for an int and a range of live device memory.
        check(unsafe { function(handle, number(address), bytes, kind, flags) })
    })
}
