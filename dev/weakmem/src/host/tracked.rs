//! Which memory is which: numbers and names for what the model knows of the machine's memory.

use core::ops::Range;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use anabranch_hip_host::scheduler::{NewMemory, RegionKind};
use rustix::fs::fstat;

use super::Turns;
use crate::memory::Home;
use crate::sync::lock;
use crate::{Allocated, Owner};

/// What tells memory apart however it is mapped.
#[derive(Debug, Default)]
pub(super) struct Tracked {
    /// By file system and number of the file.
    files: HashMap<(u64, u64), u32>,
    /// How many there have been of a kind on a device.
    counts: BTreeMap<(&'static str, u32), u32>,
}

fn word(kind: RegionKind) -> &'static str {
    match kind {
        RegionKind::Device => "device",
        RegionKind::Pinned => "pinned",
        RegionKind::Registered => "registered",
        RegionKind::Imported => "imported",
        RegionKind::Virtual => "physical",
    }
}

impl Turns {
    /// Numbers memory: the same for the same file, however often it is mapped. Also the byte of it at its address.
    pub(super) fn number(&self, memory: &NewMemory<'_>) -> (u32, usize) {
        let NewMemory { kind, device, address, bytes, mapping, file, .. } = *memory;
        let mut tracked = lock(&self.tracked);
        let Some(mapping) = mapping else {
            // Words are aligned; the bytes before `address` belong to something else and stay untouched.
            let lead = address % 8;
            let home = Home { address: address - lead, mapping: None };
            return (self.add_memory(&mut tracked, kind, device, home, lead..lead + bytes), lead);
        };
        let home = Home { address: mapping.address(), mapping: Some(Arc::downgrade(mapping)) };
        let status = file.and_then(|file| fstat(file).ok());
        let file = status.map(|status| (status.st_dev, status.st_ino));
        let known = file.and_then(|file| tracked.files.get(&file).copied());
        if let Some(number) = known {
            let mut world = self.world.borrow_mut();
            let real = world.memory.real.as_mut();
            if let Some(real) = real
                && real.add_home(number, home.clone())
            {
                return (number, 0);
            }
        }
        let number = self.add_memory(&mut tracked, kind, device, home, 0..mapping.bytes());
        tracked.files.extend(file.map(|file| (file, number)));
        (number, 0)
    }

    /// `bytes` are those behind the home's address that are the memory's own.
    fn add_memory(
        &self,
        tracked: &mut Tracked,
        kind: RegionKind,
        device: u32,
        home: Home,
        bytes: Range<usize>,
    ) -> u32 {
        let on_host = matches!(kind, RegionKind::Pinned | RegionKind::Registered);
        let count = tracked.counts.entry((word(kind), device)).or_default();
        let name = format!("{}{device}.{count}", word(kind));
        *count += 1;
        let mut world = self.world.borrow_mut();
        world.allocations.push(Allocated {
            name: name.into(),
            owner: Owner::Shared,
            bytes: bytes.end as u64,
        });
        world.memory.fabric.homes.push((!on_host).then_some(device));
        world.memory.real.as_mut().map_or(0, |real| real.add(home, bytes.start, bytes.end, on_host))
    }

    /// Does something that writes a range of memory at once, as another agent's store in the eyes of kernels.
    pub(super) fn write_range(&self, address: usize, bytes: usize, write: &mut dyn FnMut()) {
        let places = self.memory.tracked_parts(address, bytes);
        let mut world = self.world.borrow_mut();
        // What others wrote before comes before.
        for (number, from, bytes) in &places {
            world.memory.host_wrote(*number, *from, *bytes);
        }
        write();
        for (number, from, bytes) in places {
            world.memory.host_wrote(number, from, bytes);
        }
    }
}
