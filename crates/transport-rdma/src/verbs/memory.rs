//! Memory that a NIC may read and write.

use core::ffi::c_int;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::Arc;

use anabranch_hip::types::{HipPointerAttributes, flags, memory_type};
use anabranch_hip::{Device, DeviceAddress, HipError, RuntimeKind};
use anabranch_transport::Region;

use super::nic::Nic;
use crate::bindings::{IBV_ACCESS_LOCAL_WRITE, IbvMr};
use crate::driver::Registered;
use crate::error::{NicError, Result};

/// What the NIC and its peers may do. Ordering is not relaxed: flags follow data.
fn access(nic: &Nic) -> c_int {
    (IBV_ACCESS_LOCAL_WRITE | nic.remote_access()) as c_int
}

/// A registration.
#[derive(Debug)]
pub(crate) struct MemoryRegion {
    nic: Arc<Nic>,
    region: *mut IbvMr,
    local_key: u32,
    remote_key: u32,
}

// SAFETY: the pointer is used in `drop` only, by one thread, and libibverbs is thread-safe.
unsafe impl Send for MemoryRegion {}
// SAFETY: as above.
unsafe impl Sync for MemoryRegion {}

impl MemoryRegion {
    /// Registers a range by the addresses that kernels of `device` use.
    ///
    /// Memory of the host is registered as it is. Memory of a GPU is exported as a dma-buf; where the runtime or the library cannot do that,
    /// it is registered by its address, which works where the kernel has a peer memory module of the GPU's vendor.
    ///
    /// # Errors
    /// [`NicError::Limit`] for a range without bytes, [`NicError::Call`] with the reason of each way that was tried.
    pub(crate) fn new(nic: &Arc<Nic>, device: &Device, range: Region) -> Result<Self> {
        if range.bytes == 0 || range.address.checked_add(range.bytes).is_none() {
            let allowed = format!("1 or more, up to the end of the addresses from {:#x}", range.address);
            let nic = nic.name.clone();
            return Err(NicError::Limit {
                what: "bytes of a registered range",
                given: range.bytes,
                allowed,
                nic,
            });
        }
        if !is_device_memory(device, range)? {
            return Self::by_address(nic, range);
        }
        let dmabuf = match Self::by_dmabuf(nic, device, range) {
            Ok(region) => return Ok(region),
            Err(error) => anabranch_hip::with_causes(&error),
        };
        match Self::by_address(nic, range) {
            Ok(region) => {
                tracing::info!(
                    nic = nic.name,
                    dmabuf,
                    "device memory is registered through a peer memory module"
                );
                Ok(region)
            }
            Err(error) => {
                let cause = format!("as a dma-buf: {dmabuf}; through a peer memory module: {error}");
                Err(NicError::Call { call: "registering device memory", nic: nic.name.clone(), cause })
            }
        }
    }

    fn by_address(nic: &Arc<Nic>, range: Region) -> Result<Self> {
        let address = DeviceAddress(range.address).as_ptr();
        // SAFETY: the domain is live; the kernel checks that the range is mapped, and pins it.
        let region = unsafe { (nic.verbs.ibv_reg_mr)(nic.pd, address, range.bytes as usize, access(nic)) };
        Self::owned(nic, region, "ibv_reg_mr")
    }

    fn by_dmabuf(nic: &Arc<Nic>, device: &Device, range: Region) -> Result<Self> {
        let refused =
            |call, cause: &str| NicError::Call { call, nic: nic.name.clone(), cause: cause.to_owned() };
        let Some(register) = nic.verbs.ibv_reg_dmabuf_mr else {
            return Err(refused("ibv_reg_dmabuf_mr", "the library has no such function; rdma-core 34 has"));
        };
        let (buffer, first) = export(device, range)?
            .ok_or_else(|| refused("hipMemGetHandleForAddressRange", "the runtime has no such function"))?;
        let (offset, bytes) = (range.address - first, range.bytes as usize);
        // SAFETY: the domain and the descriptor are live; the kernel checks the range against the buffer and keeps its own reference.
        let region =
            unsafe { register(nic.pd, offset, bytes, range.address, buffer.as_raw_fd(), access(nic)) };
        Self::owned(nic, region, "ibv_reg_dmabuf_mr")
    }

    fn owned(nic: &Arc<Nic>, region: *mut IbvMr, call: &'static str) -> Result<Self> {
        if region.is_null() {
            let error = std::io::Error::last_os_error();
            let limit = if error.raw_os_error() == Some(rustix::io::Errno::NOMEM.raw_os_error()) {
                "; registered memory is locked: the limit of locked memory (ulimit -l) may be too low"
            } else {
                ""
            };
            return Err(NicError::Call { call, nic: nic.name.clone(), cause: format!("{error}{limit}") });
        }
        // SAFETY: the library returned a registration, whose keys do not change.
        let (local_key, remote_key) = unsafe { ((*region).lkey, (*region).rkey) };
        Ok(Self { nic: Arc::clone(nic), region, local_key, remote_key })
    }
}

impl Registered for MemoryRegion {
    fn local_key(&self) -> u32 {
        self.local_key
    }

    fn remote_key(&self) -> u32 {
        self.remote_key
    }
}

impl Drop for MemoryRegion {
    fn drop(&mut self) {
        // SAFETY: the registration is this value's and ends once.
        let code = unsafe { (self.nic.verbs.ibv_dereg_mr)(self.region) };
        if let Err(error) = self.nic.check("ibv_dereg_mr", code) {
            tracing::warn!("{error}");
        }
    }
}

/// Whether a range is memory of a GPU, as opposed to the host's.
fn is_device_memory(device: &Device, range: Region) -> Result<bool> {
    if device.runtime().kind() == RuntimeKind::Host {
        return Ok(false);
    }
    let _guard = device.guard()?;
    let mut attributes = HipPointerAttributes::default();
    let address = DeviceAddress(range.address).as_ptr();
    // SAFETY: the call fills one struct and only inspects the address.
    let code = unsafe { (device.runtime().api().hipPointerGetAttributes)(&raw mut attributes, address) };
    device_check(device, "hipPointerGetAttributes", code)?;
    Ok(attributes.memory_type == memory_type::DEVICE)
}

/// A dma-buf of the pages around a range, and the address of its first byte; `None` where the runtime has no such export.
fn export(device: &Device, range: Region) -> Result<Option<(OwnedFd, u64)>> {
    let _guard = device.guard()?;
    let api = device.runtime().api();
    let Some(get) = api.hipMemGetHandleForAddressRange else { return Ok(None) };
    let page = rustix::param::page_size() as u64;
    let first = range.address - range.address % page;
    let end = (range.address + range.bytes).next_multiple_of(page);
    let mut descriptor: c_int = -1;
    // SAFETY: for this kind of handle the call writes one int, a descriptor that the caller owns.
    let code = unsafe {
        get(
            (&raw mut descriptor).cast(),
            DeviceAddress(first).as_ptr(),
            (end - first) as usize,
            flags::MEM_RANGE_HANDLE_DMABUF,
            0,
        )
    };
    device_check(device, "hipMemGetHandleForAddressRange", code)?;
    // SAFETY: the call succeeded, so the descriptor is open and this value's.
    Ok(Some((unsafe { OwnedFd::from_raw_fd(descriptor) }, first)))
}

fn device_check(device: &Device, call: &'static str, code: HipError) -> Result<()> {
    let (runtime, device) = (device.runtime().kind(), device.ordinal());
    if code == HipError::SUCCESS {
        return Ok(());
    }
    Err(anabranch_hip::Error::Call { call, runtime, device, code }.into())
}
