//! Address ranges that the machine mapped, and the share of a device's memory that they hold.

use core::ptr;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use anabranch_hip::HipError;
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use rustix::mm::{MapFlags, ProtFlags, mmap, mmap_anonymous, munmap};

/// Granularity of mappings, bytes.
pub(crate) const PAGE: usize = 4096;

/// Bytes of a device's memory, given back when dropped.
#[derive(Debug)]
pub(crate) struct Share {
    used: Arc<AtomicU64>,
    bytes: u64,
}

impl Share {
    /// Takes `bytes` of what is left under `limit`.
    pub(crate) fn take(used: &Arc<AtomicU64>, bytes: u64, limit: u64) -> Result<Self, HipError> {
        used.fetch_update(Ordering::AcqRel, Ordering::Acquire, |used| {
            used.checked_add(bytes).filter(|sum| *sum <= limit)
        })
        .map_err(|_| HipError::OUT_OF_MEMORY)?;
        Ok(Self { used: Arc::clone(used), bytes })
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.used.fetch_sub(self.bytes, Ordering::AcqRel);
    }
}

/// A range mapped by the machine; unmapped when dropped.
#[derive(Debug)]
pub struct Mapping {
    address: usize,
    bytes: usize,
    /// The memory's file, for allocations that other processes may open.
    pub(crate) file: Option<OwnedFd>,
    _share: Option<Share>,
}

impl Mapping {
    /// Shared memory in a file of its own. Its pages read as zero; HIP says that they are undefined.
    pub(crate) fn shared(bytes: usize, share: Share) -> Result<Self, HipError> {
        let file = memory_file(bytes)?;
        let (address, bytes) = map_file(&file, bytes)?;
        Ok(Self { address, bytes, file: Some(file), _share: Some(share) })
    }

    /// A file, mapped for reading and writing. The file need not stay open.
    pub(crate) fn of_file(file: &impl AsFd, bytes: usize) -> Result<Self, HipError> {
        let (address, bytes) = map_file(file, bytes)?;
        Ok(Self { address, bytes, file: None, _share: None })
    }

    /// Memory of this process.
    pub(crate) fn private(bytes: usize) -> Result<Self, HipError> {
        Self::anonymous(bytes, ProtFlags::READ | ProtFlags::WRITE)
    }

    /// Addresses without memory, aligned to `alignment` (a power of two of at least a page).
    pub(crate) fn reserved(bytes: usize, alignment: usize) -> Result<Self, HipError> {
        let wide = bytes.checked_add(alignment).ok_or(HipError::OUT_OF_MEMORY)?;
        let mut mapping = Self::anonymous(wide, ProtFlags::empty())?;
        let start = mapping.address.next_multiple_of(alignment);
        let (before, after) = (start - mapping.address, mapping.address + mapping.bytes - start - bytes);
        let whole = mapping.address;
        unmap(whole, before);
        unmap(start + bytes, after);
        mapping.address = start;
        mapping.bytes = bytes;
        Ok(mapping)
    }

    fn anonymous(bytes: usize, protection: ProtFlags) -> Result<Self, HipError> {
        let bytes = bytes.checked_next_multiple_of(PAGE).ok_or(HipError::OUT_OF_MEMORY)?;
        let kind = MapFlags::PRIVATE | MapFlags::NORESERVE;
        // SAFETY: a fresh mapping at an address that the system chooses overlaps nothing.
        let address = unsafe { mmap_anonymous(ptr::null_mut(), bytes, protection, kind) }
            .map_err(|error| refused("mmap", bytes, error))?;
        Ok(Self { address: address as usize, bytes, file: None, _share: None })
    }

    /// Its first byte.
    pub fn address(&self) -> usize {
        self.address
    }

    /// Its size: whole pages.
    pub fn bytes(&self) -> usize {
        self.bytes
    }
}

/// Logs why the system refused memory, as HIP's code cannot say it.
pub(crate) fn refused(call: &'static str, bytes: usize, error: rustix::io::Errno) -> HipError {
    tracing::warn!(call, bytes, %error, "the system refused memory to the host machine");
    HipError::OUT_OF_MEMORY
}

/// A file in memory of `bytes`, rounded up to pages.
pub(crate) fn memory_file(bytes: usize) -> Result<OwnedFd, HipError> {
    let file = memfd_create("anabranch-device-memory", MemfdFlags::CLOEXEC)
        .map_err(|error| refused("memfd_create", bytes, error))?;
    let size = bytes.checked_next_multiple_of(PAGE).ok_or(HipError::OUT_OF_MEMORY)?;
    ftruncate(&file, size as u64).map_err(|error| refused("ftruncate", bytes, error))?;
    Ok(file)
}

/// Maps the first `bytes` of a file, rounded up to pages: where, and how much.
fn map_file(file: &impl AsFd, bytes: usize) -> Result<(usize, usize), HipError> {
    let bytes = bytes.checked_next_multiple_of(PAGE).ok_or(HipError::OUT_OF_MEMORY)?;
    let protection = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: a fresh mapping at an address that the system chooses overlaps nothing.
    let address = unsafe { mmap(ptr::null_mut(), bytes, protection, MapFlags::SHARED, file, 0) }
        .map_err(|error| refused("mmap", bytes, error))?;
    Ok((address as usize, bytes))
}

fn unmap(address: usize, bytes: usize) {
    if bytes == 0 {
        return;
    }
    // SAFETY: callers pass (part of) a range that a `Mapping` made and that nothing uses any more: mappings
    // are dropped after the work that was queued when they were freed.
    if let Err(error) = unsafe { munmap(address as *mut _, bytes) } {
        tracing::warn!(%error, address, bytes, "memory was not unmapped");
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        unmap(self.address, self.bytes);
    }
}
