//! Device memory, pinned host memory, copies, what a pointer is.

use core::ffi::{c_int, c_uint, c_void};
use core::ptr;

use anabranch_hip::HipError;
use anabranch_hip::types::{HipPointerAttributes, HipStream, memcpy_kind};

use crate::call::{forward, give, in_context};
use crate::convert::{self, check};
use crate::cuda::{CuDevicePointer, pointer_attribute};
use crate::driver::Driver;

/// A pointer of HIP as a device pointer of the driver. With unified addressing host pointers may go the same
/// way.
pub(crate) fn number(pointer: *const c_void) -> CuDevicePointer {
    pointer.expose_provenance() as CuDevicePointer
}

/// A device pointer of the driver as HIP's.
pub(crate) fn pointer(number: CuDevicePointer) -> *mut c_void {
    ptr::with_exposed_provenance_mut(number as usize)
}

forward! {
    /// Free and total bytes of the current device.
    fn hipMemGetInfo(free: *mut usize, total: *mut usize) via cuMemGetInfo_v2(free, total);
    /// Undoes a registration: the range is ordinary host memory again, pinned and mapped no longer.
    fn hipHostUnregister(range: *mut c_void) via cuMemHostUnregister(range);
    /// The direction is ignored: with unified addressing the driver sees it in the pointers.
    fn hipMemcpyAsync(
        target: *mut c_void, source: *const c_void, bytes: usize, _kind: c_int, stream: HipStream,
    ) via cuMemcpyAsync(number(target), number(source), bytes, stream);
    /// Fills bytes in stream order.
    fn hipMemsetAsync(target: *mut c_void, value: c_int, bytes: usize, stream: HipStream)
        via cuMemsetD8Async(number(target), value as u8, bytes, stream);
}

/// Ordinary device memory. No bytes give a null pointer.
pub(crate) unsafe extern "C" fn hipMalloc(place: *mut *mut c_void, bytes: usize) -> HipError {
    in_context(|driver| {
        let mut address = 0;
        if bytes != 0 {
            // SAFETY: cuMemAlloc writes one device pointer.
            check(unsafe { (driver.cuda.cuMemAlloc_v2)(&raw mut address, bytes) })?;
        }
        // SAFETY: the caller's out pointer.
        unsafe { give(place, pointer(address)) }
    })
}

/// Fine-grained, uncached and contiguous memory is ordinary device memory here: NVIDIA devices keep what
/// peers write over NVLink and PCIe coherent with their own cache.
pub(crate) unsafe extern "C" fn hipExtMallocWithFlags(
    place: *mut *mut c_void,
    bytes: usize,
    flags: c_uint,
) -> HipError {
    /// Default, fine-grained, signal, uncached, contiguous.
    const LAST_KNOWN: c_uint = 4;
    if flags > LAST_KNOWN {
        return in_context(|_| Err(HipError::INVALID_VALUE));
    }
    // SAFETY: the same contract.
    unsafe { hipMalloc(place, bytes) }
}

/// Frees device memory; null is nothing.
pub(crate) unsafe extern "C" fn hipFree(address: *mut c_void) -> HipError {
    in_context(|driver| {
        if address.is_null() {
            return Ok(());
        }
        // SAFETY: the caller gives the base of a live allocation.
        check(unsafe { (driver.cuda.cuMemFree_v2)(number(address)) })
    })
}

/// Pinned host memory, mapped into every device. No bytes give a null pointer.
pub(crate) unsafe extern "C" fn hipHostMalloc(
    place: *mut *mut c_void,
    bytes: usize,
    flags: c_uint,
) -> HipError {
    in_context(|driver| {
        let flags = convert::host_malloc_flags(flags)?;
        let mut address = ptr::null_mut();
        if bytes != 0 {
            // SAFETY: cuMemHostAlloc writes one host pointer.
            check(unsafe { (driver.cuda.cuMemHostAlloc)(&raw mut address, bytes, flags) })?;
        }
        // SAFETY: the caller's out pointer.
        unsafe { give(place, address) }
    })
}

/// Frees pinned host memory; null is nothing.
pub(crate) unsafe extern "C" fn hipHostFree(address: *mut c_void) -> HipError {
    in_context(|driver| {
        if address.is_null() {
            return Ok(());
        }
        // SAFETY: the caller gives what hipHostMalloc gave.
        check(unsafe { (driver.cuda.cuMemFreeHost)(address) })
    })
}

/// The address at which the device reaches pinned host memory.
pub(crate) unsafe extern "C" fn hipHostGetDevicePointer(
    device: *mut *mut c_void,
    host: *mut c_void,
    _flags: c_uint,
) -> HipError {
    in_context(|driver| {
        let mut address = 0;
        // SAFETY: cuMemHostGetDevicePointer writes one device pointer, and refuses memory it does not know.
        check(unsafe { (driver.cuda.cuMemHostGetDevicePointer_v2)(&raw mut address, host, 0) })?;
        // SAFETY: the caller's out pointer.
        unsafe { give(device, pointer(address)) }
    })
}

/// Pins host memory and maps it into every device.
pub(crate) unsafe extern "C" fn hipHostRegister(range: *mut c_void, bytes: usize, flags: c_uint) -> HipError {
    in_context(|driver| {
        let flags = convert::host_register_flags(flags)?;
        // SAFETY: the caller gives a range that stays mapped until it is unregistered.
        check(unsafe { (driver.cuda.cuMemHostRegister_v2)(range, bytes, flags) })
    })
}

/// Copies, and returns when the bytes are there: the driver's own copy may return before a transfer from
/// pageable memory or between devices is over, and streams that do not wait for the default stream would
/// then read old bytes. Refused beside any capture, also for no bytes, as in HIP.
pub(crate) unsafe extern "C" fn hipMemcpy(
    target: *mut c_void,
    source: *const c_void,
    bytes: usize,
    kind: c_int,
) -> HipError {
    in_context(|driver| {
        driver.captures.refuse(HipError::STREAM_CAPTURE_IMPLICIT)?;
        if !(memcpy_kind::HOST_TO_HOST..=memcpy_kind::DEFAULT).contains(&kind) {
            return Err(HipError::INVALID_MEMCPY_DIRECTION);
        }
        if bytes == 0 {
            return Ok(());
        }
        // SAFETY: the caller gives two ranges of `bytes` that the driver can reach.
        check(unsafe { (driver.cuda.cuMemcpy)(number(target), number(source), bytes) })?;
        finish_default_stream(driver)
    })
}

/// Fills bytes, and returns when they are there. Refused as `hipMemcpy` is.
pub(crate) unsafe extern "C" fn hipMemset(target: *mut c_void, value: c_int, bytes: usize) -> HipError {
    in_context(|driver| {
        driver.captures.refuse(HipError::STREAM_CAPTURE_IMPLICIT)?;
        if bytes == 0 {
            return Ok(());
        }
        // SAFETY: the caller gives a range of `bytes`.
        check(unsafe { (driver.cuda.cuMemsetD8Async)(number(target), value as u8, bytes, ptr::null_mut()) })?;
        finish_default_stream(driver)
    })
}

fn finish_default_stream(driver: &Driver) -> Result<(), HipError> {
    // SAFETY: null is the default stream of the current context.
    check(unsafe { (driver.cuda.cuStreamSynchronize)(ptr::null_mut()) })
}

/// What a pointer is. A pointer that the driver does not know is an unregistered host pointer, and no error.
pub(crate) unsafe extern "C" fn hipPointerGetAttributes(
    attributes: *mut HipPointerAttributes,
    address: *const c_void,
) -> HipError {
    in_context(|driver| {
        let mut wanted = [
            pointer_attribute::MEMORY_TYPE,
            pointer_attribute::DEVICE_POINTER,
            pointer_attribute::HOST_POINTER,
            pointer_attribute::IS_MANAGED,
            pointer_attribute::DEVICE_ORDINAL,
        ];
        let (mut memory, mut managed, mut device) = (0_u32, 0_u32, -1_i32);
        let (mut on_device, mut on_host) = (0_u64, 0_u64);
        let mut places: [*mut c_void; 5] = [
            (&raw mut memory).cast(),
            (&raw mut on_device).cast(),
            (&raw mut on_host).cast(),
            (&raw mut managed).cast(),
            (&raw mut device).cast(),
        ];
        // SAFETY: five attributes and five places, each as large as the driver's value for it (memory type,
        // managed and ordinal are ints, the pointers 64 bits).
        check(unsafe {
            (driver.cuda.cuPointerGetAttributes)(
                wanted.len() as c_uint,
                wanted.as_mut_ptr(),
                places.as_mut_ptr(),
                number(address),
            )
        })?;
        let known = memory != 0;
        let found = HipPointerAttributes {
            memory_type: convert::memory_type(memory, managed != 0),
            device: if known { driver.ordinal(device).unwrap_or(device) } else { -1 },
            device_pointer: pointer(on_device),
            host_pointer: if known { pointer(on_host) } else { address.cast_mut() },
            is_managed: c_int::from(managed != 0),
            allocation_flags: 0,
        };
        // SAFETY: the caller's out pointer.
        unsafe { give(attributes, found) }
    })
}

/// The allocation that a pointer lies in. Either out pointer may be null.
pub(crate) unsafe extern "C" fn hipMemGetAddressRange(
    base: *mut *mut c_void,
    bytes: *mut usize,
    address: *mut c_void,
) -> HipError {
    in_context(|driver| {
        let (mut start, mut length) = (0, 0);
        // SAFETY: cuMemGetAddressRange writes one pointer and one size, and refuses unknown addresses.
        check(unsafe {
            (driver.cuda.cuMemGetAddressRange_v2)(&raw mut start, &raw mut length, number(address))
        })?;
        if !base.is_null() {
            // SAFETY: the caller's out pointer.
            unsafe { give(base, pointer(start)) }?;
        }
        if !bytes.is_null() {
            // SAFETY: the caller's out pointer.
            unsafe { give(bytes, length) }?;
        }
        Ok(())
    })
}
