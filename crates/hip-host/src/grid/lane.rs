//! One lane: what the kernel holds a pointer to, and the functions that it calls.
//!
//! The functions are those of the lane's type, chosen when it is made, so that a call of a kernel is one call through
//! the ABI's table and nothing more.

use core::cell::Cell;
use core::ffi::{c_uint, c_ulonglong, c_void};
use core::fmt;
use core::ptr;

use corosensei::Yielder;

use crate::grid::abi::{HostCalls, HostEntry, HostLane, InstrumentedCalls};
pub use crate::grid::block_state::Arrival;
use crate::grid::block_state::BlockState;
use crate::grid::stack;

pub(crate) type LaneYielder = Yielder<(), ()>;

/// What a machine does for a lane of some type: `AnabranchHostCalls` of `host_abi.h`.
///
/// # Safety
/// The functions of this trait, and of [`Memory`], hold nothing that needs dropping when they call [`Lane::suspend`]: the
/// lane may be abandoned there. The pointer of `wave_exchange` is to a value for each lane of the wave, which stay until
/// this lane's next exchange.
pub unsafe trait Calls: Sized + 'static {
    /// Lets other lanes run.
    fn yield_lane(lane: &Lane<Self>, waiting: u32);
    /// Returns when every lane of the block has called it.
    fn block_barrier(lane: &Lane<Self>, site: u32);
    /// Returns the values of all lanes of the wave.
    fn wave_exchange(lane: &Lane<Self>, value: u64, site: u32) -> *const u64;
    /// The kernel's clock.
    fn clock_ns(lane: &Lane<Self>) -> u64;
}

/// An atomic operation on a word: `modify` of `host_abi.h`.
#[derive(Clone, Copy, Debug)]
pub struct Change {
    /// Which operation, by the numbers of `host_abi.h`.
    pub operation: u32,
    /// Its operand.
    pub operand: u64,
    /// What a compare-and-swap expects.
    pub expected: u64,
    /// Of the word: 4 or 8.
    pub bytes: u32,
    /// Its scope, by the numbers of `host_abi.h`.
    pub scope: u32,
}

/// Memory as the lanes of instrumented kernels see it: `AnabranchHostInstrumentedCalls` of `host_abi.h`. Kinds of access,
/// orders and scopes are its numbers.
pub trait Memory: Calls {
    /// Loads so many bytes.
    fn load(lane: &Lane<Self>, address: u64, bytes: u32, access: u32) -> u64;
    /// Stores so many bytes.
    fn store(lane: &Lane<Self>, address: u64, value: u64, bytes: u32, access: u32);
    /// A fence.
    fn fence(lane: &Lane<Self>, order: u32, scope: u32);
    /// Changes a word and returns the old value.
    fn modify(lane: &Lane<Self>, address: u64, change: Change) -> u64;
    /// Orders memory among the lanes of the wave.
    fn wave_barrier(lane: &Lane<Self>, site: u32);
    /// The lane is about to touch bytes of its block's local memory.
    fn local(lane: &Lane<Self>, byte: u32, bytes: u32, access: u32);
}

/// The table of a type of lane.
pub(crate) struct Table<T>(T);

impl<T: Calls> Table<T> {
    pub(crate) const FREE: &'static HostCalls = &HostCalls {
        yield_lane: yield_lane::<T>,
        block_barrier: block_barrier::<T>,
        wave_exchange: wave_exchange::<T>,
        clock_ns: clock_ns::<T>,
    };
}

impl<T: Memory> Table<T> {
    pub(crate) const INSTRUMENTED: &'static InstrumentedCalls = &InstrumentedCalls {
        base: HostCalls {
            yield_lane: yield_lane::<T>,
            block_barrier: block_barrier::<T>,
            wave_exchange: wave_exchange::<T>,
            clock_ns: clock_ns::<T>,
        },
        load: load::<T>,
        store: store::<T>,
        fence: fence::<T>,
        modify: modify::<T>,
        wave_barrier: wave_barrier::<T>,
        local: local::<T>,
    };
}

/// A lane, and what its machine keeps of it. The kernel's view comes first, so that the kernel's pointer is also a
/// pointer to the whole.
#[repr(C)]
pub struct Lane<T> {
    view: HostLane,
    block: *const BlockState,
    yielder: Cell<*const LaneYielder>,
    lowest: Cell<usize>,
    /// The machine's own.
    pub own: T,
}

impl<T> fmt::Debug for Lane<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lane").field("view", &self.view).finish_non_exhaustive()
    }
}

/// What a lane runs: plain pointers, so that it may be abandoned.
pub(crate) struct LaneBody<T> {
    pub(crate) lane: *const Lane<T>,
    pub(crate) entry: HostEntry,
    pub(crate) arguments: *const c_void,
}

impl<T> LaneBody<T> {
    pub(crate) fn run(&self, yielder: &LaneYielder) {
        // SAFETY: the block owns its lanes in a box that outlives their routines.
        let lane = unsafe { &*self.lane };
        lane.yielder.set(ptr::from_ref(yielder));
        // SAFETY: the entry came from a descriptor of the kernel's own shared object, which the launch keeps
        // loaded, and is of the ABI of the lane's table; the lane's view comes first in `Lane`; the arguments have
        // the descriptor's size and live as long as the launch. What the kernel does beyond that is its author's
        // word, as on a GPU.
        unsafe { (self.entry)(self.lane.cast_mut().cast(), self.arguments) }
    }
}

impl<T> Lane<T> {
    pub(crate) fn new(view: HostLane, block: &BlockState, own: T) -> Self {
        let (yielder, lowest) = (Cell::new(ptr::null()), Cell::new(0));
        Self { view, block: ptr::from_ref(block), yielder, lowest, own }
    }

    pub(crate) fn set_stack(&self, lowest: usize) {
        self.lowest.set(lowest);
    }

    /// # Safety
    /// `view` is the pointer that the machine gave to the kernel, and this is called by the lane itself.
    unsafe fn of<'a>(view: *mut HostLane) -> &'a Self {
        // SAFETY: `view` is the first field of a `Lane<T>` (both are `repr(C)`) that the block keeps in place
        // while the lane runs, by the caller's word; the table of `T` is in no other lane.
        unsafe { &*view.cast::<Self>() }
    }

    fn block(&self) -> &BlockState {
        // SAFETY: the block boxes its state and drops it after its lanes' routines.
        unsafe { &*self.block }
    }

    /// Threads of its block.
    pub fn block_threads(&self) -> u32 {
        self.view.block_threads
    }

    /// Stops the block if the lane's stack has run over: never returns then.
    pub fn check_stack(&self) {
        let marker = 0_u8;
        let here = (&raw const marker).addr();
        if here < self.lowest.get() || stack::canary_broken(self.lowest.get()) {
            self.block().fail_stack(self.view.thread);
            loop {
                self.suspend();
            }
        }
    }

    /// Leaves the processor, until [`BlockLanes::run`](crate::grid::lanes::BlockLanes::run) is called for the lane again. Called by
    /// the lane itself; no borrow that others may want is held meanwhile, nor anything that needs dropping, as the lane
    /// may be abandoned here.
    pub fn suspend(&self) {
        // SAFETY: set in `LaneBody::run` by the routine on whose stack this runs, which owns the yielder.
        unsafe { &*self.yielder.get() }.suspend(());
    }

    /// The lane has more to do after others: 0 (not waiting), 1 (it polls), 2 (the first poll of a new wait).
    pub(crate) fn give_way(&self, waiting: u32) {
        self.block().give_way(self.view.thread, waiting);
    }

    /// The lane calls the block barrier.
    pub fn arrive_at_barrier(&self, site: u32) -> Arrival {
        self.block().arrive_at_barrier(self.view.thread, site)
    }

    /// The lane calls a wave operation and deposits a value. The returned array holds the values of all lanes once the
    /// exchange is complete.
    pub fn arrive_at_exchange(&self, value: u64, site: u32) -> (Arrival, *const u64) {
        let (arrival, values) = self.block().arrive_at_exchange(self.view.thread, value, site);
        (arrival, values.as_ptr().cast())
    }
}

unsafe extern "C" fn yield_lane<T: Calls>(view: *mut HostLane, waiting: c_uint) {
    // SAFETY: called by the kernel with the pointer it was given, as are those below.
    T::yield_lane(unsafe { Lane::of(view) }, waiting);
}

unsafe extern "C" fn block_barrier<T: Calls>(view: *mut HostLane, site: c_uint) {
    // SAFETY: as in `yield_lane`.
    T::block_barrier(unsafe { Lane::of(view) }, site);
}

unsafe extern "C" fn wave_exchange<T: Calls>(
    view: *mut HostLane,
    value: c_ulonglong,
    site: c_uint,
) -> *const c_ulonglong {
    // SAFETY: as in `yield_lane`.
    T::wave_exchange(unsafe { Lane::of(view) }, value, site)
}

unsafe extern "C" fn clock_ns<T: Calls>(view: *mut HostLane) -> c_ulonglong {
    // SAFETY: as in `yield_lane`.
    T::clock_ns(unsafe { Lane::of(view) })
}

unsafe extern "C" fn load<T: Memory>(
    view: *mut HostLane,
    p: *const c_void,
    bytes: c_uint,
    access: c_uint,
) -> c_ulonglong {
    // SAFETY: as in `yield_lane`.
    T::load(unsafe { Lane::of(view) }, p.addr() as u64, bytes, access)
}

unsafe extern "C" fn store<T: Memory>(
    view: *mut HostLane,
    p: *mut c_void,
    value: c_ulonglong,
    bytes: c_uint,
    access: c_uint,
) {
    // SAFETY: as in `yield_lane`.
    T::store(unsafe { Lane::of(view) }, p.addr() as u64, value, bytes, access);
}

unsafe extern "C" fn fence<T: Memory>(view: *mut HostLane, order: c_uint, scope: c_uint) {
    // SAFETY: as in `yield_lane`.
    T::fence(unsafe { Lane::of(view) }, order, scope);
}

unsafe extern "C" fn modify<T: Memory>(
    view: *mut HostLane,
    p: *mut c_void,
    operand: c_ulonglong,
    expected: c_ulonglong,
    bytes: c_uint,
    operation: c_uint,
    scope: c_uint,
) -> c_ulonglong {
    let change = Change { operation, operand, expected, bytes, scope };
    // SAFETY: as in `yield_lane`.
    T::modify(unsafe { Lane::of(view) }, p.addr() as u64, change)
}

unsafe extern "C" fn wave_barrier<T: Memory>(view: *mut HostLane, site: c_uint) {
    // SAFETY: as in `yield_lane`.
    T::wave_barrier(unsafe { Lane::of(view) }, site);
}

unsafe extern "C" fn local<T: Memory>(view: *mut HostLane, byte: c_uint, bytes: c_uint, access: c_uint) {
    // SAFETY: as in `yield_lane`.
    T::local(unsafe { Lane::of(view) }, byte, bytes, access);
}
