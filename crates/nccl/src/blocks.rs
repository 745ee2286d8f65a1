//! Blocks of a device for its communicators.
//!
//! Blocks that wait for a peer hold their places. Grids of several communicators that are in flight at once must fit beside each other, or
//! two devices can wait for each other's grids. Each communicator gets half of what the others of this process have left, or the number
//! that the user sets.

use std::collections::HashMap;
use std::sync::Mutex;

use anabranch::World;

use crate::comm::lock;
use crate::error::Failure;

/// Blocks of every collective's kernel that surely fit on a multiprocessor at once: launch bounds of 512 threads, and blocks of 256.
const PER_MULTIPROCESSOR: u32 = 2;
/// The fewest blocks of a communicator. On a device of 132 multiprocessors seven communicators fit; beyond them the program must not have
/// all in flight at once.
const LEAST: u32 = 4;
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
    /// Blocks for a communicator of all ranks of the world: as many as every rank can have, `set` if the user sets a number, at most `most`.
    /// Collective.
    ///
    /// # Errors
    /// What made the world fail.
    pub(crate) fn take(world: &World, set: Option<u32>, most: Option<u32>) -> Result<Self, Failure> {
        let device = world.device().ordinal().0;
        let all = world.multiprocessors() * PER_MULTIPROCESSOR;
        let mut own = {
            let mut taken = lock(&TAKEN);
            let taken = taken.get_or_insert_default().entry(device).or_insert(0);
            let number = share(all, *taken, set, most);
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

/// Blocks of the next communicator on a device of `all` blocks, of which `taken` are taken.
fn share(all: u32, taken: u32, set: Option<u32>, most: Option<u32>) -> u32 {
    let share = set.unwrap_or_else(|| (all.saturating_sub(taken) / 2).clamp(LEAST, MOST));
    share.min(most.unwrap_or(u32::MAX))
}

impl Drop for Blocks {
    fn drop(&mut self) {
        self.shrink(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seven_communicators_fit_beside_each_other() {
        let (mut taken, mut shares) = (0, Vec::new());
        for _ in 0..8 {
            let next = share(264, taken, None, None);
            taken += next;
            shares.push(next);
        }
        assert_eq!(shares, [128, 68, 34, 17, 8, 4, 4, 4]);
        assert!(shares[..7].iter().sum::<u32>() <= 264);
    }

    #[test]
    fn set_number_and_the_programs_limit_hold() {
        assert_eq!(share(132, 0, Some(128), None), 128);
        assert_eq!(share(132, 0, Some(128), Some(32)), 32);
        assert_eq!(share(132, 66, None, Some(16)), 16);
        assert_eq!(share(132, 0, None, Some(1)), 1);
    }
}
