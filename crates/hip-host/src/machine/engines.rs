//! What engines in software see of a machine: memory, checked as hardware's page tables would, and where they run.

use core::ptr;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::fmt;
use std::sync::{Arc, Weak};

use anabranch_hip::{Actor, DeviceOrdinal, EngineMemory, NoMemory, SoftwareEngines, StartActor};

use crate::machine::spawn_actor;
use crate::memory::regions::{Region, RegionKind, Regions};
use crate::sync::lock;
use crate::work::core::Core;
use crate::work::device::DeviceState;

/// The engines' place on a device of a machine.
pub(crate) fn engines(
    core: &Arc<Core>,
    regions: &Arc<Regions>,
    devices: &[Arc<DeviceState>],
    device: DeviceOrdinal,
) -> Option<SoftwareEngines> {
    let device = devices.get(device.0 as usize)?;
    let memory = Memory { core: Arc::clone(core), regions: Arc::clone(regions), device: Arc::clone(device) };
    let starter = Starter { core: Arc::downgrade(core), device: device.ordinal };
    Some(SoftwareEngines { memory: Arc::new(memory), starter: Arc::new(starter) })
}

/// Holds no machine: engines may outlive it, and are dropped when it ends.
struct Starter {
    core: Weak<Core>,
    device: u32,
}

impl fmt::Debug for Starter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Starter").field("device", &self.device).finish_non_exhaustive()
    }
}

impl StartActor for Starter {
    fn start(&self, actor: Box<dyn Actor>) {
        if let Some(core) = self.core.upgrade() {
            spawn_actor(&core, Some(self.device), actor);
        }
    }

    fn wake(&self) {
        if let Some(core) = self.core.upgrade() {
            core.scheduler.wake();
        }
    }
}

/// The memory that engines of a device may touch.
struct Memory {
    core: Arc<Core>,
    regions: Arc<Regions>,
    device: Arc<DeviceState>,
}

impl fmt::Debug for Memory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Memory").field("device", &self.device.ordinal).finish_non_exhaustive()
    }
}

impl Memory {
    /// The range that holds these bytes. As long as the result is kept, so is the memory, even if it is freed meanwhile.
    fn range(&self, address: u64, bytes: u64, alignment: u64) -> Result<Region, NoMemory> {
        let refused = NoMemory { address, bytes };
        let start = usize::try_from(address).map_err(|_| refused)?;
        let end = address.checked_add(bytes).ok_or(refused)?;
        let found = self.regions.find(start).ok_or(refused)?;
        let foreign = found.kind == RegionKind::Device && found.device != self.device.ordinal;
        let allowed = !foreign || lock(&self.device.peers).contains(&found.device);
        let fits = end <= found.end() as u64 && address.is_multiple_of(alignment);
        let lost = self.core.faults.is_lost(self.device.ordinal);
        if fits && allowed && !found.is_closed() && !lost { Ok(found) } else { Err(refused) }
    }
}

impl EngineMemory for Memory {
    fn copy(&self, source: u64, target: u64, bytes: u64) -> Result<(), NoMemory> {
        let (mut source, mut target, mut left) = (source, target, bytes);
        // Neighbouring virtual ranges are several.
        while left > 0 {
            let from = self.range(source, 1, 1)?;
            let to = self.range(target, 1, 1)?;
            let here = left.min(from.end() as u64 - source).min(to.end() as u64 - target);
            let (read, written) = (source as usize, target as usize);
            // SAFETY: both ranges lie in memory that `from` and `to` keep; others access it with the machine's primitives and
            // copies, as HIP asks. Overlap is allowed by `copy`.
            self.core.writes(written, here as usize, || unsafe {
                ptr::copy(read as *const u8, written as *mut u8, here as usize);
            });
            source += here;
            target += here;
            left -= here;
        }
        Ok(())
    }

    fn load_32(&self, address: u64) -> Result<u32, NoMemory> {
        let _kept = self.range(address, 4, 4)?;
        // SAFETY: four aligned bytes of memory that `_kept` keeps, accessed by others as above.
        Ok(unsafe { AtomicU32::from_ptr(address as *mut u32) }.load(Ordering::Acquire))
    }

    fn store_32(&self, address: u64, value: u32) -> Result<(), NoMemory> {
        let _kept = self.range(address, 4, 4)?;
        self.core.writes(address as usize, 4, || {
            // SAFETY: as in `load_32`.
            unsafe { AtomicU32::from_ptr(address as *mut u32) }.store(value, Ordering::Release);
        });
        Ok(())
    }

    fn load_64(&self, address: u64) -> Result<u64, NoMemory> {
        let _kept = self.range(address, 8, 8)?;
        // SAFETY: eight aligned bytes of memory that `_kept` keeps, accessed by others as above.
        Ok(unsafe { AtomicU64::from_ptr(address as *mut u64) }.load(Ordering::Acquire))
    }

    fn store_64(&self, address: u64, value: u64) -> Result<(), NoMemory> {
        let _kept = self.range(address, 8, 8)?;
        self.core.writes(address as usize, 8, || {
            // SAFETY: as in `load_64`.
            unsafe { AtomicU64::from_ptr(address as *mut u64) }.store(value, Ordering::Release);
        });
        Ok(())
    }

    fn add_64(&self, address: u64, value: u64) -> Result<(), NoMemory> {
        let _kept = self.range(address, 8, 8)?;
        self.core.writes(address as usize, 8, || {
            // SAFETY: as in `load_64`.
            unsafe { AtomicU64::from_ptr(address as *mut u64) }.fetch_add(value, Ordering::AcqRel);
        });
        Ok(())
    }

    fn read(&self, address: u64, target: &mut [u8]) -> Result<(), NoMemory> {
        match target.len() {
            4 if address.is_multiple_of(4) => target.copy_from_slice(&self.load_32(address)?.to_ne_bytes()),
            8 if address.is_multiple_of(8) => target.copy_from_slice(&self.load_64(address)?.to_ne_bytes()),
            _ => {
                let mut done = 0;
                while done < target.len() {
                    let at = address.checked_add(done as u64).ok_or(NoMemory { address, bytes: 1 })?;
                    let from = self.range(at, 1, 1)?;
                    let here = (target.len() - done).min((from.end() as u64 - at) as usize);
                    let piece = &mut target[done..done + here];
                    // SAFETY: the range lies in memory that `from` keeps, and the slice is the caller's alone; others access the
                    // memory as in `copy`.
                    unsafe { ptr::copy(at as usize as *const u8, piece.as_mut_ptr(), here) };
                    done += here;
                }
            }
        }
        Ok(())
    }

    fn write(&self, address: u64, source: &[u8]) -> Result<(), NoMemory> {
        if let Ok(word) = <[u8; 4]>::try_from(source)
            && address.is_multiple_of(4)
        {
            return self.store_32(address, u32::from_ne_bytes(word));
        }
        if let Ok(word) = <[u8; 8]>::try_from(source)
            && address.is_multiple_of(8)
        {
            return self.store_64(address, u64::from_ne_bytes(word));
        }
        let mut done = 0;
        while done < source.len() {
            let at = address.checked_add(done as u64).ok_or(NoMemory { address, bytes: 1 })?;
            let to = self.range(at, 1, 1)?;
            let piece = &source[done..];
            let here = piece.len().min((to.end() as u64 - at) as usize);
            self.core.writes(at as usize, here, || {
                // SAFETY: the range lies in memory that `to` keeps, and the slice is live; others access the memory as in `copy`.
                unsafe { ptr::copy(piece.as_ptr(), at as usize as *mut u8, here) };
            });
            done += here;
        }
        Ok(())
    }

    fn compare_swap_32(&self, address: u64, expected: u32, new: u32) -> Result<u32, NoMemory> {
        let _kept = self.range(address, 4, 4)?;
        let mut found = expected;
        self.core.writes(address as usize, 4, || {
            // SAFETY: as in `load_32`.
            let word = unsafe { AtomicU32::from_ptr(address as *mut u32) };
            found = word
                .compare_exchange(expected, new, Ordering::AcqRel, Ordering::Acquire)
                .unwrap_or_else(|found| found);
        });
        Ok(found)
    }

    fn compare_swap_64(&self, address: u64, expected: u64, new: u64) -> Result<u64, NoMemory> {
        let _kept = self.range(address, 8, 8)?;
        let mut found = expected;
        self.core.writes(address as usize, 8, || {
            // SAFETY: as in `load_64`.
            let word = unsafe { AtomicU64::from_ptr(address as *mut u64) };
            found = word
                .compare_exchange(expected, new, Ordering::AcqRel, Ordering::Acquire)
                .unwrap_or_else(|found| found);
        });
        Ok(found)
    }
}
