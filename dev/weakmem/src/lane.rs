//! One lane of a seeded run: what its kernel's calls do.

use core::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;

use anabranch_hip_host::scheduler::{Arrival, Calls, Change, Lane, Memory};

use super::cell::WorldCell;
use super::memory::Scope;
use super::races::Races;
use super::world::{Who, World};

// `ANABRANCH_ATOMIC_*` of `host_abi.h`.
const ATOMIC_ADD: u32 = 0;
const ATOMIC_MIN: u32 = 1;
const ATOMIC_AND: u32 = 2;
const ATOMIC_OR: u32 = 3;
const ATOMIC_XOR: u32 = 4;
const ATOMIC_SWAP: u32 = 5;
const ATOMIC_COMPARE_SWAP: u32 = 6;
/// `ANABRANCH_FENCE_RELEASE`.
const FENCE_RELEASE: u32 = 0;
/// `ANABRANCH_FENCE_OF_EARLIER`.
const FENCE_OF_EARLIER: u32 = 2;
/// `ANABRANCH_SCOPE_DEVICE`.
const SCOPE_DEVICE: u32 = 0;

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

/// What the run keeps of a lane.
#[derive(Debug)]
pub(crate) struct SeededLane {
    pub(crate) world: Arc<WorldCell>,
    pub(crate) pause: Cell<Pause>,
    /// Waves of the block, by their numbers in the run.
    pub(crate) first_wave: u32,
    pub(crate) waves: u32,
    pub(crate) who: Who,
    /// What lanes have done to the block's local memory.
    pub(crate) local: Rc<RefCell<Races>>,
}

fn suspend(lane: &Lane<SeededLane>, pause: Pause) {
    lane.own.pause.set(pause);
    lane.suspend();
}

fn stop_here(lane: &Lane<SeededLane>) -> ! {
    loop {
        suspend(lane, Pause::Meets);
    }
}

/// Meets the lanes of the wave and swaps values with them; a barrier also puts their memory in order.
fn exchange(lane: &Lane<SeededLane>, value: u64, site: u32, barrier: bool) -> *const u64 {
    lane.check_stack();
    let (arrival, values) = lane.arrive_at_exchange(value, site);
    let what = if barrier { "wave barrier" } else { "wave exchange" };
    meet(lane, what, arrival, |world| {
        if barrier {
            world.meet_wave(&lane.own.who);
        }
    });
    values
}

/// Counts a meeting; the last one there does what `complete` says, the others wait. Never returns after a failure.
fn meet(lane: &Lane<SeededLane>, what: &'static str, arrival: Arrival, complete: impl FnOnce(&mut World)) {
    let (goes_on, gives_way) = {
        let mut world = lane.own.world.borrow_mut();
        let goes_on = world.sync(&lane.own.who, what) && world.failure.is_none();
        let injected_now = core::mem::take(&mut world.injected.injected_now);
        if goes_on && arrival == Arrival::Complete {
            complete(&mut world);
        }
        // A block of one lane never waits: it would keep the turn from one barrier to the next.
        let alone = lane.block_threads() == 1 && !world.random.is_script();
        (goes_on, injected_now || alone && world.wants_switch())
    };
    if !goes_on {
        stop_here(lane);
    }
    if arrival == Arrival::Wait {
        suspend(lane, Pause::Meets);
    } else if gives_way {
        suspend(lane, Pause::GaveWay);
    }
}

/// Runs `act` on the world, then lets others run if chance says so. Never returns after a failure of the run.
fn primitive<T>(lane: &Lane<SeededLane>, act: impl FnOnce(&mut World) -> Option<T>) -> T {
    lane.check_stack();
    let (result, switch) = {
        let mut world = lane.own.world.borrow_mut();
        let result = act(&mut world).filter(|_| world.failure.is_none());
        (result, world.wants_switch())
    };
    let Some(result) = result else { stop_here(lane) };
    if switch {
        suspend(lane, Pause::GaveWay);
    }
    result
}

// SAFETY: guards of the world end before a lane suspends; what is held then are references and integers. Values of an
// exchange are the block's, which keeps them as the trait says.
unsafe impl Calls for SeededLane {
    fn yield_lane(lane: &Lane<Self>, _waiting: u32) {
        lane.check_stack();
        if !lane.own.world.borrow_mut().sync(&lane.own.who, "looks again") {
            stop_here(lane);
        }
        suspend(lane, Pause::Polls);
    }

    fn block_barrier(lane: &Lane<Self>, site: u32) {
        lane.check_stack();
        let arrival = lane.arrive_at_barrier(site);
        let Self { first_wave, waves, who, .. } = &lane.own;
        meet(lane, "block barrier", arrival, |world| {
            world.meet_block(who, *first_wave..first_wave + waves);
        });
    }

    fn wave_exchange(lane: &Lane<Self>, value: u64, site: u32) -> *const u64 {
        exchange(lane, value, site, false)
    }

    /// A step: a lane that looks at nothing else must not keep time from passing, or the others from running.
    fn clock_ns(lane: &Lane<Self>) -> u64 {
        lane.check_stack();
        let (now, switch) = {
            let mut world = lane.own.world.borrow_mut();
            let now = world.look_at_clock(&lane.own.who).filter(|_| world.failure.is_none());
            // A script tries every switch elsewhere; one here could as well come at the next primitive.
            let injected_now = world.injected.injected_now;
            (now, (injected_now || !world.random.is_script()) && world.wants_switch())
        };
        let Some(now) = now else { stop_here(lane) };
        if switch {
            suspend(lane, Pause::GaveWay);
        }
        now
    }
}

impl Memory for SeededLane {
    fn load(lane: &Lane<Self>, address: u64, bytes: u32, access: u32) -> u64 {
        primitive(lane, |world| world.load(&lane.own.who, address, bytes, access))
    }

    fn store(lane: &Lane<Self>, address: u64, value: u64, bytes: u32, access: u32) {
        primitive(lane, |world| world.store(&lane.own.who, address, bytes, value, access));
    }

    fn fence(lane: &Lane<Self>, order: u32, scope: u32) {
        primitive(lane, |world| {
            let who = &lane.own.who;
            let done = match order {
                FENCE_OF_EARLIER => world.name_earlier(who),
                _ => world.fence(who, order == FENCE_RELEASE, scope_of(scope)),
            };
            done.then_some(())
        });
    }

    fn modify(lane: &Lane<Self>, address: u64, change: Change) -> u64 {
        let Change { operation, operand, expected, bytes, scope } = change;
        let change = |old: u64| match operation {
            ATOMIC_ADD => old.wrapping_add(operand),
            ATOMIC_MIN => old.min(operand),
            ATOMIC_AND => old & operand,
            ATOMIC_OR => old | operand,
            ATOMIC_XOR => old ^ operand,
            ATOMIC_SWAP => operand,
            ATOMIC_COMPARE_SWAP => {
                if old == expected {
                    operand
                } else {
                    old
                }
            }
            unknown => unreachable!("host_abi.h has no atomic operation {unknown}"),
        };
        let only_at = (operation == ATOMIC_COMPARE_SWAP).then_some(expected);
        primitive(lane, |world| world.modify(&lane.own.who, address, bytes, scope_of(scope), only_at, change))
    }

    fn wave_barrier(lane: &Lane<Self>, site: u32) {
        exchange(lane, 0, site, true);
    }

    /// No step, and no switch: other lanes cannot tell when it was. So a run is the same whether local memory is looked at.
    fn local(lane: &Lane<Self>, byte: u32, bytes: u32, access: u32) {
        let has_failed = {
            let mut world = lane.own.world.borrow_mut();
            world.touch_local(&lane.own.who, &mut lane.own.local.borrow_mut(), byte, bytes, access);
            world.failure.is_some()
        };
        if has_failed {
            stop_here(lane);
        }
    }
}

fn scope_of(scope: u32) -> Scope {
    if scope == SCOPE_DEVICE { Scope::Device } else { Scope::System }
}
