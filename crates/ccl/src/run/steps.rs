//! What a prepared call puts on a stream: one kernel, or kernels that meet and the copies between them.

use anabranch_hip::Stream;
use anabranch_shmem::{PeerCopy, StreamBarrier, Team};

use crate::lower::launch::LoadedLaunch;

/// One thing that goes onto the stream.
#[derive(Debug)]
pub(crate) enum Step {
    Kernel(LoadedLaunch),
    /// A kernel in which all meet, in whose place streams may.
    Meeting(LoadedLaunch),
    Legs(Vec<PeerCopy>),
}

impl Step {
    /// Puts it on the stream; in the closure of [`Team::launch_in_order`].
    ///
    /// # Safety
    /// The channels' memory and the call's tensors stay until the stream has passed the call.
    pub(crate) unsafe fn enqueue(
        &self,
        team: &Team,
        meeting: Option<&mut StreamBarrier>,
        stream: &Stream,
    ) -> anabranch_shmem::Result<()> {
        match self {
            // SAFETY: the caller keeps the memory of the peer copies; `lower/engine.rs` argues that nothing else uses it meanwhile.
            Self::Legs(legs) => unsafe { team.enqueue_copies(stream, legs) },
            // SAFETY: the caller's promise.
            Self::Kernel(launch) => Ok(unsafe { launch.enqueue(stream) }?),
            Self::Meeting(launch) => match meeting {
                Some(meeting) if !stream.is_capturing()? => meeting.enqueue(team, stream),
                // SAFETY: the caller's promise.
                _ => Ok(unsafe { launch.enqueue(stream) }?),
            },
        }
    }
}
