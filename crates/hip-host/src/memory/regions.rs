//! The machine's memory: every range that a kernel or a copy may name, by address.

use core::ops::Bound;
use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, Weak};

use anabranch_hip::HipError;

use crate::memory::mapping::Mapping;
use crate::memory::virtual_memory::Physical;
use crate::sync::lock;

/// What a range is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RegionKind {
    /// From `hipMalloc` and its like.
    Device,
    /// From `hipHostMalloc`.
    Pinned,
    /// The caller's, made known with `hipHostRegister`.
    Registered,
    /// Another process's device memory.
    Imported,
    /// Physical memory mapped into a reserved range.
    Virtual,
}

/// A known range.
#[derive(Clone, Debug)]
pub(crate) struct Region {
    pub(crate) base: usize,
    /// What the caller asked for; the mapping may be longer.
    pub(crate) bytes: usize,
    pub(crate) kind: RegionKind,
    pub(crate) device: u32,
    /// The flags of the allocating call.
    pub(crate) flags: u32,
    pub(crate) backing: Backing,
    /// Under a virtual scheduler: its number of the memory that lies here, and the byte of it at `base`. Two ranges may show
    /// the same memory.
    pub(crate) model: Option<(u32, usize)>,
}

/// What keeps a range's memory.
#[derive(Clone, Debug)]
pub(crate) enum Backing {
    /// A mapping of the machine's own.
    Mapping(Arc<Mapping>),
    /// Physical memory; the addresses are a reservation's.
    Physical {
        _memory: Arc<Physical>,
        /// Whether it may be touched.
        open: bool,
    },
    /// The caller's memory.
    Caller,
}

impl Region {
    pub(crate) fn end(&self) -> usize {
        self.base + self.bytes
    }

    pub(crate) fn on_device(&self) -> bool {
        matches!(self.kind, RegionKind::Device | RegionKind::Imported | RegionKind::Virtual)
    }

    pub(crate) fn on_host(&self) -> bool {
        matches!(self.kind, RegionKind::Pinned | RegionKind::Registered)
    }

    /// The memory's own file.
    pub(crate) fn file(&self) -> Option<&OwnedFd> {
        match &self.backing {
            Backing::Mapping(mapping) => mapping.file.as_ref(),
            Backing::Physical { .. } | Backing::Caller => None,
        }
    }

    pub(crate) fn is_closed(&self) -> bool {
        matches!(self.backing, Backing::Physical { open: false, .. })
    }
}

/// All known ranges. They never overlap.
#[derive(Debug, Default)]
pub(crate) struct Regions {
    by_base: Mutex<BTreeMap<usize, Region>>,
    /// Under a virtual scheduler: ranges that were freed while work that may still use them had been queued, which HIP would
    /// have waited for.
    leaving: Mutex<Vec<(Region, Weak<Mapping>)>>,
}

/// Where a range of a copy lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// In a range of a device.
    Device,
    /// In host memory that the machine knows.
    Pinned,
    /// In memory that the machine does not know: the caller's.
    Pageable,
}

impl Regions {
    /// Adds a range.
    ///
    /// # Errors
    /// `hipErrorHostMemoryAlreadyRegistered` if it overlaps a known one.
    pub(crate) fn insert(&self, region: Region) -> Result<(), HipError> {
        let mut by_base = lock(&self.by_base);
        let before = by_base.range(..region.end()).next_back();
        if before.is_some_and(|(_, known)| known.end() > region.base) {
            return Err(HipError::HOST_MEMORY_ALREADY_REGISTERED);
        }
        by_base.insert(region.base, region);
        Ok(())
    }

    /// The range that an address lies in.
    pub(crate) fn find(&self, address: usize) -> Option<Region> {
        find(&lock(&self.by_base), address).cloned()
    }

    /// Remembers a range that was removed, for kernels that were queued before, as long as its memory stays.
    pub(crate) fn leave(&self, region: &Region, mapping: &Arc<Mapping>) {
        let mut leaving = lock(&self.leaving);
        leaving.retain(|(_, mapping)| mapping.strong_count() > 0);
        leaving.push((Region { backing: Backing::Caller, ..region.clone() }, Arc::downgrade(mapping)));
    }

    /// The range that an address lies in for a kernel under a virtual scheduler.
    fn find_for_kernel(&self, address: usize) -> Option<Region> {
        self.find(address).or_else(|| {
            let leaving = lock(&self.leaving);
            let (region, _) = leaving.iter().find(|(region, mapping)| {
                (region.base..region.end()).contains(&address) && mapping.strong_count() > 0
            })?;
            Some(region.clone())
        })
    }

    /// Forgets all ranges. Memory that nothing else keeps is given back.
    pub(crate) fn clear(&self) {
        let known = core::mem::take(&mut *lock(&self.by_base));
        let leaving = core::mem::take(&mut *lock(&self.leaving));
        drop((known, leaving));
    }

    /// Removes the range of a kind that starts at an address.
    pub(crate) fn remove(&self, base: usize, kind: RegionKind) -> Option<Region> {
        let mut by_base = lock(&self.by_base);
        if by_base.get(&base)?.kind != kind {
            return None;
        }
        by_base.remove(&base)
    }

    /// The ranges of a kind that lie wholly within `start..end`.
    pub(crate) fn within(&self, start: usize, end: usize, kind: RegionKind) -> Vec<Region> {
        let by_base = lock(&self.by_base);
        let range = (Bound::Included(start), Bound::Excluded(end));
        by_base
            .range(range)
            .map(|(_, region)| region)
            .filter(|region| region.kind == kind && region.end() <= end)
            .cloned()
            .collect()
    }

    /// Where `bytes` from `address` lie.
    ///
    /// # Errors
    /// `hipErrorInvalidValue` for null, for a range that wraps, and for one that starts in a known range and
    /// leaves it (neighbouring virtual ranges count as one) or may not be touched.
    pub(crate) fn place(&self, address: usize, bytes: usize) -> Result<Place, HipError> {
        let end = address.checked_add(bytes).ok_or(HipError::INVALID_VALUE)?;
        if address == 0 {
            return Err(HipError::INVALID_VALUE);
        }
        let by_base = lock(&self.by_base);
        let Some(first) = find(&by_base, address) else { return Ok(Place::Pageable) };
        let mut reached = first.end();
        let mut closed = first.is_closed();
        while reached < end && first.kind == RegionKind::Virtual {
            match by_base.get(&reached) {
                Some(next) if next.kind == RegionKind::Virtual => {
                    reached = next.end();
                    closed |= next.is_closed();
                }
                _ => break,
            }
        }
        if closed || reached < end {
            return Err(HipError::INVALID_VALUE);
        }
        Ok(if first.on_device() { Place::Device } else { Place::Pinned })
    }
}

fn find(by_base: &BTreeMap<usize, Region>, address: usize) -> Option<&Region> {
    let (_, region) = by_base.range(..=address).next_back()?;
    (address < region.end()).then_some(region)
}

/// A range of tracked memory, as a kernel may name it.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct TrackedRange {
    /// What it is.
    pub kind: RegionKind,
    /// Its device.
    pub device: u32,
    /// Its first byte.
    pub base: usize,
    /// After its last byte.
    pub end: usize,
    /// The scheduler's number of the memory, and the byte of it at `base`; `None` if it tracks none there.
    pub tracked: Option<(u32, usize)>,
    /// Whether it is mapped without access.
    pub closed: bool,
}

/// Which memory of a machine lies where, and which devices may touch it: what a virtual scheduler looks up.
#[derive(Clone, Debug)]
pub struct MemoryMap {
    regions: Arc<Regions>,
    /// Of each device: whose memory it may touch.
    peers: Vec<Arc<Mutex<BTreeSet<u32>>>>,
}

impl MemoryMap {
    pub(crate) fn new(regions: Arc<Regions>, peers: Vec<Arc<Mutex<BTreeSet<u32>>>>) -> Self {
        Self { regions, peers }
    }

    /// The range that an address lies in, for a kernel: also one that was freed after the kernel's launch.
    pub fn find(&self, address: usize) -> Option<TrackedRange> {
        let region = self.regions.find_for_kernel(address)?;
        let Region { kind, device, base, model: tracked, .. } = region;
        Some(TrackedRange { kind, device, base, end: region.end(), tracked, closed: region.is_closed() })
    }

    /// Whether a device may touch memory of another device.
    pub fn may_touch(&self, device: u32, other: u32) -> bool {
        self.peers.get(device as usize).is_some_and(|peers| lock(peers).contains(&other))
    }

    /// The tracked parts of a range: number of the memory, first byte of it, bytes.
    pub fn tracked_parts(&self, address: usize, bytes: usize) -> Vec<(u32, usize, usize)> {
        let end = address.saturating_add(bytes);
        let by_base = lock(&self.regions.by_base);
        let first = by_base.range(..=address).next_back().map_or(address, |(base, _)| *base);
        let part = |region: &Region| {
            let (number, start) = region.model?;
            let (from, to) = (region.base.max(address), region.end().min(end));
            (from < to).then(|| (number, start + (from - region.base), to - from))
        };
        by_base.range(first..end).filter_map(|(_, region)| part(region)).collect()
    }
}
