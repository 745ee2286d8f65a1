//! Locks of the crate.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Ignores poison: every update under these locks is one assignment, so a panic leaves the data consistent.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
