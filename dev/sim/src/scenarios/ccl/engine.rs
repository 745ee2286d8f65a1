//! Calls by copy engine: kernels that meet, and the copies between them, one after the other in the order of a stream.

use anabranch_ccl::kernels;
use anabranch_ccl::lowered::Stage;
use anabranch_hip_jit::DevicePointer;

use super::super::bench::{Grid, WAVE};
use super::Collectives;
use crate::Failure;
use crate::kernels::CopyBytesArgs;

/// What such calls launch, and calls through the staging between them.
pub(super) const MOVES: &[&str] = &[kernels::BARRIER.entry(), kernels::MOVE_STAGED.entry()];
pub(super) const REDUCES: &[&str] = &[kernels::PUSH.entry(), kernels::ENGINE_REDUCE.entry()];

/// Which of a call's meetings: tests leave one out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(not(test), expect(dead_code, reason = "calls are whole but in tests"))]
pub(super) enum Meeting {
    First,
    Last,
}

impl Collectives {
    /// Queues what a call puts on its stream.
    pub(super) fn queue_stages(&mut self, rank: u32, mut stages: Vec<Stage>) -> Result<(), Failure> {
        let ends_in_barrier = matches!(stages.last(), Some(Stage::Barrier(_)));
        match self.left_out {
            Some(Meeting::First) => drop(stages.remove(0)),
            Some(Meeting::Last) if ends_in_barrier => drop(stages.pop()),
            _ => {}
        }
        for stage in stages {
            match stage {
                Stage::Kernel(launch) | Stage::Barrier(launch) => self.launch(rank, &launch)?,
                Stage::Copies(copies) => {
                    for copy in copies {
                        let args = CopyBytesArgs {
                            to: DevicePointer::new(copy.target),
                            from: DevicePointer::new(copy.source),
                            bytes: copy.bytes,
                        };
                        let grid = Grid { blocks: 1, threads: WAVE, local_bytes: 0 };
                        self.bench.launch(rank, &self.copy_bytes, grid, &args)?;
                    }
                }
            }
        }
        Ok(())
    }
}
