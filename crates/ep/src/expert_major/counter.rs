//! Counts of received pairs for each expert of this rank.

use anabranch_hip::{DeviceBuffer, LaunchShape, Stream};
use anabranch_hip_jit::{DevicePointer, LoadedKernel};

use super::plan::{ExpertMajorGeometry, check_local, run_count_bytes};
use super::reader::ReceivedReader;
use crate::args::{ExpertCountArgs, ExpertSumArgs};
use crate::error::Result;
use crate::kernels;
use crate::run::{Dispatched, ExpertParallel};
use crate::tensor::DeviceSlice;

/// Counts, for the dispatches of one plan, the received pairs of each expert of this rank. A pair is a received row and an index
/// k at which its token names an expert of this rank; a token that names one expert twice counts twice.
///
/// Not collective. It owns `[blocks][local experts]` u32 of device memory. Each launch waits, on its stream, for the launch before,
/// unless it is captured; the caller orders replays of captured launches.
#[derive(Debug)]
pub struct LocalExpertCounter {
    // First: its drop waits for launches.
    reader: ReceivedReader,
    count: LoadedKernel<ExpertCountArgs>,
    sum: LoadedKernel<ExpertSumArgs>,
    run_counts: DeviceBuffer,
}

impl LocalExpertCounter {
    /// Compiles and loads the kernels and allocates. Not collective.
    ///
    /// # Errors
    /// [`Error::Config`](crate::Error::Config) when the rank has too many experts for a block's local memory; errors of the compiler and the
    /// runtime.
    pub fn new(ep: &ExpertParallel) -> Result<Self> {
        let device = ep.world().device();
        let unit = ep.world().jit().load(device, &kernels::expert_count())?;
        let (count, sum) = (unit.get(kernels::EXPERT_COUNT)?, unit.get(kernels::EXPERT_SUM)?);
        let reader = ReceivedReader::new(ep, count.raw().max_block_threads()?)?;
        let local_experts = reader.local_experts();
        check_local(u64::from(local_experts) * 4, local_experts, reader.limits())?;
        let bytes = run_count_bytes(local_experts, reader.geometry()) as usize;
        Ok(Self { reader, count, sum, run_counts: device.allocate(bytes.max(16))? })
    }

    /// Writes the number of received pairs of each local expert, also zeros, to `output`: `[local experts]`
    /// u32, 4-byte aligned. Launches two kernels on the stream, which must be the dispatch's or ordered after it, and does not block the
    /// host. Not collective. May be captured into a graph.
    ///
    /// # Errors
    /// Before anything is launched: [`Error::ForeignHandle`](crate::Error::ForeignHandle), [`Error::Shape`](crate::Error::Shape),
    /// [`Error::Address`](crate::Error::Address), or an earlier fault of the world.
    pub fn local_expert_counts(
        &self,
        stream: &Stream,
        dispatched: &Dispatched,
        output: DeviceSlice,
    ) -> Result<()> {
        self.reader.check(dispatched)?;
        let experts = self.reader.local_experts();
        output.check("the local expert counts", experts as usize * 4, 4, || {
            format!("[{experts} local experts] u32")
        })?;
        self.reader.launch(stream, || {
            self.count(stream, dispatched)?;
            if experts == 0 {
                return Ok(());
            }
            let args = ExpertSumArgs {
                run_counts: DevicePointer::new(self.run_counts.address()),
                offsets: DevicePointer::new(dispatched.offsets()),
                output: DevicePointer::new(output.address()),
                ranks: self.reader.plan().ranks(),
                local_experts: experts,
                count_blocks: self.reader.geometry().blocks,
                reserved: 0,
            };
            let block_threads = self.reader.geometry().block_threads;
            let grid_blocks = experts.div_ceil(block_threads);
            let shape = LaunchShape { grid_blocks, block_threads, local_bytes: 0 };
            // SAFETY: the counts belong to `self`, whose drop waits for its last launch, the offsets to the slot that the handle holds;
            // `output` was checked against its shape.
            unsafe { self.sum.launch(shape, stream, &args)? };
            Ok(())
        })
    }

    /// Counts the pairs of each run of rows. The caller orders the stream and notes the use.
    fn count(&self, stream: &Stream, dispatched: &Dispatched) -> Result<()> {
        let args = ExpertCountArgs {
            received: self.reader.view(dispatched.slot.get()),
            run_counts: DevicePointer::new(self.run_counts.address()),
        };
        let shape = self.reader.shape(self.reader.local_experts() * 4);
        // SAFETY: the windows belong to the slot that the handle holds, the counts, of as many
        // runs as the grid has blocks, to `self`, whose drop waits for its last launch.
        unsafe { self.count.launch(shape, stream, &args)? };
        Ok(())
    }

    pub(super) fn reader(&self) -> &ReceivedReader {
        &self.reader
    }

    /// The shape of the launches.
    pub fn geometry(&self) -> ExpertMajorGeometry {
        self.reader.geometry()
    }

    /// Experts of this rank, possibly none.
    pub fn local_experts(&self) -> u32 {
        self.reader.local_experts()
    }
}
