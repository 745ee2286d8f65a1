//! The steps of a prepared call on its stream: kernels, barriers and copies.

use anabranch_hip::Stream;
use anabranch_shmem::{PeerCopy, StreamBarrier, Team};

use crate::lower::launch::LoadedLaunch;

/// One step.
#[derive(Debug)]
pub(crate) enum Step {
    Kernel(LoadedLaunch),
    /// A barrier kernel, or the barrier of streams of the communicator instead.
    Barrier(LoadedLaunch),
    Copies(Vec<PeerCopy>),
}

impl Step {
    /// Enqueues it on the stream; in the closure of [`Team::launch_in_order`].
    ///
    /// # Safety
    /// The memory of the channels and the tensors of the call stay allocated until the stream has passed the call.
    pub(crate) unsafe fn enqueue(
        &self,
        team: &Team,
        barrier: Option<&mut StreamBarrier>,
        stream: &Stream,
    ) -> anabranch_shmem::Result<()> {
        match self {
            // SAFETY: the caller keeps the memory of the peer copies; `lower/engine.rs` argues that nothing else uses it meanwhile.
            Self::Copies(copies) => unsafe { team.enqueue_copies(stream, copies) },
            // SAFETY: the caller's promise.
            Self::Kernel(launch) => Ok(unsafe { launch.enqueue(stream) }?),
            Self::Barrier(launch) => match barrier {
                Some(barrier) if !stream.is_capturing()? => barrier.enqueue(team, stream),
                // SAFETY: the caller's promise.
                _ => Ok(unsafe { launch.enqueue(stream) }?),
            },
        }
    }
}
