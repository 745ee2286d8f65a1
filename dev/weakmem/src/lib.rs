//! A machine whose every step a seed decides: which lane runs next, when a store arrives, whether a load is stale.
//!
//! A [`SeededMachine`] runs kernels that were compiled with the parameter `HOST_INSTRUMENTED`, of several devices, on the
//! thread that calls [`SeededMachine::run`]. At every primitive the lane may be switched, and memory behaves as
//! `docs/memory-model.md` says, which is weaker than one process's memory is and at least as weak as GPUs' over a fabric in
//! what it covers. The same seed gives the same run, event for event. The clock is virtual: it moves when everything waits,
//! so that deadlines expire at once.
//!
//! It is not a HIP runtime: the caller allocates, writes argument structs itself, queues launches on `(device, stream)`,
//! and runs all of them to their end. Addresses are numbers that only the primitives understand, so every access is checked
//! against its allocation and owner.

mod block;
mod cell;
mod choices;
mod clocks;
mod effects;
mod error;
mod event;
mod explore;
mod fault;
mod fault_words;
mod host;
mod injected;
mod lane;
mod memory;
mod order;
mod races;
#[cfg(test)]
mod races_tests;
mod random;
mod resolve;
mod run;
mod sync;
mod world;

use core::fmt;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use anabranch_hip_host::scheduler::{KernelAbi, KernelEntry, LaunchPlan, StackArena};
use anabranch_hip_host::{MAX_BLOCK_THREADS, MAX_LOCAL_BYTES, WAVE_WIDTHS};

pub use choices::Choices;
use choices::Script;
pub use error::SeededError;
pub use event::{Action, Event, HOST, STREAM};
pub use explore::{Bounds, Explored};
pub use fault::{Fault, Loss};
pub use fault_words::{FaultWords, nanoseconds_of, nanoseconds_text};
pub use host::{MachineRun, SeededFailure, SeededHost, SeededSchedule};
pub use order::Missing;
pub use races::{Race, RaceAccess};

use cell::WorldCell;
use random::Random;
use run::Runner;
use world::World;

/// The shape of a [`SeededMachine`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SeededConfig {
    /// Lanes of a wave: 1, 4, 32 or 64. 4 by default: 1 hides missing synchronisation within a wave.
    pub wave_width: u32,
    /// The most lanes that run at once.
    pub lanes: u32,
    /// Stack of one lane, bytes.
    pub lane_stack_bytes: usize,
    /// Primitives after which a run is given up.
    pub most_steps: u64,
    /// Where the virtual clock ends: a run in which everything waits until then hangs.
    pub longest_virtual_ns: u64,
    /// Whether [`Run::events`] is kept.
    pub keep_events: bool,
    /// Whether a run fails with [`SeededError::Race`] at two accesses that nothing orders, whatever values they saw. True
    /// by default; it changes nothing else about a run.
    pub find_races: bool,
    /// After so many switches of lanes that could have gone on ([`Run::switches`]), lanes switch only when they must. Up to
    /// there the run is the same, so that the least number with which a seed fails tells where the trouble is.
    pub most_switches: Option<u64>,
    /// What fences do. Kernels are compiled for it: `HOST_CUMULATIVE` goes with [`MemoryProfile::Cumulative`].
    pub profile: MemoryProfile,
}

impl Default for SeededConfig {
    fn default() -> Self {
        Self {
            wave_width: 4,
            lanes: 1024,
            lane_stack_bytes: 64 * 1024,
            most_steps: 20_000_000,
            longest_virtual_ns: 3_600_000_000_000,
            keep_events: false,
            find_races: true,
            most_switches: None,
            profile: MemoryProfile::PerWave,
        }
    }
}

/// What fences of a run do for stores of other waves.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum MemoryProfile {
    /// A release covers only its own wave's stores, as generated code for AMD GPUs does.
    #[default]
    PerWave,
    /// Fences are cumulative and by thread, as in PTX: a release covers everything that happens before it, other waves'
    /// stores ordered by a block barrier and what has been acquired included. Every fence is release and acquire.
    Cumulative,
}

/// Who may touch an allocation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Owner {
    /// One device, by any primitive.
    Device(u32),
    /// All devices, by the primitives for memory that a peer may touch.
    Shared,
}

/// An allocation of a machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Allocation {
    index: u32,
}

impl Allocation {
    /// What kernels know it by.
    pub fn address(self) -> u64 {
        world::address_of(self.index)
    }
}

#[derive(Clone, Debug)]
pub(crate) struct Allocated {
    pub(crate) name: Arc<str>,
    pub(crate) owner: Owner,
    pub(crate) bytes: u64,
}

/// A kernel that any seeded machine of its wave width can launch.
#[derive(Clone, Debug)]
pub struct SeededKernel {
    entry: Arc<KernelEntry>,
    wave_width: u32,
    profile: MemoryProfile,
}

impl SeededKernel {
    /// Loads the kernel `name` of a shared object.
    ///
    /// # Errors
    /// [`SeededError::Kernel`].
    ///
    /// # Safety
    /// `object` is a complete shared object made from the prelude with `HOST_INSTRUMENTED`: its initialisers are sound to
    /// run and its kernels touch memory through the primitives only.
    pub unsafe fn load(object: &[u8], name: &str, wave_width: u32) -> Result<Self, SeededError> {
        // SAFETY: the caller's promise.
        unsafe { Self::load_for(object, name, wave_width, MemoryProfile::PerWave) }
    }

    /// The same for a machine of some profile; the object was made for it.
    ///
    /// # Errors
    /// [`SeededError::Kernel`].
    ///
    /// # Safety
    /// As [`Self::load`].
    pub unsafe fn load_for(
        object: &[u8],
        name: &str,
        wave_width: u32,
        profile: MemoryProfile,
    ) -> Result<Self, SeededError> {
        let refused = |code| SeededError::Kernel { name: name.to_owned(), code };
        let abi = match profile {
            MemoryProfile::PerWave => KernelAbi::Instrumented,
            MemoryProfile::Cumulative => KernelAbi::Cumulative,
        };
        // SAFETY: the caller's promise.
        let entry = unsafe { KernelEntry::load(object, name, wave_width, abi) }.map_err(refused)?;
        Ok(Self { entry: Arc::new(entry), wave_width, profile })
    }
}

/// The shape of a launch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Blocks of the grid. All are resident.
    pub blocks: u32,
    /// Threads of a block.
    pub block_threads: u32,
    /// Local memory of a block, all of it, bytes.
    pub local_bytes: u32,
}

/// What a run was.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Run {
    /// Primitives executed.
    pub steps: u64,
    /// How often a lane gave way that could have gone on.
    pub switches: u64,
    /// What the clock showed at the end.
    pub virtual_ns: u64,
    /// A digest of all events, kept or not: equal for equal runs.
    pub digest: u64,
    /// The events, if [`SeededConfig::keep_events`].
    pub events: Vec<Event>,
    /// Of a run of an exploration: the choices of the one after it, unless it was the last.
    pub next: Option<Choices>,
}

/// Devices whose every step a seed decides. See the module's documentation.
pub struct SeededMachine {
    config: SeededConfig,
    stacks: Arc<StackArena>,
    allocations: Vec<Allocated>,
    contents: Vec<Vec<u64>>,
    queues: BTreeMap<(u32, u32), VecDeque<Arc<LaunchPlan>>>,
    last_events: Vec<Event>,
}

impl fmt::Debug for SeededMachine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SeededMachine").field("config", &self.config).finish_non_exhaustive()
    }
}

impl SeededMachine {
    /// A machine without memory or work.
    ///
    /// # Errors
    /// [`SeededError::Machine`] for a configuration that no machine can have, or when the system refuses addresses.
    pub fn new(config: SeededConfig) -> Result<Self, SeededError> {
        if !WAVE_WIDTHS.contains(&config.wave_width) {
            return Err(SeededError::Machine(anabranch_hip_host::Error::WaveWidth {
                width: config.wave_width,
            }));
        }
        if config.lanes == 0 || config.lane_stack_bytes < 16 << 10 {
            return Err(SeededError::Machine(anabranch_hip_host::Error::Range {
                field: if config.lanes == 0 { "lanes" } else { "lane_stack_bytes" },
                value: if config.lanes == 0 { 0 } else { config.lane_stack_bytes as u64 },
                least: if config.lanes == 0 { 1 } else { 16 << 10 },
                most: u64::from(u32::MAX),
            }));
        }
        let stacks = StackArena::new(config.lanes, config.lane_stack_bytes).map_err(SeededError::Machine)?;
        Ok(Self {
            config,
            stacks: Arc::new(stacks),
            allocations: Vec::new(),
            contents: Vec::new(),
            queues: BTreeMap::new(),
            last_events: Vec::new(),
        })
    }

    /// Sets [`SeededConfig::keep_events`] for the runs to come. It changes nothing of what happens in them.
    pub fn set_keep_events(&mut self, keep: bool) {
        self.config.keep_events = keep;
    }

    /// Sets [`SeededConfig::most_switches`] for the runs to come.
    pub fn set_most_switches(&mut self, most: Option<u64>) {
        self.config.most_switches = most;
    }

    /// Memory, all bytes 0xCB: a kernel that relies on zeros must be given them.
    ///
    /// # Errors
    /// [`SeededError::Range`] for 4 GiB and more.
    pub fn allocate(&mut self, name: &str, owner: Owner, bytes: u64) -> Result<Allocation, SeededError> {
        if bytes >= 1 << 32 {
            return Err(SeededError::Range {
                name: name.to_owned(),
                offset: 0,
                end: bytes,
                bytes: u64::from(u32::MAX),
            });
        }
        self.allocations.push(Allocated { name: name.into(), owner, bytes });
        self.contents.push(vec![u64::from_ne_bytes([0xcb; 8]); bytes.div_ceil(8) as usize]);
        Ok(Allocation { index: self.allocations.len() as u32 - 1 })
    }

    fn check(&self, at: Allocation, offset: u64, len: usize) -> Result<(), SeededError> {
        let Allocated { name, bytes, .. } = &self.allocations[at.index as usize];
        let end = offset.saturating_add(len as u64);
        if end <= *bytes {
            return Ok(());
        }
        Err(SeededError::Range { name: name.to_string(), offset, end, bytes: *bytes })
    }

    /// Writes memory between runs.
    ///
    /// # Errors
    /// [`SeededError::Range`].
    pub fn write(&mut self, at: Allocation, offset: u64, bytes: &[u8]) -> Result<(), SeededError> {
        self.check(at, offset, bytes.len())?;
        for (place, byte) in (offset as usize..).zip(bytes) {
            let word = &mut self.contents[at.index as usize][place / 8];
            let shift = place % 8 * 8;
            *word = *word & !(0xff << shift) | u64::from(*byte) << shift;
        }
        Ok(())
    }

    /// Sets every byte of an allocation between runs.
    pub fn fill(&mut self, at: Allocation, byte: u8) {
        self.contents[at.index as usize].fill(u64::from_ne_bytes([byte; 8]));
    }

    /// Reads memory between runs.
    ///
    /// # Errors
    /// [`SeededError::Range`].
    pub fn read(&self, at: Allocation, offset: u64, len: usize) -> Result<Vec<u8>, SeededError> {
        self.check(at, offset, len)?;
        let words = &self.contents[at.index as usize];
        let byte = |place: usize| (words[place / 8] >> (place % 8 * 8)) as u8;
        Ok((offset as usize..offset as usize + len).map(byte).collect())
    }

    /// Queues a launch on a stream of a device. `arguments` is the kernel's whole parameter: the launch header, then its
    /// argument struct. Launches of one stream run one after the other; a kernel's end makes its stores visible to all.
    ///
    /// # Errors
    /// [`SeededError::Launch`]: nothing was queued.
    pub fn launch(
        &mut self,
        device: u32,
        stream: u32,
        kernel: &SeededKernel,
        shape: Shape,
        arguments: &[u8],
    ) -> Result<(), SeededError> {
        let entry = &kernel.entry;
        let most = MAX_BLOCK_THREADS.min(entry.max_block_threads());
        let lanes = u64::from(shape.blocks) * u64::from(shape.block_threads);
        let wrong = |what, given: u64, allowed: String| {
            Err(SeededError::Launch { kernel: entry.name().to_owned(), what, given, allowed })
        };
        if kernel.wave_width != self.config.wave_width {
            return wrong("wave width", u64::from(kernel.wave_width), self.config.wave_width.to_string());
        }
        if kernel.profile != self.config.profile {
            return wrong("memory profile", kernel.profile as u64, format!("{:?}", self.config.profile));
        }
        if shape.blocks == 0 || lanes > u64::from(self.config.lanes) {
            return wrong("lanes", lanes, format!("1 to {}", self.config.lanes));
        }
        if shape.block_threads == 0 || shape.block_threads > most {
            return wrong("block threads", u64::from(shape.block_threads), format!("1 to {most}"));
        }
        if shape.local_bytes > MAX_LOCAL_BYTES {
            return wrong("local bytes", u64::from(shape.local_bytes), format!("0 to {MAX_LOCAL_BYTES}"));
        }
        if arguments.len() != entry.argument_bytes() as usize {
            return wrong("argument bytes", arguments.len() as u64, entry.argument_bytes().to_string());
        }
        let words = arguments.chunks(16).map(|chunk| {
            let mut word = [0; 16];
            word[..chunk.len()].copy_from_slice(chunk);
            u128::from_ne_bytes(word)
        });
        let plan = LaunchPlan::new(
            Arc::clone(entry),
            shape.blocks,
            shape.block_threads,
            shape.local_bytes,
            words.collect(),
        );
        self.queues.entry((device, stream)).or_default().push_back(Arc::new(plan));
        Ok(())
    }

    /// Runs everything that is queued to its end, as the seed says.
    ///
    /// # Errors
    /// [`SeededError::Fault`], [`SeededError::Access`], [`SeededError::Race`], [`SeededError::Hang`] and
    /// [`SeededError::Steps`]. What was queued is gone then; memory holds what had been stored, visible or not, and [`Self::last_events`] tells the way there.
    pub fn run(&mut self, seed: u64) -> Result<Run, SeededError> {
        self.run_by(Random::new(seed), None).0
    }

    /// A run by a seed or a script, which it gives back.
    fn run_by(&mut self, random: Random, bounds: Option<Bounds>) -> (Result<Run, SeededError>, Random) {
        let contents = core::mem::take(&mut self.contents);
        let world = World::new(random, bounds, self.allocations.clone(), contents, &self.config);
        let world = Arc::new(WorldCell::new(world));
        let queues = core::mem::take(&mut self.queues).into_iter();
        let queues = queues.map(|((device, _), queue)| (device, queue));
        let outcome = Runner::new(&self.config, &world, &self.stacks, queues).run();
        #[expect(clippy::expect_used, reason = "the runner is gone, and with it all lanes")]
        let mut world = Arc::into_inner(world).expect("lanes alone share the world").into_inner();
        let (steps, virtual_ns, digest) = (world.steps, world.clock_ns(), world.digest);
        let switches = world.switches.used;
        let events = world.events.take().unwrap_or_default();
        self.contents = world.memory.into_contents();
        self.last_events.clone_from(&events);
        let next =
            outcome.as_ref().ok().and_then(|()| world.random.clone().into_script()).and_then(Script::next);
        (outcome.map(|()| Run { steps, switches, virtual_ns, digest, events, next }), world.random)
    }

    /// The events of the last run, failed or not, if [`SeededConfig::keep_events`].
    pub fn last_events(&self) -> &[Event] {
        &self.last_events
    }
}
