//! The collectives.

use std::ffi::c_void;

use anabranch::GroupRank;
use anabranch::ccl::Call;

use crate::communicator::{Buffer, anabranch_comm, anabranch_work};
use crate::handle::{Out, slice, with};
use crate::status::{Failure, Result, anabranch_status};
use crate::types::{anabranch_data_type, anabranch_op};
use crate::versioned::{self, Versioned};

fn sum_of(counts: &[u64], name: &str) -> Result<u64> {
    let sum = counts.iter().try_fold(0u64, |sum, count| sum.checked_add(*count));
    sum.ok_or_else(|| Failure::usage(format!("{name} are {counts:?}: more elements than memory can hold")))
}

/// `output[i] = op over ranks of input[i]`. `output` and `input` are `[count]`, and may be the same.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn anabranch_all_reduce(
    comm: *const anabranch_comm,
    output: *mut c_void,
    input: *const c_void,
    count: u64,
    data_type: anabranch_data_type,
    op: anabranch_op,
    stream: *mut c_void,
    work: *mut *mut anabranch_work,
) -> anabranch_status {
    let work = Out::optional(work);
    with(comm, |comm| {
        let output = comm.buffer("output", output, count, data_type)?;
        let input = comm.buffer("input", input, count, data_type)?;
        let op = comm.operator(op)?;
        comm.launch(&Call::AllReduce { output: output.tensor()?, input: input.tensor()?, op }, stream, work)
    })
}

/// `output[i] = op over ranks of input[rank * count + i]`: `output` is `[count]`, `input` `[ranks * count]`. In place: `output` is the part of
/// this rank in `input`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn anabranch_reduce_scatter(
    comm: *const anabranch_comm,
    output: *mut c_void,
    input: *const c_void,
    count: u64,
    data_type: anabranch_data_type,
    op: anabranch_op,
    stream: *mut c_void,
    work: *mut *mut anabranch_work,
) -> anabranch_status {
    let work = Out::optional(work);
    with(comm, |comm| {
        let output = comm.buffer("output", output, count, data_type)?;
        let input = comm.buffer("input", input, comm.whole(count)?, data_type)?;
        let op = comm.operator(op)?;
        comm.launch(
            &Call::ReduceScatter { output: output.tensor()?, input: input.tensor()?, op },
            stream,
            work,
        )
    })
}

/// The same with `counts[r]` elements for rank r: `output` is `[counts[rank]]`, `input` `[sum of counts]`. `counts` has an element for each
/// rank. At most 64 ranks on one node. Not in place.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn anabranch_reduce_scatter_uneven(
    comm: *const anabranch_comm,
    output: *mut c_void,
    input: *const c_void,
    counts: *const u64,
    data_type: anabranch_data_type,
    op: anabranch_op,
    stream: *mut c_void,
    work: *mut *mut anabranch_work,
) -> anabranch_status {
    let work = Out::optional(work);
    with(comm, |comm| {
        let counts = slice(counts, comm.size() as usize, "counts")?;
        let output = comm.buffer("output", output, counts[comm.rank()], data_type)?;
        let input = comm.buffer("input", input, sum_of(counts, "counts")?, data_type)?;
        let (op, output, input) = (comm.operator(op)?, output.tensor()?, input.tensor()?);
        comm.launch(&Call::ReduceScatterUneven { output, input, op, counts }, stream, work)
    })
}

/// `output[r * count + i] = input of rank r [i]`: `output` is `[ranks * count]`, `input` `[count]`. In place: `input` is the part of this rank
/// in `output`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn anabranch_all_gather(
    comm: *const anabranch_comm,
    output: *mut c_void,
    input: *const c_void,
    count: u64,
    data_type: anabranch_data_type,
    stream: *mut c_void,
    work: *mut *mut anabranch_work,
) -> anabranch_status {
    let work = Out::optional(work);
    with(comm, |comm| {
        let output = comm.buffer("output", output, comm.whole(count)?, data_type)?;
        let input = comm.buffer("input", input, count, data_type)?;
        comm.launch(&Call::AllGather { output: output.tensor()?, input: input.tensor()? }, stream, work)
    })
}

/// The same with `counts[r]` elements of rank r: `output` is `[sum of counts]`, `input` `[counts[rank]]`. At most 64 ranks on one node.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn anabranch_all_gather_uneven(
    comm: *const anabranch_comm,
    output: *mut c_void,
    input: *const c_void,
    counts: *const u64,
    data_type: anabranch_data_type,
    stream: *mut c_void,
    work: *mut *mut anabranch_work,
) -> anabranch_status {
    let work = Out::optional(work);
    with(comm, |comm| {
        let counts = slice(counts, comm.size() as usize, "counts")?;
        let output = comm.buffer("output", output, sum_of(counts, "counts")?, data_type)?;
        let input = comm.buffer("input", input, counts[comm.rank()], data_type)?;
        let (output, input) = (output.tensor()?, input.tensor()?);
        comm.launch(&Call::AllGatherUneven { output, input, counts }, stream, work)
    })
}

/// One of the tensors of `anabranch_all_gather_many`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct anabranch_gathered {
    /// `sizeof(anabranch_gathered)`.
    pub size: usize,
    /// `[ranks * count]`.
    pub output: *mut c_void,
    /// `[count]`; may be the part of this rank in `output`.
    pub input: *const c_void,
    /// Elements of each rank.
    pub count: u64,
    /// Their type.
    pub data_type: anabranch_data_type,
    /// 0.
    pub reserved: u32,
}

// SAFETY: pointers and numbers, the size first.
unsafe impl Versioned for anabranch_gathered {
    const NAME: &'static str = "anabranch_gathered";
    const LEAST: usize = size_of::<Self>();

    fn reserved(&self) -> u32 {
        self.reserved
    }
}

/// `anabranch_all_gather` of several tensors in one launch.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn anabranch_all_gather_many(
    comm: *const anabranch_comm,
    tensors: *const anabranch_gathered,
    tensor_count: usize,
    stream: *mut c_void,
    work: *mut *mut anabranch_work,
) -> anabranch_status {
    let work = Out::optional(work);
    with(comm, |comm| {
        let one = |given: &anabranch_gathered| {
            let output = comm.buffer("output", given.output, comm.whole(given.count)?, given.data_type)?;
            Ok((output, comm.buffer("input", given.input, given.count, given.data_type)?))
        };
        let buffers =
            versioned::read_all(tensors, tensor_count)?.iter().map(one).collect::<Result<Vec<_>>>()?;
        let mut pairs = Vec::with_capacity(buffers.len());
        for (output, input) in &buffers {
            pairs.push((output.tensor()?, input.tensor()?));
        }
        comm.launch(&Call::AllGatherMany(&pairs), stream, work)
    })
}

/// `output[r * count + i] = input of rank r [rank * count + i]`: both are `[ranks * count]`, `count` elements for each pair of ranks.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn anabranch_all_to_all(
    comm: *const anabranch_comm,
    output: *mut c_void,
    input: *const c_void,
    count: u64,
    data_type: anabranch_data_type,
    stream: *mut c_void,
    work: *mut *mut anabranch_work,
) -> anabranch_status {
    let work = Out::optional(work);
    with(comm, |comm| {
        let all = comm.whole(count)?;
        let output = comm.buffer("output", output, all, data_type)?;
        let input = comm.buffer("input", input, all, data_type)?;
        comm.launch(&Call::AllToAll { output: output.tensor()?, input: input.tensor()? }, stream, work)
    })
}

/// The same with `output_counts[r]` elements from rank r and `input_counts[r]` elements to rank r, one after the other in rank order. What
/// one rank sends the other expects. At most 64 ranks on one node.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn anabranch_all_to_all_uneven(
    comm: *const anabranch_comm,
    output: *mut c_void,
    input: *const c_void,
    output_counts: *const u64,
    input_counts: *const u64,
    data_type: anabranch_data_type,
    stream: *mut c_void,
    work: *mut *mut anabranch_work,
) -> anabranch_status {
    let work = Out::optional(work);
    with(comm, |comm| {
        let size = comm.size() as usize;
        let output_splits = slice(output_counts, size, "output_counts")?;
        let input_splits = slice(input_counts, size, "input_counts")?;
        let output = comm.buffer("output", output, sum_of(output_splits, "output_counts")?, data_type)?;
        let input = comm.buffer("input", input, sum_of(input_splits, "input_counts")?, data_type)?;
        let (output, input) = (output.tensor()?, input.tensor()?);
        comm.launch(&Call::AllToAllUneven { output, input, output_splits, input_splits }, stream, work)
    })
}

/// `tensor = tensor of root`, `[count]`: read at `root`, a rank of the group, written elsewhere.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn anabranch_broadcast(
    comm: *const anabranch_comm,
    tensor: *mut c_void,
    count: u64,
    data_type: anabranch_data_type,
    root: u32,
    stream: *mut c_void,
    work: *mut *mut anabranch_work,
) -> anabranch_status {
    let work = Out::optional(work);
    with(comm, |comm| {
        let tensor = comm.buffer("tensor", tensor, count, data_type)?;
        comm.launch(&Call::Broadcast { tensor: tensor.tensor()?, root: GroupRank::new(root) }, stream, work)
    })
}

/// `output[i] = op over ranks of input[i]` at `root`; both are `[count]`, and may be the same. Other ranks' `output` is not written, and may
/// be NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn anabranch_reduce(
    comm: *const anabranch_comm,
    output: *mut c_void,
    input: *const c_void,
    count: u64,
    data_type: anabranch_data_type,
    op: anabranch_op,
    root: u32,
    stream: *mut c_void,
    work: *mut *mut anabranch_work,
) -> anabranch_status {
    let work = Out::optional(work);
    with(comm, |comm| {
        let is_unused = output.is_null() && comm.rank() != root as usize;
        let output = if is_unused { input } else { output.cast_const() };
        let output = comm.buffer("output", output, count, data_type)?;
        let input = comm.buffer("input", input, count, data_type)?;
        let (op, root) = (comm.operator(op)?, GroupRank::new(root));
        comm.launch(
            &Call::Reduce { output: output.tensor()?, input: input.tensor()?, op, root },
            stream,
            work,
        )
    })
}

/// `output[r * count + i] = input of rank r [i]` at `root`: `output` is `[ranks * count]` there and may be NULL elsewhere, `input` is
/// `[count]`. In a communicator with `symmetric`, symmetric outputs are given on all ranks.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn anabranch_gather(
    comm: *const anabranch_comm,
    output: *mut c_void,
    input: *const c_void,
    count: u64,
    data_type: anabranch_data_type,
    root: u32,
    stream: *mut c_void,
    work: *mut *mut anabranch_work,
) -> anabranch_status {
    let work = Out::optional(work);
    with(comm, |comm| {
        let whole = comm.whole(count)?;
        let output =
            if output.is_null() { None } else { Some(comm.buffer("output", output, whole, data_type)?) };
        let input = comm.buffer("input", input, count, data_type)?;
        let output = output.as_ref().map(Buffer::tensor).transpose()?;
        comm.launch(
            &Call::Gather { output, input: input.tensor()?, root: GroupRank::new(root) },
            stream,
            work,
        )
    })
}

/// `output[i] = input of root [rank * count + i]`: `output` is `[count]`, `input` `[ranks * count]` at `root` and may be NULL elsewhere.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn anabranch_scatter(
    comm: *const anabranch_comm,
    output: *mut c_void,
    input: *const c_void,
    count: u64,
    data_type: anabranch_data_type,
    root: u32,
    stream: *mut c_void,
    work: *mut *mut anabranch_work,
) -> anabranch_status {
    let work = Out::optional(work);
    with(comm, |comm| {
        let whole = comm.whole(count)?;
        let output = comm.buffer("output", output, count, data_type)?;
        let input = if input.is_null() { None } else { Some(comm.buffer("input", input, whole, data_type)?) };
        let input = input.as_ref().map(Buffer::tensor).transpose()?;
        comm.launch(
            &Call::Scatter { output: output.tensor()?, input, root: GroupRank::new(root) },
            stream,
            work,
        )
    })
}

/// A barrier on the streams of all ranks: work before it on any stream is done and visible to work after it on all.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn anabranch_barrier(
    comm: *const anabranch_comm,
    stream: *mut c_void,
    work: *mut *mut anabranch_work,
) -> anabranch_status {
    let work = Out::optional(work);
    with(comm, |comm| comm.launch(&Call::Barrier, stream, work))
}
