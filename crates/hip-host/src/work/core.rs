//! What running things share of a machine.

use std::sync::Arc;

use crate::config::HostConfig;
use crate::fault::FaultLog;
use crate::grid::stack::StackArena;
use crate::memory::regions::MemoryMap;
use crate::work::scheduler::Scheduler;

/// What running things share. Tasks hold it; it does not hold them, except through the scheduler, which drops
/// its tasks when it stops.
#[derive(Debug)]
pub(crate) struct Core {
    pub(crate) config: HostConfig,
    pub(crate) scheduler: Arc<dyn Scheduler>,
    pub(crate) stacks: Arc<StackArena>,
    pub(crate) faults: Arc<FaultLog>,
}

impl Core {
    /// Writes memory from outside of kernels. What `write` does to the range was checked.
    pub(crate) fn writes(&self, address: usize, bytes: usize, mut write: impl FnMut()) {
        self.scheduler.writes(address, bytes, &mut write);
    }
}

/// What a scheduler of a machine may use of it.
#[derive(Debug)]
#[non_exhaustive]
pub struct MachineParts {
    /// Which memory lies where.
    pub memory: MemoryMap,
    /// Which devices are lost.
    pub faults: Arc<FaultLog>,
    /// Stacks for all lanes that may run at once.
    pub stacks: Arc<StackArena>,
}
