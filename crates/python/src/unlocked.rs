//! Dropping without the interpreter's lock.

use std::mem::ManuallyDrop;
use std::ops::Deref;
use std::sync::Arc;

use pyo3::prelude::*;

/// A value whose drop may wait for other ranks, or for the device. Python drops its objects with the interpreter's lock held, and the other
/// ranks of [`spawn_threads`](crate::joining::spawn_threads) need that lock to come: it is let go for the time of the drop.
#[derive(Debug)]
pub(crate) struct Unlocked<T: Ends> {
    value: ManuallyDrop<T>,
    /// The process that made it. In a process that was forked from it, the value's threads, connections and memory are not there.
    process: u32,
}

/// What [`Unlocked`] holds.
pub(crate) trait Ends: Send {
    /// Whether dropping it may end what it stands for, and so wait. Letting go of the lock costs time.
    fn may_wait(&self) -> bool {
        true
    }
}

impl<T: Send + Sync> Ends for Arc<T> {
    fn may_wait(&self) -> bool {
        Self::strong_count(self) == 1
    }
}

impl<T: Send> Ends for std::sync::Mutex<T> {}

impl<T: Ends> Unlocked<T> {
    pub(crate) fn new(value: T) -> Self {
        Self { value: ManuallyDrop::new(value), process: std::process::id() }
    }
}

impl<T: Ends> Deref for Unlocked<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.value
    }
}

impl<T: Ends> Drop for Unlocked<T> {
    fn drop(&mut self) {
        if std::process::id() != self.process {
            return;
        }
        // SAFETY: taken once, and not used after.
        let value = unsafe { ManuallyDrop::take(&mut self.value) };
        if !value.may_wait() {
            return;
        }
        let mut value = Some(value);
        // SAFETY: allowed on every thread, with or without the lock, while there is an interpreter; released below. PyO3 counts for itself
        // whether this thread has the lock, and is wrong where a library let go of it and then called a deleter of ours.
        let state = unsafe {
            if pyo3::ffi::Py_IsInitialized() == 0 {
                let _kept = ManuallyDrop::new(value);
                return;
            }
            pyo3::ffi::PyGILState_Ensure()
        };
        Python::try_attach(|py| py.detach(|| drop(value.take())));
        // SAFETY: the pair of the call above.
        unsafe { pyo3::ffi::PyGILState_Release(state) };
        if let Some(value) = value {
            // The interpreter is ending, and so is the process.
            let _kept = ManuallyDrop::new(value);
        }
    }
}
