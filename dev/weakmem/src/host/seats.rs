//! Attached threads: where they sit, when they have the turn, and what their calls run into.

use core::cell::Cell;
use core::time::Duration;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, MutexGuard};

use anabranch_clock::{Driver, Seat};
use anabranch_hip::HipError;
use anabranch_hip_host::scheduler::Scheduler as _;

use super::entity::{Entity, SeatState, Wait, What};
use super::{NO_OWNER, State, Turn, Turns};
use crate::HOST;
use crate::sync::{lock, wait};
use crate::world::Who;

thread_local! {
    /// The machine (by address) and the seat of the calling thread.
    static SEAT: Cell<Option<(usize, Seat)>> = const { Cell::new(None) };
    /// Whether the calling thread is within a HIP call.
    static IN_CALL: Cell<bool> = const { Cell::new(false) };
}

/// The calling thread is no longer within a HIP call.
pub(super) fn leave_call() {
    let _ = IN_CALL.try_with(|inside| inside.set(false));
}

/// Calls that a dead rank's threads may make: they do nothing but say for whom the next is.
const CHOOSE_DEVICE: [&str; 2] = ["hipGetDevice", "hipSetDevice"];
/// Calls that put work on a stream of the current device.
const ON_STREAM: [&str; 4] =
    ["hipMemcpyAsync", "hipMemsetAsync", "hipStreamWriteValue64", "hipModuleLaunchKernel"];

/// Rounds of waiting in vain behind a failed run after which a thread is ended.
const MOST_VAIN_ROUNDS: u32 = 1_000;
/// The same behind a machine that has ended by itself, each of [`AFTERLIFE`].
const MOST_LATE_ROUNDS: u32 = 20_000;
/// How long a thread that outlives its machine really rests at a wait.
const AFTERLIFE: Duration = Duration::from_micros(50);

impl Turns {
    fn seat(&self) -> Option<Seat> {
        let (machine, seat) = SEAT.try_with(Cell::get).ok().flatten()?;
        (machine == core::ptr::from_ref(self).addr()).then_some(seat)
    }

    /// Whether the calling thread is attached to this machine.
    pub(super) fn has_seat(&self) -> bool {
        self.seat().is_some()
    }

    /// A HIP call of the calling thread: a switching point, and where faults are injected. Threads that are not attached pass.
    /// `device` is the thread's current one.
    pub(super) fn enter_call(&self, name: &'static str, device: u32) -> Result<(), HipError> {
        let _ = IN_CALL.try_with(|inside| inside.set(true));
        if self.has_crashed() {
            return Err(HipError::LAUNCH_FAILURE);
        }
        let Some(seat) = self.seat() else {
            self.rest_behind_the_last();
            return Ok(());
        };
        let alive = self.step(seat, name);
        if self.has_crashed() {
            return Err(HipError::LAUNCH_FAILURE);
        }
        let owner = self.owner(seat);
        // A dead rank's thread may still run code that others gave it, on their streams.
        let for_others = CHOOSE_DEVICE.contains(&name) || (device != owner && ON_STREAM.contains(&name));
        if !alive && !for_others {
            return Err(HipError::DEINITIALIZED);
        }
        let Some(code) = self.world.borrow_mut().injected.call(owner) else { return Ok(()) };
        if name == "hipModuleLaunchKernel" && code == HipError::LAUNCH_FAILURE {
            self.faults.lose(owner);
            lock(&self.state).changes += 1;
        }
        Err(code)
    }

    /// Once all attached threads have left, a thread that is not attached, which cleans up behind them, acts when the machine
    /// rests: so the seed's order has an end before it begins.
    fn rest_behind_the_last(&self) {
        let mut state = lock(&self.state);
        let is_attached = |entity: &Entity| matches!(&entity.what, What::Seat(_));
        if state.seats.is_empty() || state.entities.values().any(is_attached) {
            return;
        }
        while !matches!(state.turn, Turn::Idle) && !self.is_stopped() {
            state = wait(&self.rests, state);
        }
    }

    /// Whether the machine itself has panicked: nothing that is asked of it would be done.
    fn has_crashed(&self) -> bool {
        self.is_stopped() && lock(&self.state).has_crashed
    }

    /// Whether the run has failed and what still waits never ends by itself.
    pub(super) fn waits_are_hopeless(&self) -> bool {
        let state = lock(&self.state);
        state.has_crashed || state.vain_rounds > MOST_VAIN_ROUNDS
    }

    fn owner(&self, seat: Seat) -> u32 {
        let state = lock(&self.state);
        let entity = state.seats.get(seat.0 as usize).and_then(|id| state.entities.get(id));
        entity.map_or(NO_OWNER, |entity| entity.owner)
    }

    /// Notes where the thread of a seat is; whose it is.
    fn point(&self, seat: Seat, what: &'static str) -> u32 {
        let mut state = lock(&self.state);
        let id = state.seats.get(seat.0 as usize).copied();
        let Some(entity) = id.and_then(|id| state.entities.get_mut(&id)) else { return NO_OWNER };
        if let What::Seat(place) = &mut entity.what {
            place.at = what;
        }
        entity.owner
    }

    /// Counts a primitive of a thread, and lets others go first if chance says so; false when its rank is dead.
    fn step(&self, seat: Seat, what: &'static str) -> bool {
        let owner = self.point(seat, what);
        let mut world = self.world.borrow_mut();
        let mut alive = world.sync(&Who::host(owner, seat.0, HOST), what);
        let injected_now = core::mem::take(&mut world.injected.injected_now);
        let switches = world.random.chance(self.host_switch) || injected_now;
        drop(world);
        if switches {
            self.hand_over(seat, None);
            alive &= !self.world.borrow().injected.is_dead(owner);
        }
        alive
    }

    /// Gives the turn up and returns with it.
    fn hand_over(&self, seat: Seat, waits: Option<Wait>) {
        let mut state = lock(&self.state);
        let Some(id) = state.seats.get(seat.0 as usize).copied() else { return };
        let priority = {
            let mut world = self.world.borrow_mut();
            world.memory.notice_host_memory();
            world.random.next()
        };
        let Some(entity) = state.entities.get_mut(&id) else { return };
        entity.priority = priority;
        if let What::Seat(place) = &mut entity.what {
            place.waits = waits;
        }
        self.pass(&mut state);
        drop(self.await_turn(state, id));
    }

    fn await_turn<'a>(&'a self, mut state: MutexGuard<'a, State>, id: u32) -> MutexGuard<'a, State> {
        let wakes = match state.entities.get(&id).map(|entity| &entity.what) {
            Some(What::Seat(seat)) => Arc::clone(&seat.wakes),
            _ => return state,
        };
        while !matches!(state.turn, Turn::Seat(turn) if turn == id) && !self.is_stopped() {
            state = wait(&wakes, state);
        }
        if let Some(Entity { what: What::Seat(seat), .. }) = state.entities.get_mut(&id) {
            seat.waits = None;
        }
        state
    }

    /// A deadline in nanoseconds; `None` if it lies so far away that the clock never gets there.
    fn in_reach(&self, until: Duration) -> Option<u64> {
        let last = self.now_ns().saturating_add(self.longest_ns);
        u64::try_from(until.as_nanos()).ok().filter(|until| *until <= last && *until < u64::MAX)
    }

    /// A thread waits that has outlived its machine: others like it may notify it still, and deadlines pass at once.
    fn wait_behind_the_end(&self, signal: Option<(&Arc<AtomicU64>, u64)>, until_ns: Option<u64>) {
        std::thread::sleep(AFTERLIFE);
        let Some(until) = until_ns else {
            let mut state = lock(&self.state);
            let hopeless = match signal {
                None => true,
                Some((counter, seen)) if state.has_crashed && counter.load(Ordering::SeqCst) == seen => {
                    state.vain_rounds = state.vain_rounds.saturating_add(1);
                    state.vain_rounds > MOST_LATE_ROUNDS
                }
                Some(_) => false,
            };
            if hopeless && IN_CALL.try_with(|inside| !inside.get()).unwrap_or(false) {
                end_thread(state);
            }
            return;
        };
        let mut world = self.world.borrow_mut();
        let rest = until.saturating_sub(world.clock_ns());
        world.waited_ns = world.waited_ns.saturating_add(rest);
    }

    fn add_seat(&self, state: &mut State, owner: u32) -> Seat {
        let seat = state.seats.len() as u32;
        let wakes = Arc::new(Condvar::new());
        let place = SeatState { seat, wakes, waits: None, at: "its start" };
        let id = self.add(state, owner, What::Seat(place), None);
        state.seats.push(id);
        Seat(seat)
    }
}

/// Nothing that the thread waits for will ever come, and a wait has no other way to say so.
fn end_thread(state: MutexGuard<'_, State>) -> ! {
    let why = state.failure.as_ref().map_or_else(|| "it has been stopped".to_owned(), ToString::to_string);
    drop(state);
    std::panic::resume_unwind(Box::new(format!("a thread waits for ever behind a failed seeded run: {why}")))
}

impl Driver for Turns {
    fn now(&self) -> Duration {
        Duration::from_nanos(self.now_ns())
    }

    fn seats(&self, owners: &[u32]) -> Vec<Seat> {
        let mut state = lock(&self.state);
        let seats = owners.iter().map(|owner| self.add_seat(&mut state, *owner)).collect();
        self.kick(&mut state);
        seats
    }

    fn enter(&self, seat: Seat) {
        SEAT.set(Some((core::ptr::from_ref(self).addr(), seat)));
        let state = lock(&self.state);
        let Some(id) = state.seats.get(seat.0 as usize).copied() else { return };
        drop(self.await_turn(state, id));
    }

    fn leave(&self, seat: Seat) {
        let _ = SEAT.try_with(|seat| seat.set(None));
        let mut state = lock(&self.state);
        let Some(id) = state.seats.get(seat.0 as usize).copied() else { return };
        state.entities.remove(&id);
        state.changes += 1;
        if matches!(state.turn, Turn::Seat(turn) if turn == id) {
            self.world.borrow_mut().memory.notice_host_memory();
            self.pass(&mut state);
        }
    }

    fn wait(&self, seat: Seat, signal: Option<(&Arc<AtomicU64>, u64)>, until: Option<Duration>) {
        let until_ns = until.and_then(|until| self.in_reach(until));
        if self.is_stopped() {
            return self.wait_behind_the_end(signal, until_ns);
        }
        let owner = self.owner(seat);
        // A dead rank's thread goes on waiting: it learns of its death from its next call.
        self.world.borrow_mut().sync(&Who::host(owner, seat.0, HOST), "waits");
        let signal = signal.map(|(counter, seen)| (Arc::clone(counter), seen));
        self.hand_over(seat, Some(Wait { signal, until_ns }));
        let state = lock(&self.state);
        // A HIP call cannot be unwound, and ends by itself: see `Scheduler::is_hopeless`.
        let may_end = IN_CALL.try_with(|inside| !inside.get()).unwrap_or(false);
        if may_end && state.vain_rounds > MOST_VAIN_ROUNDS && until_ns.is_none() {
            end_thread(state);
        }
    }

    fn give_way(&self, seat: Seat, what: &'static str) {
        self.step(seat, what);
    }
}
