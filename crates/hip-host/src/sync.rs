//! Locks that ignore poison: no code of this crate panics while it holds one, and a thread that panics in a
//! caller's closure must not take the machine with it.
//!
//! What [`modelled`] names, loom can take the place of. Built with `--cfg loom`, the tests whose names have `loom` in
//! them run their threads in every order, and with every value that a load may see, that C11 allows within one process,
//! up to a bound of forced switches. That says nothing about kernels, other processes, GPUs or PCIe.

use std::sync::{Mutex, MutexGuard, PoisonError};

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The standard library's.
#[cfg(not(loom))]
pub(crate) mod modelled {
    pub(crate) use super::lock;
    pub(crate) use std::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};
    pub(crate) use std::sync::{Mutex, MutexGuard};
    pub(crate) use std::thread::{Thread, current, park, park_timeout};
}

/// Loom's. A rest of limited time ends by a wake only, so a wake that gets lost is seen.
#[cfg(loom)]
pub(crate) mod modelled {
    pub(crate) use loom::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};
    pub(crate) use loom::sync::{Mutex, MutexGuard};
    pub(crate) use loom::thread::{Thread, current, park};
    use std::sync::PoisonError;
    use std::time::Duration;

    pub(crate) fn park_timeout(_: Duration) {
        park();
    }

    pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
        mutex.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
