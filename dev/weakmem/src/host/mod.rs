//! A machine whose every step a seed decides: streams, blocks, waves, lanes and attached host threads take turns.
//!
//! One *turn* goes round. The driver thread has it while it steps a stream, a lane or an engine; an attached thread has it
//! from one of its switching points (a HIP call, a wait, [`anabranch_clock::give_way`]) to the next. The one that gives it up
//! draws who is next. Calls of threads that are not attached take no turn: they happen when they happen, beside the
//! seed's order.
//!
//! Locks are taken in the order state, world, regions. No lock is held while a task or a lane runs.

#![expect(clippy::disallowed_methods, reason = "who hands out the turn waits on the machine's time")]

mod choose;
mod crash;
mod driver;
mod entity;
mod report;
mod seats;
mod seeded_host;
mod tracked;

use core::fmt;
use core::ops::Range;
use std::collections::{BTreeMap, HashMap};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread::JoinHandle;

use anabranch_clock::Driver;
use anabranch_hip::HipError;
use anabranch_hip_host::scheduler::{
    Begin, FaultLog, Launch, MachineParts, MemoryMap, NewMemory, Scheduler, StackArena,
};
use anabranch_hip_host::{Error, HostConfig};

use crate::cell::WorldCell;
use crate::injected::InjectedFaults;
use crate::memory::{Fabric, Memory};
use crate::random::Random;
use crate::resolve::Resolver;
use crate::sync::lock;
use crate::world::{Who, World};
use crate::{Fault, HOST, STREAM, SeededConfig, SeededError};
use entity::{Entity, What};
pub use report::{MachineRun, SeededFailure};
pub use seeded_host::{SeededHost, SeededSchedule};
use tracked::Tracked;

/// No rank: the owner of what serves all.
const NO_OWNER: u32 = u32::MAX;

/// Who has the turn.
#[derive(Clone)]
enum Turn {
    /// The driver, to step this task or block.
    Task(u32),
    /// The driver, to end this kernel.
    End(Arc<Launch>),
    /// The thread in a seat, by the number of its entity.
    Seat(u32),
    /// Nothing can go on and no attached thread is left: the machine rests until something is asked of it.
    Idle,
}

/// What is asked of the driver thread before it steps something for the first time.
enum Newborn {
    Task(Begin),
    Block(Arc<Launch>, u32),
}

/// How far a kernel is.
struct Progress {
    /// Keeps the address.
    _launch: Arc<Launch>,
    /// Blocks that are over or will never begin.
    over: u32,
    /// The waves of each block that has begun, by their numbers in the run.
    waves: Vec<Range<u32>>,
}

/// What decides who is next. By number, which is the order in which things came.
struct State {
    turn: Turn,
    entities: BTreeMap<u32, Entity>,
    next: u32,
    /// The entity of each seat that was given out.
    seats: Vec<u32>,
    inbox: BTreeMap<u32, Newborn>,
    /// Counts what a task that waits may have waited for, memory and the clock apart.
    changes: u64,
    clock_moves: u64,
    /// Kernels whose lanes have all ended and whose stores may still be under way.
    ending: Vec<Arc<Launch>>,
    /// Kernels of which blocks have begun or were abandoned, by address.
    launches: HashMap<usize, Progress>,
    /// Blocks begun whose kernels have not ended.
    held_blocks: usize,
    begun_blocks: u32,
    rest_ns: u64,
    /// Changes when everything was last found waiting.
    stalled_at: Option<u64>,
    failure: Option<SeededFailure>,
    /// The clock's end was passed, or everything waits for ever: all devices are lost.
    given_up: bool,
    /// Rounds in which attached threads went on waiting after that.
    vain_rounds: u32,
    /// The machine itself has panicked.
    has_crashed: bool,
}

/// The scheduler of a seeded machine, and the driver of threads that attach to it.
pub(crate) struct Turns {
    pub(crate) world: Arc<WorldCell>,
    state: Mutex<State>,
    /// The driver thread waits here for its turn.
    driver: Condvar,
    /// Threads that wait until the machine is idle.
    rests: Condvar,
    stopped: AtomicBool,
    faults: Arc<FaultLog>,
    stacks: Arc<StackArena>,
    width: u32,
    longest_ns: u64,
    /// That a thread gives way at a switching point, parts of 256.
    host_switch: u32,
    memory: MemoryMap,
    tracked: Mutex<Tracked>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl fmt::Debug for Turns {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Turns").field("width", &self.width).finish_non_exhaustive()
    }
}

impl Turns {
    /// Starts the driver thread.
    pub(crate) fn start(
        config: &HostConfig,
        schedule: &SeededSchedule,
        parts: &MachineParts,
    ) -> Result<Arc<Self>, Error> {
        let kernels = SeededConfig {
            wave_width: config.wave_width,
            most_steps: schedule.most_steps,
            keep_events: schedule.keep_events,
            // What streams and the host put in order is not told to the checker.
            find_races: false,
            ..SeededConfig::default()
        };
        let mut world = World::new(Random::new(schedule.seed), None, Vec::new(), Vec::new(), &kernels);
        world.memory = Memory::of_machine();
        world.memory.fabric = Fabric::new(config.devices, &schedule.faults, schedule.seed);
        world.injected = InjectedFaults::new(config.devices, &schedule.faults);
        world.resolver = Some(Resolver::new(parts.memory.clone()));
        world.waves.push(Who::host(NO_OWNER, 0, HOST));
        let host_switch = world.random.pick([16, 64, 160, 256]);
        let turns = Arc::new(Self {
            world: Arc::new(WorldCell::new(world)),
            state: Mutex::new(State::new()),
            driver: Condvar::new(),
            rests: Condvar::new(),
            stopped: AtomicBool::new(false),
            faults: Arc::clone(&parts.faults),
            stacks: Arc::clone(&parts.stacks),
            width: config.wave_width,
            longest_ns: schedule.longest_virtual_ns,
            host_switch,
            memory: parts.memory.clone(),
            tracked: Mutex::default(),
            thread: Mutex::default(),
        });
        let shared = Arc::clone(&turns);
        let started = std::thread::Builder::new()
            .name("host-gpu-seeded".to_owned())
            .spawn(move || shared.drive())
            .map_err(|source| Error::Thread { worker: 0, source })?;
        *lock(&turns.thread) = Some(started);
        Ok(turns)
    }

    fn is_stopped(&self) -> bool {
        self.stopped.load(Ordering::SeqCst)
    }

    /// Adds a fault to those of the schedule.
    pub(crate) fn add_fault(&self, fault: Fault) {
        let mut world = self.world.borrow_mut();
        world.memory.fabric.add(&fault);
        world.injected.add(fault);
    }

    fn add(&self, state: &mut State, owner: u32, what: What, newborn: Option<Newborn>) -> u32 {
        let id = state.next;
        state.next += 1;
        let priority = self.world.borrow_mut().random.next();
        state.entities.insert(id, Entity { owner, priority, what });
        state.inbox.extend(newborn.map(|newborn| (id, newborn)));
        state.changes += 1;
        id
    }

    /// A kernel's progress.
    fn progress<'a>(state: &'a mut State, launch: &Arc<Launch>) -> &'a mut Progress {
        let made = || Progress { _launch: Arc::clone(launch), over: 0, waves: Vec::new() };
        state.launches.entry(Arc::as_ptr(launch).addr()).or_insert_with(made)
    }

    /// These blocks of a launch are over, or will never begin; after the last one the kernel may end.
    fn blocks_over(&self, launch: &Arc<Launch>, count: u32) {
        let mut state = lock(&self.state);
        if self.is_stopped() {
            return;
        }
        let progress = Self::progress(&mut state, launch);
        progress.over += count;
        if progress.over == launch.plan().grid_blocks() {
            state.ending.push(Arc::clone(launch));
            state.changes += 1;
            self.kick(&mut state);
        }
    }

    /// An entity may have a turn now although none had one.
    fn kick(&self, state: &mut MutexGuard<'_, State>) {
        if matches!(state.turn, Turn::Idle) {
            self.pass(state);
        }
    }

    /// Draws who is next and tells it.
    fn pass(&self, state: &mut MutexGuard<'_, State>) {
        match catch_unwind(AssertUnwindSafe(|| self.choose(state))) {
            Ok(turn) => state.turn = turn,
            Err(cause) => {
                state.turn = Turn::Idle;
                self.crash(state, cause.as_ref());
            }
        }
        match &state.turn {
            Turn::Task(_) | Turn::End(_) => self.driver.notify_all(),
            Turn::Seat(id) => {
                if let Some(Entity { what: What::Seat(seat), .. }) = state.entities.get(id) {
                    seat.wakes.notify_all();
                }
            }
            Turn::Idle => self.rests.notify_all(),
        }
    }
}

impl State {
    fn new() -> Self {
        Self {
            turn: Turn::Idle,
            entities: BTreeMap::new(),
            next: 0,
            seats: Vec::new(),
            inbox: BTreeMap::new(),
            changes: 0,
            clock_moves: 0,
            ending: Vec::new(),
            launches: HashMap::new(),
            held_blocks: 0,
            begun_blocks: 0,
            rest_ns: 0,
            stalled_at: None,
            failure: None,
            given_up: false,
            vain_rounds: 0,
            has_crashed: false,
        }
    }
}

impl Scheduler for Turns {
    fn spawn(&self, device: Option<u32>, begin: Begin) {
        let mut state = lock(&self.state);
        if self.is_stopped() {
            drop(state);
            // Dropped outside the lock: what it owns may spawn.
            drop(begin);
            return;
        }
        let what = What::Task { seen: None, waits_for: "its first turn" };
        self.add(&mut state, device.unwrap_or(NO_OWNER), what, Some(Newborn::Task(begin)));
        self.kick(&mut state);
    }

    /// The block begins when its first turn comes.
    fn spawn_block(&self, launch: Arc<Launch>, index: u32) {
        let mut state = lock(&self.state);
        if self.is_stopped() {
            return;
        }
        let kernel = launch.plan().kernel().name().into();
        let what = What::Block { ready: true, polls: None, again: false, kernel, index };
        let owner = launch.device();
        self.add(&mut state, owner, what, Some(Newborn::Block(launch, index)));
        self.kick(&mut state);
    }

    fn abandon_blocks(&self, launch: &Arc<Launch>, count: u32) {
        self.blocks_over(launch, count);
    }

    fn now_ns(&self) -> u64 {
        self.world.borrow().clock_ns()
    }

    fn is_virtual(&self) -> bool {
        true
    }

    fn driver(self: Arc<Self>) -> Option<Arc<dyn Driver>> {
        Some(self)
    }

    fn begin_call(&self, name: &'static str, device: u32) -> Result<(), HipError> {
        self.enter_call(name, device)
    }

    fn end_call(&self) {
        seats::leave_call();
    }

    /// A primitive of the device's rank; false when the rank is dead.
    fn begins(&self, device: u32, operation: &'static str) -> bool {
        let mut world = self.world.borrow_mut();
        let alive = world.sync(&Who::host(device, 0, STREAM), operation);
        drop(world);
        if !alive {
            self.faults.lose(device);
        }
        alive
    }

    fn is_hopeless(&self) -> bool {
        self.waits_are_hopeless()
    }

    fn track(&self, memory: &NewMemory<'_>) -> Option<(u32, usize)> {
        Some(self.number(memory))
    }

    fn take_back(&self, number: u32) {
        if let Some(real) = &mut self.world.borrow_mut().memory.real {
            real.take_back(number);
        }
    }

    fn offer(&self, number: u32) {
        if let Some(resolver) = &mut self.world.borrow_mut().resolver {
            resolver.offer(number);
        }
    }

    fn writes(&self, address: usize, bytes: usize, write: &mut dyn FnMut()) {
        self.write_range(address, bytes, write);
    }

    fn wake(&self) {
        let mut state = lock(&self.state);
        state.changes += 1;
        self.kick(&mut state);
    }

    fn stop(&self) {
        self.end_turns(&lock(&self.state));
        let thread = lock(&self.thread).take();
        if let Some(thread) = thread
            && thread.thread().id() != std::thread::current().id()
            && thread.join().is_err()
        {
            tracing::warn!("the driver thread of a seeded machine panicked");
        }
    }
}
