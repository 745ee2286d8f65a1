//! Blocks of a device for its communicators.
//!
//! Blocks that wait for a peer hold their places. Grids of several communicators that are in flight at once must fit beside each other, or
//! two devices can wait for each other's grids. Each communicator gets half of what the others of this process have left.

use std::collections::HashMap;
use std::sync::Mutex;

use anabranch::World;

use crate::comm::lock;
use crate::error::Failure;

/// Blocks of a collective that fit on a multiprocessor at once.
const PER_MULTIPROCESSOR: u32 = 2;
/// The fewest blocks of a communicator. Beyond about ten communicators the program must not have all in flight at once.
const LEAST: u32 = 8;
/// More do not make a collective faster.
const MOST: u32 = 128;

/// Blocks that were given out, by device.
static TAKEN: Mutex<Option<HashMap<u32, u32>>> = Mutex::new(None);

/// Blocks of a device; given back when dropped.
#[derive(Debug)]
pub(crate) struct Blocks {
    device: u32,
    pub(crate) number: u32,
}

impl Blocks {
    /// Blocks for a communicator of all ranks of the world: as many as every rank can have. Collective.
    ///
    /// # Errors
    /// What made the world fail.
    pub(crate) fn take(world: &World) -> Result<Self, Failure> {
        let device = world.device().ordinal().0;
        let all = world.multiprocessors() * PER_MULTIPROCESSOR;
        let mut own = {
            let mut taken = lock(&TAKEN);
            let taken = taken.get_or_insert_default().entry(device).or_insert(0);
            let number = (all.saturating_sub(*taken) / 2).clamp(LEAST, MOST);
            *taken += number;
            Self { device, number }
        };
        let offers = world.exchange(world.group(), "blocks of a communicator", &own.number.to_le_bytes())?;
        let offers =
            offers.iter().filter_map(|bytes| bytes.as_slice().try_into().ok()).map(u32::from_le_bytes);
        own.shrink(offers.min().unwrap_or(LEAST));
        Ok(own)
    }

    fn shrink(&mut self, number: u32) {
        if let Some(taken) = lock(&TAKEN).get_or_insert_default().get_mut(&self.device) {
            *taken -= self.number - number.min(self.number);
        }
        self.number = number.min(self.number);
    }
}

impl Drop for Blocks {
    fn drop(&mut self) {
        self.shrink(0);
    }
}
