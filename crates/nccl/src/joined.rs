//! The world of a communicator.

use std::fmt;
use std::sync::{Arc, Mutex};

use anabranch::ccl::{CclConfig, Communicator};
use anabranch::hip::{RelaxedCapture, Stream};
use anabranch::shmem::LaunchOrder;
use anabranch::{JoinedRank, RuntimeKind, World};

use crate::blocks::Blocks;
use crate::comm::lock;
use crate::error::Failure;
use crate::process::Process;
use crate::scratch::Scratch;

/// A world that was joined for a communicator.
pub(crate) struct Joined {
    pub(crate) world: World,
    pub(crate) communicator: Mutex<Communicator>,
    /// Of this rank alone, once it is needed: it scales inputs.
    alone: Mutex<Option<Arc<Mutex<Communicator>>>>,
    /// Of the communicator's calls, as NCCL keeps it: over streams, captures, and launches of graphs.
    pub(crate) order: LaunchOrder,
    pub(crate) scratch: Scratch,
    /// For copies beside calls, in the turn of the order.
    pub(crate) side: Stream,
    /// Given back after the communicator.
    _blocks: Option<Blocks>,
    /// While the rest is dropped.
    relaxed: Option<RelaxedCapture>,
}

impl Drop for Joined {
    fn drop(&mut self) {
        // It frees device memory, on whatever thread uses it last, and another thread may capture.
        match RelaxedCapture::new(self.world.device().runtime()) {
            Ok(relaxed) => self.relaxed = relaxed,
            Err(failure) => tracing::warn!("a capture of another thread may fail: {failure}"),
        }
    }
}

impl fmt::Debug for Joined {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Joined").field("world", &self.world).finish_non_exhaustive()
    }
}

impl Joined {
    /// Joins, with at most so many blocks for a collective. Collective.
    ///
    /// # Errors
    /// Different settings on the ranks; the device's.
    pub(crate) fn new(
        process: &Process,
        rank: &JoinedRank,
        max_blocks: Option<u32>,
    ) -> Result<Self, Failure> {
        let world = process.platform.join(rank)?;
        let mut config = anabranch::ccl_config(world.settings())?;
        // 0: no setting.
        let set = Some(config.max_blocks).filter(|blocks| *blocks > 0);
        let blocks = match process.kind() {
            RuntimeKind::Host => None,
            // No block of a single rank waits for a peer, so its communicator needs no share.
            _ if world.size() == 1 => None,
            _ => Some(Blocks::take(&world, set, max_blocks)?),
        };
        let number = blocks.as_ref().map(|blocks| blocks.number);
        config.max_blocks = number.or_else(|| set.into_iter().chain(max_blocks).min()).unwrap_or(0);
        let communicator = Communicator::new(&world, world.group(), config)?;
        let communicator = Mutex::new(communicator);
        let (order, scratch) = (LaunchOrder::new(&world)?, Scratch::default());
        let side = world.device().create_stream()?;
        let alone = Mutex::default();
        Ok(Self { world, communicator, alone, order, scratch, side, _blocks: blocks, relaxed: None })
    }

    /// The communicator of this rank alone. The first call makes it.
    ///
    /// # Errors
    /// No memory for it.
    pub(crate) fn alone(&self) -> Result<Arc<Mutex<Communicator>>, Failure> {
        let mut alone = lock(&self.alone);
        if let Some(communicator) = &*alone {
            return Ok(Arc::clone(communicator));
        }
        let own = self.world.group().subset_of_ranks(&[self.world.rank()]);
        let own = own.map_err(anabranch::shmem::Error::from)?;
        // Another thread may capture.
        let _relaxed = RelaxedCapture::new(self.world.device().runtime())?;
        // What the user chose is for the collectives of all ranks. Its kernels wait for no rank, so that they
        // may have a block for each multiprocessor.
        let config = CclConfig { max_blocks: self.world.multiprocessors(), ..CclConfig::default() };
        let made = Communicator::new(&self.world, &own, config)?;
        Ok(Arc::clone(alone.insert(Arc::new(Mutex::new(made)))))
    }
}
