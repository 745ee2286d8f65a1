//! Which memory is which: numbers and names for what the model knows of the machine's memory.

use core::ops::Range;
use std::collections::{BTreeMap, HashMap};
use std::os::fd::AsFd;
use std::sync::Arc;

use rustix::fs::fstat;

use super::Turns;
use crate::mapping::Mapping;
use crate::memory::RegionKind;
use crate::seeded::memory::Home;
use crate::seeded::{Allocated, Owner};
use crate::sync::lock;

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
    /// Makes memory known, and returns its number: the same for the same file, however often it is mapped.
    pub(crate) fn track(
        &self,
        kind: RegionKind,
        device: u32,
        mapping: &Arc<Mapping>,
        file: Option<&dyn AsFd>,
    ) -> u32 {
        let home = Home { address: mapping.address(), mapping: Some(Arc::downgrade(mapping)) };
        let status = file.and_then(|file| fstat(file.as_fd()).ok());
        let file = status.map(|status| (status.st_dev, status.st_ino));
        let mut tracked = lock(&self.tracked);
        let known = file.and_then(|file| tracked.files.get(&file).copied());
        if let Some(number) = known {
            let mut world = self.world.borrow_mut();
            let real = world.memory.real.as_mut();
            if let Some(real) = real
                && real.add_home(number, home.clone())
            {
                return number;
            }
        }
        let number = self.add_memory(&mut tracked, kind, device, home, 0..mapping.bytes());
        tracked.files.extend(file.map(|file| (file, number)));
        number
    }

    /// Makes memory of the caller known; returns its number and the byte of it at `base`.
    pub(crate) fn track_registered(&self, device: u32, base: usize, bytes: usize) -> (u32, usize) {
        // Words are aligned; the bytes before `base` are somebody else's and stay untouched.
        let lead = base % 8;
        let home = Home { address: base - lead, mapping: None };
        let mut tracked = lock(&self.tracked);
        (self.add_memory(&mut tracked, RegionKind::Registered, device, home, lead..lead + bytes), lead)
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

    /// The caller takes registered memory back.
    pub(crate) fn take_back(&self, number: u32) {
        if let Some(real) = &mut self.world.borrow_mut().memory.real {
            real.take_back(number);
        }
    }

    /// Others than its device may know this memory from now on.
    pub(crate) fn offer(&self, number: u32) {
        if let Some(resolver) = &mut self.world.borrow_mut().resolver {
            resolver.offer(number);
        }
    }

    /// Does something that writes a range of memory at once, as another agent's store in the eyes of kernels.
    pub(crate) fn writes(&self, address: usize, bytes: usize, write: impl FnOnce()) {
        let places = self.regions.model_places(address, bytes);
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
