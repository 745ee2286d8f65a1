//! How much of the device is taken by kernels that wait for peers.
//!
//! A block that waits holds its place until the peer has come. Kernels whose blocks all wait must therefore fit on the
//! device together, or one that is waited for may never start. Each kernel in flight takes the share
//! `blocks / resident blocks of that kernel`; the shares may not exceed the whole.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

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
}

impl Residency {
    pub(crate) fn take(self: &Arc<Self>, blocks: u32, resident: u32) -> Result<ResidencyPermit> {
        let share = u64::from(blocks) * u64::from(WHOLE);
        let share = share.div_ceil(u64::from(resident.max(1)));
        let taken = self.taken.fetch_update(Ordering::AcqRel, Ordering::Acquire, |taken| {
            u64::from(taken).checked_add(share).filter(|sum| *sum <= u64::from(WHOLE)).map(|sum| sum as u32)
        });
        match taken {
            Ok(_) => Ok(ResidencyPermit { residency: Arc::clone(self), share: share as u32 }),
            Err(taken) => {
                Err(Error::Residency { asked: blocks, resident, in_use_percent: taken / (WHOLE / 100) })
            }
        }
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
}
