//! Virtual-memory management: physical allocations mapped into reserved address ranges.

use core::ffi::{c_int, c_void};
use std::os::fd::{AsRawFd as _, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::sync::Arc;

use crate::device::Device;
use crate::error::{Error, Result, c_ordinal};
use crate::memory::DeviceAddress;
use crate::runtime::RuntimeKind;
use crate::types::{
    HipError, HipMemAccessDescriptor, HipMemAllocationProperties, HipMemGenericAllocationHandle,
    HipMemLocation, device_attribute, flags,
};

/// A physical allocation without an address; released when dropped and no longer mapped.
#[derive(Debug)]
pub struct PhysicalMemory {
    device: Device,
    raw: HipMemGenericAllocationHandle,
    bytes: usize,
    /// Whether dropping it releases the handle; a borrowed one is somebody else's.
    owned: bool,
}

/// The first version of AMD's runtime, as `hipRuntimeGetVersion` counts, whose virtual memory is taken: ROCm 7.2. It allocates
/// uncached physical memory (rocSHMEM makes the same cut), and imports a file descriptor that is passed as the pointer;
/// before 7.1 it took the pointer for the descriptor's address.
const AMD_SINCE: i32 = 70_200_000;

/// Names a physical allocation to the other threads of its process: the runtime's own handle, as a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PhysicalHandle(pub u64);

// SAFETY: allocation handles may be used from any thread.
unsafe impl Send for PhysicalMemory {}
// SAFETY: as above.
unsafe impl Sync for PhysicalMemory {}

/// A reserved range of addresses. Freed when it and everything that was mapped into it is dropped.
#[derive(Debug)]
pub struct ReservedRange {
    addresses: Arc<Addresses>,
}

/// The addresses themselves, kept by the range and by each mapping in it.
#[derive(Debug)]
struct Addresses {
    device: Device,
    start: DeviceAddress,
    bytes: usize,
}

/// Physical memory at addresses of a [`ReservedRange`]; unmapped when dropped.
///
/// The owner makes sure that no kernel and no copy still uses the addresses then: unmapping waits for nobody.
#[derive(Debug)]
pub struct VirtualMapping {
    addresses: Arc<Addresses>,
    offset: usize,
    memory: Arc<PhysicalMemory>,
}

fn properties(device: &Device, kind: c_int) -> HipMemAllocationProperties {
    HipMemAllocationProperties {
        kind,
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
    /// Whether this device keeps addresses and memory apart, and its memory can be passed on as file descriptors: the
    /// runtime has the calls, and the device says so (`hipDeviceAttributeVirtualMemoryManagementSupported`). AMD's
    /// runtime has to be of ROCm 7.2 or later.
    ///
    /// # Errors
    /// The code of `hipDeviceGetAttribute`; [`HipError::INVALID_VALUE`], from a runtime that does not know the attribute,
    /// is "no".
    pub fn has_virtual_memory(&self) -> Result<bool> {
        let api = self.runtime().api();
        let calls = [
            api.hipMemAddressReserve.is_some(),
            api.hipMemAddressFree.is_some(),
            api.hipMemGetAllocationGranularity.is_some(),
            api.hipMemCreate.is_some(),
            api.hipMemRelease.is_some(),
            api.hipMemMap.is_some(),
            api.hipMemUnmap.is_some(),
            api.hipMemSetAccess.is_some(),
            api.hipMemExportToShareableHandle.is_some(),
            api.hipMemImportFromShareableHandle.is_some(),
        ];
        if calls.contains(&false) {
            return Ok(false);
        }
        let runtime = self.runtime();
        if runtime.kind() == RuntimeKind::Amd && runtime.versions()?.1 < AMD_SINCE {
            return Ok(false);
        }
        let mut supported: c_int = 0;
        // SAFETY: the call writes one int.
        let code = unsafe {
            (api.hipDeviceGetAttribute)(
                &raw mut supported,
                device_attribute::VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED,
                c_ordinal(self.ordinal()),
            )
        };
        if code == HipError::INVALID_VALUE {
            return Ok(false);
        }
        self.check("hipDeviceGetAttribute", code)?;
        Ok(supported != 0)
    }

    /// The granularity of physical allocations and mappings, bytes.
    ///
    /// # Errors
    /// [`Error::Missing`] where the runtime has no virtual-memory calls, or the code of the call.
    pub fn physical_granularity(&self) -> Result<usize> {
        let runtime = self.runtime();
        let query = runtime
            .optional("hipMemGetAllocationGranularity", runtime.api().hipMemGetAllocationGranularity)?;
        let mut bytes = 0;
        let wanted = properties(self, flags::MEM_ALLOCATION_TYPE_PINNED);
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
        self.create_physical_of(flags::MEM_ALLOCATION_TYPE_PINNED, bytes)
    }

    /// [`Self::create_physical`] of a kind that peers may write while a kernel here reads it: uncached on AMD, where it takes
    /// a ROCm that has `hipMemAllocationTypeUncached` (7.2 and later allocate it; others answer
    /// [`HipError::INVALID_VALUE`]), ordinary device memory on runtimes without such a kind.
    ///
    /// # Errors
    /// [`Error::Missing`], or the code of `hipMemCreate`.
    pub fn create_physical_uncached(&self, bytes: usize) -> Result<PhysicalMemory> {
        self.create_physical_of(flags::MEM_ALLOCATION_TYPE_UNCACHED, bytes)
    }

    fn create_physical_of(&self, kind: c_int, bytes: usize) -> Result<PhysicalMemory> {
        let runtime = self.runtime();
        let create = runtime.optional("hipMemCreate", runtime.api().hipMemCreate)?;
        let wanted = properties(self, kind);
        let mut raw = std::ptr::null_mut();
        // SAFETY: the call reads one struct and writes one handle.
        let code = unsafe { create(&raw mut raw, bytes, &raw const wanted, 0) };
        self.check("hipMemCreate", code)?;
        Ok(PhysicalMemory { device: self.clone(), raw, bytes, owned: true })
    }

    /// Physical memory of another thread of this process, by its handle. Dropping it releases nothing; what is mapped of it
    /// stays until it is unmapped, whatever its owner does.
    ///
    /// # Safety
    /// `handle` must be that of live [`PhysicalMemory`] of this runtime instance with `bytes` bytes, which lives longer
    /// than the calls that map the result.
    pub unsafe fn borrow_physical(&self, handle: PhysicalHandle, bytes: usize) -> PhysicalMemory {
        let raw = handle.0 as usize as HipMemGenericAllocationHandle;
        PhysicalMemory { device: self.clone(), raw, bytes, owned: false }
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
        // A runtime may count the memory as the current device's.
        let _guard = self.guard()?;
        // SAFETY: for file descriptors the pointer argument carries the number; the call writes one handle.
        let code = unsafe { import(&raw mut raw, shareable, flags::MEM_HANDLE_TYPE_POSIX_FD) };
        self.check("hipMemImportFromShareableHandle", code)?;
        Ok(PhysicalMemory { device: self.clone(), raw, bytes, owned: true })
    }

    /// Reserves a range of addresses, aligned to `alignment` (a power of two, or 0 for the granularity). `bytes` must be a
    /// multiple of [`Self::physical_granularity`].
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
        let start = DeviceAddress(pointer as usize as u64);
        Ok(ReservedRange { addresses: Arc::new(Addresses { device: self.clone(), start, bytes }) })
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

    /// Its name for other threads of this process; see [`Device::borrow_physical`].
    pub fn handle(&self) -> PhysicalHandle {
        PhysicalHandle(self.raw as usize as u64)
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
        if !self.owned {
            return;
        }
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
        self.addresses.start
    }

    /// Bytes.
    pub fn len(&self) -> usize {
        self.addresses.bytes
    }

    /// Whether it has no bytes.
    pub fn is_empty(&self) -> bool {
        self.addresses.bytes == 0
    }

    /// Maps the whole of `memory` at `offset` and lets the given devices read and write it there. The range may go before
    /// the mapping does.
    ///
    /// # Errors
    /// [`Error::RuntimeMismatch`], [`Error::OutOfRange`], [`Error::Missing`], or the code of the mapping calls, for a place
    /// that is taken among others. Then nothing is mapped.
    pub fn map(
        &self,
        offset: usize,
        memory: &Arc<PhysicalMemory>,
        devices: &[Device],
    ) -> Result<VirtualMapping> {
        let Addresses { device: own, bytes, .. } = &*self.addresses;
        for device in devices.iter().chain([&memory.device]) {
            own.check_runtime("map memory", device)?;
        }
        let end = offset.saturating_add(memory.bytes);
        if end > *bytes {
            return Err(Error::OutOfRange { what: "map memory", offset, end, length: *bytes });
        }
        let runtime = own.runtime();
        let map = runtime.optional("hipMemMap", runtime.api().hipMemMap)?;
        let grant = runtime.optional("hipMemSetAccess", runtime.api().hipMemSetAccess)?;
        let pointer = self.addresses.start.offset(offset as u64).as_ptr();
        // SAFETY: the target lies in this reservation; the handle is live.
        let code = unsafe { map(pointer, memory.bytes, 0, memory.raw, 0) };
        own.check("hipMemMap", code)?;
        let (addresses, memory) = (Arc::clone(&self.addresses), Arc::clone(memory));
        // From here on dropping it unmaps.
        let mapping = VirtualMapping { addresses, offset, memory };
        let access: Vec<_> = devices
            .iter()
            .map(|device| HipMemAccessDescriptor {
                location: location(device),
                flags: flags::MEM_ACCESS_READ_WRITE,
            })
            .collect();
        // SAFETY: the range was mapped just now; the array has the stated length.
        let code = unsafe { grant(pointer, mapping.memory.bytes, access.as_ptr(), access.len()) };
        own.check("hipMemSetAccess", code)?;
        Ok(mapping)
    }
}

impl VirtualMapping {
    /// Where it starts.
    pub fn address(&self) -> DeviceAddress {
        self.addresses.start.offset(self.offset as u64)
    }

    /// Bytes.
    pub fn len(&self) -> usize {
        self.memory.bytes
    }

    /// Whether it has no bytes.
    pub fn is_empty(&self) -> bool {
        self.memory.bytes == 0
    }
}

impl Drop for VirtualMapping {
    fn drop(&mut self) {
        let Some(unmap) = self.addresses.device.runtime().api().hipMemUnmap else { return };
        // SAFETY: the range was mapped by `map` and is unmapped once, here.
        let code = unsafe { unmap(self.address().as_ptr(), self.memory.bytes) };
        if code != HipError::SUCCESS {
            tracing::warn!(address = %self.address(), %code, "hipMemUnmap failed");
        }
    }
}

impl Drop for Addresses {
    fn drop(&mut self) {
        let Some(free) = self.device.runtime().api().hipMemAddressFree else { return };
        // SAFETY: the range came from hipMemAddressReserve and is freed once, here: the range and all mappings in it, which
        // share this, are gone.
        let code = unsafe { free(self.start.as_ptr(), self.bytes) };
        if code != HipError::SUCCESS {
            tracing::warn!(address = %self.start, %code, "hipMemAddressFree failed");
        }
    }
}
