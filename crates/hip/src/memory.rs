//! Device memory, pinned host memory, and addresses as numbers.

use core::ffi::c_void;
use std::fmt;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

use crate::device::Device;
use crate::error::{Error, Result};
use crate::types::{HipError, HipPointerAttributes, flags, memory_type};

/// An address in a device's memory, as a number. Host code never dereferences it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
#[repr(transparent)]
pub struct DeviceAddress(pub u64);

impl DeviceAddress {
    /// The null address.
    pub const NULL: Self = Self(0);

    /// The address `bytes` further on.
    #[must_use]
    pub const fn offset(self, bytes: u64) -> Self {
        Self(self.0 + bytes)
    }

    /// Whether this is the null address.
    pub const fn is_null(self) -> bool {
        self.0 == 0
    }

    /// As a C pointer for table calls.
    pub fn as_ptr(self) -> *mut c_void {
        self.0 as usize as *mut c_void
    }
}

impl fmt::Display for DeviceAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}", self.0)
    }
}

/// An owned allocation on one device; freed when dropped.
///
/// The owner makes sure that no kernel and no peer still uses the memory then: freeing waits for nobody.
#[derive(Debug)]
pub struct DeviceBuffer {
    device: Device,
    address: DeviceAddress,
    bytes: usize,
}

impl Device {
    /// Allocates device memory. Its contents are undefined. Zero bytes give an empty buffer at the null address.
    ///
    /// # Errors
    /// The code of `hipMalloc`, mostly out of memory.
    pub fn allocate(&self, bytes: usize) -> Result<DeviceBuffer> {
        self.allocate_with("hipMalloc", bytes, |pointer| {
            // SAFETY: the call writes one pointer.
            unsafe { (self.runtime().api().hipMalloc)(pointer, bytes) }
        })
    }

    /// Allocates memory that peers may write while a kernel here reads it: uncached on AMD, ordinary device
    /// memory on runtimes without such a kind.
    ///
    /// # Errors
    /// The code of the allocation call.
    pub fn allocate_uncached(&self, bytes: usize) -> Result<DeviceBuffer> {
        match self.runtime().api().hipExtMallocWithFlags {
            None => self.allocate(bytes),
            Some(allocate) => self.allocate_with("hipExtMallocWithFlags", bytes, |pointer| {
                // SAFETY: the call writes one pointer; the flag is one of HIP's.
                unsafe { allocate(pointer, bytes, flags::DEVICE_MALLOC_UNCACHED) }
            }),
        }
    }

    fn allocate_with(
        &self,
        call: &'static str,
        bytes: usize,
        allocate: impl FnOnce(*mut *mut c_void) -> HipError,
    ) -> Result<DeviceBuffer> {
        let mut pointer = std::ptr::null_mut();
        if bytes > 0 {
            let _guard = self.guard()?;
            self.check(call, allocate(&raw mut pointer))?;
        }
        Ok(DeviceBuffer { device: self.clone(), address: DeviceAddress(pointer as usize as u64), bytes })
    }

    /// The device that owns an address, and the address's base allocation: `(ordinal, base, bytes)`.
    ///
    /// # Errors
    /// The code of the query: the address belongs to no allocation of this process.
    pub fn allocation_of(&self, address: DeviceAddress) -> Result<(u32, DeviceAddress, usize)> {
        let _guard = self.guard()?;
        let mut attributes = HipPointerAttributes::default();
        // SAFETY: the call fills one struct and only inspects the address.
        let code =
            unsafe { (self.runtime().api().hipPointerGetAttributes)(&raw mut attributes, address.as_ptr()) };
        self.check("hipPointerGetAttributes", code)?;
        let (mut base, mut bytes) = (std::ptr::null_mut(), 0);
        // SAFETY: the call writes a pointer and a size and only inspects the address.
        let code = unsafe {
            (self.runtime().api().hipMemGetAddressRange)(&raw mut base, &raw mut bytes, address.as_ptr())
        };
        self.check("hipMemGetAddressRange", code)?;
        Ok((attributes.device.max(0) as u32, DeviceAddress(base as usize as u64), bytes))
    }

    /// Whether an address is memory of a device, as opposed to the host's.
    ///
    /// # Errors
    /// The code of the query: the address belongs to no allocation of this process.
    pub fn is_device_memory(&self, address: DeviceAddress) -> Result<bool> {
        let _guard = self.guard()?;
        let mut attributes = HipPointerAttributes::default();
        // SAFETY: the call fills one struct and only inspects the address.
        let code =
            unsafe { (self.runtime().api().hipPointerGetAttributes)(&raw mut attributes, address.as_ptr()) };
        self.check("hipPointerGetAttributes", code)?;
        Ok(attributes.memory_type == memory_type::DEVICE)
    }

    /// Allocates pinned host memory that the device can reach. Contents are undefined.
    ///
    /// # Errors
    /// The code of `hipHostMalloc` or `hipHostGetDevicePointer`.
    pub fn allocate_host(&self, bytes: usize) -> Result<HostBuffer> {
        let _guard = self.guard()?;
        let api = self.runtime().api();
        let mut host = std::ptr::null_mut();
        let kind = flags::HOST_MALLOC_MAPPED | flags::HOST_MALLOC_PORTABLE | flags::HOST_MALLOC_COHERENT;
        // SAFETY: the call writes one pointer; one byte at least, so that the pointer is never null.
        let code = unsafe { (api.hipHostMalloc)(&raw mut host, bytes.max(1), kind) };
        self.check("hipHostMalloc", code)?;
        let Some(pointer) = NonNull::new(host.cast::<u8>()) else {
            return self.check("hipHostMalloc", HipError::OUT_OF_MEMORY).and(Err(Error::OutOfRange {
                what: "hipHostMalloc returned null",
                offset: 0,
                end: bytes,
                length: 0,
            }));
        };
        let mut buffer = HostBuffer { device: self.clone(), pointer, bytes, mapped: DeviceAddress::NULL };
        let mut mapped = std::ptr::null_mut();
        // SAFETY: the pointer came from hipHostMalloc with the mapped flag.
        let code = unsafe { (api.hipHostGetDevicePointer)(&raw mut mapped, host, 0) };
        self.check("hipHostGetDevicePointer", code)?;
        buffer.mapped = DeviceAddress(mapped as usize as u64);
        Ok(buffer)
    }
}

impl DeviceBuffer {
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

    /// The device that owns it.
    pub fn device(&self) -> &Device {
        &self.device
    }

    pub(crate) fn range(&self, what: &'static str, offset: usize, bytes: usize) -> Result<()> {
        match offset.checked_add(bytes) {
            Some(end) if end <= self.bytes => Ok(()),
            end => {
                Err(Error::OutOfRange { what, offset, end: end.unwrap_or(usize::MAX), length: self.bytes })
            }
        }
    }
}

impl Drop for DeviceBuffer {
    fn drop(&mut self) {
        if self.address.is_null() {
            return;
        }
        let Ok(_guard) = self.device.guard() else {
            tracing::warn!(address = %self.address, "device memory leaked: its device cannot be made current");
            return;
        };
        // SAFETY: the address came from an allocation call and is freed once, here.
        let code = unsafe { (self.device.runtime().api().hipFree)(self.address.as_ptr()) };
        if code != HipError::SUCCESS {
            tracing::warn!(address = %self.address, %code, "hipFree failed");
        }
    }
}

/// Pinned host memory that the device reads and writes; freed when dropped.
#[derive(Debug)]
pub struct HostBuffer {
    device: Device,
    pointer: NonNull<u8>,
    bytes: usize,
    mapped: DeviceAddress,
}

// SAFETY: the memory is plain bytes that any thread may access; all access from this type goes through
// atomics.
unsafe impl Send for HostBuffer {}
// SAFETY: as above.
unsafe impl Sync for HostBuffer {}

impl HostBuffer {
    /// Where a kernel finds it.
    pub fn device_address(&self) -> DeviceAddress {
        self.mapped
    }

    /// Where the host finds it. Kernels may write it at any time: read through [`Self::atomic_u64`] or
    /// [`Self::read`].
    pub fn as_ptr(&self) -> *mut u8 {
        self.pointer.as_ptr()
    }

    /// Bytes.
    pub fn len(&self) -> usize {
        self.bytes
    }

    /// Whether it has no bytes.
    pub fn is_empty(&self) -> bool {
        self.bytes == 0
    }

    /// An 8-byte word of it, shared with the device.
    ///
    /// # Errors
    /// [`Error::OutOfRange`], also for an offset that is no multiple of 8.
    pub fn atomic_u64(&self, offset: usize) -> Result<&AtomicU64> {
        self.range(offset, 8)?;
        if !offset.is_multiple_of(8) {
            let end = offset + 8;
            return Err(Error::OutOfRange { what: "unaligned word", offset, end, length: self.bytes });
        }
        // SAFETY: in range and aligned (pinned memory is page aligned); AtomicU64 allows shared mutation; the
        // lifetime is bounded by the buffer's.
        Ok(unsafe { AtomicU64::from_ptr(self.pointer.as_ptr().add(offset).cast()) })
    }

    /// Copies out of it, byte by atomic byte: the device or another thread may be writing, and each byte is then
    /// an old or a new one.
    ///
    /// # Errors
    /// [`Error::OutOfRange`].
    pub fn read(&self, offset: usize, target: &mut [u8]) -> Result<()> {
        self.range(offset, target.len())?;
        for (index, byte) in target.iter_mut().enumerate() {
            *byte = self.atomic_u8(offset + index).load(Ordering::Relaxed);
        }
        Ok(())
    }

    /// Copies into it, byte by atomic byte: the device or another thread may be reading.
    ///
    /// # Errors
    /// [`Error::OutOfRange`].
    pub fn write(&self, offset: usize, source: &[u8]) -> Result<()> {
        self.range(offset, source.len())?;
        for (index, byte) in source.iter().enumerate() {
            self.atomic_u8(offset + index).store(*byte, Ordering::Relaxed);
        }
        Ok(())
    }

    /// One byte; `index` was checked with [`Self::range`].
    fn atomic_u8(&self, index: usize) -> &AtomicU8 {
        debug_assert!(index < self.bytes, "the caller checked the range");
        // SAFETY: in range by the caller's check; a byte is always aligned; all host access to this memory is atomic,
        // and the lifetime is bounded by the buffer's.
        unsafe { AtomicU8::from_ptr(self.pointer.as_ptr().add(index)) }
    }

    fn range(&self, offset: usize, bytes: usize) -> Result<()> {
        match offset.checked_add(bytes) {
            Some(end) if end <= self.bytes => Ok(()),
            end => Err(Error::OutOfRange {
                what: "host buffer access",
                offset,
                end: end.unwrap_or(usize::MAX),
                length: self.bytes,
            }),
        }
    }
}

impl Drop for HostBuffer {
    fn drop(&mut self) {
        let Ok(_guard) = self.device.guard() else {
            tracing::warn!("pinned memory leaked: its device cannot be made current");
            return;
        };
        // SAFETY: the pointer came from hipHostMalloc and is freed once, here.
        let code = unsafe { (self.device.runtime().api().hipHostFree)(self.pointer.as_ptr().cast()) };
        if code != HipError::SUCCESS {
            tracing::warn!(%code, "hipHostFree failed");
        }
    }
}
