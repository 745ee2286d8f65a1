//! Calls by copy engine: kernels that meet, and the copies between them, one after the other in the order of a stream.

use anabranch_ccl::call::Shape;
use anabranch_ccl::engine::{self, EngineStep};
use anabranch_ccl::lower::{Arguments, kernel_of};
use anabranch_ccl::{Algorithm, kernels::entry};
use anabranch_hip_jit::DevicePointer;

use super::super::bench::{Grid, WAVE};
use super::Collectives;
use super::round::Round;
use crate::Failure;
use crate::kernels::CopyBytesArgs;

/// What such calls launch, and calls through the staging between them.
pub(super) const MOVES: &[&str] = &[entry::BARRIER, entry::MOVE_STAGED];
pub(super) const REDUCES: &[&str] = &[entry::PUSH, entry::ENGINE_REDUCE];

/// Which of a call's meetings: tests leave one out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(not(test), expect(dead_code, reason = "calls are whole but in tests"))]
pub(super) enum Meeting {
    First,
    Last,
}

impl Collectives {
    /// Queues a call; `outputs`: where each member's output starts.
    pub(super) fn by_engine(
        &mut self,
        rank: u32,
        round: &Round,
        shape: &Shape,
        arguments: &Arguments,
        outputs: &[u64],
    ) -> Result<(), Failure> {
        let bases: Vec<u64> = self.bench.ranks.iter().map(|rank| rank.heap.address()).collect();
        let element = u64::from(shape.data_type.bytes());
        let mut steps = match arguments {
            Arguments::Move(args) => engine::between_meetings(engine::moves(args, outputs)),
            Arguments::Uneven(args) => engine::between_meetings(engine::uneven_gather(args, outputs)),
            Arguments::Reduce(args) => engine::reduces(args, self.case.blocks, element, &bases, outputs),
            _ => return Err(Failure::new(format!("{} does not go by copy engine", shape.collective))),
        };
        let is_last_alone = |steps: &[EngineStep]| matches!(steps.last(), Some(EngineStep::Meeting));
        match self.left_out {
            Some(Meeting::First) => drop(steps.remove(0)),
            Some(Meeting::Last) if is_last_alone(&steps) => drop(steps.pop()),
            _ => {}
        }
        for step in steps {
            match step {
                EngineStep::Meeting => {
                    let meeting = Arguments::meeting(&self.channel(rank));
                    self.launch(rank, entry::BARRIER, (1, WAVE), &meeting)?;
                }
                EngineStep::Legs(legs) => {
                    for leg in legs {
                        let args = CopyBytesArgs {
                            to: DevicePointer::new(leg.target),
                            from: DevicePointer::new(leg.source),
                            bytes: leg.bytes,
                        };
                        let grid = Grid { blocks: 1, threads: WAVE, local_bytes: 0 };
                        self.bench.launch(rank, &self.copy_bytes, grid, &args)?;
                    }
                }
                EngineStep::Reduce(args) => {
                    let (_, entry) = kernel_of(shape, Algorithm::CopyEngine);
                    let grid = (round.blocks, round.threads);
                    self.launch(rank, entry, grid, &Arguments::EngineReduce(args))?;
                }
            }
        }
        Ok(())
    }
}
