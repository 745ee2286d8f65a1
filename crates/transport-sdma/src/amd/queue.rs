//! The engines of one GPU, and queues on them that give back what they hold.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::address::GpuAddress;
use super::chooser::{self, Choice};
use super::driver::{Driver, DriverNode, DriverQueue, RingPlace};
use super::error::{AmdError, AmdResult};
use super::topology::{Gpu, Topology};

/// Bytes of a ring unless another size is asked for: 8192 units of 32 bytes, as mori has them. (ROCr's own rings are 1 MiB.)
pub const DEFAULT_RING_BYTES: u64 = 256 << 10;

/// A page: rings are allocated in whole ones. What the kernel's own least is, is not documented; it refuses what is no power of two.
const LEAST_RING_BYTES: u64 = 4096;

/// The descriptor of a queue and the kernel's request both hold the size in 32 bits.
const MOST_RING_BYTES: u64 = 1 << 31;

/// Queues that this world has on each engine.
#[derive(Debug, Default)]
struct Slots {
    in_use: BTreeMap<u32, u32>,
    lost: u32,
    closed: bool,
}

/// The copy engines of one GPU, for one world.
///
/// Any thread may make queues, any number at once; nothing here is collective.
#[derive(Debug)]
pub struct AmdEngines {
    topology: Arc<Topology>,
    source: Gpu,
    driver: Arc<dyn Driver>,
    node: DriverNode,
    ring_bytes: u64,
    slots: Arc<Mutex<Slots>>,
}

impl AmdEngines {
    /// The engines of the GPU at `source`, with rings of `ring_bytes` bytes ([`DEFAULT_RING_BYTES`] if there is no reason for
    /// another size).
    ///
    /// # Errors
    /// [`AmdError::Ring`] unless the size is a power of two from 4096 on; [`AmdError::NoSuchGpu`] or [`AmdError::Partitioned`]
    /// if the tree does not have the GPU; [`AmdError::NotShown`] if the runtime does not.
    pub fn new(
        source: &GpuAddress,
        topology: Arc<Topology>,
        driver: Arc<dyn Driver>,
        ring_bytes: u64,
    ) -> AmdResult<Self> {
        if !ring_bytes.is_power_of_two() || !(LEAST_RING_BYTES..=MOST_RING_BYTES).contains(&ring_bytes) {
            return Err(AmdError::Ring { given: ring_bytes, least: LEAST_RING_BYTES, most: MOST_RING_BYTES });
        }
        let source = topology.find(source)?.clone();
        let node = driver.node(&source)?;
        Ok(Self { topology, source, driver, node, ring_bytes, slots: Arc::default() })
    }

    /// The GPU.
    pub fn source(&self) -> &Gpu {
        &self.source
    }

    /// Which functions of which library make the queues, for people.
    pub fn origin(&self) -> &str {
        self.driver.origin()
    }

    /// The engines that queues to a peer (or, for `None`, within the GPU) would be made on, one for each channel, and why.
    ///
    /// # Errors
    /// The errors of [`choose`](chooser::choose); [`AmdError::NoSuchGpu`] or [`AmdError::Partitioned`] for the peer.
    pub fn choices(&self, destination: Option<&GpuAddress>, channels: u32) -> AmdResult<Vec<Choice>> {
        let destination = match destination {
            Some(address) => self.topology.find(address)?,
            None => &self.source,
        };
        chooser::choose(&self.topology, &self.source, destination, channels)
    }

    /// Whether engines can do to a peer what queues of kernels ask of them: copies, and adding to 64 bits.
    ///
    /// # Errors
    /// [`AmdError::LinkLacks`] where the link is not known to carry both; [`AmdError::NoSuchGpu`] or [`AmdError::Partitioned`].
    pub(crate) fn check_link(&self, destination: &GpuAddress) -> AmdResult<()> {
        let link = self.source.link_to(self.topology.find(destination)?.node);
        match link {
            Some(link) if link.reaches_memory() && link.carries_atomics_64() => Ok(()),
            _ => Err(AmdError::LinkLacks {
                gpu: self.topology.address(&self.source),
                destination: *destination,
            }),
        }
    }

    /// Makes the queue of a channel to a peer, or within the GPU for `None`. Its ring is empty, and its pointers are zero.
    ///
    /// # Errors
    /// The errors of [`choices`](Self::choices) for `channel + 1` channels, before anything is made; [`AmdError::Exhausted`] if the
    /// engine holds no more queues, or the driver says what a full engine makes it say; [`AmdError::Closed`]; those of
    /// [`Driver::create`].
    pub fn create(&self, destination: Option<&GpuAddress>, channel: u32) -> AmdResult<AmdQueue> {
        let choices = self.choices(destination, channel.saturating_add(1))?;
        let Some(choice) = choices.into_iter().next_back() else {
            return Err(AmdError::NoEngine { node: self.source.node, purpose: "this channel" });
        };
        let exhausted = |in_use, source| AmdError::Exhausted {
            gpu: self.topology.address(&self.source),
            destination: destination.copied().unwrap_or_else(|| self.topology.address(&self.source)),
            channel,
            engine: choice.engine,
            in_use,
            queues_per_engine: self.source.queues_per_engine,
            source,
        };
        let before = {
            let mut slots = lock(&self.slots);
            if slots.closed {
                return Err(AmdError::Closed { gpu: self.topology.address(&self.source) });
            }
            let in_use = slots.in_use.entry(choice.engine).or_default();
            if *in_use >= self.source.queues_per_engine {
                return Err(exhausted(*in_use, None));
            }
            *in_use += 1;
            *in_use - 1
        };
        match self.driver.create(self.node, choice.engine, self.ring_bytes) {
            Ok(queue) => Ok(AmdQueue {
                queue: Some(queue),
                choice,
                driver: Arc::clone(&self.driver),
                slots: Arc::clone(&self.slots),
            }),
            Err(error) => {
                let mut slots = lock(&self.slots);
                // Where something could not be given back, the engine may still have the queue: its slot stays taken.
                if matches!(error, AmdError::Undo { .. }) {
                    slots.lost += 1;
                } else {
                    slots.release(choice.engine);
                }
                drop(slots);
                match error {
                    refused @ AmdError::QueueRefused { .. } => {
                        Err(exhausted(before, Some(Box::new(refused))))
                    }
                    other => Err(other),
                }
            }
        }
    }

    /// Makes no more queues from now on. Those that exist stay.
    pub fn close(&self) {
        lock(&self.slots).closed = true;
    }

    /// Queues of this world on an engine, those included that could not be taken away.
    pub fn in_use(&self, engine: u32) -> u32 {
        lock(&self.slots).in_use.get(&engine).copied().unwrap_or(0)
    }

    /// Queues that could not be taken away, or parts of them; they stay until the process ends.
    pub fn lost(&self) -> u32 {
        lock(&self.slots).lost
    }
}

impl Slots {
    fn release(&mut self, engine: u32) {
        if let Some(in_use) = self.in_use.get_mut(&engine) {
            *in_use = in_use.saturating_sub(1);
        }
    }
}

/// The numbers stay right when a thread panics elsewhere: each is changed in one step.
fn lock(slots: &Mutex<Slots>) -> MutexGuard<'_, Slots> {
    slots.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A queue on an engine. Dropping it takes the queue away and then frees its ring.
///
/// Addresses are valid until then, on the host and on the GPU. Who has them, on the host or in kernels, must have stopped before.
#[derive(Debug)]
pub struct AmdQueue {
    /// There until it is closed.
    queue: Option<DriverQueue>,
    choice: Choice,
    driver: Arc<dyn Driver>,
    slots: Arc<Mutex<Slots>>,
}

impl AmdQueue {
    fn get(&self, value: impl FnOnce(&DriverQueue) -> u64) -> u64 {
        self.queue.as_ref().map_or(0, value)
    }

    /// Start of the ring, a multiple of 4096.
    pub fn ring_address(&self) -> u64 {
        self.get(|queue| queue.ring)
    }

    /// Bytes of the ring, a power of two.
    pub fn ring_bytes(&self) -> u64 {
        self.get(|queue| queue.ring_bytes)
    }

    /// Where the ring lies.
    pub fn ring_place(&self) -> RingPlace {
        self.queue.as_ref().map_or(RingPlace::Host, |queue| queue.ring_place)
    }

    /// Address of the 64-bit write pointer: bytes written to the ring since it was made.
    pub fn write_pointer(&self) -> u64 {
        self.get(|queue| queue.write_pointer)
    }

    /// Address of the 64-bit doorbell, which takes the write pointer's value.
    pub fn doorbell(&self) -> u64 {
        self.get(|queue| queue.doorbell)
    }

    /// Address of the 64-bit read pointer: bytes that the engine has read.
    pub fn read_pointer(&self) -> u64 {
        self.get(|queue| queue.read_pointer)
    }

    /// Whether kernels on the GPU may ring the doorbell. If not, only the host can submit.
    pub fn device_ringable(&self) -> bool {
        self.queue.as_ref().is_some_and(|queue| queue.device_ringable)
    }

    /// The engine's number among all of the GPU.
    pub fn engine(&self) -> u32 {
        self.choice.engine
    }

    /// Why this engine, in words.
    pub fn reason(&self) -> &str {
        &self.choice.reason
    }

    /// Destroys the queue and returns the error, which dropping it only logs.
    ///
    /// # Errors
    /// The errors of [`Driver::destroy`]; what is lost then stays until the process ends, and the engine's slot with it.
    pub fn close(mut self) -> AmdResult<()> {
        self.give_back()
    }

    fn give_back(&mut self) -> AmdResult<()> {
        let Some(queue) = self.queue.take() else { return Ok(()) };
        let gone = self.driver.destroy(queue);
        let mut slots = lock(&self.slots);
        match gone {
            // Otherwise the engine may still have the queue: its slot stays taken.
            Ok(()) => slots.release(self.choice.engine),
            Err(_) => slots.lost += 1,
        }
        gone
    }
}

impl Drop for AmdQueue {
    fn drop(&mut self) {
        if let Err(error) = self.give_back() {
            tracing::warn!(engine = self.choice.engine, %error, "a queue on a copy engine could not be taken away");
        }
    }
}
