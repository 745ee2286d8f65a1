//! Virtual-memory management: physical allocations mapped into reserved address ranges.

use core::ffi::c_void;
use std::os::fd::{AsRawFd as _, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::sync::Arc;

use crate::device::Device;
use crate::error::{Error, Result, c_ordinal};
use crate::memory::DeviceAddress;
use crate::types::{
    HipError, HipMemAccessDescriptor, HipMemAllocationProperties, HipMemGenericAllocationHandle,
    HipMemLocation, flags,
};

/// A physical allocation without an address; released when dropped and no longer mapped.
#[derive(Debug)]
pub struct PhysicalMemory {
    device: Device,
    raw: HipMemGenericAllocationHandle,
    bytes: usize,
}

// SAFETY: allocation handles may be used from any thread.
unsafe impl Send for PhysicalMemory {}
// SAFETY: as above.
unsafe impl Sync for PhysicalMemory {}

/// A reserved range of addresses, and what is mapped in it; unmapped and freed when dropped.
#[derive(Debug)]
pub struct ReservedRange {
    device: Device,
    address: DeviceAddress,
    bytes: usize,
    mapped: Vec<(usize, Arc<PhysicalMemory>)>,
}

fn properties(device: &Device) -> HipMemAllocationProperties {
    HipMemAllocationProperties {
        kind: flags::MEM_ALLOCATION_TYPE_PINNED,
        requested_handle_type: flags::MEM_HANDLE_TYPE_POSIX_FD,
        location: location(device),
        win32_handle_meta_data: std::ptr::null_mut(),
        compression_type: 0,
        gpu_direct_rdma_capable: 0,
        usage: 0,
    }
}

fn location(device: &Device) -> HipMemLocation {
    HipMemLocation { kind: flags::MEM_LOCATION_TYPE_DEVICE, id: c_ordinal(device.ordinal()) }
}

impl Device {
    /// The granularity of physical allocations and mappings, bytes.
    ///
    /// # Errors
    /// [`Error::Missing`] where the runtime has no virtual-memory calls, or the code of the call.
    pub fn physical_granularity(&self) -> Result<usize> {
        let runtime = self.runtime();
        let query = runtime
            .optional("hipMemGetAllocationGranularity", runtime.api().hipMemGetAllocationGranularity)?;
        let mut bytes = 0;
        let wanted = properties(self);
        // SAFETY: the call reads one struct and writes one size; option 0 asks for the minimum.
        let code = unsafe { query(&raw mut bytes, &raw const wanted, 0) };
        self.check("hipMemGetAllocationGranularity", code)?;
        Ok(bytes)
    }

    /// Allocates physical memory that can be exported as a file descriptor. `bytes` must be a multiple of
    /// [`Self::physical_granularity`].
    ///
    /// # Errors
    /// [`Error::Missing`], or the code of `hipMemCreate`.
    pub fn create_physical(&self, bytes: usize) -> Result<PhysicalMemory> {
        let runtime = self.runtime();
        let create = runtime.optional("hipMemCreate", runtime.api().hipMemCreate)?;
        let wanted = properties(self);
        let mut raw = std::ptr::null_mut();
        // SAFETY: the call reads one struct and writes one handle.
        let code = unsafe { create(&raw mut raw, bytes, &raw const wanted, 0) };
        self.check("hipMemCreate", code)?;
        Ok(PhysicalMemory { device: self.clone(), raw, bytes })
    }

    /// Opens physical memory that a peer exported. The descriptor stays the caller's and may be closed afterwards.
    ///
    /// # Errors
    /// [`Error::Missing`], or the code of `hipMemImportFromShareableHandle`.
    ///
    /// # Safety
    /// `bytes` must be the size of the exported allocation.
    pub unsafe fn import_physical(&self, descriptor: BorrowedFd<'_>, bytes: usize) -> Result<PhysicalMemory> {
        let runtime = self.runtime();
        let import = runtime
            .optional("hipMemImportFromShareableHandle", runtime.api().hipMemImportFromShareableHandle)?;
        let mut raw = std::ptr::null_mut();
        let shareable = descriptor.as_raw_fd() as isize as *mut c_void;
        // SAFETY: for file descriptors the pointer argument carries the number; the call writes one handle.
        let code = unsafe { import(&raw mut raw, shareable, flags::MEM_HANDLE_TYPE_POSIX_FD) };
        self.check("hipMemImportFromShareableHandle", code)?;
        Ok(PhysicalMemory { device: self.clone(), raw, bytes })
    }

    /// Reserves a range of addresses.
    ///
    /// # Errors
    /// [`Error::Missing`], or the code of `hipMemAddressReserve`.
    pub fn reserve(&self, bytes: usize, alignment: usize) -> Result<ReservedRange> {
        let runtime = self.runtime();
        let reserve = runtime.optional("hipMemAddressReserve", runtime.api().hipMemAddressReserve)?;
        let mut pointer = std::ptr::null_mut();
        // SAFETY: the call writes one pointer; no fixed address is asked for.
        let code = unsafe { reserve(&raw mut pointer, bytes, alignment, std::ptr::null_mut(), 0) };
        self.check("hipMemAddressReserve", code)?;
        Ok(ReservedRange {
            device: self.clone(),
            address: DeviceAddress(pointer as usize as u64),
            bytes,
            mapped: Vec::new(),
        })
    }
}

impl PhysicalMemory {
    /// Bytes.
    pub fn len(&self) -> usize {
        self.bytes
    }

    /// Whether it has no bytes.
    pub fn is_empty(&self) -> bool {
        self.bytes == 0
    }

    /// A file descriptor that another process imports.
    ///
    /// # Errors
    /// [`Error::Missing`], the code of `hipMemExportToShareableHandle`, or [`Error::Descriptor`].
    pub fn export(&self) -> Result<OwnedFd> {
        let runtime = self.device.runtime();
        let export =
            runtime.optional("hipMemExportToShareableHandle", runtime.api().hipMemExportToShareableHandle)?;
        let mut descriptor: RawFd = -1;
        // SAFETY: for the file-descriptor type the call writes one int.
        let code =
            unsafe { export((&raw mut descriptor).cast(), self.raw, flags::MEM_HANDLE_TYPE_POSIX_FD, 0) };
        self.device.check("hipMemExportToShareableHandle", code)?;
        if descriptor < 0 {
            return Err(Error::Descriptor {
                call: "hipMemExportToShareableHandle",
                runtime: runtime.kind(),
                device: self.device.ordinal(),
                descriptor,
            });
        }
        // SAFETY: the call succeeded and gave a descriptor, which is open and ours.
        Ok(unsafe { OwnedFd::from_raw_fd(descriptor) })
    }
}

impl Drop for PhysicalMemory {
    fn drop(&mut self) {
        let Some(release) = self.device.runtime().api().hipMemRelease else { return };
        // SAFETY: the handle came from a create or import call and is released once, here.
        let code = unsafe { release(self.raw) };
        if code != HipError::SUCCESS {
            tracing::warn!(%code, "hipMemRelease failed");
        }
    }
}

impl ReservedRange {
    /// Where it starts.
    pub fn address(&self) -> DeviceAddress {
        self.address
    }

    /// Bytes.
    pub fn len(&self) -> usize {
        self.bytes
    }

    /// Whether it has no bytes.
    pub fn is_empty(&self) -> bool {
        self.bytes == 0
    }

    /// Maps the whole of `memory` at `offset` and lets the given devices read and write it.
    ///
    /// # Errors
    /// [`Error::RuntimeMismatch`], [`Error::OutOfRange`], [`Error::Missing`], or the code of the mapping calls.
    pub fn map(&mut self, offset: usize, memory: &Arc<PhysicalMemory>, devices: &[Device]) -> Result<()> {
        for device in devices.iter().chain([&memory.device]) {
            self.device.check_runtime("map memory", device)?;
        }
        let end = offset.saturating_add(memory.bytes);
        if end > self.bytes {
            return Err(Error::OutOfRange { what: "map memory", offset, end, length: self.bytes });
        }
        let runtime = self.device.runtime();
        let map = runtime.optional("hipMemMap", runtime.api().hipMemMap)?;
        let grant = runtime.optional("hipMemSetAccess", runtime.api().hipMemSetAccess)?;
        let pointer = self.address.offset(offset as u64).as_ptr();
        // SAFETY: the target lies in this reservation; the handle is live.
        let code = unsafe { map(pointer, memory.bytes, 0, memory.raw, 0) };
        self.device.check("hipMemMap", code)?;
        self.mapped.push((offset, Arc::clone(memory)));
        let access: Vec<_> = devices
            .iter()
            .map(|device| HipMemAccessDescriptor {
                location: location(device),
                flags: flags::MEM_ACCESS_READ_WRITE,
            })
            .collect();
        // SAFETY: the range was mapped just now; the array has the stated length.
        let code = unsafe { grant(pointer, memory.bytes, access.as_ptr(), access.len()) };
        self.device.check("hipMemSetAccess", code)
    }
}

impl Drop for ReservedRange {
    fn drop(&mut self) {
        let api = self.device.runtime().api();
        for (offset, memory) in self.mapped.drain(..) {
            let Some(unmap) = api.hipMemUnmap else { continue };
            // SAFETY: the range was mapped by `map` and is unmapped once, here.
            let code = unsafe { unmap(self.address.offset(offset as u64).as_ptr(), memory.bytes) };
            if code != HipError::SUCCESS {
                tracing::warn!(%code, "hipMemUnmap failed");
            }
        }
        let Some(free) = api.hipMemAddressFree else { return };
        // SAFETY: the range came from hipMemAddressReserve and is freed once, here.
        let code = unsafe { free(self.address.as_ptr(), self.bytes) };
        if code != HipError::SUCCESS {
            tracing::warn!(%code, "hipMemAddressFree failed");
        }
    }
}
