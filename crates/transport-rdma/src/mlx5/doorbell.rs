//! The NIC's registers, mapped to the device.

use core::ffi::c_void;

use anabranch_hip::{Device, DeviceAddress, Error, HipError, RuntimeKind, with_causes};

use super::devx::DevxDoorbell;
use crate::error::{NicError, Result};

/// Flags of `hipHostRegister`.
const PORTABLE: u32 = 1;
const MAPPED: u32 = 2;
/// NVIDIA's driver needs a flag for registers, which are not memory; HIP's header calls the flag "not supported", and mori and rocSHMEM
/// map such pages on AMD's runtime without it.
const IO_MEMORY: u32 = 4;

/// What AMD's runtime needs for registers: <https://github.com/ROCm/rocm-xio/issues/167>.
const ON_AMD: &str =
    "AMD GPUs reach a NIC's registers with the amdgpu-dkms driver, not with the kernel's own amdgpu";

/// Bytes that are mapped: a page of the host.
const PAGE: usize = 4096;

/// A page of registers, mapped to the device until it is dropped.
#[derive(Debug)]
pub(super) struct Doorbell {
    device: Device,
    page: Box<dyn DevxDoorbell>,
    register: DeviceAddress,
}

impl Doorbell {
    /// Maps a page.
    #[expect(unsafe_code, reason = "calls of the runtime's table take addresses")]
    pub(super) fn map(device: &Device, page: Box<dyn DevxDoorbell>, nic: &str) -> Result<Self> {
        let (start, register) = page.mapped();
        let offset = (register.as_ptr() as usize).wrapping_sub(start.as_ptr() as usize);
        if offset >= PAGE || !offset.is_multiple_of(8) || !(start.as_ptr() as usize).is_multiple_of(PAGE) {
            return Err(NicError::Call {
                call: "mlx5dv_devx_alloc_uar",
                nic: nic.to_owned(),
                cause: format!("a register at byte {offset} of the page at {start:p}"),
            });
        }
        let flags = match device.runtime().kind() {
            RuntimeKind::Nvidia => PORTABLE | MAPPED | IO_MEMORY,
            RuntimeKind::Amd | RuntimeKind::Host => PORTABLE | MAPPED,
        };
        let _guard = device.guard()?;
        let api = device.runtime().api();
        let host: *mut c_void = start.as_ptr().cast();
        // SAFETY: the page stays mapped until `page` is dropped, which `drop` does after unregistering.
        let code = unsafe { (api.hipHostRegister)(host, PAGE, flags) };
        match (check(device, "hipHostRegister", code), device.runtime().kind()) {
            (Err(error), RuntimeKind::Amd) => {
                let cause = format!("{}; {ON_AMD}", with_causes(&error));
                return Err(NicError::Call { call: "hipHostRegister", nic: nic.to_owned(), cause });
            }
            (registered, _) => registered?,
        }
        let mut mapped = std::ptr::null_mut();
        // SAFETY: the call writes one pointer, for a range that was registered.
        let code = unsafe { (api.hipHostGetDevicePointer)(&raw mut mapped, host, 0) };
        let register = DeviceAddress(mapped as usize as u64).offset(offset as u64);
        // Made first: what was registered is then given back by `drop`.
        let doorbell = Self { device: device.clone(), page, register };
        check(device, "hipHostGetDevicePointer", code)?;
        Ok(doorbell)
    }

    /// Its number in commands.
    pub(super) fn page(&self) -> u32 {
        self.page.page()
    }

    /// Where kernels find the register.
    pub(super) fn register(&self) -> DeviceAddress {
        self.register
    }
}

fn check(device: &Device, call: &'static str, code: HipError) -> anabranch_hip::Result<()> {
    if code == HipError::SUCCESS {
        return Ok(());
    }
    Err(Error::Call { call, runtime: device.runtime().kind(), device: device.ordinal(), code })
}

impl Drop for Doorbell {
    #[expect(unsafe_code, reason = "calls of the runtime's table take addresses")]
    fn drop(&mut self) {
        let host: *mut c_void = self.page.mapped().0.as_ptr().cast();
        // SAFETY: registered by `map`, once. A range that stays registered is no reason to fail.
        let _ = unsafe { (self.device.runtime().api().hipHostUnregister)(host) };
    }
}
