//! Locks of the crate.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// A lock whose holder panicked guards data that is still whole: every update here is one assignment.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
