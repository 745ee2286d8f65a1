//! What makes and takes away queues on a chosen engine.

use core::fmt;

use super::error::AmdResult;
use super::topology::Gpu;

/// The library's own name for a queue. It may be a pointer of the library: only a driver makes one, and only the same driver may
/// be given it, once, so it cannot be copied or invented.
#[derive(Debug, PartialEq, Eq)]
pub struct QueueToken(u64);

impl QueueToken {
    pub(super) fn new(value: u64) -> Self {
        Self(value)
    }

    pub(super) fn value(&self) -> u64 {
        self.0
    }
}

/// A GPU as the runtime knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DriverNode {
    /// The node in the thunk's numbering, which differs from the tree's where nodes are hidden.
    pub node: u32,
    /// The runtime's handle of the GPU; 0 if the driver has no use for one.
    pub(super) agent: u64,
}

/// Where a ring lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RingPlace {
    /// In memory of the host.
    Host,
    /// In the GPU's memory, which the host writes over PCIe: a submitting host thread must ensure that its words are
    /// there before the doorbell (a store fence, and a read back).
    Device,
}

/// A queue on an engine. Addresses are valid on the host and on the GPU alike, the doorbell on the GPU only if it says so. An
/// owner may free what it names, so code outside cannot construct one.
#[derive(Debug, PartialEq, Eq)]
pub struct DriverQueue {
    /// The library's name for it.
    pub(super) token: QueueToken,
    /// The engine.
    pub(super) engine: u32,
    /// Start of the ring.
    pub(super) ring: u64,
    /// Bytes of the ring.
    pub(super) ring_bytes: u64,
    /// Where the ring lies.
    pub(super) ring_place: RingPlace,
    /// The 64-bit write pointer, in bytes.
    pub(super) write_pointer: u64,
    /// The 64-bit read pointer, in bytes, which the engine moves on.
    pub(super) read_pointer: u64,
    /// The 64-bit doorbell: the write pointer is stored there to make the engine look.
    pub(super) doorbell: u64,
    /// Whether kernels on the GPU may store to the doorbell.
    pub(super) device_ringable: bool,
}

impl DriverQueue {
    /// What makes the queue unusable, in words.
    pub(super) fn flaw(&self, engine: u32, ring_bytes: u64) -> Option<String> {
        if self.engine != engine {
            return Some(format!("a queue on engine {}, and {engine} was asked for", self.engine));
        }
        if self.ring_bytes != ring_bytes {
            return Some(format!("a ring of {} bytes, and {ring_bytes} were asked for", self.ring_bytes));
        }
        let pointers = [
            ("ring", self.ring),
            ("write pointer", self.write_pointer),
            ("read pointer", self.read_pointer),
            ("doorbell", self.doorbell),
        ];
        let bad = pointers.iter().find(|(_, address)| *address == 0 || address % 8 != 0)?;
        Some(format!("the address {:#x} for the {}, which must be a multiple of 8 and not 0", bad.1, bad.0))
    }
}

/// Makes queues on chosen engines of the GPUs of this process. Any thread, any number at once; not collective. What it reports about a
/// queue is believed: the host reads and writes at its addresses. It cannot be implemented outside this crate.
pub trait Driver: Send + Sync + fmt::Debug {
    /// Which functions of which library, for people.
    fn origin(&self) -> &str;

    /// The runtime's view of a GPU of the tree, found by domain and location.
    ///
    /// # Errors
    /// [`super::AmdError::NotShown`] if the runtime leaves the GPU out, [`super::AmdError::ShownSeveralTimes`] if it does not distinguish it
    /// from others; [`super::AmdError::Call`].
    fn node(&self, gpu: &Gpu) -> AmdResult<DriverNode>;

    /// Makes a queue with an empty ring; `ring_bytes` is a power of two. A failure in the middle gives back what was made.
    ///
    /// # Errors
    /// [`super::AmdError::QueueRefused`] for a code that a full engine gives; [`super::AmdError::Call`],
    /// [`super::AmdError::Returned`]; [`super::AmdError::Undo`] if something could not be given back.
    fn create(&self, node: DriverNode, engine: u32, ring_bytes: u64) -> AmdResult<DriverQueue>;

    /// Takes a queue of this driver away, then its ring. The engine no longer reads or writes any of its addresses after that.
    /// They must not be in use when this is called.
    ///
    /// # Errors
    /// [`super::AmdError::Call`]. What failed, and every later step, stays until the process ends: a ring is never
    /// freed while its queue may exist.
    fn destroy(&self, queue: DriverQueue) -> AmdResult<()>;
}
