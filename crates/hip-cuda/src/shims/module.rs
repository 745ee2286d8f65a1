//! Modules, functions, launches.

use core::ffi::{c_char, c_int, c_uint, c_void};
use core::ptr;

use anabranch_hip::HipError;
use anabranch_hip::types::{HipFunction, HipModule, HipStream};

use super::device::attribute;
use crate::call::{forward, give, in_context};
use crate::context;
use crate::convert::check;
use crate::cuda::{CuFunction, device_attribute, function_attribute};
use crate::driver::Driver;

forward! {
    /// Loads machine code (a cubin) or PTX into the current device.
    fn hipModuleLoadData(module: *mut HipModule, image: *const c_void) via cuModuleLoadData(module, image);
    /// Unloads a module; its functions are gone.
    fn hipModuleUnload(module: HipModule) via cuModuleUnload(module);
    /// How many blocks of a function fit a multiprocessor at once.
    fn hipModuleOccupancyMaxActiveBlocksPerMultiprocessor(
        blocks: *mut c_int, function: HipFunction, block_size: c_int, local_bytes: usize,
    ) via cuOccupancyMaxActiveBlocksPerMultiprocessor(blocks, function, block_size, local_bytes);
}

/// Looks a function up, loads it now, and lets it use all dynamic local memory of the device.
///
/// A function that loads with its first launch (the driver's lazy mode) would load while other kernels wait
/// for peers, and loading may wait for those kernels.
pub(crate) unsafe extern "C" fn hipModuleGetFunction(
    function: *mut HipFunction,
    module: HipModule,
    name: *const c_char,
) -> HipError {
    in_context(|driver| {
        let mut found = ptr::null_mut();
        // SAFETY: the caller gives a live module and a zero-terminated name; one handle is written.
        check(unsafe { (driver.cuda.cuModuleGetFunction)(&raw mut found, module, name) })?;
        if let Some(load) = driver.cuda.cuFuncLoad {
            // SAFETY: the function was just found in a live module.
            check(unsafe { load(found) })?;
        }
        allow_local_memory(driver, found)?;
        // SAFETY: the caller's out pointer.
        unsafe { give(function, found) }
    })
}

/// Raises the limit of dynamic local memory from the default (48 KiB) to what the device has left beside the
/// function's static memory.
fn allow_local_memory(driver: &Driver, function: CuFunction) -> Result<(), HipError> {
    let device = driver.slot(context::device(driver)?)?.handle;
    let most = attribute(driver, device, device_attribute::MAX_SHARED_MEMORY_PER_BLOCK_OPT_IN)?;
    let mut fixed = 0;
    // SAFETY: the function is live; one int is written.
    check(unsafe {
        (driver.cuda.cuFuncGetAttribute)(&raw mut fixed, function_attribute::SHARED_SIZE_BYTES, function)
    })?;
    let dynamic = most.saturating_sub(fixed);
    if dynamic <= 0 {
        return Ok(());
    }
    // SAFETY: the function is live; the driver checks the size.
    check(unsafe {
        (driver.cuda.cuFuncSetAttribute)(function, function_attribute::MAX_DYNAMIC_SHARED_SIZE_BYTES, dynamic)
    })
}

/// The first ten attributes have the same numbers in both; HIP has no others.
pub(crate) unsafe extern "C" fn hipFuncGetAttribute(
    value: *mut c_int,
    number: c_int,
    function: HipFunction,
) -> HipError {
    in_context(|driver| {
        if !(0..function_attribute::CLUSTER_SIZE_MUST_BE_SET).contains(&number) {
            return Err(HipError::INVALID_VALUE);
        }
        // SAFETY: the caller gives a live function; one int is written, null refused.
        check(unsafe { (driver.cuda.cuFuncGetAttribute)(value, number, function) })
    })
}

/// Launches. The grid is counted in blocks. Only `parameters` is taken: the packed buffer behind `extra` has
/// other markers in CUDA and is refused with `hipErrorNotSupported`.
pub(crate) unsafe extern "C" fn hipModuleLaunchKernel(
    function: HipFunction,
    grid_x: c_uint,
    grid_y: c_uint,
    grid_z: c_uint,
    block_x: c_uint,
    block_y: c_uint,
    block_z: c_uint,
    local_bytes: c_uint,
    stream: HipStream,
    parameters: *mut *mut c_void,
    extra: *mut *mut c_void,
) -> HipError {
    in_context(|driver| {
        if !extra.is_null() {
            return Err(HipError::NOT_SUPPORTED);
        }
        // SAFETY: the caller gives a live function and stream, and for each parameter of the function a
        // pointer to its value; the driver copies the values before it returns.
        check(unsafe {
            (driver.cuda.cuLaunchKernel)(
                function,
                grid_x,
                grid_y,
                grid_z,
                block_x,
                block_y,
                block_z,
                local_bytes,
                stream,
                parameters,
                extra,
            )
        })
    })
}
