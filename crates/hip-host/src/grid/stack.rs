//! Stacks for lanes, cut from one reservation of address space.
//!
//! A guard page per stack would cost two mappings each, and a process has about 65,000. Instead each slot has
//! a *red zone* below its stack that nothing may touch; it costs address space only. A lane's stack pointer
//! is compared with its limit, and the top of the red zone with zero, whenever the lane calls the machine and
//! when it ends. An overflow past the red zone between two such points still reaches the neighbour's stack:
//! this is a net for mistakes, not a wall.

use core::num::NonZeroUsize;
use core::ptr;
use std::sync::{Arc, Mutex};

use corosensei::stack::{Stack, StackPointer};
use rustix::mm::{Advice, MapFlags, ProtFlags};

use crate::{Error, sync::lock};

/// Bytes below each stack that stay untouched.
const RED_ZONE: usize = 16 * 1024;
/// Bytes at the top of the red zone that are looked at when a lane calls the machine.
const CANARY: usize = 64;
/// Bytes at the top of the red zone of which every eighth word is looked at when a lane ends: an array that
/// was not written through may have passed over the canary.
const CANARY_AT_END: usize = 1024;
const PAGE: usize = 4096;

/// Stacks of lanes, cut from one reservation of address space.
#[derive(Debug)]
pub struct StackArena {
    base: usize,
    bytes: usize,
    stride: usize,
    stack_bytes: usize,
    free: Mutex<Vec<u32>>,
}

impl StackArena {
    /// Reserves `slots` stacks of `stack_bytes` each.
    ///
    /// # Errors
    /// [`Error::Reserve`].
    pub fn new(slots: u32, stack_bytes: usize) -> Result<Self, Error> {
        let stride = stack_bytes.next_multiple_of(PAGE) + RED_ZONE;
        let bytes = stride * slots as usize;
        let reserve = |source: rustix::io::Errno| Error::Reserve { bytes, source: source.into() };
        // SAFETY: a fresh anonymous mapping at an address that the system chooses overlaps nothing.
        let base = unsafe {
            rustix::mm::mmap_anonymous(
                ptr::null_mut(),
                bytes,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::PRIVATE | MapFlags::NORESERVE,
            )
        }
        .map_err(reserve)?;
        let free = Mutex::new((0..slots).rev().collect());
        let arena = Self { base: base as usize, bytes, stride, stack_bytes, free };
        // A huge page under 25 stacks of which each uses 4 KiB would waste memory.
        // SAFETY: the range is the mapping just made.
        if let Err(error) = unsafe { rustix::mm::madvise(base, bytes, Advice::LinuxNoHugepage) } {
            tracing::debug!(%error, "lane stacks may be backed by huge pages");
        }
        Ok(arena)
    }

    /// Bytes of one stack, as they were asked for.
    pub(crate) fn stack_bytes(&self) -> usize {
        self.stack_bytes
    }

    /// Takes `count` slots, or none if there are fewer.
    pub(crate) fn take(self: &Arc<Self>, count: usize) -> Option<Vec<StackSlot>> {
        let mut free = lock(&self.free);
        let rest = free.len().checked_sub(count)?;
        Some(free.drain(rest..).map(|index| StackSlot { arena: Arc::clone(self), index }).collect())
    }
}

impl StackArena {
    /// Gives the memory of stacks back; they read as zero from then on. Lanes that still hold one never run again.
    pub(crate) fn discard(&self) {
        // SAFETY: the range is this arena's mapping; the caller has stopped whatever runs on it.
        let discarded =
            unsafe { rustix::mm::madvise(self.base as *mut _, self.bytes, Advice::LinuxDontNeed) };
        if let Err(error) = discarded {
            tracing::warn!(%error, "the stacks of a machine were not given back");
        }
    }
}

impl Drop for StackArena {
    fn drop(&mut self) {
        // SAFETY: `base..base + bytes` is the mapping made in `new`; every slot holds an `Arc` of the arena,
        // so no lane runs on it any more.
        if let Err(error) = unsafe { rustix::mm::munmap(self.base as *mut _, self.bytes) } {
            tracing::warn!(%error, "lane stacks were not unmapped");
        }
    }
}

/// One stack. Dropping it gives it back to the arena.
#[derive(Debug)]
pub(crate) struct StackSlot {
    arena: Arc<StackArena>,
    index: u32,
}

impl StackSlot {
    fn bottom(&self) -> usize {
        self.arena.base + self.index as usize * self.arena.stride
    }

    /// The lowest address that a lane may use.
    pub(crate) fn lowest(&self) -> usize {
        self.bottom() + RED_ZONE
    }

    /// Whether a lane that ended on this stack stayed within it. A stack that overflowed is made whole again.
    pub(crate) fn intact_at_end(&self) -> bool {
        let lowest = self.lowest();
        let intact = is_zero(lowest - CANARY_AT_END, CANARY_AT_END, 8) && !canary_broken(lowest);
        if !intact {
            let bottom = self.bottom() as *mut _;
            // SAFETY: the red zone lies within this slot's part of the arena, is page-aligned, and no
            // reference to it exists; dropping its pages makes it read as zero again.
            if let Err(error) = unsafe { rustix::mm::madvise(bottom, RED_ZONE, Advice::LinuxDontNeed) } {
                tracing::warn!(%error, "the red zone of an overflowed stack was not restored");
            }
        }
        intact
    }
}

/// Whether the canary below a stack whose lowest address is `lowest` has been overwritten.
pub(crate) fn canary_broken(lowest: usize) -> bool {
    !is_zero(lowest - CANARY, CANARY, 1)
}

fn is_zero(start: usize, bytes: usize, step: usize) -> bool {
    let words = start as *const u64;
    (0..bytes / size_of::<u64>()).step_by(step).all(|index| {
        // SAFETY: callers pass a range inside the red zone of a slot of a live arena, 8-byte aligned; the
        // read is volatile as a lane may have written there behind the compiler's back.
        unsafe { words.add(index).read_volatile() == 0 }
    })
}

impl Drop for StackSlot {
    fn drop(&mut self) {
        lock(&self.arena.free).push(self.index);
    }
}

// SAFETY: the trait asks for at least MIN_STACK_SIZE usable bytes (the configuration's minimum is 16 KiB) and
// for a guard page that catches overflow. The red zone stands in for the guard page: it is checked rather than
// trapped, as the module's documentation says, and what runs on these stacks is foreign code that could as
// well write through a wild pointer; no safe Rust code runs on them except the leaf functions of `lane`.
#[expect(clippy::expect_used, reason = "says why addresses are not zero")]
unsafe impl Stack for StackSlot {
    fn base(&self) -> StackPointer {
        let top = self.bottom() + self.arena.stride;
        NonZeroUsize::new(top).expect("a stack ends above its mapping")
    }

    fn limit(&self) -> StackPointer {
        NonZeroUsize::new(self.bottom()).expect("no mapping starts at address 0")
    }
}
