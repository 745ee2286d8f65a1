//! Engines in software, one for each queue: what the runtime made of CPU threads has in place of copy engines.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use anabranch_hip::{Actor, Device, DeviceBuffer, EngineMemory, NoMemory, SoftwareEngines, Step};

use crate::device_queue::{DeviceQueueError, EngineWords, Port, QueueEngine};
use crate::engine::{Did, Engine, Fault, Memory, Stopped};
use crate::generation::Generation;
use crate::ring::Ring;

/// What an engine in software does wrong, for tests: as hardware and drivers have been seen to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EngineFaults {
    /// The doorbell that it misses, counted from 1, the probe's included: it looks again at the next.
    pub lost_doorbell: Option<u64>,
    /// After this number of packets, the probe's included, it stops silently.
    pub stalls_after: Option<u64>,
}

/// How engines in software work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SoftwareConfig {
    /// Bytes that a copy moves in a step.
    pub stride: u64,
    /// Steps in a turn, at most.
    pub steps: u32,
    /// Decides, at each step, whether a copy continues or the packet after it goes first, where it may.
    pub seed: u64,
    /// Of 256 looks, at how many it takes the write pointer from memory and not the doorbell's value: an engine does so when its
    /// queue is mapped again after others have had it, and where it is set to poll. Such a look finds packets whose doorbell has
    /// not been rung yet.
    pub pointer_looks: u32,
    /// What goes wrong.
    pub faults: EngineFaults,
}

impl Default for SoftwareConfig {
    fn default() -> Self {
        Self { stride: 256 << 10, steps: 16, seed: 0, pointer_looks: 0, faults: EngineFaults::default() }
    }
}

const LINE: u64 = 128;
const WRITE_POINTER: u64 = 0;
const DOORBELL: u64 = LINE;
const READ_POINTER: u64 = 2 * LINE;
const RING: u64 = 4096;

/// What the engine and its owner share.
#[derive(Debug, Default)]
struct Shared {
    closed: AtomicBool,
    /// Why the engine has stopped. Locked while it takes a turn.
    stopped: Mutex<Option<Stopped>>,
}

/// A ring, and the engine in software that reads it.
#[derive(Debug)]
pub struct SoftwareQueue {
    shared: Arc<Shared>,
    engines: SoftwareEngines,
    buffer: DeviceBuffer,
    ring: Ring,
    generation: &'static Generation,
}

impl SoftwareQueue {
    /// A ring in memory of the device, and an engine that runs until the queue is dropped or the runtime ends. The engine stops
    /// where hardware would: at a packet that is none, and at memory that the device may not touch.
    ///
    /// # Errors
    /// [`DeviceQueueError::Memory`].
    pub fn start(
        device: &Device,
        engines: SoftwareEngines,
        ring: Ring,
        generation: &'static Generation,
        config: SoftwareConfig,
    ) -> Result<Self, DeviceQueueError> {
        let mut buffer = device.allocate_uncached((RING + ring.bytes()) as usize)?;
        buffer.fill(0)?;
        let shared = Arc::new(Shared::default());
        engines.starter.start(Box::new(Runner {
            engine: Engine::new(ring, generation, config.stride),
            memory: Arc::clone(&engines.memory),
            words: words_at(&buffer),
            shared: Arc::clone(&shared),
            config,
            random: config.seed | 1,
            rung: 0,
            doorbells: 0,
            heard: 0,
            packets: 0,
        }));
        Ok(Self { shared, engines, buffer, ring, generation })
    }
}

fn words_at(buffer: &DeviceBuffer) -> EngineWords {
    let at = |offset| buffer.address().offset(offset);
    EngineWords {
        ring: at(RING),
        write_pointer: at(WRITE_POINTER),
        doorbell: at(DOORBELL),
        read_pointer: at(READ_POINTER),
    }
}

impl QueueEngine for SoftwareQueue {
    fn words(&self) -> EngineWords {
        words_at(&self.buffer)
    }

    fn ring(&self) -> Ring {
        self.ring
    }

    fn port(&self) -> Arc<dyn Port> {
        Arc::new(SoftwarePort { engines: self.engines.clone(), words: self.words() })
    }

    fn describe(&self) -> String {
        format!("an engine in software ({})", self.generation)
    }

    fn stopped(&self) -> Option<String> {
        let stopped = self.shared.stopped.lock().unwrap_or_else(PoisonError::into_inner);
        stopped.as_ref().map(ToString::to_string)
    }
}

impl Drop for SoftwareQueue {
    fn drop(&mut self) {
        self.shared.closed.store(true, Ordering::Release);
        // A turn that has begun ends before the memory goes that it may write.
        drop(self.shared.stopped.lock().unwrap_or_else(PoisonError::into_inner));
        self.engines.starter.wake();
    }
}

/// The host's way into a ring of an engine in software, for as long as the queue is.
#[derive(Debug)]
struct SoftwarePort {
    engines: SoftwareEngines,
    words: EngineWords,
}

impl Port for SoftwarePort {
    fn write(&self, place: u64, words: &[u32]) {
        for (word, index) in words.iter().zip(0..) {
            let _gone = self.engines.memory.store_32(self.words.ring.0 + place + index * 4, *word);
        }
    }

    fn publish(&self, end: u64) {
        let memory = &self.engines.memory;
        let _gone = memory.store_64(self.words.write_pointer.0, end);
        let _gone = memory.store_64(self.words.doorbell.0, end);
        self.engines.starter.wake();
    }
}

/// The engine, as something that runs a little at a time.
struct Runner {
    engine: Engine,
    memory: Arc<dyn EngineMemory>,
    words: EngineWords,
    shared: Arc<Shared>,
    config: SoftwareConfig,
    random: u64,
    /// The doorbell's last value, how often it changed, and what the engine has seen of it.
    rung: u64,
    doorbells: u64,
    heard: u64,
    packets: u64,
}

impl Runner {
    /// The next number that the seed gives.
    fn draw(&mut self) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.random
    }

    /// Looks at the doorbell, and now and then at the write pointer.
    fn listen(&mut self) -> Result<(), NoMemory> {
        let rung = self.memory.load_64(self.words.doorbell.0)?;
        if rung != self.rung {
            self.rung = rung;
            self.doorbells += 1;
            let looks = self.config.pointer_looks > 0;
            if self.config.faults.lost_doorbell != Some(self.doorbells) {
                // The pointer may be ahead of a doorbell that arrives after it.
                self.heard = if looks { rung.max(self.engine.read()) } else { rung };
            }
        }
        if self.config.pointer_looks > 0 && self.draw() >> 56 < u64::from(self.config.pointer_looks) {
            self.heard = self.memory.load_64(self.words.write_pointer.0)?;
        }
        Ok(())
    }

    fn work(&mut self) -> Result<Step, Stopped> {
        let lost = |error: NoMemory| Stopped::Memory { position: 0, fault: fault(error) };
        self.listen().map_err(lost)?;
        let mut step = Step::Waiting;
        for _ in 0..self.config.steps.max(1) {
            if self.config.faults.stalls_after.is_some_and(|most| self.packets >= most) {
                return Ok(Step::Waiting);
            }
            let copy_first = self.draw() & 1 == 0;
            let before = self.engine.read();
            let ring = self.words.ring.0;
            let (memory, mut seen) = (&self.memory, Words(self.memory.as_ref()));
            // A word that is not there is no packet: the engine stops at it.
            let word = |place| memory.load_32(ring + place).unwrap_or(u32::MAX);
            let did = self.engine.step(self.heard, word, &mut seen, copy_first)?;
            if self.engine.read() != before {
                self.packets += 1;
                self.memory.store_64(self.words.read_pointer.0, self.engine.read()).map_err(lost)?;
            }
            match did {
                Did::Worked => step = Step::Progress,
                Did::Waits => break,
            }
        }
        Ok(step)
    }
}

impl Actor for Runner {
    fn step(&mut self) -> Step {
        let shared = Arc::clone(&self.shared);
        let mut stopped = shared.stopped.lock().unwrap_or_else(PoisonError::into_inner);
        if shared.closed.load(Ordering::Acquire) {
            return Step::Finished;
        }
        if stopped.is_some() {
            return Step::Waiting;
        }
        self.work().unwrap_or_else(|why| {
            tracing::warn!(%why, "an engine in software has stopped");
            *stopped = Some(why);
            Step::Waiting
        })
    }
}

fn fault(error: NoMemory) -> Fault {
    Fault { address: error.address, bytes: error.bytes }
}

/// A runtime's memory as the engine's.
struct Words<'a>(&'a dyn EngineMemory);

impl Memory for Words<'_> {
    fn copy(&mut self, source: u64, destination: u64, bytes: u64) -> Result<(), Fault> {
        self.0.copy(source, destination, bytes).map_err(fault)
    }

    fn store(&mut self, address: u64, word: u32) -> Result<(), Fault> {
        self.0.store_32(address, word).map_err(fault)
    }

    fn add(&mut self, address: u64, value: u64) -> Result<(), Fault> {
        self.0.add_64(address, value).map_err(fault)
    }
}
