//! One lane of a seeded run: what the kernel holds a pointer to, and the functions that it calls.

use core::cell::Cell;
use core::ffi::{c_uint, c_ulonglong, c_void};
use core::ptr;

use super::cell::WorldCell;
use super::memory::Scope;
use super::world::{Who, World};
use crate::abi::{HostCalls, HostEntry, HostLane, InstrumentedCalls};
use crate::block::{Arrival, BlockState};
use crate::lane::LaneYielder;
use crate::stack;

static CALLS: InstrumentedCalls = InstrumentedCalls {
    base: HostCalls { yield_lane, block_barrier, wave_exchange, clock_ns },
    load,
    store,
    fence,
    modify,
    wave_barrier,
};

/// Why a lane left the processor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pause {
    /// Others may go first.
    GaveWay,
    /// It looked at memory in vain.
    Polls,
    /// It waits for the lanes of its wave or block, or for ever after a failure.
    Meets,
}

/// A lane. The kernel's view comes first, so that the kernel's pointer is also a pointer to the whole.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct SeededLane {
    view: HostLane,
    world: *const WorldCell,
    block: *const BlockState,
    yielder: Cell<*const LaneYielder>,
    lowest: Cell<usize>,
    pub(crate) pause: Cell<Pause>,
    /// Waves of the block, by their numbers in the run.
    first_wave: u32,
    waves: u32,
    pub(crate) who: Who,
}

/// What a lane runs: plain pointers, so that it may be abandoned.
#[derive(Clone, Copy)]
pub(crate) struct SeededBody {
    pub(crate) lane: *const SeededLane,
    pub(crate) entry: HostEntry,
    pub(crate) arguments: *const c_void,
}

impl SeededBody {
    pub(crate) fn run(self, yielder: &LaneYielder) {
        // SAFETY: the block owns its lanes in a box that outlives their routines.
        let lane = unsafe { &*self.lane };
        lane.yielder.set(ptr::from_ref(yielder));
        // SAFETY: the entry came from a descriptor of the instrumented ABI in the kernel's own object, which the launch
        // keeps loaded; the lane's view comes first; the arguments have the descriptor's size and live with the launch.
        unsafe { (self.entry)(self.lane.cast_mut().cast(), self.arguments) }
    }
}

/// What the lanes of a block have in common.
#[derive(Clone, Copy)]
pub(crate) struct LaneSetup<'a> {
    pub(crate) world: &'a WorldCell,
    pub(crate) block: &'a BlockState,
    pub(crate) local_memory: *mut c_void,
    pub(crate) local_bytes: u32,
    pub(crate) block_threads: u32,
    pub(crate) grid_blocks: u32,
    pub(crate) wave_width: u32,
    pub(crate) first_wave: u32,
    pub(crate) waves: u32,
}

impl SeededLane {
    pub(crate) fn new(setup: LaneSetup<'_>, who: Who) -> Self {
        let view = HostLane {
            calls: (&raw const CALLS).cast(),
            local_memory: setup.local_memory,
            local_bytes: setup.local_bytes,
            thread: who.thread,
            block: who.block,
            block_threads: setup.block_threads,
            grid_blocks: setup.grid_blocks,
            wave_width: setup.wave_width,
        };
        Self {
            view,
            world: ptr::from_ref(setup.world),
            block: ptr::from_ref(setup.block),
            yielder: Cell::new(ptr::null()),
            lowest: Cell::new(0),
            pause: Cell::new(Pause::GaveWay),
            first_wave: setup.first_wave,
            waves: setup.waves,
            who,
        }
    }

    pub(crate) fn set_stack(&self, lowest: usize) {
        self.lowest.set(lowest);
    }

    /// # Safety
    /// `view` is the pointer that the machine gave to the kernel, and this is called by the lane itself.
    unsafe fn of<'a>(view: *mut HostLane) -> &'a Self {
        // SAFETY: `view` is the first field of a `SeededLane` (both are `repr(C)`) that the block keeps in place while
        // the lane runs, by the caller's word.
        unsafe { &*view.cast::<Self>() }
    }

    fn block(&self) -> &BlockState {
        // SAFETY: the block boxes its state and drops it after its lanes' routines.
        unsafe { &*self.block }
    }

    fn world(&self) -> &WorldCell {
        // SAFETY: the run owns the world and drops it after all blocks.
        unsafe { &*self.world }
    }

    fn suspend(&self, pause: Pause) {
        self.pause.set(pause);
        // SAFETY: set in `SeededBody::run` by the routine on whose stack this runs, which owns the yielder.
        unsafe { &*self.yielder.get() }.suspend(());
    }

    fn stop_here(&self) -> ! {
        loop {
            self.suspend(Pause::Meets);
        }
    }

    fn check_stack(&self) {
        let marker = 0_u8;
        let here = (&raw const marker).addr();
        if here < self.lowest.get() || stack::canary_broken(self.lowest.get()) {
            self.block().fail_stack(self.view.thread);
            self.stop_here();
        }
    }

    /// Meets the lanes of the wave and swaps values with them; a barrier also puts their memory in order.
    fn exchange(&self, value: u64, site: u32, barrier: bool) -> *const Cell<u64> {
        self.check_stack();
        let (arrival, values) = self.block().arrive_at_exchange(self.view.thread, value, site);
        let what = if barrier { "wave barrier" } else { "wave exchange" };
        self.meet(what, arrival, |world| {
            if barrier {
                world.meet_wave(&self.who);
            }
        });
        values.as_ptr()
    }

    /// Counts a meeting; the last one there does what `complete` says, the others wait. Never returns after a failure.
    fn meet(&self, what: &'static str, arrival: Arrival, complete: impl FnOnce(&mut World)) {
        let (goes_on, gives_way) = {
            let mut world = self.world().borrow_mut();
            let goes_on = world.sync(&self.who, what) && world.failure.is_none();
            let struck = core::mem::take(&mut world.strikes.struck);
            if goes_on && arrival == Arrival::Complete {
                complete(&mut world);
            }
            // A block of one lane meets nobody: it would keep the turn from one meeting to the next.
            let alone = self.view.block_threads == 1 && !world.random.is_script();
            (goes_on, struck || alone && world.wants_switch())
        };
        if !goes_on {
            self.stop_here();
        }
        if arrival == Arrival::Wait {
            self.suspend(Pause::Meets);
        } else if gives_way {
            self.suspend(Pause::GaveWay);
        }
    }

    /// Reads the clock, which is a step: whoever looks at nothing else must not keep time from passing, or the turn.
    fn look_at_clock(&self) -> u64 {
        self.check_stack();
        let (now, switch) = {
            let mut world = self.world().borrow_mut();
            let now = world.look_at_clock(&self.who).filter(|_| world.failure.is_none());
            // A script tries every switch elsewhere; one here could as well come at the next primitive.
            let struck = world.strikes.struck;
            (now, (struck || !world.random.is_script()) && world.wants_switch())
        };
        let Some(now) = now else { self.stop_here() };
        if switch {
            self.suspend(Pause::GaveWay);
        }
        now
    }

    /// Runs `act` on the world, then lets others run if chance says so. Never returns after a failure of the run.
    fn primitive<T>(&self, act: impl FnOnce(&mut World) -> Option<T>) -> T {
        self.check_stack();
        let (result, switch) = {
            let mut world = self.world().borrow_mut();
            let result = act(&mut world).filter(|_| world.failure.is_none());
            (result, world.wants_switch())
        };
        let Some(result) = result else { self.stop_here() };
        if switch {
            self.suspend(Pause::GaveWay);
        }
        result
    }
}

unsafe extern "C" fn yield_lane(view: *mut HostLane, _waiting: c_uint) {
    // SAFETY: called by the kernel with the pointer it was given.
    let lane = unsafe { SeededLane::of(view) };
    lane.check_stack();
    if !lane.world().borrow_mut().sync(&lane.who, "looks again") {
        lane.stop_here();
    }
    lane.suspend(Pause::Polls);
}

unsafe extern "C" fn block_barrier(view: *mut HostLane, site: c_uint) {
    // SAFETY: called by the kernel with the pointer it was given.
    let lane = unsafe { SeededLane::of(view) };
    lane.check_stack();
    let arrival = lane.block().arrive_at_barrier(lane.view.thread, site);
    lane.meet("block barrier", arrival, |world| {
        world.meet_block(&lane.who, lane.first_wave..lane.first_wave + lane.waves);
    });
}

unsafe extern "C" fn wave_exchange(
    view: *mut HostLane,
    value: c_ulonglong,
    site: c_uint,
) -> *const c_ulonglong {
    // SAFETY: called by the kernel with the pointer it was given.
    let lane = unsafe { SeededLane::of(view) };
    lane.exchange(value, site, false).cast()
}

unsafe extern "C" fn wave_barrier(view: *mut HostLane, site: c_uint) {
    // SAFETY: called by the kernel with the pointer it was given.
    let lane = unsafe { SeededLane::of(view) };
    lane.exchange(0, site, true);
}

unsafe extern "C" fn clock_ns(view: *mut HostLane) -> c_ulonglong {
    // SAFETY: called by the kernel with the pointer it was given.
    let lane = unsafe { SeededLane::of(view) };
    lane.look_at_clock()
}

unsafe extern "C" fn load(
    view: *mut HostLane,
    p: *const c_void,
    bytes: c_uint,
    access: c_uint,
) -> c_ulonglong {
    // SAFETY: called by the kernel with the pointer it was given.
    let lane = unsafe { SeededLane::of(view) };
    lane.primitive(|world| world.load(&lane.who, p.addr() as u64, bytes, access))
}

unsafe extern "C" fn store(
    view: *mut HostLane,
    p: *mut c_void,
    value: c_ulonglong,
    bytes: c_uint,
    access: c_uint,
) {
    // SAFETY: called by the kernel with the pointer it was given.
    let lane = unsafe { SeededLane::of(view) };
    lane.primitive(|world| world.store(&lane.who, p.addr() as u64, bytes, value, access));
}

unsafe extern "C" fn fence(view: *mut HostLane, order: c_uint, scope: c_uint) {
    // SAFETY: called by the kernel with the pointer it was given.
    let lane = unsafe { SeededLane::of(view) };
    lane.primitive(|world| world.fence(&lane.who, order == 0, scope_of(scope)).then_some(()));
}

unsafe extern "C" fn modify(
    view: *mut HostLane,
    p: *mut c_void,
    operand: c_ulonglong,
    expected: c_ulonglong,
    bytes: c_uint,
    operation: c_uint,
    scope: c_uint,
) -> c_ulonglong {
    // SAFETY: called by the kernel with the pointer it was given.
    let lane = unsafe { SeededLane::of(view) };
    let change = |old: u64| match operation {
        0 => old.wrapping_add(operand),
        1 => old.min(operand),
        2 => old & operand,
        3 => old | operand,
        4 => old ^ operand,
        5 => operand,
        _ if old == expected => operand,
        _ => old,
    };
    let only_at = (operation > 5).then_some(expected);
    lane.primitive(|world| world.modify(&lane.who, p.addr() as u64, bytes, scope_of(scope), only_at, change))
}

/// By the numbers of `host_abi.h`.
fn scope_of(scope: c_uint) -> Scope {
    if scope == 0 { Scope::Device } else { Scope::System }
}
