//! What happened in a seeded run, event by event. Allocations and offsets, never addresses: the same seed gives the same
//! bytes in every process.

use core::fmt;
use std::sync::Arc;

/// What stands in the place of a kernel for what a host thread does: a HIP call, a wait. The block is its seat.
pub const HOST: &str = "host";
/// What stands in the place of a kernel for what a stream begins.
pub const STREAM: &str = "stream";

/// One event of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// Primitives so far.
    pub step: u64,
    /// The device.
    pub device: u32,
    /// The kernel.
    pub kernel: Arc<str>,
    /// The block of its grid.
    pub block: u32,
    /// The wave of the block.
    pub wave: u32,
    /// The thread of the block; `None` for what the fabric did with a store of the wave.
    pub thread: Option<u32>,
    /// What was done.
    pub action: Action,
}

/// What an [`Event`] did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Access to memory: the word of the primitive, the allocation's name, the byte within, and the bytes.
    Access(&'static str, Arc<str>, u32, u32),
    /// A fence, a barrier, a wave operation, a look in vain, the end of the thread.
    Sync(&'static str),
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { step, device, kernel, block, wave, .. } = self;
        if &**kernel == HOST
            && let Action::Sync(what) = &self.action
        {
            return write!(f, "{step} rank {device} seat {block} {what}");
        }
        if &**kernel == STREAM
            && let Action::Sync(what) = &self.action
        {
            return write!(f, "{step} rank {device} stream {what}");
        }
        write!(f, "{step} device {device} {kernel} block {block} wave {wave}")?;
        match self.thread {
            Some(thread) => write!(f, " thread {thread}")?,
            None => f.write_str(" fabric")?,
        }
        match &self.action {
            Action::Access(what, name, byte, bytes) => write!(f, " {what} {name}+{byte} {bytes}"),
            Action::Sync(what) => write!(f, " {what}"),
        }
    }
}
