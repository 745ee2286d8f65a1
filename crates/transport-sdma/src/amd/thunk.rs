//! Queues by the thunk's functions, step by step.

use core::fmt;

use super::driver::{Driver, DriverNode, DriverQueue, QueueToken, RingPlace};
use super::error::{AmdError, AmdResult};
use super::topology::Gpu;

/// Version of the kernel driver's interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct KfdVersion {
    /// Major.
    pub major: u32,
    /// Minor.
    pub minor: u32,
}

impl KfdVersion {
    /// The first with queues on a chosen engine (ROCr asks for it in `SupportsSdmaQueueByEngineId`).
    pub(crate) const QUEUES_BY_ENGINE: Self = Self { major: 1, minor: 17 };
}

impl fmt::Display for KfdVersion {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}.{}", self.major, self.minor)
    }
}

/// Memory that a thunk gave. Only a thunk makes one, and only the same thunk may be given it.
#[derive(Debug, PartialEq, Eq)]
pub struct Allocation {
    pub(super) address: u64,
    pub(super) bytes: u64,
}

/// A queue as the thunk describes it (`HsaQueueResource`).
#[derive(Debug, PartialEq, Eq)]
pub struct ThunkQueue {
    /// The thunk's name for it.
    pub(super) token: QueueToken,
    /// Address of the 64-bit doorbell.
    pub(super) doorbell: u64,
    /// Address of the 64-bit write pointer.
    pub(super) write_pointer: u64,
    /// Address of the 64-bit read pointer.
    pub(super) read_pointer: u64,
}

/// The functions of the thunk that queues need. Opening is making the value, and dropping it closes. Any thread.
///
/// Each method's errors are [`AmdError::Call`] with the function, the node and the code, unless it says otherwise.
pub trait Thunk: Send + Sync + fmt::Debug {
    /// Which functions of which library, for people.
    fn origin(&self) -> &str;

    /// Version of the kernel driver (`hsaKmtGetVersion`).
    ///
    /// # Errors
    /// As the trait states.
    fn version(&self) -> AmdResult<KfdVersion>;

    /// The node of a GPU in the thunk's own numbering.
    ///
    /// # Errors
    /// [`AmdError::NotShown`] too.
    fn node(&self, gpu: &Gpu) -> AmdResult<u32>;

    /// Memory for a ring (`hsaKmtAllocMemory`): executable, since engines fetch packets with that right; uncached, since without
    /// it the GPU's page tables say that its memory may be cached; in pages of 4 KiB of the GPU's memory that the host reaches.
    /// `bytes` is a multiple of 4096.
    ///
    /// # Errors
    /// As the trait states.
    fn allocate(&self, node: u32, bytes: u64) -> AmdResult<Allocation>;

    /// Makes memory reachable for the GPU (`hsaKmtMapMemoryToGPU`).
    ///
    /// # Errors
    /// As the trait states.
    fn map(&self, memory: &Allocation) -> AmdResult<()>;

    /// Makes a queue on an engine (`hsaKmtCreateQueueExt` with `HSA_QUEUE_SDMA_BY_ENG_ID`).
    ///
    /// # Errors
    /// [`AmdError::QueueRefused`] for a code that a full engine gives.
    fn create_queue(&self, node: u32, engine: u32, ring: &Allocation) -> AmdResult<ThunkQueue>;

    /// Whether an address of this process is mapped for the GPU under the same value (`hsaKmtQueryPointerInfo`).
    ///
    /// # Errors
    /// As the trait states.
    fn reaches(&self, address: u64) -> AmdResult<bool>;

    /// Takes a queue away (`hsaKmtDestroyQueue`).
    ///
    /// # Errors
    /// As the trait states; the queue may still exist.
    fn destroy_queue(&self, queue: &QueueToken) -> AmdResult<()>;

    /// Takes memory from the GPU (`hsaKmtUnmapMemoryToGPU`).
    ///
    /// # Errors
    /// As the trait states; the GPU may still reach it.
    fn unmap(&self, memory: &Allocation) -> AmdResult<()>;

    /// Frees memory (`hsaKmtFreeMemory`).
    ///
    /// # Errors
    /// As the trait states.
    fn free(&self, memory: Allocation) -> AmdResult<()>;
}

/// Makes queues with a thunk.
#[derive(Debug)]
pub struct ThunkDriver<T> {
    thunk: T,
}

impl<T: Thunk> ThunkDriver<T> {
    /// A driver over a thunk, if the kernel driver is new enough.
    ///
    /// # Errors
    /// [`AmdError::OldDriver`]; [`AmdError::Call`] if the version could not be asked for.
    pub fn new(thunk: T) -> AmdResult<Self> {
        let found = thunk.version()?;
        let needed = KfdVersion::QUEUES_BY_ENGINE;
        if found < needed {
            return Err(AmdError::OldDriver { origin: thunk.origin().to_owned(), found, needed });
        }
        Ok(Self { thunk })
    }

    /// The thunk.
    pub fn thunk(&self) -> &T {
        &self.thunk
    }

    fn queue_on(&self, node: u32, engine: u32, ring: &Allocation) -> AmdResult<DriverQueue> {
        let made = self.thunk.create_queue(node, engine, ring)?;
        let mut queue = DriverQueue {
            token: made.token,
            engine,
            ring: ring.address,
            ring_bytes: ring.bytes,
            ring_place: RingPlace::Device,
            write_pointer: made.write_pointer,
            read_pointer: made.read_pointer,
            doorbell: made.doorbell,
            device_ringable: false,
        };
        let ringable = match queue.flaw(engine, ring.bytes) {
            Some(what) => Err(AmdError::Returned {
                call: "hsaKmtCreateQueueExt",
                place: format!("engine {engine} of node {node}"),
                what,
            }),
            None => self.thunk.reaches(queue.doorbell),
        };
        match ringable {
            Ok(ringable) => {
                queue.device_ringable = ringable;
                Ok(queue)
            }
            Err(failed) => Err(after(failed, self.thunk.destroy_queue(&queue.token))),
        }
    }

    /// Takes a mapped ring back. What could not be unmapped is not freed: the GPU may still reach it.
    fn give_back(&self, ring: Allocation) -> AmdResult<()> {
        self.thunk.unmap(&ring)?;
        self.thunk.free(ring)
    }
}

/// The error that came first, with what went wrong when undoing.
fn after(failed: AmdError, undone: AmdResult<()>) -> AmdError {
    match undone {
        Ok(()) => failed,
        Err(undo) => AmdError::Undo { failed: Box::new(failed), undo: Box::new(undo) },
    }
}

impl<T: Thunk> Driver for ThunkDriver<T> {
    fn origin(&self) -> &str {
        self.thunk.origin()
    }

    fn node(&self, gpu: &Gpu) -> AmdResult<DriverNode> {
        Ok(DriverNode { node: self.thunk.node(gpu)?, agent: 0 })
    }

    fn create(&self, node: DriverNode, engine: u32, ring_bytes: u64) -> AmdResult<DriverQueue> {
        let ring = self.thunk.allocate(node.node, ring_bytes)?;
        if let Err(failed) = self.thunk.map(&ring) {
            return Err(after(failed, self.thunk.free(ring)));
        }
        match self.queue_on(node.node, engine, &ring) {
            Ok(queue) => Ok(queue),
            // The queue may still exist, and its engine read the ring.
            Err(failed @ AmdError::Undo { .. }) => Err(failed),
            Err(failed) => Err(after(failed, self.give_back(ring))),
        }
    }

    fn destroy(&self, queue: DriverQueue) -> AmdResult<()> {
        self.thunk.destroy_queue(&queue.token)?;
        self.give_back(Allocation { address: queue.ring, bytes: queue.ring_bytes })
    }
}
