//! How much of the device is taken by kernels that wait for peers.
//!
//! A block that waits holds its place until the peer has come. Kernels whose blocks all wait must therefore fit on the
//! device together, or one that is waited for may never start. Each kernel in flight takes the share
//! `blocks / resident blocks of that kernel`; the shares may not exceed the whole.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use anabranch_hip::Kernel;

use super::{World, sharing};
use crate::error::{Error, Result};

const WHOLE: u32 = 1_000_000;

#[derive(Debug, Default)]
pub(crate) struct Residency {
    taken: AtomicU32,
}

/// A share of the device; given back when dropped. Hold it as long as launches of the kernel may be in flight.
#[derive(Debug)]
pub struct ResidencyPermit {
    residency: Arc<Residency>,
    share: u32,
    blocks: u32,
}

impl World {
    /// Blocks of the kernel that the device runs at the same time. `local_bytes` counts all dynamic local memory, the
    /// prelude's part included.
    ///
    /// # Errors
    /// The code of the occupancy query.
    pub fn max_resident_blocks(&self, kernel: &Kernel, block_threads: u32, local_bytes: u32) -> Result<u32> {
        let each = kernel.blocks_per_multiprocessor(block_threads, local_bytes)?;
        Ok(each.saturating_mul(self.multiprocessors()))
    }

    /// Multiprocessors for kernels of this rank: the device's, divided by the ranks that share it
    /// ([`WorldConfig::share_devices`](crate::WorldConfig::share_devices)); at least 1.
    pub fn multiprocessors(&self) -> u32 {
        sharing::part_of(self.inner.device.multiprocessors(), &self.inner.local, &self.inner.peers)
    }

    /// Takes a share of the device for a kernel whose `blocks` blocks wait for peers, where `resident` of its blocks fit.
    /// Hold the permit while launches of it may be in flight.
    ///
    /// # Errors
    /// [`Error::Residency`] when such kernels together would not fit.
    pub(crate) fn reserve_residency(&self, blocks: u32, resident: u32) -> Result<ResidencyPermit> {
        self.inner.residency.take(blocks, resident)
    }

    /// Takes a share of the device for `kernels` equal kernels in flight at once, whose blocks wait for peers: each gets the most
    /// blocks that still fit, up to `blocks` ([`ResidencyPermit::blocks`]). `resident` blocks of the kernel fit on the device.
    /// Hold the permit while launches may be in flight.
    ///
    /// # Errors
    /// [`Error::Residency`] when not even one block of each fits.
    pub fn reserve_residency_up_to(
        &self,
        kernels: u32,
        blocks: u32,
        resident: u32,
    ) -> Result<ResidencyPermit> {
        self.inner.residency.take_up_to(kernels, blocks, resident)
    }
}

impl Residency {
    pub(crate) fn take(self: &Arc<Self>, blocks: u32, resident: u32) -> Result<ResidencyPermit> {
        let share = share_of(1, blocks, resident);
        let taken = self.taken.fetch_update(Ordering::AcqRel, Ordering::Acquire, |taken| {
            u64::from(taken).checked_add(share).filter(|sum| *sum <= u64::from(WHOLE)).map(|sum| sum as u32)
        });
        match taken {
            Ok(_) => Ok(self.permit(share, blocks)),
            Err(taken) => Err(refused(blocks, resident, taken)),
        }
    }

    /// The most blocks, up to `blocks`, that `kernels` kernels can have each.
    pub(crate) fn take_up_to(
        self: &Arc<Self>,
        kernels: u32,
        blocks: u32,
        resident: u32,
    ) -> Result<ResidencyPermit> {
        let (kernels, resident) = (kernels.max(1), resident.max(1));
        let fitting = |taken: u32| {
            let left = u64::from(WHOLE.saturating_sub(taken)) * u64::from(resident) / u64::from(WHOLE);
            u64::from(blocks).min(left / u64::from(kernels)) as u32
        };
        let taken = self.taken.fetch_update(Ordering::AcqRel, Ordering::Acquire, |taken| {
            let each = fitting(taken);
            (each > 0).then(|| taken + share_of(kernels, each, resident) as u32)
        });
        match taken {
            Ok(before) => {
                let each = fitting(before);
                Ok(self.permit(share_of(kernels, each, resident), each))
            }
            Err(taken) => Err(refused(kernels, resident, taken)),
        }
    }

    fn permit(self: &Arc<Self>, share: u64, blocks: u32) -> ResidencyPermit {
        ResidencyPermit { residency: Arc::clone(self), share: share as u32, blocks }
    }
}

/// In millionths of the device, rounded up.
fn share_of(kernels: u32, blocks: u32, resident: u32) -> u64 {
    let asked = u128::from(kernels) * u128::from(blocks) * u128::from(WHOLE);
    u64::try_from(asked.div_ceil(u128::from(resident.max(1)))).unwrap_or(u64::MAX)
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
        self.residency.taken.fetch_sub(self.share, Ordering::AcqRel);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_never_exceed_the_device() {
        let residency = Arc::new(Residency::default());
        let half = residency.take(16, 32).unwrap();
        let quarter = residency.take(32, 128).unwrap();
        let error = residency.take(9, 32).unwrap_err();
        assert!(matches!(error, Error::Residency { asked: 9, resident: 32, in_use_percent: 75 }), "{error}");
        drop(half);
        let _rest = residency.take(24, 32).unwrap();
        drop(quarter);
        assert!(residency.take(33, 32).is_err());
        assert!(residency.take(u32::MAX, 1).is_err());
    }

    #[test]
    fn grids_shrink_to_what_is_left_but_not_to_nothing() {
        let residency = Arc::new(Residency::default());
        let first = residency.take_up_to(2, 4, 16).unwrap();
        assert_eq!(first.blocks(), 4);
        let _barrier = residency.take(1, 64).unwrap();
        // 7 of 16 are left for two.
        let second = residency.take_up_to(2, 4, 16).unwrap();
        assert_eq!(second.blocks(), 3);
        let error = residency.take_up_to(2, 4, 16).unwrap_err();
        assert!(matches!(error, Error::Residency { asked: 2, resident: 16, in_use_percent: 89 }), "{error}");
        drop((first, second));
        assert_eq!(residency.take_up_to(1, u32::MAX, 16).unwrap().blocks(), 15);
        assert_eq!(residency.take_up_to(3, 5, 333).unwrap().blocks(), 5);
    }
}
