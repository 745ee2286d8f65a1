//! Initialisation, versions, errors, devices, peers.

use core::ffi::{CStr, c_char, c_int, c_uint};
use core::ptr;
use std::ffi::CString;
use std::sync::OnceLock;

use anabranch_hip::HipError;
use anabranch_hip::types::{HipDeviceProperties, device_attribute as hip_attribute};

use crate::call::{give, in_context, take_last_error, with_driver};
use crate::context;
use crate::convert::{self, check};
use crate::cuda::{CuDevice, CuResult, device_attribute};
use crate::driver::{self, Driver};

/// The driver is initialized when it is opened; only the argument is left to check.
pub(crate) unsafe extern "C" fn hipInit(flags: c_uint) -> HipError {
    with_driver(|_| if flags == 0 { Ok(()) } else { Err(HipError::INVALID_VALUE) })
}

/// The driver's CUDA version, `1000 * major + 10 * minor`.
pub(crate) unsafe extern "C" fn hipDriverGetVersion(version: *mut c_int) -> HipError {
    with_driver(|driver| {
        // SAFETY: cuDriverGetVersion writes one int, and refuses null.
        check(unsafe { (driver.cuda.cuDriverGetVersion)(version) })
    })
}

/// There is no CUDA runtime in between; the driver's version stands for it.
pub(crate) unsafe extern "C" fn hipRuntimeGetVersion(version: *mut c_int) -> HipError {
    // SAFETY: the same contract.
    unsafe { hipDriverGetVersion(version) }
}

/// HIP's name of the code, or CUDA's where HIP has none.
pub(crate) unsafe extern "C" fn hipGetErrorName(error: HipError) -> *const c_char {
    listed_name(error).or_else(|| driver_text(error, false)).unwrap_or(c"hipError(unlisted)").as_ptr()
}

/// The driver's description of the code, or its name.
pub(crate) unsafe extern "C" fn hipGetErrorString(error: HipError) -> *const c_char {
    driver_text(error, true).or_else(|| listed_name(error)).unwrap_or(c"hipError(unlisted)").as_ptr()
}

fn listed_name(error: HipError) -> Option<&'static CStr> {
    static NAMES: OnceLock<Vec<(HipError, CString)>> = OnceLock::new();
    let names = NAMES.get_or_init(|| {
        let named = |code: &HipError| CString::new(code.name()).ok().map(|name| (*code, name));
        HipError::LISTED.iter().filter_map(named).collect()
    });
    names.iter().find(|(code, _)| *code == error).map(|(_, name)| name.as_c_str())
}

fn driver_text(error: HipError, describe: bool) -> Option<&'static CStr> {
    let cuda = &driver::get()?.cuda;
    let function = if describe { cuda.cuGetErrorString } else { cuda.cuGetErrorName };
    let mut text = ptr::null();
    // SAFETY: both functions write the address of a constant text, or null for an unknown code.
    let result = unsafe { function(CuResult(error.0), &raw mut text) };
    if result != CuResult::SUCCESS || text.is_null() {
        return None;
    }
    // SAFETY: the driver's texts are zero-terminated and live as long as the library, which stays mapped.
    Some(unsafe { CStr::from_ptr(text) })
}

/// The thread's last error of this table; asking clears it.
pub(crate) unsafe extern "C" fn hipGetLastError() -> HipError {
    take_last_error()
}

/// The devices that the driver shows to this process; none is `hipErrorNoDevice`.
pub(crate) unsafe extern "C" fn hipGetDeviceCount(count: *mut c_int) -> HipError {
    with_driver(|driver| {
        // SAFETY: the caller's out pointer.
        unsafe { give(count, driver.devices.len() as c_int) }?;
        if driver.devices.is_empty() { Err(HipError::NO_DEVICE) } else { Ok(()) }
    })
}

/// See [`context::set_device`].
pub(crate) unsafe extern "C" fn hipSetDevice(device: c_int) -> HipError {
    with_driver(|driver| context::set_device(driver, device))
}

/// See [`context::device`].
pub(crate) unsafe extern "C" fn hipGetDevice(device: *mut c_int) -> HipError {
    with_driver(|driver| {
        let current = context::device(driver)?;
        // SAFETY: the caller's out pointer.
        unsafe { give(device, current) }
    })
}

/// The properties that [`HipDeviceProperties`] has accessors for; the rest is zero.
pub(crate) unsafe extern "C" fn hipGetDevicePropertiesR0600(
    properties: *mut HipDeviceProperties,
    device: c_int,
) -> HipError {
    with_driver(|driver| {
        let filled = device_properties(driver, driver.slot(device)?.handle)?;
        // SAFETY: the caller's out pointer.
        unsafe { give(properties, filled) }
    })
}

fn device_properties(driver: &Driver, device: CuDevice) -> Result<HipDeviceProperties, HipError> {
    let get = |number| attribute(driver, device, number);
    let (major, minor) =
        (get(device_attribute::COMPUTE_CAPABILITY_MAJOR)?, get(device_attribute::COMPUTE_CAPABILITY_MINOR)?);
    let mut bytes = 0;
    // SAFETY: cuDeviceTotalMem writes one size for a handle of cuDeviceGet.
    check(unsafe { (driver.cuda.cuDeviceTotalMem_v2)(&raw mut bytes, device) })?;
    let mut name: [c_char; 256] = [0; 256];
    // SAFETY: cuDeviceGetName writes at most the given number of characters, with the final zero.
    check(unsafe { (driver.cuda.cuDeviceGetName)(name.as_mut_ptr(), name.len() as c_int - 1, device) })?;
    // SAFETY: the last character is zero whatever the driver wrote.
    let name = unsafe { CStr::from_ptr(name.as_ptr()) };

    let mut properties = HipDeviceProperties::zeroed();
    properties.set_name(&name.to_string_lossy());
    properties.set_arch(&format!("sm_{major}{minor}"));
    properties.set_major(major);
    properties.set_minor(minor);
    properties.set_total_global_memory(bytes);
    properties.set_shared_memory_per_block(
        usize::try_from(get(device_attribute::MAX_SHARED_MEMORY_PER_BLOCK_OPT_IN)?).unwrap_or(0),
    );
    properties.set_warp_size(get(device_attribute::WARP_SIZE)?);
    properties.set_max_threads_per_block(get(device_attribute::MAX_THREADS_PER_BLOCK)?);
    // CUDA 13 drivers no longer promise a clock rate; it is information only.
    properties.set_clock_rate_khz(get(device_attribute::CLOCK_RATE).unwrap_or(0));
    properties.set_multiprocessor_count(get(device_attribute::MULTIPROCESSOR_COUNT)?);
    Ok(properties)
}

/// One `CUdevice_attribute`.
pub(crate) fn attribute(driver: &Driver, device: CuDevice, number: c_int) -> Result<c_int, HipError> {
    let mut value = 0;
    // SAFETY: cuDeviceGetAttribute writes one int for a handle of cuDeviceGet; it refuses unknown numbers.
    check(unsafe { (driver.cuda.cuDeviceGetAttribute)(&raw mut value, number, device) })?;
    Ok(value)
}

/// Attributes that CUDA has too, and whether streams can wait for values; `hipErrorInvalidValue` for others. Virtual memory
/// management is said to be there where its memory can be exported as file descriptors too.
pub(crate) unsafe extern "C" fn hipDeviceGetAttribute(
    value: *mut c_int,
    attribute_number: c_int,
    device: c_int,
) -> HipError {
    const CAN_USE_STREAM_WAIT_VALUE: c_int = 10013;
    with_driver(|driver| {
        let handle = driver.slot(device)?.handle;
        let found = if attribute_number == CAN_USE_STREAM_WAIT_VALUE {
            c_int::from(driver.cuda.cuStreamWaitValue64_v2.is_some())
        } else {
            let number = convert::device_attribute(attribute_number).ok_or(HipError::INVALID_VALUE)?;
            let found = attribute(driver, handle, number)?;
            if found != 0 && attribute_number == hip_attribute::VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED {
                // CUDA asks separately for what HIP's attribute includes (cuda.h): memory that can be passed on.
                attribute(driver, handle, device_attribute::HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED)?
            } else {
                found
            }
        };
        // SAFETY: the caller's out pointer.
        unsafe { give(value, found) }
    })
}

/// `0000:1b:00.0`, in lower case as AMD's runtime and sysfs write it.
pub(crate) unsafe extern "C" fn hipDeviceGetPCIBusId(
    id: *mut c_char,
    length: c_int,
    device: c_int,
) -> HipError {
    with_driver(|driver| {
        let handle = driver.slot(device)?.handle;
        let capacity = usize::try_from(length).map_err(|_| HipError::INVALID_VALUE)?;
        if id.is_null() {
            return Err(HipError::INVALID_VALUE);
        }
        // SAFETY: the caller gives `length` characters.
        check(unsafe { (driver.cuda.cuDeviceGetPCIBusId)(id, length, handle) })?;
        for index in 0..capacity {
            // SAFETY: `index` is below the `length` characters that the caller gives; the driver ended the
            // text with a zero, where the loop stops.
            let character = unsafe { &mut *id.add(index) };
            if *character == 0 {
                break;
            }
            *character = (*character as u8).to_ascii_lowercase() as c_char;
        }
        Ok(())
    })
}

/// Waits for all work of the current device's primary context. Refused beside any capture, as in HIP.
pub(crate) unsafe extern "C" fn hipDeviceSynchronize() -> HipError {
    in_context(|driver| {
        driver.captures.refuse(HipError::STREAM_CAPTURE_UNSUPPORTED)?;
        // SAFETY: no arguments.
        check(unsafe { (driver.cuda.cuCtxSynchronize)() })
    })
}

/// Whether kernels on `device` can reach memory of `peer`.
pub(crate) unsafe extern "C" fn hipDeviceCanAccessPeer(
    can: *mut c_int,
    device: c_int,
    peer: c_int,
) -> HipError {
    with_driver(|driver| {
        let (from, to) = (driver.slot(device)?.handle, driver.slot(peer)?.handle);
        // SAFETY: cuDeviceCanAccessPeer writes one int, and refuses null.
        check(unsafe { (driver.cuda.cuDeviceCanAccessPeer)(can, from, to) })
    })
}

/// Lets the current device reach `peer`. This needs the peer's primary context, and creates it if nobody has.
/// "Already enabled" comes back as `hipErrorPeerAccessAlreadyEnabled` and is remembered, as in AMD's runtime.
pub(crate) unsafe extern "C" fn hipDeviceEnablePeerAccess(peer: c_int, flags: c_uint) -> HipError {
    in_context(|driver| {
        if flags != 0 {
            return Err(HipError::INVALID_VALUE);
        }
        if context::device(driver)? == peer {
            return Err(HipError::INVALID_DEVICE);
        }
        let context = driver.slot(peer)?.primary_context(&driver.cuda)?;
        // SAFETY: a retained primary context.
        check(unsafe { (driver.cuda.cuCtxEnablePeerAccess)(context, 0) })
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::call::finish;

    #[test]
    fn names_are_c_strings_and_calls_before_opening_say_so() {
        let text = |pointer| {
            // SAFETY: the functions return constant texts.
            unsafe { CStr::from_ptr(pointer) }.to_str().unwrap().to_owned()
        };
        // SAFETY: any code may be asked for.
        assert_eq!(text(unsafe { hipGetErrorName(HipError::OUT_OF_MEMORY) }), "hipErrorOutOfMemory");
        // SAFETY: as above.
        assert_eq!(text(unsafe { hipGetErrorName(HipError(4242)) }), "hipError(unlisted)");
        let mut count = -1;
        // SAFETY: the out pointer is valid.
        assert_eq!(unsafe { hipGetDeviceCount(&raw mut count) }, HipError::NOT_INITIALIZED);
        // SAFETY: no arguments.
        assert_eq!(unsafe { hipGetLastError() }, HipError::NOT_INITIALIZED);
        // SAFETY: no arguments.
        assert_eq!(unsafe { hipGetLastError() }, HipError::SUCCESS);
        assert_eq!(finish(Err(HipError::NOT_READY)), HipError::NOT_READY);
        assert_eq!(take_last_error(), HipError::SUCCESS);
    }
}
