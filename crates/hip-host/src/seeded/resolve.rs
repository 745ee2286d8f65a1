//! What an address means on a machine with real memory, and who may touch it how.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};

use super::memory::Place;
use crate::memory::{RegionKind, Regions};
use crate::sync::lock;

/// Finds places by address. Memory is shared once it was offered to others (an IPC handle, an exported descriptor) or
/// kernels of two devices have touched it; primitives for private memory are refused there from then on.
#[derive(Debug)]
pub(crate) struct Resolver {
    regions: Arc<Regions>,
    /// Of each device: whose memory it may touch.
    peers: Vec<Arc<Mutex<BTreeSet<u32>>>>,
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
    pub(crate) fn new(regions: Arc<Regions>, peers: Vec<Arc<Mutex<BTreeSet<u32>>>>) -> Self {
        Self { regions, peers, shared: Vec::new() }
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
        let Some(found) = self.regions.find_for_kernel(address) else {
            return Err("no allocation of this machine is there".to_owned());
        };
        let Some((number, start)) = found.model else {
            return Err("the memory there is unknown to the seeded machine".to_owned());
        };
        let byte = start + (address - found.base);
        let what = format!("{}+{byte}", name(number));
        if found.is_closed() {
            return Err(format!("{what} is mapped without access"));
        }
        if address + bytes as usize > found.end() {
            return Err(format!("{what} ends after {} bytes", found.end() - address));
        }
        let Ok(byte) = u32::try_from(byte) else {
            return Err(format!("{what}: the seeded machine knows the first 4 GiB of an allocation"));
        };
        let device = toucher.device;
        let foreign = found.kind == RegionKind::Device && found.device != device;
        let allowed =
            || self.peers.get(device as usize).is_some_and(|peers| lock(peers).contains(&found.device));
        if foreign && !allowed() {
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
