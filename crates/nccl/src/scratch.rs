//! Copies of inputs that overlap outputs. NCCL takes `ncclAlltoAll` and sends whose buffer is received into, too; this library's
//! collectives would read what a peer has already overwritten. So the input is copied first, and the result is that of separate buffers.

use std::sync::Mutex;

use anabranch::World;
use anabranch::hip::{DeviceAddress, DeviceBuffer, Event, Stream};

use crate::comm::lock;
use crate::error::Failure;

/// Device memory of a communicator for such copies. It grows and is never freed before the communicator, because captured calls hold its
/// address; each buffer is at least twice as large as the one before.
#[derive(Debug, Default)]
pub(crate) struct Scratch(Mutex<Memory>);

#[derive(Debug, Default)]
struct Memory {
    buffers: Vec<DeviceBuffer>,
    /// After the last call that used the memory, on its stream.
    last: Option<Event>,
}

/// A copy on the stream of a call, before it.
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
        // one of them, or memory of `Scratch`, which calls use one after another.
        Ok(unsafe { stream.copy_async(target, source, self.bytes as usize) }?)
    }
}

impl Scratch {
    /// Memory of `bytes` bytes; the same for each call.
    ///
    /// # Errors
    /// Out of memory.
    pub(crate) fn address(&self, world: &World, bytes: u64) -> Result<u64, Failure> {
        let mut memory = lock(&self.0);
        let largest = memory.buffers.last().map_or(0, |buffer| buffer.len() as u64);
        if largest < bytes {
            let size = bytes.max(2 * largest).next_multiple_of(1 << 20);
            memory.buffers.push(world.device().allocate(size as usize)?);
        }
        Ok(memory.buffers.last().map_or(0, |buffer| buffer.address().0))
    }

    /// Orders the stream after the last use on another stream. The order of captured calls is the program's, as for NCCL.
    ///
    /// # Errors
    /// The runtime's.
    pub(crate) fn begin(&self, stream: &Stream, is_captured: bool) -> Result<(), Failure> {
        match &lock(&self.0).last {
            Some(last) if !is_captured => Ok(stream.wait_event(last)?),
            _ => Ok(()),
        }
    }

    /// Notes the end of a use.
    ///
    /// # Errors
    /// The runtime's.
    pub(crate) fn end(&self, world: &World, stream: &Stream, is_captured: bool) -> Result<(), Failure> {
        if is_captured {
            return Ok(());
        }
        let event = world.device().create_event()?;
        stream.record(&event)?;
        lock(&self.0).last = Some(event);
        Ok(())
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
