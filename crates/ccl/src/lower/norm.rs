//! Lowering of a sum over ranks with a norm of its rows: one kernel, or the sum in place and a kernel of the norm.

use anabranch_hip::LaunchShape;

use super::{Job, Reasoned, Tensors, local_bytes};
use crate::device::args::CommView;
use crate::device::kernels;
use crate::device::norm::{PARTIAL_BYTES, ReduceNormArgs, RmsNormArgs, RowNorm, UNIT_BYTES};
use crate::lower::launch::{Launch, Stage};
use crate::types::DataType;

/// The norm of a job.
#[derive(Clone, Copy, Debug)]
pub struct Norm<'a> {
    /// The channels of rows of the communicator.
    pub comm: &'a CommView,
    /// The norm, without its place in local memory.
    pub row: RowNorm,
    /// The most blocks of a kernel of the norm alone.
    pub blocks: u32,
    /// Its threads per block.
    pub threads: u32,
}

/// Local memory of a kernel that norms rows after `before` bytes: the start of its part, and the end.
const fn local(row: &RowNorm, before: u32) -> (u32, u32) {
    let start = before.next_multiple_of(16);
    (start, start + PARTIAL_BYTES + row.units * UNIT_BYTES as u32)
}

/// The longest row of kernels that sum and norm rows with this local memory, bytes.
pub(crate) fn longest_row(members: u32, local_memory: u32) -> u64 {
    local_memory.saturating_sub(local_bytes(members).next_multiple_of(16) + PARTIAL_BYTES).into()
}

/// The longest row of any kernel that norms rows with this local memory, bytes.
pub(crate) fn longest_alone(local_memory: u32) -> u64 {
    local_memory.saturating_sub(PARTIAL_BYTES).into()
}

pub(super) fn stages(job: &Job<'_>, norm: &Norm<'_>) -> Reasoned<Vec<Stage>> {
    let Tensors::One(buffers, _) = job.tensors else { return Err("it has one input") };
    if let (true, Some(kernel)) = (job.plan.norms, job.plan.recipe.normed) {
        let (local, end) = local(&norm.row, local_bytes(job.shape.members));
        let row = RowNorm { local, ..norm.row };
        let arguments = ReduceNormArgs { comm: *norm.comm, input: buffers.input, norm: row };
        let mut launch = job.launch(kernel, arguments);
        launch.shape.local_bytes = end;
        return Ok(vec![Stage::Kernel(launch)]);
    }
    let mut stages = super::stages(job)?;
    stages.push(alone(norm, buffers.input.own, job.shape.data_type));
    Ok(stages)
}

/// The kernel of the norm alone, of a sum at this address.
pub(crate) fn alone(norm: &Norm<'_>, sum: u64, data_type: DataType) -> Stage {
    let (local, local_bytes) = local(&norm.row, 0);
    let grid_blocks = norm.row.rows.clamp(1, norm.blocks.into()) as u32;
    let shape = LaunchShape { grid_blocks, block_threads: norm.threads, local_bytes };
    let arguments = RmsNormArgs { norm: RowNorm { local, ..norm.row }, sum };
    Stage::Kernel(Launch::new(kernels::RMS_NORM, arguments, data_type, shape))
}
