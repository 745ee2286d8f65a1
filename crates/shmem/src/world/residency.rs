//! How much of the device is taken by kernels that wait for peers.
//!
//! A block that waits holds its place until the peer has come. Kernels whose blocks all wait must therefore fit on the
//! device together, or one that is waited for may never start. Each kernel in flight takes the share
//! `blocks / resident blocks of that kernel`; the shares may not exceed the whole.
//!
//! The blocks of a kernel on one multiprocessor are counted as a power of two, because halves and thirds of a multiprocessor leave gaps. Each
//! block is then at most 1, 1/2, 1/4 and so on of a multiprocessor. Kernels with blocks of one size fit in any order of launches. Where sizes
//! differ, there is room for the smallest wherever the others were placed, but larger ones may have to wait until smaller ones around them
//! have ended, and GPUs may start kernels only in the order of their launches. So ranks that launch kernels of different sizes in different
//! orders can still wait for each other, until the deadline.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use anabranch_hip::Kernel;

use super::{World, sharing};
use crate::error::{Error, Result};

const WHOLE: u32 = 1_000_000;

/// Millionths of the device that are taken.
#[derive(Debug, Default)]
pub(crate) struct Residency(Mutex<u32>);

/// A share of the device for kernels that run one after the other: it is as large as the largest that has a permit needs.
#[derive(Debug)]
pub struct ResidencyShare {
    residency: Arc<Residency>,
    /// What each permit needs, in millionths of the device.
    needs: Mutex<Vec<u32>>,
}

/// The right to launch a kernel; its part of the share is given back when it is dropped. Hold it as long as launches of the kernel may
/// be in flight.
#[derive(Debug)]
pub struct ResidencyPermit {
    share: Arc<ResidencyShare>,
    needed: u32,
    blocks: u32,
}

impl World {
    /// Blocks of the kernel that the device runs at the same time, rounded down to a power of two for each multiprocessor. `local_bytes` counts
    /// all dynamic local memory, the prelude's part included.
    ///
    /// # Errors
    /// The code of the occupancy query.
    pub fn max_resident_blocks(&self, kernel: &Kernel, block_threads: u32, local_bytes: u32) -> Result<u32> {
        let each = kernel.blocks_per_multiprocessor(block_threads, local_bytes)?;
        let each = each.checked_ilog2().map_or(0, |log| 1_u32 << log);
        Ok(each.saturating_mul(self.multiprocessors()))
    }

    /// Multiprocessors for kernels of this rank: the device's, divided by the ranks that share it
    /// ([`WorldConfig::share_devices`](crate::WorldConfig::share_devices)); at least 1.
    pub fn multiprocessors(&self) -> u32 {
        sharing::part_of(self.inner.device.multiprocessors(), &self.inner.local, &self.inner.peers)
    }

    /// An empty share of the device, which grows with what is reserved of it ([`ResidencyShare::reserve_up_to`]).
    pub fn residency_share(&self) -> Arc<ResidencyShare> {
        self.inner.residency.share()
    }
}

impl Residency {
    fn share(self: &Arc<Self>) -> Arc<ResidencyShare> {
        Arc::new(ResidencyShare { residency: Arc::clone(self), needs: Mutex::default() })
    }
}

impl ResidencyShare {
    /// Whether it is of this world.
    pub fn is_of(&self, world: &World) -> bool {
        Arc::ptr_eq(&self.residency, &world.inner.residency)
    }

    /// Blocks of a kernel that fit into what is free of the device, if `resident` fit on the whole.
    pub fn free_blocks(&self, resident: u32) -> u32 {
        blocks_in(WHOLE - *lock(&self.residency.0), resident)
    }

    /// Takes a part of the device for `kernels` equal kernels in flight at once, whose blocks wait for peers, and which never run at the
    /// same time as others of this share: each gets the most blocks that still fit, up to `blocks` ([`ResidencyPermit::blocks`]).
    /// `resident` blocks of the kernel fit on the device. Hold the permit while launches may be in flight.
    ///
    /// # Errors
    /// [`Error::Residency`] when not even one block of each fits.
    pub fn reserve_up_to(
        self: &Arc<Self>,
        kernels: u32,
        blocks: u32,
        resident: u32,
    ) -> Result<ResidencyPermit> {
        let (kernels, resident) = (kernels.max(1), resident.max(1));
        // Always in this order.
        let mut needs = lock(&self.needs);
        let mut all = lock(&self.residency.0);
        let own = most(&needs);
        let blocks = blocks.min(blocks_in(WHOLE - *all + own, resident) / kernels);
        if blocks == 0 {
            return Err(refused(kernels, resident, *all));
        }
        let needed = share_of(kernels, blocks, resident);
        needs.push(needed);
        *all += most(&needs) - own;
        Ok(ResidencyPermit { share: Arc::clone(self), needed, blocks })
    }
}

/// In millionths of the device, rounded up. The blocks fit.
fn share_of(kernels: u32, blocks: u32, resident: u32) -> u32 {
    let asked = u128::from(kernels) * u128::from(blocks) * u128::from(WHOLE);
    asked.div_ceil(u128::from(resident)) as u32
}

/// Whole blocks that fit in this many millionths.
fn blocks_in(part: u32, resident: u32) -> u32 {
    (u64::from(part) * u64::from(resident) / u64::from(WHOLE)) as u32
}

fn most(needs: &[u32]) -> u32 {
    needs.iter().copied().max().unwrap_or(0)
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn refused(asked: u32, resident: u32, taken: u32) -> Error {
    Error::Residency { asked, resident, in_use_percent: taken / (WHOLE / 100) }
}

impl ResidencyPermit {
    /// Blocks of each kernel that it is for.
    pub fn blocks(&self) -> u32 {
        self.blocks
    }
}

impl Drop for ResidencyPermit {
    fn drop(&mut self) {
        let mut needs = lock(&self.share.needs);
        let before = most(&needs);
        if let Some(index) = needs.iter().position(|needed| *needed == self.needed) {
            needs.swap_remove(index);
        }
        *lock(&self.share.residency.0) -= before - most(&needs);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn take(residency: &Arc<Residency>, kernels: u32, blocks: u32, resident: u32) -> Result<ResidencyPermit> {
        residency.share().reserve_up_to(kernels, blocks, resident)
    }

    #[test]
    fn grids_shrink_to_what_is_left_but_not_to_nothing() {
        let residency = Arc::new(Residency::default());
        let first = take(&residency, 2, 4, 16).unwrap();
        assert_eq!(first.blocks(), 4);
        let _barrier = take(&residency, 1, 1, 64).unwrap();
        // 7 of 16 are left for two.
        let second = take(&residency, 2, 4, 16).unwrap();
        assert_eq!(second.blocks(), 3);
        let error = take(&residency, 2, 4, 16).unwrap_err();
        assert!(matches!(error, Error::Residency { asked: 2, resident: 16, in_use_percent: 89 }), "{error}");
        drop((first, second));
        assert_eq!(take(&residency, 1, u32::MAX, 16).unwrap().blocks(), 15);
        assert_eq!(take(&residency, 3, 5, 333).unwrap().blocks(), 5);
    }

    #[test]
    fn kernels_of_one_share_take_as_much_as_the_largest() {
        let residency = Arc::new(Residency::default());
        let other = take(&residency, 1, 4, 16).unwrap();
        let share = residency.share();
        let small = share.reserve_up_to(1, 2, 16).unwrap();
        let large = share.reserve_up_to(2, 4, 16).unwrap();
        // Of another kernel, of which more blocks fit.
        let fine = share.reserve_up_to(1, 16, 32).unwrap();
        assert_eq!((small.blocks(), large.blocks(), fine.blocks()), (2, 4, 16));
        assert_eq!(*lock(&residency.0), WHOLE / 4 * 3);
        // It grows into what is free, and no further.
        let grown = share.reserve_up_to(1, 16, 16).unwrap();
        assert_eq!(grown.blocks(), 12);
        assert!(take(&residency, 1, 1, 16).is_err());
        drop((large, grown));
        assert!(
            take(&residency, 1, 9, 16).is_ok_and(|rest| rest.blocks() == 4),
            "another permit needs as much"
        );
        drop((fine, share));
        assert!(
            take(&residency, 1, 16, 16).is_ok_and(|rest| rest.blocks() == 10),
            "a permit keeps what it needs"
        );
        drop((small, other));
        assert_eq!(*lock(&residency.0), 0);
    }
}
