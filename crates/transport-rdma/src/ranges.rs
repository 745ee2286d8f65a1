//! The table of this rank's memory that its NIC may read and write, which kernels look keys up in.

use std::sync::{Arc, Mutex, PoisonError};

use anabranch_hip::{Device, DeviceAddress, DeviceBuffer};
use anabranch_transport::Region;

use crate::driver::{NicDriver, Registered};
use crate::error::{NicError, Result};
use crate::view::RdmaRange;

/// Ranges that a rank may have registered at a time, its heap included.
pub const MOST_RANGES: u32 = 32;

/// The table, in device memory. Every place is there from the start, those without a range with no bytes, so that kernels that are
/// given the table once find what is registered later.
#[derive(Debug)]
pub(crate) struct Ranges {
    places: Mutex<Places>,
    address: DeviceAddress,
}

#[derive(Debug)]
struct Places {
    table: DeviceBuffer,
    taken: Vec<Option<Region>>,
}

/// A registered range, in the table. Dropping it takes it out and ends the NIC's access; no kernel names it to the NIC then.
#[derive(Debug)]
pub(crate) struct Entry {
    ranges: Arc<Ranges>,
    place: usize,
    pub(crate) registered: Arc<dyn Registered>,
}

impl Ranges {
    pub(crate) fn new(device: &Device) -> Result<Arc<Self>> {
        let mut table = device.allocate(MOST_RANGES as usize * size_of::<RdmaRange>())?;
        table.fill(0)?;
        let address = table.address();
        let places = Places { table, taken: vec![None; MOST_RANGES as usize] };
        Ok(Arc::new(Self { places: Mutex::new(places), address }))
    }

    pub(crate) fn address(&self) -> DeviceAddress {
        self.address
    }

    /// Registers a range and puts it into the table.
    ///
    /// # Errors
    /// [`NicError::Limit`] when no place is left; the driver's.
    pub(crate) fn add(self: &Arc<Self>, driver: &dyn NicDriver, region: Region) -> Result<Entry> {
        let mut places = self.places.lock().unwrap_or_else(PoisonError::into_inner);
        let free = places.taken.iter().position(Option::is_none);
        let Some(place) = free else {
            return Err(NicError::Limit {
                what: "ranges that are registered at a time, the heap included",
                given: u64::from(MOST_RANGES) + 1,
                allowed: format!("up to {MOST_RANGES}"),
                nic: driver.describe(),
            });
        };
        let registered = driver.register(region)?;
        let range = RdmaRange { address: region.address, bytes: 0, key: registered.local_key(), reserved: 0 };
        // A kernel may be looking for another range meanwhile: as long as it has no bytes, none is found here.
        places.write(place, &range)?;
        places.write(place, &RdmaRange { bytes: region.bytes, ..range })?;
        if let Some(taken) = places.taken.get_mut(place) {
            *taken = Some(region);
        }
        Ok(Entry { ranges: Arc::clone(self), place, registered })
    }
}

impl Places {
    fn write(&mut self, place: usize, range: &RdmaRange) -> Result<()> {
        Ok(self.table.copy_from_host(place * size_of::<RdmaRange>(), bytemuck::bytes_of(range))?)
    }
}

impl Drop for Entry {
    fn drop(&mut self) {
        let mut places = self.ranges.places.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(Some(region)) = places.taken.get(self.place).copied() else { return };
        let key = self.registered.local_key();
        let gone = RdmaRange { address: region.address, bytes: 0, key, reserved: 0 };
        // A place that could not be emptied is not used again.
        if let Err(error) = places.write(self.place, &gone) {
            tracing::warn!(%error, "a range that is registered no more stays in the table of a NIC");
            return;
        }
        if let Some(taken) = places.taken.get_mut(self.place) {
            *taken = None;
        }
    }
}
