//! Handles: numbers that a machine hands out for its objects, looked up and never dereferenced.

use core::ffi::c_void;
use std::collections::HashMap;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use anabranch_hip::HipError;

use crate::sync::lock;

/// Where handles come from. The first is random, so that a handle of another machine is not taken for one of
/// this machine.
#[derive(Debug)]
pub(crate) struct HandleSource(AtomicUsize);

impl HandleSource {
    pub(crate) fn new() -> Self {
        let random = RandomState::new().build_hasher().finish() as usize;
        // Positive as an address, far from null and from small constants, room for 2^28 handles of 16.
        Self(AtomicUsize::new((random & 0x0000_7fff_0000_0000) | 0x0000_0001_0000_0000))
    }

    fn next(&self) -> usize {
        self.0.fetch_add(16, Ordering::Relaxed)
    }
}

/// The live objects of one kind.
#[derive(Debug)]
pub(crate) struct Handles<T> {
    objects: Mutex<HashMap<usize, Arc<T>>>,
}

impl<T> Default for Handles<T> {
    fn default() -> Self {
        Self { objects: Mutex::default() }
    }
}

impl<T> Handles<T> {
    pub(crate) fn insert(&self, source: &HandleSource, object: Arc<T>) -> *mut c_void {
        let handle = source.next();
        lock(&self.objects).insert(handle, object);
        handle as *mut c_void
    }

    pub(crate) fn get(&self, handle: *mut c_void) -> Result<Arc<T>, HipError> {
        lock(&self.objects).get(&(handle as usize)).cloned().ok_or(HipError::INVALID_HANDLE)
    }

    pub(crate) fn remove(&self, handle: *mut c_void) -> Result<Arc<T>, HipError> {
        lock(&self.objects).remove(&(handle as usize)).ok_or(HipError::INVALID_HANDLE)
    }

    /// Removes all.
    pub(crate) fn clear(&self) {
        let removed = core::mem::take(&mut *lock(&self.objects));
        // Dropped outside the lock.
        drop(removed);
    }

    /// Removes the objects that `unwanted` names.
    pub(crate) fn remove_where(&self, unwanted: impl Fn(&T) -> bool) {
        let removed: Vec<_> = {
            let mut objects = lock(&self.objects);
            let handles: Vec<_> =
                objects.iter().filter(|(_, object)| unwanted(object)).map(|(h, _)| *h).collect();
            handles.iter().filter_map(|handle| objects.remove(handle)).collect()
        };
        // Dropped outside the lock.
        drop(removed);
    }
}
