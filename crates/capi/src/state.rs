//! A joined world as its handles share it.

use std::ffi::c_void;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use anabranch::hip::Stream;
use anabranch::shmem::SymmetricMemory;
use anabranch::{Group, World};

use crate::group::anabranch_group;
use crate::handle::optional;
use crate::status::{Failure, Result};

/// A joined world.
#[derive(Debug)]
pub(crate) struct State {
    pub(crate) world: World,
    pub(crate) local_rank: u32,
    left: AtomicBool,
    /// The allocations of `anabranch_heap_allocate`.
    allocations: Mutex<Vec<Weak<SymmetricMemory>>>,
    /// The streams of `anabranch_stream_create`.
    streams: Mutex<Vec<Stream>>,
}

/// The lock of a value that a panic leaves usable.
pub(crate) fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl State {
    pub(crate) fn new(world: World, local_rank: u32) -> Arc<Self> {
        let left = AtomicBool::new(false);
        Arc::new(Self { world, local_rank, left, allocations: Mutex::default(), streams: Mutex::default() })
    }

    /// The world, for a call.
    pub(crate) fn live(&self) -> Result<&World> {
        if self.left.load(Ordering::Acquire) {
            return Err(Failure::usage("this rank has left the world"));
        }
        Ok(&self.world)
    }

    /// Leaves the world and the rendezvous. Doing it again does nothing.
    pub(crate) fn leave(&self) -> Result {
        if self.left.swap(true, Ordering::AcqRel) {
            return Ok(());
        }
        let left = self.world.leave();
        let goodbye = self.world.rendezvous().leave();
        left?;
        Ok(goodbye?)
    }

    /// The group of a handle; NULL is the world.
    pub(crate) fn group(&self, group: *const anabranch_group) -> Result<Group> {
        match optional(group) {
            None => Ok(self.world.group().clone()),
            Some(group) => group.of(self),
        }
    }

    /// The caller's stream; NULL is the default stream of the device.
    pub(crate) fn stream(&self, raw: *mut c_void) -> Result<Stream> {
        // SAFETY: the caller's: a stream of this rank's device that is not destroyed while the call runs, nor while a handle that the call
        // returns is used. The value does not outlive the call.
        Ok(unsafe { self.live()?.device().borrow_stream(raw) })
    }

    /// Notes an allocation, for [`Self::allocation_at`].
    pub(crate) fn note(&self, memory: &Arc<SymmetricMemory>) {
        let mut all = locked(&self.allocations);
        all.retain(|one| one.strong_count() > 0);
        all.push(Arc::downgrade(memory));
    }

    /// The allocation that holds this address, and the offset in it.
    pub(crate) fn allocation_at(&self, address: u64) -> Option<(Arc<SymmetricMemory>, u64)> {
        let all = locked(&self.allocations);
        all.iter().filter_map(Weak::upgrade).find_map(|memory| {
            let offset = address.checked_sub(memory.address().0)?;
            (offset < memory.bytes()).then_some((memory, offset))
        })
    }

    /// Keeps a stream until it is destroyed, or the world is.
    pub(crate) fn keep_stream(&self, stream: Stream) -> *mut c_void {
        let raw = stream.raw();
        locked(&self.streams).push(stream);
        raw
    }

    /// Gives up a stream of [`Self::keep_stream`].
    pub(crate) fn drop_stream(&self, raw: *mut c_void) -> Result {
        let mut streams = locked(&self.streams);
        let found = streams.iter().position(|stream| stream.raw() == raw);
        let index = found
            .ok_or_else(|| Failure::usage(format!("{raw:?} is no stream of anabranch_stream_create")))?;
        let stream = streams.swap_remove(index);
        drop(streams);
        drop(stream);
        Ok(())
    }
}
