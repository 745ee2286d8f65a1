//! One queue of a rank: the ring and the words that producers in kernels share, and the engine that reads them.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use anabranch_clock::{Moment, sleep};
use anabranch_hip::{Device, DeviceAddress, DeviceBuffer};
use anabranch_hip_jit::{DevicePointer, device_struct};

use crate::error::Error;
use crate::format::fence;
use crate::generation::Generation;
use crate::packet::Packet;
use crate::ring::{Ring, UNIT};

device_struct! {
    /// How kernels of a rank reach a peer by its copy engines: one of its queues to that peer (`sdma/queue.h`).
    pub struct SdmaQueue {
        /// The ring, aligned to the unit of 32 bytes.
        pub ring: DevicePointer<u32>,
        /// The position up to which room is taken.
        pub reserved: DevicePointer<u64>,
        /// The position up to which packets have been made known.
        pub committed: DevicePointer<u64>,
        /// The unit, in its low 32 bits, up to which packets are done, as far as operations reported.
        pub done: DevicePointer<u64>,
        /// Where the engine finds the write pointer.
        pub write_pointer: DevicePointer<u64>,
        /// The doorbell.
        pub doorbell: DevicePointer<u64>,
        /// The position up to which the engine has read.
        pub read_pointer: DevicePointer<u64>,
        /// Bytes of the ring, a power of two.
        pub ring_bytes: u64,
        /// The most bytes of one copy packet.
        pub most_copy_bytes: u32,
        /// The first word of a fence.
        pub fence_head: u32,
        /// How the peer is reached: [`ROUTE_MAPPING`], [`ROUTE_QUEUE`] or [`ROUTE_HOST`].
        pub route: u32,
        /// The peer, as a rank of the group whose table this stands in; for fault records.
        pub peer: u32,
    }
}

/// [`SdmaQueue::route`]: by loads and stores; there is no queue.
pub const ROUTE_MAPPING: u32 = 0;
/// [`SdmaQueue::route`]: by this queue.
pub const ROUTE_QUEUE: u32 = 1;
/// [`SdmaQueue::route`]: by engines that the host alone drives; kernels refuse to copy.
pub const ROUTE_HOST: u32 = 2;

/// The words that an engine reads and writes. Addresses are valid for kernels of the engine's device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EngineWords {
    /// The ring's first byte.
    pub ring: DeviceAddress,
    /// The write pointer, 64 bits, in bytes.
    pub write_pointer: DeviceAddress,
    /// The doorbell, 64 bits.
    pub doorbell: DeviceAddress,
    /// The read pointer, 64 bits, in bytes.
    pub read_pointer: DeviceAddress,
}

/// How the host puts words into a ring.
pub trait Port: Send + Sync {
    /// Stores words at a place of the ring, in bytes from its start. They end at the ring's end at the latest.
    fn write(&self, place: u64, words: &[u32]);

    /// Lets the engine read up to this position: the write pointer, then the doorbell, after all words that this
    /// thread wrote.
    fn publish(&self, end: u64);
}

/// What carries out the packets of one ring. Dropping it stops it.
pub trait QueueEngine: fmt::Debug + Send + Sync {
    /// Where it looks.
    fn words(&self) -> EngineWords;

    /// The ring.
    fn ring(&self) -> Ring;

    /// What the host puts packets in by.
    fn port(&self) -> Arc<dyn Port>;

    /// Which engine it is, and why that one.
    fn describe(&self) -> String;

    /// Why it does nothing any more, if it says so.
    fn stopped(&self) -> Option<String>;
}

/// Why there is no queue to a peer.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DeviceQueueError {
    /// The ring cannot be.
    #[error(transparent)]
    Ring(#[from] Error),
    #[error("a copy engine of the GPU has no queue")]
    Engine(#[source] Box<dyn std::error::Error + Send + Sync>),
    #[error("the memory of a queue of copy engines")]
    Memory(#[from] anabranch_hip::Error),
    #[error("{engine} did not do a copy and a fence within {waited:?}{}", stopped.as_ref().map_or(String::new(), |why| format!(": {why}")))]
    Dead { engine: String, waited: Duration, stopped: Option<String> },
}

/// Words of the producers, each in a line of its own: no two are polled and written by different agents.
const LINE: u64 = 128;
const RESERVED: u64 = 0;
const COMMITTED: u64 = LINE;
const DONE: u64 = 2 * LINE;
/// What the probe copies from and to.
const PROBE: u64 = 3 * LINE;
const BYTES: u64 = 4 * LINE;

/// A queue that kernels of its rank put packets into.
#[derive(Debug)]
pub struct DeviceQueue {
    // Stopped before the words that it may still write are freed.
    engine: Box<dyn QueueEngine>,
    /// The producers' words.
    _words: DeviceBuffer,
    view: SdmaQueue,
}

impl DeviceQueue {
    /// The least ring, bytes: half of it holds a copy, a signal and a fence.
    pub const LEAST_RING: u64 = anabranch_transport::limits::RING_BYTES.least;

    /// A queue in front of an engine, tried out: the host puts a copy and a fence in, and waits until both are done, no longer
    /// than `patience`.
    ///
    /// `source` is 8 bytes of the peer's memory that the engine reaches; they are copied to memory of the queue's own.
    ///
    /// # Errors
    /// [`DeviceQueueError`]; of rings, those below [`Self::LEAST_RING`] are refused.
    pub fn new(
        device: &Device,
        engine: Box<dyn QueueEngine>,
        generation: &'static Generation,
        most_copy_bytes: u32,
        source: DeviceAddress,
        patience: Duration,
    ) -> Result<Self, DeviceQueueError> {
        let given = engine.ring().bytes();
        if given < Self::LEAST_RING {
            return Err(Error::Ring { given, least: Self::LEAST_RING }.into());
        }
        let mut words = device.allocate_uncached(BYTES as usize)?;
        // From here on stopped before the words go, whatever fails.
        let engine = engine;
        words.fill(0)?;
        let end = probe(engine.as_ref(), generation, &words, source, patience)?;
        for position in [RESERVED, COMMITTED] {
            words.copy_from_host(position as usize, &end.to_le_bytes())?;
        }
        let (ring, at) = (engine.ring(), words.address());
        let head = encoded(&Packet::Fence { address: 0, value: 0 }, generation)?;
        let EngineWords { ring: ring_at, write_pointer, doorbell, read_pointer } = engine.words();
        let view = SdmaQueue {
            ring: DevicePointer::new(ring_at),
            reserved: DevicePointer::new(at.offset(RESERVED)),
            committed: DevicePointer::new(at.offset(COMMITTED)),
            done: DevicePointer::new(at.offset(DONE)),
            write_pointer: DevicePointer::new(write_pointer),
            doorbell: DevicePointer::new(doorbell),
            read_pointer: DevicePointer::new(read_pointer),
            ring_bytes: ring.bytes(),
            most_copy_bytes: most_copy_bytes.min(generation.most_copy_bytes),
            fence_head: head.first().copied().unwrap_or_default(),
            route: ROUTE_QUEUE,
            peer: 0,
        };
        Ok(Self { engine, _words: words, view })
    }

    /// What kernels get. Valid while the queue is. `peer` is the peer's rank in the group whose kernels get it.
    pub fn view(&self, peer: u32) -> SdmaQueue {
        SdmaQueue { peer, ..self.view }
    }

    /// Its engine.
    pub fn engine(&self) -> &dyn QueueEngine {
        self.engine.as_ref()
    }
}

fn encoded(packet: &Packet, generation: &Generation) -> Result<Vec<u32>, Error> {
    let mut words = Vec::new();
    packet.encode(generation, &mut words)?;
    Ok(words)
}

/// Copies 8 bytes and waits for the fence after them; the position after it.
fn probe(
    engine: &dyn QueueEngine,
    generation: &Generation,
    words: &DeviceBuffer,
    source: DeviceAddress,
    patience: Duration,
) -> Result<u64, DeviceQueueError> {
    let start = Moment::now();
    let at = words.address();
    let copy = Packet::Copy { source: source.0, destination: at.offset(PROBE).0, bytes: 8 };
    let mut packets = encoded(&copy, generation)?;
    // Alone in a new ring, of which no packet comes near the end ([`DeviceQueue::LEAST_RING`]).
    let end = ((packets.len() + fence::FORMAT.words) as u64 * 4).next_multiple_of(UNIT);
    let value = (end / UNIT) as u32;
    packets.extend(encoded(&Packet::Fence { address: at.offset(DONE).0, value }, generation)?);
    // What fills the last unit is passed over.
    let left = end / 4 - packets.len() as u64;
    if left > 0 {
        packets.extend(encoded(&Packet::Nop { skip: left as u32 - 1 }, generation)?);
    }
    let port = engine.port();
    port.write(0, &packets);
    port.publish(end);
    let mut done = [0; 4];
    loop {
        words.copy_to_host(DONE as usize, &mut done)?;
        if u32::from_le_bytes(done) == value {
            return Ok(end);
        }
        sleep(PAUSE);
        if start.elapsed() >= patience {
            let (engine, stopped) = (engine.describe(), engine.stopped());
            return Err(DeviceQueueError::Dead { engine, waited: start.elapsed(), stopped });
        }
    }
}

/// Between two looks of the host at an engine.
const PAUSE: Duration = Duration::from_micros(20);
