//! Virtual memory: physical allocations mapped into reserved addresses.
//!
//! Every mapping is readable and writable by all devices of the machine once any device was given access: CPU
//! threads share one address space. Unmapping takes effect at once, so the work that uses a range must be over.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

use anabranch_hip::HipError;
use anabranch_hip::types::flags;
use rustix::mm::{MapFlags, MprotectFlags, ProtFlags, mmap, mmap_anonymous, mprotect};

use crate::memory::mapping::{Mapping, PAGE, Share, memory_file, refused};
use crate::memory::regions::{Backing, Region, RegionKind, Regions};
use crate::sync::lock;

/// Granularity of physical allocations and mappings, bytes.
pub(crate) const GRANULARITY: usize = 64 * 1024;

/// Memory without an address.
#[derive(Debug)]
pub(crate) struct Physical {
    pub(crate) file: OwnedFd,
    bytes: usize,
    pub(crate) device: u32,
    _share: Option<Share>,
    seen: OnceLock<Arc<Mapping>>,
    offered: AtomicBool,
}

impl Physical {
    pub(crate) fn create(bytes: usize, device: u32, share: Share) -> Result<Self, HipError> {
        Ok(Self {
            file: memory_file(bytes)?,
            bytes,
            device,
            _share: Some(share),
            seen: OnceLock::new(),
            offered: AtomicBool::new(false),
        })
    }

    /// A descriptor that another process (or this one) can import.
    pub(crate) fn export(&self) -> Result<OwnedFd, HipError> {
        self.offered.store(true, Ordering::Release);
        rustix::io::fcntl_dupfd_cloexec(&self.file, 3).map_err(|error| refused("dup", 0, error))
    }

    /// Takes over what a descriptor names. The descriptor stays the caller's.
    ///
    /// # Errors
    /// `hipErrorInvalidValue` if it is not open or names no memory of the granularity.
    pub(crate) fn import(file: BorrowedFd<'_>, device: u32) -> Result<Self, HipError> {
        let file = rustix::io::fcntl_dupfd_cloexec(file, 3).map_err(|_| HipError::INVALID_VALUE)?;
        let bytes = rustix::fs::fstat(&file).map_err(|_| HipError::INVALID_VALUE)?.st_size as usize;
        if bytes == 0 || !bytes.is_multiple_of(GRANULARITY) {
            return Err(HipError::INVALID_VALUE);
        }
        Ok(Self { file, bytes, device, _share: None, seen: OnceLock::new(), offered: AtomicBool::new(true) })
    }
}

impl Physical {
    /// Where a virtual scheduler sees it, whatever else it is mapped to.
    pub(crate) fn seen(&self) -> Result<&Arc<Mapping>, HipError> {
        if let Some(seen) = self.seen.get() {
            return Ok(seen);
        }
        let made = Arc::new(Mapping::of_file(&self.file, self.bytes)?);
        Ok(self.seen.get_or_init(|| made))
    }

    /// Whether others were given it.
    pub(crate) fn is_offered(&self) -> bool {
        self.offered.load(Ordering::Acquire)
    }
}

/// The reserved ranges, and what is mapped into them.
#[derive(Debug, Default)]
pub(crate) struct Reservations {
    by_base: Mutex<BTreeMap<usize, Mapping>>,
}

fn aligned(values: &[usize]) -> bool {
    values.iter().all(|value| value.is_multiple_of(GRANULARITY))
}

impl Reservations {
    /// Reserves a range; returns its start.
    pub(crate) fn reserve(&self, bytes: usize, alignment: usize) -> Result<usize, HipError> {
        let alignment = alignment.max(GRANULARITY);
        if bytes == 0 || !aligned(&[bytes]) || !alignment.is_power_of_two() {
            return Err(HipError::INVALID_VALUE);
        }
        let mapping = Mapping::reserved(bytes, alignment)?;
        let base = mapping.address();
        lock(&self.by_base).insert(base, mapping);
        Ok(base)
    }

    /// Gives a range back.
    ///
    /// # Errors
    /// `hipErrorInvalidValue` if it is not a whole reservation or something is still mapped in it.
    pub(crate) fn free(&self, base: usize, bytes: usize, regions: &Regions) -> Result<(), HipError> {
        let mut by_base = lock(&self.by_base);
        let whole = by_base.get(&base).is_some_and(|mapping| mapping.bytes() == bytes);
        if !whole || !regions.within(base, base + bytes, RegionKind::Virtual).is_empty() {
            return Err(HipError::INVALID_VALUE);
        }
        by_base.remove(&base);
        Ok(())
    }

    /// Maps physical memory; it cannot be touched before [`Self::set_access`].
    pub(crate) fn map(
        &self,
        base: usize,
        bytes: usize,
        offset: usize,
        physical: &Arc<Physical>,
        regions: &Regions,
        model: Option<(u32, usize)>,
    ) -> Result<(), HipError> {
        let end = base.checked_add(bytes).ok_or(HipError::INVALID_VALUE)?;
        let last = offset.checked_add(bytes).ok_or(HipError::INVALID_VALUE)?;
        if bytes == 0 || !aligned(&[base, bytes, offset]) || last > physical.bytes {
            return Err(HipError::INVALID_VALUE);
        }
        let by_base = lock(&self.by_base);
        let inside = by_base.range(..=base).next_back();
        if inside.is_none_or(|(start, mapping)| end > start + mapping.bytes()) {
            return Err(HipError::INVALID_VALUE);
        }
        let (kind, device) = (RegionKind::Virtual, physical.device);
        let backing = Backing::Physical { _memory: Arc::clone(physical), open: false };
        regions
            .insert(Region { base, bytes, kind, device, flags: 0, backing, model })
            .map_err(|_| HipError::INVALID_VALUE)?;
        // SAFETY: the range lies in a reservation of this machine, held by `by_base`'s lock, in which nothing
        // else is mapped (`insert` checked), so only reserved addresses are replaced.
        let mapped = unsafe {
            mmap(
                base as *mut _,
                bytes,
                ProtFlags::empty(),
                MapFlags::SHARED | MapFlags::FIXED,
                physical.file.as_fd(),
                offset as u64,
            )
        };
        mapped.map(|_| ()).map_err(|error| {
            regions.remove(base, kind);
            refused("mmap", bytes, error)
        })
    }

    /// Unmaps whole mappings that fill the range exactly.
    pub(crate) fn unmap(&self, base: usize, bytes: usize, regions: &Regions) -> Result<(), HipError> {
        let by_base = lock(&self.by_base);
        for region in exactly(base, bytes, regions)? {
            let kind = MapFlags::PRIVATE | MapFlags::FIXED | MapFlags::NORESERVE;
            // SAFETY: the region was mapped by `map` into a reservation that cannot be freed meanwhile; the
            // caller of hipMemUnmap promises that nothing uses it.
            unsafe { mmap_anonymous(region.base as *mut _, region.bytes, ProtFlags::empty(), kind) }
                .map_err(|error| refused("mmap", region.bytes, error))?;
            regions.remove(region.base, RegionKind::Virtual);
        }
        drop(by_base);
        Ok(())
    }

    /// Opens (or closes) mappings that fill the range exactly.
    pub(crate) fn set_access(
        &self,
        base: usize,
        bytes: usize,
        access: i32,
        regions: &Regions,
    ) -> Result<(), HipError> {
        let protection = match access {
            0 => MprotectFlags::empty(),
            flags::MEM_ACCESS_READ_WRITE => MprotectFlags::READ | MprotectFlags::WRITE,
            // Read-only for one device would be read-only for all.
            1 => return Err(HipError::NOT_SUPPORTED),
            _ => return Err(HipError::INVALID_VALUE),
        };
        let by_base = lock(&self.by_base);
        for mut region in exactly(base, bytes, regions)? {
            // SAFETY: the region is a mapping made by `map`, held in place by the lock.
            unsafe { mprotect(region.base as *mut _, region.bytes, protection) }
                .map_err(|error| refused("mprotect", region.bytes, error))?;
            regions.remove(region.base, RegionKind::Virtual);
            if let Backing::Physical { open, .. } = &mut region.backing {
                *open = access != 0;
            }
            regions.insert(region)?;
        }
        drop(by_base);
        Ok(())
    }
}

/// The mappings that fill a range without gaps.
fn exactly(base: usize, bytes: usize, regions: &Regions) -> Result<Vec<Region>, HipError> {
    let end = base.checked_add(bytes).ok_or(HipError::INVALID_VALUE)?;
    let found = regions.within(base, end, RegionKind::Virtual);
    let filled = found.iter().map(|region| region.bytes).sum::<usize>();
    if bytes == 0 || filled != bytes { Err(HipError::INVALID_VALUE) } else { Ok(found) }
}

const _: () = assert!(GRANULARITY.is_multiple_of(PAGE));
