//! Locks, which loom can take the place of.
//!
//! Built with `--cfg loom`, the tests whose names have `loom` in them run their threads in every order that C11 allows
//! within one process. That does not cover files, other processes, GPUs or PCIe.

use std::sync::PoisonError;

pub(crate) use anabranch_clock::sync::{Mutex, MutexGuard};

/// The guarded values are whole between any two statements, so a panicking holder leaves nothing half done.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
