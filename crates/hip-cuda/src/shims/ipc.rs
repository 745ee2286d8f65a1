//! Memory shared between processes through 64-byte handles.

use core::ffi::{c_uint, c_void};

use anabranch_hip::HipError;
use anabranch_hip::types::HipIpcMemHandle;

use super::memory::{number, pointer};
use crate::call::{forward, give, in_context};
use crate::convert::check;
use crate::cuda::{CuIpcMemHandle, pointer_attribute};
use crate::driver::Driver;

/// The handle of the *allocation* that the pointer lies in: opening it gives the allocation's base, so the
/// offset of the pointer travels beside it.
///
/// Memory of the virtual-memory calls or of a pool has no such handle (`hipErrorNotSupported`); it is exported
/// as a file descriptor instead.
pub(crate) unsafe extern "C" fn hipIpcGetMemHandle(
    handle: *mut HipIpcMemHandle,
    address: *mut c_void,
) -> HipError {
    in_context(|driver| {
        let mut raw = CuIpcMemHandle { reserved: [0; 64] };
        // SAFETY: cuIpcGetMemHandle writes one handle, and refuses memory it cannot share.
        check(unsafe { (driver.cuda.cuIpcGetMemHandle)(&raw mut raw, number(address)) })
            .map_err(|code| if shareable(driver, address) { code } else { HipError::NOT_SUPPORTED })?;
        // SAFETY: the caller's out pointer.
        unsafe { give(handle, HipIpcMemHandle { reserved: raw.reserved }) }
    })
}

/// False only where the driver says that the pointer is known and cannot be shared this way.
fn shareable(driver: &Driver, address: *mut c_void) -> bool {
    let mut capable = 0_u32;
    // SAFETY: the attribute is a boolean of at most the size of the place; unknown pointers are refused.
    let asked = check(unsafe {
        (driver.cuda.cuPointerGetAttribute)(
            (&raw mut capable).cast(),
            pointer_attribute::IS_LEGACY_IPC_CAPABLE,
            number(address),
        )
    });
    asked.is_err() || capable != 0
}

/// Maps another process's allocation; `hipIpcMemLazyEnablePeerAccess` has the driver's number. A handle of the
/// same process is refused.
pub(crate) unsafe extern "C" fn hipIpcOpenMemHandle(
    place: *mut *mut c_void,
    handle: HipIpcMemHandle,
    flags: c_uint,
) -> HipError {
    in_context(|driver| {
        let raw = CuIpcMemHandle { reserved: handle.reserved };
        let mut address = 0;
        // SAFETY: cuIpcOpenMemHandle writes one device pointer; the handle's bytes are checked by the driver.
        check(unsafe { (driver.cuda.cuIpcOpenMemHandle_v2)(&raw mut address, raw, flags) })?;
        // SAFETY: the caller's out pointer.
        unsafe { give(place, pointer(address)) }
    })
}

forward! {
    /// Unmaps what `hipIpcOpenMemHandle` mapped.
    fn hipIpcCloseMemHandle(address: *mut c_void) via cuIpcCloseMemHandle(number(address));
}
