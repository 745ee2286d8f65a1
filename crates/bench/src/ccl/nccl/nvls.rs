//! Whether NCCL may use NVLS (reductions in the switch, by multicast addresses): results with and without it are two
//! different comparisons.
#![expect(unsafe_code, reason = "asks the CUDA driver for a device's attribute")]

use core::ffi::c_int;
use std::mem::ManuallyDrop;

use anabranch::Environment;
use anabranch_hip::Device;
use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};

/// `CU_DEVICE_ATTRIBUTE_MULTICAST_SUPPORTED` of cuda.h (CUDA 12.1 and later). NCCL asks for it before anything else
/// (`ncclNvlsInit` in its `src/transport/nvls.cc`).
const MULTICAST_SUPPORTED: c_int = 132;

/// In words, for results: off and why, or that it is up to NCCL.
///
/// `NCCL_NVLS_ENABLE` is 0 for never and 1 or 2 otherwise
/// (<https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html#nccl-nvls-enable>). NCCL's own configuration files
/// are not read here.
pub(crate) fn nvls(environment: &Environment, device: &Device) -> String {
    in_words(environment.get("NCCL_NVLS_ENABLE"), || multicast(device))
}

fn in_words(setting: Option<&str>, multicast: impl FnOnce() -> Result<bool, String>) -> String {
    if setting.map(str::trim) == Some("0") {
        return "off (NCCL_NVLS_ENABLE=0)".to_owned();
    }
    match multicast() {
        Ok(true) => "supported by the device (NCCL decides; see NCCL_DEBUG=INFO)".to_owned(),
        Ok(false) => "off (the device has no multicast)".to_owned(),
        Err(why) => format!("unknown ({why})"),
    }
}

fn multicast(device: &Device) -> Result<bool, String> {
    type Get = unsafe extern "C" fn(*mut c_int, c_int) -> c_int;
    type Attribute = unsafe extern "C" fn(*mut c_int, c_int, c_int) -> c_int;
    // SAFETY: the driver's library, which the nvidia runtime has opened and initialised already.
    let library = unsafe { Library::open(Some("libcuda.so.1"), RTLD_NOW | RTLD_LOCAL) }
        .map_err(|error| anabranch_hip::with_distinct_causes(&error))?;
    let library = ManuallyDrop::new(library);
    // SAFETY: cuda.h: CUresult cuDeviceGet(CUdevice *, int), where CUdevice is an int.
    let get = unsafe { library.get::<Get>("cuDeviceGet") }.map_err(|_| "no cuDeviceGet")?;
    // SAFETY: cuda.h: CUresult cuDeviceGetAttribute(int *, CUdevice_attribute, CUdevice).
    let attribute =
        unsafe { library.get::<Attribute>("cuDeviceGetAttribute") }.map_err(|_| "no cuDeviceGetAttribute")?;
    let (mut handle, mut supported) = (0, 0);
    // SAFETY: the call writes one int; ordinals of the nvidia runtime are the driver's.
    let code = unsafe { get(&raw mut handle, device.ordinal().0 as c_int) };
    if code != 0 {
        return Err(format!("cuDeviceGet returns {code}"));
    }
    // SAFETY: the call writes one int, for a handle that the driver gave.
    let code = unsafe { attribute(&raw mut supported, MULTICAST_SUPPORTED, handle) };
    if code == 0 { Ok(supported != 0) } else { Err(format!("cuDeviceGetAttribute returns {code}")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_setting_comes_before_the_device() {
        assert_eq!(in_words(Some("0"), || panic!("not asked")), "off (NCCL_NVLS_ENABLE=0)");
        assert_eq!(in_words(None, || Ok(false)), "off (the device has no multicast)");
        assert!(in_words(Some("1"), || Ok(true)).starts_with("supported"));
        assert_eq!(in_words(Some("2"), || Err("no driver".into())), "unknown (no driver)");
    }
}
