//! One lane: what the kernel holds a pointer to, and the functions that it calls.

use core::cell::Cell;
use core::ffi::{c_uint, c_ulonglong, c_void};
use core::ptr;

use corosensei::Yielder;

use crate::abi::{HostCalls, HostEntry, HostLane};
use crate::block::{Arrival, BlockState};
use crate::clock::monotonic_ns;
use crate::launch::Launch;
use crate::local_memory::LocalMemory;
use crate::stack;

pub(crate) type LaneYielder = Yielder<(), ()>;

static CALLS: HostCalls = HostCalls { yield_lane, block_barrier, wave_exchange, clock_ns };

/// A lane. The kernel's view comes first, so that the kernel's pointer is also a pointer to the whole.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct Lane {
    view: HostLane,
    block: *const BlockState,
    yielder: Cell<*const LaneYielder>,
    lowest: Cell<usize>,
}

/// What a lane runs: plain pointers, so that it may be abandoned.
#[derive(Clone, Copy)]
pub(crate) struct LaneBody {
    lane: *const Lane,
    entry: HostEntry,
    arguments: *const c_void,
}

impl LaneBody {
    pub(crate) fn run(self, yielder: &LaneYielder) {
        // SAFETY: the block owns its lanes in a box that outlives their routines.
        let lane = unsafe { &*self.lane };
        lane.yielder.set(ptr::from_ref(yielder));
        // SAFETY: the entry came from a descriptor of the kernel's own shared object, which the launch keeps
        // loaded; the lane's view comes first in `Lane`; the arguments have the descriptor's size and live as
        // long as the launch. What the kernel does beyond that is its author's word, as on a GPU.
        unsafe { (self.entry)(self.lane.cast_mut().cast(), self.arguments) }
    }
}

impl Lane {
    pub(crate) fn new(
        launch: &Launch,
        block: u32,
        thread: u32,
        state: &BlockState,
        local: &LocalMemory,
    ) -> Self {
        let plan = launch.plan();
        let view = HostLane {
            calls: &raw const CALLS,
            local_memory: local.address(),
            local_bytes: plan.local_bytes,
            thread,
            block,
            block_threads: plan.block_threads,
            grid_blocks: plan.grid_blocks,
            wave_width: launch.core().config.wave_width,
        };
        Self { view, block: ptr::from_ref(state), yielder: Cell::new(ptr::null()), lowest: Cell::new(0) }
    }

    pub(crate) fn set_stack(&self, lowest: usize) {
        self.lowest.set(lowest);
    }

    pub(crate) fn body(&self, launch: &Launch) -> LaneBody {
        let plan = launch.plan();
        LaneBody {
            lane: ptr::from_ref(self),
            entry: plan.kernel.entry,
            arguments: plan.arguments.as_ptr().cast(),
        }
    }

    /// # Safety
    /// `view` is the pointer that the machine gave to the kernel, and this is called by the lane itself.
    unsafe fn of<'a>(view: *mut HostLane) -> &'a Self {
        // SAFETY: `view` is the first field of a `Lane` (both are `repr(C)`) that the block keeps in place
        // while the lane runs, by the caller's word.
        unsafe { &*view.cast::<Self>() }
    }

    fn block(&self) -> &BlockState {
        // SAFETY: the block boxes its state and drops it after its lanes' routines.
        unsafe { &*self.block }
    }

    /// Notices a stack that has run over: never returns then, as the block ends.
    fn check_stack(&self) {
        let marker = 0_u8;
        let here = (&raw const marker).addr();
        if here < self.lowest.get() || stack::canary_broken(self.lowest.get()) {
            self.block().fail_stack(self.view.thread);
            loop {
                self.suspend();
            }
        }
    }

    fn suspend(&self) {
        // SAFETY: set in `LaneBody::run` by the routine on whose stack this runs, which owns the yielder.
        unsafe { &*self.yielder.get() }.suspend(());
    }
}

unsafe extern "C" fn yield_lane(view: *mut HostLane, waiting: c_uint) {
    // SAFETY: called by the kernel with the pointer it was given.
    let lane = unsafe { Lane::of(view) };
    lane.check_stack();
    lane.block().give_way(lane.view.thread, waiting);
    lane.suspend();
}

unsafe extern "C" fn block_barrier(view: *mut HostLane, site: c_uint) {
    // SAFETY: called by the kernel with the pointer it was given.
    let lane = unsafe { Lane::of(view) };
    lane.check_stack();
    if lane.block().arrive_at_barrier(lane.view.thread, site) == Arrival::Wait {
        lane.suspend();
    }
}

unsafe extern "C" fn wave_exchange(
    view: *mut HostLane,
    value: c_ulonglong,
    site: c_uint,
) -> *const c_ulonglong {
    // SAFETY: called by the kernel with the pointer it was given.
    let lane = unsafe { Lane::of(view) };
    lane.check_stack();
    let (arrival, values) = lane.block().arrive_at_exchange(lane.view.thread, value, site);
    if arrival == Arrival::Wait {
        lane.suspend();
    }
    values.as_ptr().cast()
}

unsafe extern "C" fn clock_ns(_view: *mut HostLane) -> c_ulonglong {
    monotonic_ns()
}
