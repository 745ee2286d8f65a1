//! Dispatch and combine, each also split into send and receive.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anabranch::ccl::DataType;
use anabranch::ep::{self, CombineOutput, ExpertMajorConfig, ExpertOutput, ReplayedTokens, ScaleLayout};
use anabranch::hip::Stream;
use pyo3::prelude::*;

use super::config::word;
use super::dispatched::{CombineSent, DispatchSent, Dispatched, HandleStream, Routing};
use super::tensors::{combine_output, expert_output, objects};
use super::{ContiguousExperts, ExpertMajor, Inner, RowUnpacker, taken};
use crate::array::Array;
use crate::errors::{raise, usage};
use crate::logs;
use crate::memory::{Memory, Owner};
use crate::state::{collective, member, wait_in_slices};
use crate::unlocked::Unlocked;
use crate::work::seconds;

/// Dispatch and combine among ranks of a world. Made by `World.expert_parallel`.
#[pyclass(frozen, module = "anabranch", name = "ExpertParallel")]
#[derive(Debug)]
pub(crate) struct ExpertParallel {
    pub(super) inner: Unlocked<Arc<Inner>>,
}

#[pymethods]
impl ExpertParallel {
    /// This rank in the group.
    #[getter]
    fn rank(&self) -> u32 {
        self.inner.ep.rank().get()
    }

    /// Ranks of the group.
    #[getter]
    fn size(&self) -> u32 {
        self.inner.ep.plan().ranks()
    }

    /// Rows of each window.
    #[getter]
    fn rows_capacity(&self) -> u64 {
        self.inner.ep.plan().rows()
    }

    /// Rows of a source in the windows, in slotted mode; 0 in compact mode, where `offsets` says where they start.
    #[getter]
    fn row_stride(&self) -> u32 {
        self.inner.ep.plan().row_stride()
    }

    /// Bytes of the symmetric heap that the plan takes.
    #[getter]
    fn heap_bytes(&self) -> u64 {
        self.inner.ep.plan().heap_bytes()
    }

    /// The experts of a rank, ascending.
    #[pyo3(signature = (rank = None))]
    fn experts_on(&self, rank: Option<u32>) -> PyResult<Vec<u32>> {
        let rank = match rank {
            Some(rank) => member(self.inner.ep.group(), rank, "rank")?,
            None => self.inner.ep.rank(),
        };
        Ok(self.inner.ep.plan().experts_on(rank))
    }

    /// Sends every token to the ranks that own its experts. All ranks of the group call it, also with 0 tokens.
    ///
    /// `x` is `[tokens, hidden]` of the plan's type (8-bit floats may be uint8), `topk_ids` `[tokens, top_k]` of the plan's `id_dtype` with -1 for no expert,
    /// `topk_weights` `[tokens, top_k]` float32, `scales` `scale_bytes` bytes a token. With `num_tokens`, one 32-bit integer in device memory,
    /// that many of the tokens are sent.
    #[pyo3(signature = (x, topk_ids, topk_weights = None, scales = None, *, num_tokens = None, stream = None))]
    fn dispatch(
        &self,
        py: Python<'_>,
        x: &Bound<'_, PyAny>,
        topk_ids: &Bound<'_, PyAny>,
        topk_weights: Option<&Bound<'_, PyAny>>,
        scales: Option<&Bound<'_, PyAny>>,
        num_tokens: Option<&Bound<'_, PyAny>>,
        stream: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Dispatched> {
        let tensors = (x, topk_ids, topk_weights, scales, num_tokens);
        let (stream, handle) = self.send(py, tensors, stream, ep::ExpertParallel::dispatch)?;
        Ok(self.dispatched(stream, handle))
    }

    /// Sums what the experts made of each token's rows, in rank order, into `out`, `[tokens, hidden]` of the plan's combine type.
    ///
    /// `y` is `[rows, hidden]` with each row at the place of the row that it came from; without it the rows are in
    /// `dispatched.combine_rows`. Weights are not applied. `out_weights`, `[tokens, top_k]` float32, belongs to plans with `combine_weights`.
    #[pyo3(signature = (dispatched, y = None, *, out, out_weights = None, stream = None))]
    fn combine(
        &self,
        py: Python<'_>,
        dispatched: &Dispatched,
        y: Option<&Bound<'_, PyAny>>,
        out: &Bound<'_, PyAny>,
        out_weights: Option<&Bound<'_, PyAny>>,
        stream: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<()> {
        self.own(&dispatched.inner, "dispatch")?;
        let y = self.experts_rows(y)?;
        let (out, weights) = self.combined(out, out_weights)?;
        let stream = self.stream(py, stream, Some(&out))?;
        // SAFETY: `launch` keeps the tensors until the launch is over.
        let (experts, output) =
            unsafe { (expert_output(y.as_ref()), combine_output(&out, weights.as_ref())) };
        self.check_combine(dispatched, experts, Some(&output))?;
        let handle = taken(&dispatched.handle, "dispatch")?;
        self.launch(py, &stream, objects([y, Some(out), weights]), |ep, stream| {
            ep.combine(stream, experts, handle, output)
        })
    }

    /// The send of a `dispatch`. It waits for no rank.
    #[pyo3(signature = (x, topk_ids, topk_weights = None, scales = None, *, num_tokens = None, stream = None))]
    fn dispatch_send(
        &self,
        py: Python<'_>,
        x: &Bound<'_, PyAny>,
        topk_ids: &Bound<'_, PyAny>,
        topk_weights: Option<&Bound<'_, PyAny>>,
        scales: Option<&Bound<'_, PyAny>>,
        num_tokens: Option<&Bound<'_, PyAny>>,
        stream: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<DispatchSent> {
        let tensors = (x, topk_ids, topk_weights, scales, num_tokens);
        let (stream, half) = self.send(py, tensors, stream, ep::ExpertParallel::dispatch_send)?;
        Ok(DispatchSent { inner: self.shared(), stream, sent: Unlocked::new(Mutex::new(Some(half))) })
    }

    /// The receive of a `dispatch`: waits for the other ranks' rows.
    #[pyo3(signature = (sent, *, stream = None))]
    fn dispatch_recv(
        &self,
        py: Python<'_>,
        sent: &DispatchSent,
        stream: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Dispatched> {
        self.own(&sent.inner, "dispatch")?;
        let of_handle = match stream.filter(|given| !given.is_none()) {
            Some(given) => HandleStream::new(Some(given), self.stream(py, stream, None)?),
            None => sent.stream.again(py),
        };
        self.inner.state.live()?;
        let half = taken(&sent.sent, "half of a dispatch")?;
        let stream = &of_handle.stream;
        let handle = self.launch(py, stream, Vec::new(), |ep, stream| ep.dispatch_recv(stream, half))?;
        Ok(self.dispatched(of_handle, handle))
    }

    /// Sends weights, `[tokens, top_k]` float32, to the ranks that received the tokens of a dispatch, and waits for those of all ranks:
    /// `ExpertMajor.contract` then uses them in place of the dispatched ones. For plans with `late_weights`. All ranks of the group call it,
    /// once for a dispatch, before its combine.
    #[pyo3(signature = (dispatched, topk_weights, *, stream = None))]
    fn send_weights(
        &self,
        py: Python<'_>,
        dispatched: &Dispatched,
        topk_weights: &Bound<'_, PyAny>,
        stream: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<()> {
        self.own(&dispatched.inner, "dispatch")?;
        let weights = Array::new("topk_weights", topk_weights, self.inner.state.home)?;
        weights.expect_type(DataType::F32)?;
        let (tokens, top_k) = (u64::from(dispatched.tokens()?), u64::from(self.config().top_k));
        weights.expect_shape(&[Some(tokens), Some(top_k)], &format!("[{tokens}, {top_k}]"))?;
        let stream = self.stream(py, stream, Some(&weights))?;
        // SAFETY: `launch_with` keeps the tensor until the launch is over.
        let slice = unsafe { weights.slice() };
        self.launch_with(py, &stream, dispatched, objects([Some(weights)]), |ep, stream, handle| {
            ep.send_weights(stream, handle, slice)
        })
    }

    /// The send of a `combine`. It waits for no rank.
    #[pyo3(signature = (dispatched, y = None, *, stream = None))]
    fn combine_send(
        &self,
        py: Python<'_>,
        dispatched: &Dispatched,
        y: Option<&Bound<'_, PyAny>>,
        stream: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<CombineSent> {
        self.own(&dispatched.inner, "dispatch")?;
        let y = self.experts_rows(y)?;
        let stream = match (&y, stream) {
            (None, stream) => self.stream_or(py, stream, &dispatched.stream)?,
            (Some(y), stream) => self.stream(py, stream, Some(y))?,
        };
        // SAFETY: `launch` keeps the tensor until the launch is over.
        let experts = unsafe { expert_output(y.as_ref()) };
        self.check_combine(dispatched, experts, None)?;
        let handle = taken(&dispatched.handle, "dispatch")?;
        let half =
            self.launch(py, &stream, objects([y]), |ep, stream| ep.combine_send(stream, experts, handle))?;
        Ok(CombineSent { inner: self.shared(), sent: Unlocked::new(Mutex::new(Some(half))) })
    }

    /// The receive of a `combine`: waits for the other ranks' rows and sums.
    #[pyo3(signature = (sent, *, out, out_weights = None, stream = None))]
    fn combine_recv(
        &self,
        py: Python<'_>,
        sent: &CombineSent,
        out: &Bound<'_, PyAny>,
        out_weights: Option<&Bound<'_, PyAny>>,
        stream: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<()> {
        self.own(&sent.inner, "combine")?;
        let (out, weights) = self.combined(out, out_weights)?;
        let stream = self.stream(py, stream, Some(&out))?;
        // SAFETY: `launch` keeps the tensors until the launch is over.
        let output = unsafe { combine_output(&out, weights.as_ref()) };
        let tokens = {
            let half = sent.sent.lock().unwrap_or_else(PoisonError::into_inner);
            half.as_ref().ok_or_else(|| usage("this half of a combine was used already"))?.tokens()
        };
        self.inner.ep.check_output(tokens, &output).map_err(raise)?;
        let half = taken(&sent.sent, "half of a combine")?;
        self.launch(py, &stream, objects([Some(out), weights]), |ep, stream| {
            ep.combine_recv(stream, half, output)
        })
    }

    /// Saves the routing of a dispatch that was not combined yet.
    #[pyo3(signature = (dispatched, *, stream = None))]
    fn routing(
        &self,
        py: Python<'_>,
        dispatched: &Dispatched,
        stream: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Routing> {
        self.own(&dispatched.inner, "dispatch")?;
        let stream = self.stream_or(py, stream, &dispatched.stream)?;
        let routing = self.launch_with(py, &stream, dispatched, Vec::new(), ep::ExpertParallel::routing)?;
        Ok(Routing { inner: self.shared(), saved: Unlocked::new(routing), memory: Vec::new() })
    }

    /// Bytes of a saved routing.
    #[getter]
    fn routing_bytes(&self) -> u64 {
        self.inner.ep.plan().routing_bytes()
    }

    /// Saves the routing of a dispatch that was not combined yet in memory of the caller: `routing_bytes` bytes, at a multiple of 16. Allocates
    /// nothing, and so may be captured into a graph.
    #[pyo3(signature = (dispatched, memory, *, stream = None))]
    fn save_routing(
        &self,
        py: Python<'_>,
        dispatched: &Dispatched,
        memory: &Bound<'_, PyAny>,
        stream: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<()> {
        self.own(&dispatched.inner, "dispatch")?;
        let memory = Array::new("memory", memory, self.inner.state.home)?.written()?;
        let stream = self.stream_or(py, stream, &dispatched.stream)?;
        // SAFETY: `launch_with` keeps the memory until the launch is over, and the routing is used in it alone.
        let slice = unsafe { memory.slice() };
        self.launch_with(py, &stream, dispatched, memory.into_objects().collect(), |ep, stream, handle| {
            // SAFETY: as above; the routing is empty.
            let mut routing = unsafe { ep.routing_in(slice, None)? };
            ep.save_routing(stream, handle, &mut routing)
        })
    }

    /// The routing in memory that `save_routing` of this plan wrote on this rank, or in a copy of it, for the `tokens` that this rank had
    /// dispatched. Keeps the memory, which the caller leaves as it is until all work with the routing is over. Other content makes calls with
    /// the routing undefined.
    fn routing_in(&self, memory: &Bound<'_, PyAny>, tokens: u32) -> PyResult<Routing> {
        self.inner.state.live()?;
        let memory = Array::new("memory", memory, self.inner.state.home)?;
        // SAFETY: the caller's promise in the documentation above.
        let routing = unsafe { self.inner.ep.routing_in(memory.slice(), Some(tokens)) };
        let routing = routing.map_err(raise)?;
        Ok(Routing {
            inner: self.shared(),
            saved: Unlocked::new(routing),
            memory: memory.into_objects().collect(),
        })
    }

    /// Allocates a layout of rows grouped by expert, for the dispatches of this plan. `capacity` is the rows of each expert, a multiple of
    /// `alignment` (0: as many as a rank can receive); `alignment` is a power of two up to 1024. `scale_layout` is the form of `scales`:
    /// "rows", "columns" (column-major) or "packed_columns" (column-major, the exponents of four f32 scales in 32 bits: ue8m0; sign and mantissa
    /// are lost, so only for scales that are powers of two, and not for those of a cast). No other rank takes part.
    #[pyo3(signature = (*, capacity = 0, alignment = 1, scale_layout = "rows"))]
    fn expert_major(
        &self,
        py: Python<'_>,
        capacity: u32,
        alignment: u32,
        scale_layout: &str,
    ) -> PyResult<ExpertMajor> {
        self.inner.state.live()?;
        let scales = word::<ScaleLayout>(scale_layout)?;
        let config = ExpertMajorConfig::new().capacity(capacity).alignment(alignment).scale_layout(scales);
        let made = py.detach(|| ep::ExpertMajor::new(&self.inner.ep, config));
        logs::flush(py);
        Ok(ExpertMajor::new(Arc::clone(&self.inner), made.map_err(raise)?))
    }

    /// Loads what copies received rows to experts whose rows follow one another, in tensors of the caller. No other rank takes part.
    fn contiguous(&self, py: Python<'_>) -> PyResult<ContiguousExperts> {
        self.inner.state.live()?;
        let made = py.detach(|| ep::ContiguousExperts::new(&self.inner.ep));
        logs::flush(py);
        Ok(ContiguousExperts::new(Arc::clone(&self.inner), made.map_err(raise)?))
    }

    /// Loads what copies received rows out of the windows. No other rank takes part.
    fn unpacker(&self, py: Python<'_>) -> PyResult<RowUnpacker> {
        self.inner.state.live()?;
        let made = py.detach(|| ep::RowUnpacker::new(&self.inner.ep));
        logs::flush(py);
        Ok(RowUnpacker::new(Arc::clone(&self.inner), made.map_err(raise)?))
    }

    /// Sends other rows to where the tokens of a saved routing went: the backward pass of a combine.
    #[pyo3(signature = (routing, x, topk_weights = None, scales = None, *, stream = None))]
    fn dispatch_with(
        &self,
        py: Python<'_>,
        routing: &Routing,
        x: &Bound<'_, PyAny>,
        topk_weights: Option<&Bound<'_, PyAny>>,
        scales: Option<&Bound<'_, PyAny>>,
        stream: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Dispatched> {
        let given = stream;
        self.own(&routing.inner, "routing")?;
        let sent = self.sent(x, None, topk_weights, scales, None)?;
        let stream = self.stream(py, stream, Some(&sent.rows))?;
        // SAFETY: `launch` keeps the tensors until the launch is over.
        let tokens = unsafe {
            ReplayedTokens {
                data_type: self.config().token_type(),
                rows: sent.rows.slice(),
                weights: sent.weights.as_ref().map(|array| array.slice()),
                scales: sent.scales.as_ref().map(|array| array.slice()),
            }
        };
        let kept: &ep::Routing = &routing.saved;
        let mut objects = sent.into_objects();
        objects.extend(routing.memory.iter().map(|memory| memory.clone_ref(py)));
        let handle =
            self.launch(py, &stream, objects, |ep, stream| ep.dispatch_with(stream, kept, &tokens))?;
        Ok(self.dispatched(HandleStream::new(given, stream), handle))
    }

    /// Which ranks are masked, `[ranks]` i32, strided: 1 or 0, in device memory, so that it is read in stream order without a wait of the
    /// host. Raises in plans without masks.
    #[getter]
    fn mask(&self) -> PyResult<Memory> {
        let (address, stride) = self.inner.ep.mask_words().map_err(raise)?;
        let (of, owner) = (DataType::I32, Owner::Other(Arc::clone(&self.inner) as Arc<dyn Send + Sync>));
        let strides = Some(vec![stride / u64::from(of.bytes())]);
        Ok(Memory::new(address.0, vec![self.size().into()], strides, of, self.inner.state.home, owner))
    }

    /// Ranks that are masked, each with the reason. Waits for the stream.
    #[pyo3(signature = (*, stream = None))]
    fn masked(&self, py: Python<'_>, stream: Option<&Bound<'_, PyAny>>) -> PyResult<Vec<(u32, String)>> {
        let stream = self.stream(py, stream, None)?;
        self.wait_for(py, &stream)?;
        let masked = self.launch(py, &stream, Vec::new(), ep::ExpertParallel::masked)?;
        Ok(masked.into_iter().map(|masked| (masked.rank.get(), masked.to_string())).collect())
    }

    /// Masks a rank: from now on nothing is sent to it or waited for from it.
    #[pyo3(signature = (rank, *, stream = None))]
    fn mask_rank(&self, py: Python<'_>, rank: u32, stream: Option<&Bound<'_, PyAny>>) -> PyResult<()> {
        let rank = member(self.inner.ep.group(), rank, "rank")?;
        let stream = self.stream(py, stream, None)?;
        self.wait_for(py, &stream)?;
        self.launch(py, &stream, Vec::new(), |ep, stream| ep.mask_rank(stream, rank))
    }

    /// Unmasks ranks; all of `together` call it.
    #[pyo3(signature = (together, *, timeout, stream = None))]
    fn reset_mask(
        &self,
        py: Python<'_>,
        together: Vec<u32>,
        timeout: f64,
        stream: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<()> {
        let of_group = |rank| member(self.inner.ep.group(), rank, "together");
        let together = together.into_iter().map(of_group).collect::<PyResult<Vec<_>>>()?;
        let (stream, limit) = (self.stream(py, stream, None)?, seconds(timeout)?);
        let inner = Arc::clone(&self.inner);
        collective(py, &self.inner.state.world, move |_| {
            Ok(inner.ep.reset_mask(&stream, &together, limit)?)
        })
    }

    /// Raises when a dispatch before this got an expert id that does not exist, or more tokens than planned. Waits for the stream.
    #[pyo3(signature = (*, stream = None))]
    fn check_ids(&self, py: Python<'_>, stream: Option<&Bound<'_, PyAny>>) -> PyResult<()> {
        let stream = self.stream(py, stream, None)?;
        self.wait_for(py, &stream)?;
        self.launch(py, &stream, Vec::new(), ep::ExpertParallel::check_ids)
    }

    fn __repr__(&self) -> String {
        format!("anabranch.ExpertParallel(rank={}, size={})", self.rank(), self.size())
    }
}

impl ExpertParallel {
    /// Waits for the stream in slices, so that Ctrl-C ends the wait; as long as the calls would that need it to be over.
    fn wait_for(&self, py: Python<'_>, stream: &Stream) -> PyResult<()> {
        let world = &self.inner.state.world;
        let limit = world.operation_deadline() + Duration::from_secs(1);
        wait_in_slices(py, Some(limit), |slice| Ok(world.synchronize_within(stream, slice)?))
    }

    /// The stream of a call without tensors: the one that was given, else that of the handle.
    pub(super) fn stream_or(
        &self,
        py: Python<'_>,
        stream: Option<&Bound<'_, PyAny>>,
        handle: &HandleStream,
    ) -> PyResult<Arc<Stream>> {
        match stream {
            Some(given) if !given.is_none() => self.stream(py, stream, None),
            _ => {
                self.inner.state.live()?;
                Ok(Arc::clone(&handle.stream))
            }
        }
    }

    /// The arguments of a combine, checked before the handle is consumed.
    fn check_combine(
        &self,
        dispatched: &Dispatched,
        experts: ExpertOutput,
        output: Option<&CombineOutput>,
    ) -> PyResult<()> {
        let handle = dispatched.handle.lock().unwrap_or_else(PoisonError::into_inner);
        let handle = handle.as_ref().ok_or_else(|| usage("this dispatch was used already"))?;
        self.inner.ep.check_combine(experts, handle, output).map_err(raise)
    }
}
