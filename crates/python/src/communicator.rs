//! Collectives and messages over tensors of any library.

use std::sync::{Arc, Mutex, PoisonError};

use anabranch::ccl::{self, Call, PointToPoint};
use anabranch::{Group, GroupRank};
use pyo3::prelude::*;

use crate::array::Array;
use crate::errors::{raise, usage};
use crate::logs;
use crate::norm::{self, Scales};
use crate::operator::{Operator, operator};
use crate::state::{State, member};
use crate::unlocked::Unlocked;
use crate::work::Work;

/// Collectives among ranks of a world. Made by `World.communicator`.
///
/// Every call is made by all ranks of the group, in the same order, with the same count, element type and kind of memory (`Memory` of
/// `World.empty` is symmetric, every other tensor local). Calls return at once; their work runs in the order of the stream.
#[pyclass(frozen, module = "anabranch", name = "Communicator")]
#[derive(Debug)]
pub(crate) struct Communicator {
    state: Unlocked<Arc<State>>,
    group: Group,
    rank: GroupRank,
    inner: Unlocked<Arc<Mutex<ccl::Communicator>>>,
}

/// Launches one call.
pub(crate) type Run<'r> = &'r mut (dyn FnMut(&Call<'_>) -> Result<ccl::Work, ccl::Error> + 'r);

/// A message of a batch, to or from a peer.
fn message<'a>(
    (array, (is_send, peer)): (&'a Array, &(bool, GroupRank)),
) -> Result<PointToPoint<'a>, ccl::Error> {
    // SAFETY: `Communicator::launch` keeps the tensors until the work is over.
    let tensor = unsafe { array.tensor()? };
    Ok(if *is_send { PointToPoint::send(tensor, *peer) } else { PointToPoint::receive(tensor, *peer) })
}

/// The elements of rows of the first dimension.
fn elements(name: &str, splits: &[u64], row: u64) -> PyResult<Vec<u64>> {
    let all = splits.iter().map(|rows| rows.checked_mul(row)).collect::<Option<Vec<_>>>();
    all.ok_or_else(|| {
        usage(format!("{name} has more elements than memory can hold: {splits:?} rows of {row}"))
    })
}

impl Communicator {
    pub(crate) fn new(state: Arc<State>, group: Group, inner: ccl::Communicator) -> Self {
        let rank = inner.rank();
        Self { state: Unlocked::new(state), group, rank, inner: Unlocked::new(Arc::new(Mutex::new(inner))) }
    }

    /// What calls from other modules need.
    pub(crate) fn parts(&self) -> (&Arc<State>, &Arc<Mutex<ccl::Communicator>>) {
        (&self.state, &self.inner)
    }

    pub(crate) const fn group(&self) -> &Group {
        &self.group
    }

    /// The Python object of a launched call.
    pub(crate) fn work(&self, work: ccl::Work) -> Work {
        Work { state: Unlocked::new(Arc::clone(&self.state)), work: Unlocked::new(Arc::new(work)) }
    }

    fn array(&self, name: &'static str, object: &Bound<'_, PyAny>) -> PyResult<Array> {
        Array::new(name, object, self.state.home)
    }

    fn optional(&self, name: &'static str, object: Option<&Bound<'_, PyAny>>) -> PyResult<Option<Array>> {
        Array::optional(name, object, self.state.home)
    }

    /// `tensor`, and `out` where it is given. Without it the call writes `tensor`, on the ranks for which `writes` holds.
    fn in_place_or(
        &self,
        writes: bool,
        tensor: &Bound<'_, PyAny>,
        out: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Vec<Array>> {
        let tensor = self.array("tensor", tensor)?;
        let Some(out) = self.optional("out", out)? else {
            return Ok(vec![if writes { tensor.written()? } else { tensor }]);
        };
        Ok(vec![tensor, if writes { out.written()? } else { out }])
    }

    fn member(&self, rank: u32, name: &str) -> PyResult<GroupRank> {
        member(&self.group, rank, name)
    }

    /// Launches a call and keeps its tensors until it is over.
    fn launch(
        &self,
        py: Python<'_>,
        stream: Option<&Bound<'_, PyAny>>,
        arrays: Vec<Array>,
        call: impl for<'a> FnOnce(&'a [Array], Run<'_>) -> Result<ccl::Work, ccl::Error> + Send,
    ) -> PyResult<Work> {
        self.state.live()?;
        let stream = self.state.stream(py, stream, arrays.first())?;
        self.state.release_before(&stream);
        // No error becomes an exception in here: that takes the interpreter's lock, and others may hold it and wait for this mutex.
        let result = py.detach(|| {
            let mut inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
            let work = call(&arrays, &mut |call| inner.run(call, &stream));
            // Also after an error: the first of two kernels may have been launched.
            let event = work.as_ref().ok().map(|work| work.event().clone());
            self.state.hold(&stream, event, arrays.into_iter().flat_map(Array::into_objects).collect());
            work
        });
        logs::flush(py);
        Ok(self.work(result.map_err(raise)?))
    }
}

#[pymethods]
impl Communicator {
    /// This rank in the group.
    #[getter]
    fn rank(&self) -> u32 {
        self.rank.get()
    }

    /// Ranks of the group.
    #[getter]
    fn size(&self) -> u32 {
        self.group.size()
    }

    /// The group: ranks of the world, in order.
    #[getter]
    fn ranks(&self) -> Vec<u32> {
        self.group.members().iter().map(|rank| rank.get()).collect()
    }

    /// Reduces `tensor` over the ranks into `out`, or in place. Any shape, contiguous; `op` is "sum", "avg", "product", "min", "max", "band",
    /// "bor", "bxor" or `("premul_sum", scalar)`, where the scalar is a number, the same on all ranks, or a tensor of one element of the type
    /// of `tensor`, which the call reads in the order of the stream. For integers the number is whole and of magnitude below 2^53, and "avg"
    /// is rounded towards zero; bool has neither. Sums are added in rank order: the same bits on all ranks and in every run.
    #[pyo3(signature = (tensor, op = None, *, out = None, stream = None))]
    fn all_reduce(
        &self,
        py: Python<'_>,
        tensor: &Bound<'_, PyAny>,
        op: Option<&Bound<'_, PyAny>>,
        out: Option<&Bound<'_, PyAny>>,
        stream: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Work> {
        let Operator { op, scalar } = operator(op, self.state.home)?;
        let mut arrays = self.in_place_or(true, tensor, out)?;
        let last = arrays.len() - 1;
        arrays.extend(scalar);
        self.launch(py, stream, arrays, move |arrays, run| {
            // SAFETY: `launch` keeps the tensors until the work is over.
            let (input, output) = unsafe { (arrays[0].tensor()?, arrays[last].tensor()?) };
            run(&Call::AllReduce { output, input, op })
        })
    }

    /// Adds `input`, `[rows, row]`, over the ranks, then the residual, and norms each row (RMSNorm): in one kernel where the message is short.
    /// `out = kept / sqrt(mean(kept^2) + epsilon) * weight`, with `kept = sum + residual`. **`input` is used up**: it may be overwritten. Types
    /// are float32, float16 or bfloat16; a row is a multiple of 16 bytes, and tensors start at multiples of 16 bytes.
    ///
    /// `kept` gets what was normed; without it the residual does. It may be `residual` or `input`; `out` may be `input`. In 8 bits `out` is
    /// float8_e4m3fn or float8_e4m3fnuz, with `scale`, float32 `[1]`, or with `scales`, which the call writes: float32, one for each
    /// `group_size` elements, `[rows, row / group_size]`, or with `scale_stride`
    /// column-major, `[row / group_size, scale_stride]`: the scale of group g of row r is at `[g, r]`. The
    /// bits do not depend on the rank, the run or the number of kernels.
    #[pyo3(signature = (
        input, weight, out, *, epsilon = 1e-6, residual = None, kept = None, scale = None, scales = None, group_size = 128,
        scale_stride = None, stream = None
    ))]
    #[expect(clippy::too_many_arguments, reason = "keywords of Python")]
    fn all_reduce_rms_norm(
        &self,
        py: Python<'_>,
        input: &Bound<'_, PyAny>,
        weight: &Bound<'_, PyAny>,
        out: &Bound<'_, PyAny>,
        epsilon: f32,
        residual: Option<&Bound<'_, PyAny>>,
        kept: Option<&Bound<'_, PyAny>>,
        scale: Option<&Bound<'_, PyAny>>,
        scales: Option<&Bound<'_, PyAny>>,
        group_size: u32,
        scale_stride: Option<u64>,
        stream: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Work> {
        let mut arrays = vec![
            self.array("input", input)?.written()?,
            self.array("weight", weight)?,
            self.array("out", out)?.written()?,
        ];
        norm::check_rows(&arrays[0], &arrays[1])?;
        let shape = arrays[0].shape().to_vec();
        norm::check_shape("out", &arrays[2], &shape)?;
        let mut add = |array: Option<Array>| {
            array.map(|array| {
                arrays.push(array);
                arrays.len() - 1
            })
        };
        let residual = self.optional("residual", residual)?;
        let kept = self.optional("kept", kept)?.map(Array::written).transpose()?;
        for (name, array) in [("residual", &residual), ("kept", &kept)] {
            array.as_ref().map_or(Ok(()), |array| norm::check_shape(name, array, &shape))?;
        }
        let residual = match kept {
            None => residual.map(Array::written).transpose()?,
            Some(_) => residual,
        };
        let residual = add(residual);
        let kept = add(kept).or(residual);
        let scales = match (self.optional("scale", scale)?, self.optional("scales", scales)?) {
            (None, None) => None,
            (Some(scale), None) => add(Some(scale)).map(Scales::By),
            (None, Some(scales)) => {
                add(Some(norm::check_scales(scales.written()?, (&shape, group_size, scale_stride))?))
                    .map(|scales| Scales::Groups { scales, group: group_size, stride: scale_stride })
            }
            (Some(_), Some(_)) => return Err(usage("give scale or scales, not both")),
        };
        self.launch(py, stream, arrays, move |arrays, run| {
            // SAFETY: `launch` keeps the tensors until the work is over.
            unsafe { norm::run(arrays, (residual, kept), scales, epsilon, run) }
        })
    }

    /// Gathers each rank's `input` into `output` of all ranks, in rank order: `[ranks * n, ...]` from `[n, ...]`. With `counts`, rank r
    /// gives `counts[r]` rows of the first dimension.
    #[pyo3(signature = (output, input, *, counts = None, stream = None))]
    fn all_gather_into_tensor(
        &self,
        py: Python<'_>,
        output: &Bound<'_, PyAny>,
        input: &Bound<'_, PyAny>,
        counts: Option<Vec<u64>>,
        stream: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Work> {
        let arrays = vec![self.array("input", input)?, self.array("output", output)?.written()?];
        let counts = counts.map(|counts| elements("counts", &counts, arrays[1].row())).transpose()?;
        self.launch(py, stream, arrays, move |arrays, run| {
            // SAFETY: `launch` keeps the tensors until the work is over.
            let (input, output) = unsafe { (arrays[0].tensor()?, arrays[1].tensor()?) };
            match &counts {
                None => run(&Call::AllGather { output, input }),
                Some(counts) => run(&Call::AllGatherUneven { output, input, counts }),
            }
        })
    }

    /// Reduces `input`, `[ranks * n, ...]`, over the ranks, and leaves part r, `[n, ...]`, in `output` of rank r. With `counts`, part r has
    /// `counts[r]` rows of the first dimension.
    #[pyo3(signature = (output, input, op = None, *, counts = None, stream = None))]
    fn reduce_scatter_tensor(
        &self,
        py: Python<'_>,
        output: &Bound<'_, PyAny>,
        input: &Bound<'_, PyAny>,
        op: Option<&Bound<'_, PyAny>>,
        counts: Option<Vec<u64>>,
        stream: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Work> {
        let Operator { op, scalar } = operator(op, self.state.home)?;
        let mut arrays = vec![self.array("input", input)?, self.array("output", output)?.written()?];
        arrays.extend(scalar);
        let counts = counts.map(|counts| elements("counts", &counts, arrays[0].row())).transpose()?;
        self.launch(py, stream, arrays, move |arrays, run| {
            // SAFETY: `launch` keeps the tensors until the work is over.
            let (input, output) = unsafe { (arrays[0].tensor()?, arrays[1].tensor()?) };
            match &counts {
                None => run(&Call::ReduceScatter { output, input, op }),
                Some(counts) => run(&Call::ReduceScatterUneven { output, input, op, counts }),
            }
        })
    }

    /// Sends part p of `input` to rank p, and receives part s of `output` from rank s. The parts are equal, or have as many rows of the first
    /// dimension as the split sizes say; what rank s sends to rank p is what rank p expects of it.
    #[pyo3(signature = (output, input, output_split_sizes = None, input_split_sizes = None, *, stream = None))]
    fn all_to_all_single(
        &self,
        py: Python<'_>,
        output: &Bound<'_, PyAny>,
        input: &Bound<'_, PyAny>,
        output_split_sizes: Option<Vec<u64>>,
        input_split_sizes: Option<Vec<u64>>,
        stream: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Work> {
        let arrays = vec![self.array("input", input)?, self.array("output", output)?.written()?];
        let splits = match (output_split_sizes, input_split_sizes) {
            (None, None) => None,
            (Some(output), Some(input)) => Some((
                elements("output_split_sizes", &output, arrays[1].row())?,
                elements("input_split_sizes", &input, arrays[0].row())?,
            )),
            _ => return Err(usage("give output_split_sizes and input_split_sizes, or neither")),
        };
        self.launch(py, stream, arrays, move |arrays, run| {
            // SAFETY: `launch` keeps the tensors until the work is over.
            let (input, output) = unsafe { (arrays[0].tensor()?, arrays[1].tensor()?) };
            match &splits {
                None => run(&Call::AllToAll { output, input }),
                Some((output_splits, input_splits)) => {
                    run(&Call::AllToAllUneven { output, input, output_splits, input_splits })
                }
            }
        })
    }

    /// Gives the tensor of `src`, a rank of the group, to all ranks.
    #[pyo3(signature = (tensor, src = 0, *, stream = None))]
    fn broadcast(
        &self,
        py: Python<'_>,
        tensor: &Bound<'_, PyAny>,
        src: u32,
        stream: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Work> {
        let root = self.member(src, "src")?;
        let tensor = self.array("tensor", tensor)?;
        let tensor = if self.rank == root { tensor } else { tensor.written()? };
        self.launch(py, stream, vec![tensor], move |arrays, run| {
            // SAFETY: `launch` keeps the tensor until the work is over.
            let tensor = unsafe { arrays[0].tensor()? };
            run(&Call::Broadcast { tensor, root })
        })
    }

    /// Reduces `tensor` over the ranks into `out` of `dst`, a rank of the group, or in place there. Other ranks' `out` is not written.
    #[pyo3(signature = (tensor, dst = 0, op = None, *, out = None, stream = None))]
    fn reduce(
        &self,
        py: Python<'_>,
        tensor: &Bound<'_, PyAny>,
        dst: u32,
        op: Option<&Bound<'_, PyAny>>,
        out: Option<&Bound<'_, PyAny>>,
        stream: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Work> {
        let root = self.member(dst, "dst")?;
        let Operator { op, scalar } = operator(op, self.state.home)?;
        let mut arrays = self.in_place_or(self.rank == root, tensor, out)?;
        let last = arrays.len() - 1;
        arrays.extend(scalar);
        self.launch(py, stream, arrays, move |arrays, run| {
            // SAFETY: `launch` keeps the tensors until the work is over.
            let (input, output) = unsafe { (arrays[0].tensor()?, arrays[last].tensor()?) };
            run(&Call::Reduce { output, input, op, root })
        })
    }

    /// Gathers each rank's tensor, `[n, ...]`, into `gather_into`, `[ranks * n, ...]`, of rank `dst`. Other ranks give none.
    #[pyo3(signature = (tensor, gather_into = None, dst = 0, *, stream = None))]
    fn gather(
        &self,
        py: Python<'_>,
        tensor: &Bound<'_, PyAny>,
        gather_into: Option<&Bound<'_, PyAny>>,
        dst: u32,
        stream: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Work> {
        let root = self.member(dst, "dst")?;
        let mut arrays = vec![self.array("tensor", tensor)?];
        arrays.extend(self.optional("gather_into", gather_into)?.map(Array::written).transpose()?);
        self.launch(py, stream, arrays, move |arrays, run| {
            // SAFETY: `launch` keeps the tensors until the work is over.
            let (input, output) =
                unsafe { (arrays[0].tensor()?, arrays.get(1).map(|array| array.tensor()).transpose()?) };
            run(&Call::Gather { output, input, root })
        })
    }

    /// Gives part r of `scatter_from`, `[ranks * n, ...]`, of rank `src` to `tensor`, `[n, ...]`, of rank r. Other ranks give none.
    #[pyo3(signature = (tensor, scatter_from = None, src = 0, *, stream = None))]
    fn scatter(
        &self,
        py: Python<'_>,
        tensor: &Bound<'_, PyAny>,
        scatter_from: Option<&Bound<'_, PyAny>>,
        src: u32,
        stream: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Work> {
        let root = self.member(src, "src")?;
        let mut arrays = vec![self.array("tensor", tensor)?.written()?];
        arrays.extend(self.optional("scatter_from", scatter_from)?);
        self.launch(py, stream, arrays, move |arrays, run| {
            // SAFETY: `launch` keeps the tensors until the work is over.
            let (output, input) =
                unsafe { (arrays[0].tensor()?, arrays.get(1).map(|array| array.tensor()).transpose()?) };
            run(&Call::Scatter { output, input, root })
        })
    }

    /// Sends a tensor to `dst`, a rank of the group, which calls `recv`. In the order of the stream: for messages in both directions use `batch`.
    #[pyo3(signature = (tensor, dst, *, stream = None))]
    fn send(
        &self,
        py: Python<'_>,
        tensor: &Bound<'_, PyAny>,
        dst: u32,
        stream: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Work> {
        let to = self.member(dst, "dst")?;
        self.launch(py, stream, vec![self.array("tensor", tensor)?], move |arrays, run| {
            // SAFETY: `launch` keeps the tensor until the work is over.
            run(&Call::Send { tensor: unsafe { arrays[0].tensor()? }, to })
        })
    }

    /// Receives into a tensor from `src`, a rank of the group: as many bytes as it sends.
    #[pyo3(signature = (tensor, src, *, stream = None))]
    fn recv(
        &self,
        py: Python<'_>,
        tensor: &Bound<'_, PyAny>,
        src: u32,
        stream: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Work> {
        let from = self.member(src, "src")?;
        self.launch(py, stream, vec![self.array("tensor", tensor)?.written()?], move |arrays, run| {
            // SAFETY: `launch` keeps the tensor until the work is over.
            run(&Call::Receive { tensor: unsafe { arrays[0].tensor()? }, from: Some(from) })
        })
    }

    /// Sends and receives at once: `("send" | "recv", tensor, peer)` each, with ranks of the group. Several messages of one pair go in order.
    #[pyo3(signature = (messages, *, stream = None))]
    fn batch(
        &self,
        py: Python<'_>,
        messages: &Bound<'_, PyAny>,
        stream: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Work> {
        let (mut arrays, mut peers) = (Vec::new(), Vec::new());
        for message in messages.try_iter()? {
            let (direction, tensor, peer) = message?.extract::<(String, Bound<'_, PyAny>, u32)>()?;
            let is_send = match direction.as_str() {
                "send" => true,
                "recv" => false,
                other => return Err(usage(format!("a message is \"send\" or \"recv\", not {other:?}"))),
            };
            peers.push((is_send, self.member(peer, "a message's peer")?));
            let tensor = self.array("a message's tensor", &tensor)?;
            arrays.push(if is_send { tensor } else { tensor.written()? });
        }
        self.launch(py, stream, arrays, move |arrays, run| {
            let messages = arrays.iter().zip(&peers).map(message).collect::<Result<Vec<_>, _>>()?;
            run(&Call::Batch(&messages))
        })
    }

    /// Lets the stream of each rank go on when all have come.
    #[pyo3(signature = (*, stream = None))]
    fn barrier(&self, py: Python<'_>, stream: Option<&Bound<'_, PyAny>>) -> PyResult<Work> {
        self.launch(py, stream, Vec::new(), |_, run| run(&Call::Barrier))
    }

    fn __repr__(&self) -> String {
        format!("anabranch.Communicator(rank={}, size={})", self.rank(), self.size())
    }
}
