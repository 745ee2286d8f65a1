//! Copies that NCCL's calls need. The root of a broadcast copies its input to its output. Inputs that overlap outputs, and scaled ones, are
//! copied to memory of the communicator: NCCL takes `ncclAlltoAll` and sends whose buffer is received into, too; this
//! library's collectives would read what a peer has already overwritten. So the input is copied first, and the result is that of separate buffers.

use std::sync::Mutex;

use anabranch::World;
use anabranch::hip::{DeviceAddress, DeviceBuffer, Stream};

use crate::comm::lock;
use crate::error::Failure;

/// Device memory of a communicator for such copies. It grows and is never freed before the communicator, because captured calls hold its
/// address; each buffer is at least twice as large as the one before.
#[derive(Debug, Default)]
pub(crate) struct Scratch(Mutex<Vec<DeviceBuffer>>);

/// The fewest bytes for which a copy beside a call saves more time than the events of its stream cost.
pub(crate) const LEAST_BESIDE: u64 = 1 << 20;

/// A copy for a call.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Copy {
    pub(crate) target: u64,
    pub(crate) source: u64,
    pub(crate) bytes: u64,
}

impl Copy {
    /// Queues the copy.
    ///
    /// # Errors
    /// The runtime's.
    pub(crate) fn queue(&self, stream: &Stream) -> Result<(), Failure> {
        let (target, source) = (DeviceAddress(self.target), DeviceAddress(self.source));
        // SAFETY: NCCL's contract: buffers of a call are device memory of this rank, free for the call until its work is over. The target is
        // one of them, or memory of `Scratch`, which calls use one after another (`LaunchOrder`).
        Ok(unsafe { stream.copy_async(target, source, self.bytes as usize) }?)
    }
}

impl Scratch {
    /// Memory of `bytes` bytes; the same for each call.
    ///
    /// # Errors
    /// Out of memory.
    pub(crate) fn address(&self, world: &World, bytes: u64) -> Result<u64, Failure> {
        let mut buffers = lock(&self.0);
        let largest = buffers.last().map_or(0, |buffer| buffer.len() as u64);
        if largest < bytes {
            let size = bytes.max(2 * largest).next_multiple_of(1 << 20);
            buffers.push(world.device().allocate(size as usize)?);
        }
        Ok(buffers.last().map_or(0, |buffer| buffer.address().0))
    }
}

/// Bytes of an input in the memory, so that the next one is aligned for any element type.
pub(crate) fn aligned(bytes: u64) -> u64 {
    bytes.next_multiple_of(256)
}

/// Whether two ranges of bytes overlap.
pub(crate) fn overlap(first: (u64, u64), second: (u64, u64)) -> bool {
    first.1 > 0 && second.1 > 0 && first.0 < second.0 + second.1 && second.0 < first.0 + first.1
}
