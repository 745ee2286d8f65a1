//! What an address means on a machine with real memory, and who may touch it how.

use std::sync::Arc;

use anabranch_hip_host::scheduler::{MemoryMap, RegionKind};

use super::memory::Place;

/// Finds places by address. Memory is shared once it was offered to others (an IPC handle, an exported descriptor) or
/// kernels of two devices have touched it; primitives for private memory are refused there from then on.
#[derive(Debug)]
pub(crate) struct Resolver {
    map: MemoryMap,
    /// By number of the allocation.
    shared: Vec<Shared>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Shared {
    offered: bool,
    /// The only device whose kernels have touched it.
    touched_by: Option<u32>,
}

/// What touches memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Toucher {
    pub(crate) device: u32,
    /// With a primitive for memory that no peer touches.
    pub(crate) private: bool,
}

impl Resolver {
    pub(crate) fn new(map: MemoryMap) -> Self {
        Self { map, shared: Vec::new() }
    }

    /// Others than its device may know this memory from now on.
    pub(crate) fn offer(&mut self, number: u32) {
        self.of(number).offered = true;
    }

    fn of(&mut self, number: u32) -> &mut Shared {
        let number = number as usize;
        if self.shared.len() <= number {
            self.shared.resize_with(number + 1, Shared::default);
        }
        &mut self.shared[number]
    }

    pub(crate) fn resolve(
        &mut self,
        address: usize,
        bytes: u32,
        toucher: Toucher,
        name: impl Fn(u32) -> Arc<str>,
    ) -> Result<Place, String> {
        if !matches!(bytes, 1 | 2 | 4 | 8) || !address.is_multiple_of(bytes as usize) {
            return Err("the address is not aligned to it".to_owned());
        }
        let Some(found) = self.map.find(address) else {
            return Err("no allocation of this machine is there".to_owned());
        };
        let Some((number, start)) = found.tracked else {
            return Err("the memory there is unknown to the seeded machine".to_owned());
        };
        let byte = start + (address - found.base);
        let what = format!("{}+{byte}", name(number));
        if found.closed {
            return Err(format!("{what} is mapped without access"));
        }
        if address + bytes as usize > found.end {
            return Err(format!("{what} ends after {} bytes", found.end - address));
        }
        let Ok(byte) = u32::try_from(byte) else {
            return Err(format!("{what}: the seeded machine knows the first 4 GiB of an allocation"));
        };
        let device = toucher.device;
        let foreign = found.kind == RegionKind::Device && found.device != device;
        if foreign && !self.map.may_touch(device, found.device) {
            let whose = found.device;
            return Err(format!(
                "{what} is memory of device {whose}, to which device {device} has no access"
            ));
        }
        let owner = (found.kind == RegionKind::Device).then_some(found.device);
        let shared = self.of(number);
        let first = *shared.touched_by.get_or_insert(owner.unwrap_or(device));
        shared.offered |= first != device;
        if shared.offered && toucher.private {
            return Err(format!("{what} is shared with peers, and a primitive for private memory was used"));
        }
        Ok((number, byte))
    }
}
