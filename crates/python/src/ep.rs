//! Dispatch and combine of expert parallelism over tensors of any library.

use std::str::FromStr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anabranch::GroupRank;
use anabranch::ccl::DataType;
use anabranch::ep::{
    self, CombineCodec, CombineOutput, CombineSource, DispatchCast, EpShape, ExpertOutput, Mode, OnTimeout,
    Payload, PlacementTable, ReplayedTokens, Tokens,
};
use anabranch::hip::{DeviceAddress, Stream};
use pyo3::prelude::*;

use crate::array::{self, Array};
use crate::communicator::seconds;
use crate::errors::{config as wrong, raise, usage};
use crate::logs;
use crate::memory::{Memory, Owner};
use crate::state::{State, interruptible};
use crate::unlocked::{Ends, Unlocked};

/// What an expert-parallel plan is made for; equal on all ranks.
#[pyclass(frozen, module = "anabranch", name = "EpConfig")]
#[derive(Clone, Debug)]
pub(crate) struct EpConfig {
    pub(crate) plan: ep::EpConfig,
}

fn word<T: FromStr>(text: &str) -> PyResult<T>
where
    T::Err: std::fmt::Display,
{
    text.parse().map_err(|error: T::Err| wrong(error.to_string()))
}

#[pymethods]
impl EpConfig {
    /// `hidden` elements a token, `experts` of the group (rank r owns a run of them, unless `placement` lists the ranks of each), `top_k`
    /// experts a token, at most `max_tokens` tokens a call. `max_recv` bounds the rows that a rank takes in (0: the worst case); `slots`
    /// dispatches may be under way at once; `mask_after` seconds, operations go on without a rank that does not come. The remaining keywords
    /// are those of `anabranch_ep::EpConfig`.
    #[new]
    #[pyo3(signature = (*, hidden, experts, top_k, max_tokens, dispatch_dtype = None, combine_dtype = None, scale_bytes = 0,
        max_recv = 0, mode = "auto", slots = None, placement = None, combine_source = "any", combine_codec = "none",
        combine_weights = false, dispatch_cast = "none", cast_from = None, device_token_count = false, mask_after = None,
        payload = "kernels", blocks = 0, waves_per_block = 0))]
    #[expect(clippy::too_many_arguments, clippy::fn_params_excessive_bools, reason = "keywords of Python")]
    fn new(
        hidden: u32,
        experts: u32,
        top_k: u32,
        max_tokens: u32,
        dispatch_dtype: Option<&Bound<'_, PyAny>>,
        combine_dtype: Option<&Bound<'_, PyAny>>,
        scale_bytes: u32,
        max_recv: u32,
        mode: &str,
        slots: Option<u32>,
        placement: Option<Vec<Vec<u32>>>,
        combine_source: &str,
        combine_codec: &str,
        combine_weights: bool,
        dispatch_cast: &str,
        cast_from: Option<&Bound<'_, PyAny>>,
        device_token_count: bool,
        mask_after: Option<f64>,
        payload: &str,
        blocks: u32,
        waves_per_block: u32,
    ) -> PyResult<Self> {
        let of = |given: Option<&Bound<'_, PyAny>>| given.map_or(Ok(DataType::Bf16), array::data_type);
        let mut plan = ep::EpConfig::new(EpShape { hidden, experts, top_k, max_tokens })
            .dispatch_type(of(dispatch_dtype)?)
            .combine_type(of(combine_dtype)?)
            .scale_bytes(scale_bytes)
            .max_recv(max_recv)
            .mode(word::<Mode>(mode)?)
            .combine_source(word::<CombineSource>(combine_source)?)
            .combine_codec(word::<CombineCodec>(combine_codec)?)
            .combine_weights(combine_weights)
            .device_token_count(device_token_count)
            .payload(word::<Payload>(payload)?)
            .launch(blocks, waves_per_block);
        let cast = word::<DispatchCast>(dispatch_cast)?;
        if let Some(sent) = cast.data_type() {
            if dispatch_dtype.is_some() && plan.dispatch_type != sent {
                return Err(wrong(format!(
                    "dispatch_cast {cast} sends rows of {sent}; leave dispatch_dtype out"
                )));
            }
            plan = plan.dispatch_type(sent).dispatch_cast(cast).cast_from(of(cast_from)?);
        } else if cast_from.is_some() {
            return Err(wrong("cast_from needs a dispatch_cast"));
        }
        if let Some(slots) = slots {
            plan = plan.slots(slots);
        }
        if let Some(experts) = placement {
            let ranks = |ranks: Vec<u32>| ranks.into_iter().map(GroupRank::new).collect();
            plan = plan.placement(PlacementTable::new(experts.into_iter().map(ranks)));
        }
        if let Some(patience) = mask_after {
            plan = plan.on_timeout(OnTimeout::Mask { patience: seconds(patience)? });
        }
        Ok(Self { plan })
    }

    /// The plan's settings: names and values as text.
    fn fields(&self) -> Vec<(String, String)> {
        self.plan.fields()
    }

    fn __repr__(&self) -> String {
        let ep::EpConfig { hidden, experts, top_k, max_tokens, .. } = self.plan;
        format!(
            "anabranch.EpConfig(hidden={hidden}, experts={experts}, top_k={top_k}, max_tokens={max_tokens})"
        )
    }
}

/// What windows keep.
#[derive(Debug)]
struct Inner {
    state: Arc<State>,
    ep: ep::ExpertParallel,
}

/// Dispatch and combine among ranks of a world. Made by `World.expert_parallel`.
#[pyclass(frozen, module = "anabranch", name = "ExpertParallel")]
#[derive(Debug)]
pub(crate) struct ExpertParallel {
    inner: Unlocked<Arc<Inner>>,
}

/// Rows that a dispatch brought, until they are combined or released. Its windows are memory of the plan.
#[pyclass(frozen, module = "anabranch", name = "Dispatched")]
#[derive(Debug)]
pub(crate) struct Dispatched {
    inner: Unlocked<Arc<Inner>>,
    stream: Unlocked<Arc<Stream>>,
    handle: Unlocked<Mutex<Option<ep::Dispatched>>>,
}

/// Which rank gets which token: kept from a dispatch, to send other rows the same way.
#[pyclass(frozen, module = "anabranch", name = "Routing")]
#[derive(Debug)]
pub(crate) struct Routing {
    inner: Unlocked<Arc<Inner>>,
    routing: Unlocked<ep::Routing>,
}

impl Ends for ep::Routing {}

/// The sending half of a dispatch.
#[pyclass(frozen, module = "anabranch", name = "DispatchSent")]
#[derive(Debug)]
pub(crate) struct DispatchSent {
    inner: Unlocked<Arc<Inner>>,
    sent: Unlocked<Mutex<Option<ep::DispatchSent>>>,
}

/// The sending half of a combine.
#[pyclass(frozen, module = "anabranch", name = "CombineSent")]
#[derive(Debug)]
pub(crate) struct CombineSent {
    inner: Unlocked<Arc<Inner>>,
    sent: Unlocked<Mutex<Option<ep::CombineSent>>>,
}

/// Takes what a handle holds.
fn taken<T>(handle: &Mutex<Option<T>>, what: &str) -> PyResult<T> {
    let value = handle.lock().unwrap_or_else(PoisonError::into_inner).take();
    value.ok_or_else(|| usage(format!("this {what} was used already")))
}

/// Tensors of a dispatch, checked against the plan.
struct Sent {
    count: u64,
    rows: Array,
    ids: Option<Array>,
    weights: Option<Array>,
    scales: Option<Array>,
    device_count: Option<Array>,
}

impl Sent {
    fn into_objects(self) -> Vec<Py<PyAny>> {
        let optional = [self.ids, self.weights, self.scales, self.device_count];
        std::iter::once(self.rows).chain(optional.into_iter().flatten()).map(Array::into_object).collect()
    }

    /// # Safety
    /// The tensors stay valid until the launch is over.
    unsafe fn tokens(&self, data_type: DataType) -> Option<Tokens> {
        // SAFETY: the caller's promise.
        unsafe {
            Some(Tokens {
                count: self.count as usize,
                data_type,
                rows: self.rows.slice(),
                ids: self.ids.as_ref()?.slice(),
                weights: self.weights.as_ref().map(|array| array.slice()),
                scales: self.scales.as_ref().map(|array| array.slice()),
                device_count: self.device_count.as_ref().map(|array| array.slice()),
            })
        }
    }
}

impl ExpertParallel {
    pub(crate) fn new(state: Arc<State>, ep: ep::ExpertParallel) -> Self {
        Self { inner: Unlocked::new(Arc::new(Inner { state, ep })) }
    }

    fn shared(&self) -> Unlocked<Arc<Inner>> {
        Unlocked::new(Arc::clone(&self.inner))
    }

    fn config(&self) -> &ep::EpConfig {
        self.inner.ep.plan().config()
    }

    fn own(&self, inner: &Arc<Inner>, what: &str) -> PyResult<()> {
        if Arc::ptr_eq(&self.inner, inner) {
            Ok(())
        } else {
            Err(usage(format!("this {what} is of another plan")))
        }
    }

    fn array(&self, name: &'static str, object: Option<&Bound<'_, PyAny>>) -> PyResult<Option<Array>> {
        Array::optional(name, object, self.inner.state.home)
    }

    /// Rows of `x`: `[tokens, hidden]`, or bytes of as many rows.
    fn rows(&self, name: &'static str, object: &Bound<'_, PyAny>, of: DataType) -> PyResult<Array> {
        let rows = Array::new(name, object, self.inner.state.home)?;
        let hidden = u64::from(self.config().hidden);
        // 8-bit and 4-bit floats are bytes in libraries that have no such types.
        if rows.data_type() == DataType::U8 && of.bits() <= 8 || of == DataType::F4E2m1 {
            rows.expect_shape(
                &[None, Some(of.bytes_of(hidden))],
                &format!("[tokens, {}] bytes", of.bytes_of(hidden)),
            )?;
        } else {
            rows.expect_type(of)?;
            rows.expect_shape(&[None, Some(hidden)], &format!("[tokens, {hidden}]"))?;
        }
        Ok(rows)
    }

    fn sent(
        &self,
        x: &Bound<'_, PyAny>,
        topk_ids: Option<&Bound<'_, PyAny>>,
        topk_weights: Option<&Bound<'_, PyAny>>,
        scales: Option<&Bound<'_, PyAny>>,
        num_tokens: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Sent> {
        let top_k = u64::from(self.config().top_k);
        let rows = self.rows("x", x, self.config().token_type())?;
        let count = rows.shape()[0];
        let per_choice = |array: Option<Array>, of: DataType| -> PyResult<Option<Array>> {
            if let Some(array) = &array {
                array.expect_type(of)?;
                array.expect_shape(&[Some(count), Some(top_k)], &format!("[{count}, {top_k}]"))?;
            }
            Ok(array)
        };
        let ids = per_choice(self.array("topk_ids", topk_ids)?, DataType::I32)?;
        let weights = per_choice(self.array("topk_weights", topk_weights)?, DataType::F32)?;
        let scales = self.array("scales", scales)?;
        if let Some(scales) = &scales {
            let bytes = u64::from(self.config().scale_bytes);
            if scales.shape().first() != Some(&count) || scales.bytes() != count * bytes {
                return Err(usage(format!(
                    "scales have shape {:?} of {}; {bytes} bytes for each of {count} tokens are needed",
                    scales.shape(),
                    scales.data_type()
                )));
            }
        }
        let device_count = self.array("num_tokens", num_tokens)?;
        if let Some(number) = &device_count
            && (number.bytes() != 4 || number.data_type().is_float())
        {
            return Err(usage("num_tokens is one 32-bit integer in device memory"));
        }
        Ok(Sent { count, rows, ids, weights, scales, device_count })
    }

    /// Launches on the stream of the call, without the interpreter's lock, and keeps the tensors until that is over.
    fn launch<T: Send>(
        &self,
        py: Python<'_>,
        stream: &Arc<Stream>,
        objects: Vec<Py<PyAny>>,
        call: impl FnOnce(&ep::ExpertParallel, &Stream) -> ep::Result<T> + Send,
    ) -> PyResult<T> {
        let state = &self.inner.state;
        state.release();
        let result = py.detach(|| {
            let value = call(&self.inner.ep, stream)?;
            state.hold_on(stream, objects)?;
            Ok::<_, anabranch::Error>(value)
        });
        logs::flush(py)?;
        result.map_err(raise)
    }

    fn stream(
        &self,
        py: Python<'_>,
        stream: Option<&Bound<'_, PyAny>>,
        array: Option<&Array>,
    ) -> PyResult<Arc<Stream>> {
        self.inner.state.live()?;
        self.inner.state.stream(py, stream, array)
    }

    fn dispatched(&self, stream: Arc<Stream>, handle: ep::Dispatched) -> Dispatched {
        Dispatched {
            inner: self.shared(),
            stream: Unlocked::new(stream),
            handle: Unlocked::new(Mutex::new(Some(handle))),
        }
    }

    /// What combine gets from the experts, and where its sums go.
    fn combined(
        &self,
        y: Option<&Bound<'_, PyAny>>,
        out: Option<&Bound<'_, PyAny>>,
        out_weights: Option<&Bound<'_, PyAny>>,
        tokens: Option<u32>,
    ) -> PyResult<(Option<Array>, Option<Array>, Option<Array>)> {
        let of = self.config().combine_type;
        let y = y.filter(|y| !y.is_none()).map(|y| self.rows("y", y, of)).transpose()?;
        let rows = self.inner.ep.plan().rows();
        if let Some(y) = &y
            && y.shape()[0] < rows
        {
            return Err(usage(format!("y has {} rows; the window's {rows} are needed", y.shape()[0])));
        }
        let out = out.map(|out| self.rows("out", out, of)).transpose()?;
        let out_weights = self.array("out_weights", out_weights)?;
        if let Some(tokens) = tokens {
            for (array, name) in [(&out, "out"), (&out_weights, "out_weights")] {
                if let Some(array) = array
                    && array.shape().first().is_none_or(|rows| *rows < u64::from(tokens))
                {
                    let shape = array.shape();
                    return Err(usage(format!(
                        "{name} has shape {shape:?}; this rank dispatched {tokens} tokens"
                    )));
                }
            }
        }
        if let Some(weights) = &out_weights {
            weights.expect_type(DataType::F32)?;
            let top_k = u64::from(self.config().top_k);
            weights.expect_shape(&[None, Some(top_k)], &format!("[tokens, {top_k}]"))?;
        }
        Ok((y, out, out_weights))
    }
}

/// # Safety
/// The tensors stay valid until the launch is over.
unsafe fn expert_output(y: Option<&Array>) -> ExpertOutput {
    // SAFETY: the caller's promise.
    y.map_or(ExpertOutput::InWindow, |y| ExpertOutput::Staged(unsafe { y.slice() }))
}

/// # Safety
/// As [`expert_output`].
unsafe fn combine_output(out: &Array, weights: Option<&Array>) -> CombineOutput {
    // SAFETY: the caller's promise.
    unsafe { CombineOutput { rows: out.slice(), weights: weights.map(|weights| weights.slice()) } }
}

fn objects(arrays: impl IntoIterator<Item = Option<Array>>) -> Vec<Py<PyAny>> {
    arrays.into_iter().flatten().map(Array::into_object).collect()
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
            Some(rank) => self.inner.state.member(self.inner.ep.group(), rank, "rank")?,
            None => self.inner.ep.rank(),
        };
        Ok(self.inner.ep.plan().experts_on(rank))
    }

    /// Sends every token to the ranks that own its experts. All ranks of the group call it, also with 0 tokens.
    ///
    /// `x` is `[tokens, hidden]` of the plan's type (8-bit floats may be uint8), `topk_ids` `[tokens, top_k]` int32 with -1 for no expert,
    /// `topk_weights` `[tokens, top_k]` float32, `scales` `scale_bytes` bytes a token. With `num_tokens`, one 32-bit integer in device memory,
    /// that many of the tokens are sent.
    #[pyo3(signature = (x, topk_ids, topk_weights = None, scales = None, *, num_tokens = None, stream = None))]
    #[expect(clippy::too_many_arguments, reason = "keywords of Python")]
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
        let sent = self.sent(x, Some(topk_ids), topk_weights, scales, num_tokens)?;
        let stream = self.stream(py, stream, Some(&sent.rows))?;
        // SAFETY: `launch` keeps the tensors until the launch is over.
        let tokens =
            unsafe { sent.tokens(self.config().token_type()) }.ok_or_else(|| usage("topk_ids is None"))?;
        let handle =
            self.launch(py, &stream, sent.into_objects(), |ep, stream| ep.dispatch(stream, &tokens))?;
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
        let (y, out, weights) = self.combined(y, Some(out), out_weights, dispatched.tokens_now())?;
        let out = out.ok_or_else(|| usage("out is None"))?;
        let stream = self.stream(py, stream, Some(&out))?;
        // SAFETY: `launch` keeps the tensors until the launch is over.
        let (experts, output) =
            unsafe { (expert_output(y.as_ref()), combine_output(&out, weights.as_ref())) };
        let handle = taken(&dispatched.handle, "dispatch")?;
        self.launch(py, &stream, objects([y, Some(out), weights]), |ep, stream| {
            ep.combine(stream, experts, handle, output)
        })
    }

    /// The first half of `dispatch`: sends, and waits for nobody.
    #[pyo3(signature = (x, topk_ids, topk_weights = None, scales = None, *, num_tokens = None, stream = None))]
    #[expect(clippy::too_many_arguments, reason = "keywords of Python")]
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
        let sent = self.sent(x, Some(topk_ids), topk_weights, scales, num_tokens)?;
        let stream = self.stream(py, stream, Some(&sent.rows))?;
        // SAFETY: `launch` keeps the tensors until the launch is over.
        let tokens =
            unsafe { sent.tokens(self.config().token_type()) }.ok_or_else(|| usage("topk_ids is None"))?;
        let half =
            self.launch(py, &stream, sent.into_objects(), |ep, stream| ep.dispatch_send(stream, &tokens))?;
        Ok(DispatchSent { inner: self.shared(), sent: Unlocked::new(Mutex::new(Some(half))) })
    }

    /// The second half of `dispatch`: waits for the other ranks' rows.
    #[pyo3(signature = (sent, *, stream = None))]
    fn dispatch_recv(
        &self,
        py: Python<'_>,
        sent: &DispatchSent,
        stream: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Dispatched> {
        self.own(&sent.inner, "dispatch")?;
        let stream = self.stream(py, stream, None)?;
        let half = taken(&sent.sent, "half of a dispatch")?;
        let handle = self.launch(py, &stream, Vec::new(), |ep, stream| ep.dispatch_recv(stream, half))?;
        Ok(self.dispatched(stream, handle))
    }

    /// The first half of `combine`: sends, and waits for nobody.
    #[pyo3(signature = (dispatched, y = None, *, stream = None))]
    fn combine_send(
        &self,
        py: Python<'_>,
        dispatched: &Dispatched,
        y: Option<&Bound<'_, PyAny>>,
        stream: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<CombineSent> {
        self.own(&dispatched.inner, "dispatch")?;
        let (y, ..) = self.combined(y, None, None, None)?;
        let stream = self.stream(py, stream, y.as_ref())?;
        // SAFETY: `launch` keeps the tensor until the launch is over.
        let experts = unsafe { expert_output(y.as_ref()) };
        let handle = taken(&dispatched.handle, "dispatch")?;
        let half =
            self.launch(py, &stream, objects([y]), |ep, stream| ep.combine_send(stream, experts, handle))?;
        Ok(CombineSent { inner: self.shared(), sent: Unlocked::new(Mutex::new(Some(half))) })
    }

    /// The second half of `combine`: waits for the other ranks' rows and sums.
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
        let (_, out, weights) = self.combined(None, Some(out), out_weights, None)?;
        let out = out.ok_or_else(|| usage("out is None"))?;
        let stream = self.stream(py, stream, Some(&out))?;
        // SAFETY: `launch` keeps the tensors until the launch is over.
        let output = unsafe { combine_output(&out, weights.as_ref()) };
        let half = taken(&sent.sent, "half of a combine")?;
        self.launch(py, &stream, objects([Some(out), weights]), |ep, stream| {
            ep.combine_recv(stream, half, output)
        })
    }

    /// Keeps the routing of a dispatch that was not combined yet.
    #[pyo3(signature = (dispatched, *, stream = None))]
    fn routing(
        &self,
        py: Python<'_>,
        dispatched: &Dispatched,
        stream: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Routing> {
        self.own(&dispatched.inner, "dispatch")?;
        let stream = self.stream_or(py, stream, dispatched)?;
        let mut handle = dispatched.handle.lock().unwrap_or_else(PoisonError::into_inner);
        let handle = handle.as_mut().ok_or_else(|| usage("this dispatch was used already"))?;
        let routing = self.launch(py, &stream, Vec::new(), |ep, stream| ep.routing(stream, handle))?;
        Ok(Routing { inner: self.shared(), routing: Unlocked::new(routing) })
    }

    /// Sends other rows to where the tokens of a kept routing went: the backward pass of a combine.
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
        let kept: &ep::Routing = &routing.routing;
        let handle = self
            .launch(py, &stream, sent.into_objects(), |ep, stream| ep.dispatch_with(stream, kept, &tokens))?;
        Ok(self.dispatched(stream, handle))
    }

    /// Ranks that are masked, each with the reason. Waits for the stream.
    #[pyo3(signature = (*, stream = None))]
    fn masked(&self, py: Python<'_>, stream: Option<&Bound<'_, PyAny>>) -> PyResult<Vec<(u32, String)>> {
        let stream = self.stream(py, stream, None)?;
        let masked = self.launch(py, &stream, Vec::new(), |ep, stream| ep.masked(stream))?;
        Ok(masked.into_iter().map(|masked| (masked.rank.get(), masked.to_string())).collect())
    }

    /// Masks a rank: from now on nothing is sent to it or waited for from it.
    #[pyo3(signature = (rank, *, stream = None))]
    fn mask_rank(&self, py: Python<'_>, rank: u32, stream: Option<&Bound<'_, PyAny>>) -> PyResult<()> {
        let rank = self.inner.state.member(self.inner.ep.group(), rank, "rank")?;
        let stream = self.stream(py, stream, None)?;
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
        let member = |rank| self.inner.state.member(self.inner.ep.group(), rank, "together");
        let together = together.into_iter().map(member).collect::<PyResult<Vec<_>>>()?;
        let (stream, limit): (_, Duration) = (self.stream(py, stream, None)?, seconds(timeout)?);
        let inner = Arc::clone(&self.inner);
        let world = self.inner.state.world.clone();
        let interrupted = move || world.poison("interrupted from Python");
        interruptible(py, interrupted, move || Ok(inner.ep.reset_mask(&stream, &together, limit)?))
    }

    /// Raises when a dispatch before this got an expert id that does not exist, or more tokens than planned. Waits for the stream.
    #[pyo3(signature = (*, stream = None))]
    fn check_ids(&self, py: Python<'_>, stream: Option<&Bound<'_, PyAny>>) -> PyResult<()> {
        let stream = self.stream(py, stream, None)?;
        self.launch(py, &stream, Vec::new(), |ep, stream| ep.check_ids(stream))
    }

    fn __repr__(&self) -> String {
        format!("anabranch.ExpertParallel(rank={}, size={})", self.rank(), self.size())
    }
}

impl ExpertParallel {
    fn stream_or(
        &self,
        py: Python<'_>,
        stream: Option<&Bound<'_, PyAny>>,
        dispatched: &Dispatched,
    ) -> PyResult<Arc<Stream>> {
        match stream {
            Some(given) if !given.is_none() => self.stream(py, stream, None),
            _ => Ok(Arc::clone(&dispatched.stream)),
        }
    }
}

impl Dispatched {
    /// Tokens of a dispatch that was not used yet.
    fn tokens_now(&self) -> Option<u32> {
        let handle = self.handle.lock().unwrap_or_else(PoisonError::into_inner);
        handle.as_ref().map(ep::Dispatched::tokens)
    }

    /// A window, where the plan has it.
    fn window(
        &self,
        address: impl FnOnce(&ep::Dispatched) -> DeviceAddress,
        shape: Vec<u64>,
        strides: Option<Vec<u64>>,
        of: DataType,
    ) -> PyResult<Option<Memory>> {
        let handle = self.handle.lock().unwrap_or_else(PoisonError::into_inner);
        let handle = handle.as_ref().ok_or_else(|| usage("this dispatch was used already"))?;
        let address = address(handle);
        if address.is_null() {
            return Ok(None);
        }
        let owner = Owner::Other(Arc::clone(&self.inner) as Arc<dyn Send + Sync>);
        Ok(Some(Memory::new(address.0, shape, strides, of, self.inner.state.home, owner)))
    }

    /// A window of rows.
    fn rows_of(
        &self,
        address: impl FnOnce(&ep::Dispatched) -> DeviceAddress,
        of: DataType,
    ) -> PyResult<Option<Memory>> {
        let plan = self.inner.ep.plan();
        let hidden = u64::from(plan.config().hidden);
        // Two 4-bit elements are a byte in every library.
        let (extent, of) = if of == DataType::F4E2m1 { (hidden / 2, DataType::U8) } else { (hidden, of) };
        self.window(address, vec![plan.rows(), extent], None, of)
    }

    /// A field of the meta records, `{token u32, place u32, ids i32[K], weights f32[K], scales}`.
    fn meta(&self, offset: u64, extent: u64, of: DataType) -> PyResult<Option<Memory>> {
        let plan = self.inner.ep.plan();
        let stride = u64::from(plan.meta_bytes()) / u64::from(of.bytes());
        let address = |handle: &ep::Dispatched| handle.meta().offset(offset);
        self.window(address, vec![plan.rows(), extent], Some(vec![stride, 1]), of)
    }
}

#[pymethods]
impl Dispatched {
    /// Tokens that this rank dispatched.
    #[getter]
    fn tokens(&self) -> PyResult<u32> {
        self.tokens_now().ok_or_else(|| usage("this dispatch was used already"))
    }

    /// Rows received, `[rows, hidden]`. Those of rank s are the `counts[s]` rows from `s * row_stride` on, or from `offsets[s]` on in compact
    /// mode. The rest is undefined.
    #[getter]
    fn rows(&self) -> PyResult<Option<Memory>> {
        self.rows_of(ep::Dispatched::rows, self.inner.ep.plan().config().dispatch_type)
    }

    /// Rows received from each rank, `[ranks]` i32.
    #[getter]
    fn counts(&self) -> PyResult<Option<Memory>> {
        let ranks = u64::from(self.inner.ep.plan().ranks());
        self.window(ep::Dispatched::counts, vec![ranks], None, DataType::I32)
    }

    /// Running sum of the counts, `[ranks + 1]` i32; the last is the total.
    #[getter]
    fn offsets(&self) -> PyResult<Option<Memory>> {
        let ranks = u64::from(self.inner.ep.plan().ranks());
        self.window(ep::Dispatched::offsets, vec![ranks + 1], None, DataType::I32)
    }

    /// Copies of this rank's tokens that were not sent for lack of room, `[1]` i32.
    #[getter]
    fn dropped_count(&self) -> PyResult<Option<Memory>> {
        self.window(ep::Dispatched::dropped_count, vec![1], None, DataType::I32)
    }

    /// The experts' output, `[rows, hidden]`, for experts that write it where combine reads it. `None` where the plan has no such window.
    #[getter]
    fn combine_rows(&self) -> PyResult<Option<Memory>> {
        self.rows_of(ep::Dispatched::combine_rows, self.inner.ep.plan().config().combine_type)
    }

    /// Weights that combine sums, `[rows, top_k]` f32, in plans with `combine_weights`; else `None`.
    #[getter]
    fn combine_weights(&self) -> PyResult<Option<Memory>> {
        let plan = self.inner.ep.plan();
        let shape = vec![plan.rows(), u64::from(plan.config().top_k)];
        self.window(ep::Dispatched::combine_weights, shape, None, DataType::F32)
    }

    /// Tokens' numbers on their ranks, `[rows, 1]` i32, strided.
    #[getter]
    fn token_numbers(&self) -> PyResult<Option<Memory>> {
        self.meta(0, 1, DataType::I32)
    }

    /// Expert ids of the rows, `[rows, top_k]` i32, strided.
    #[getter]
    fn ids(&self) -> PyResult<Option<Memory>> {
        self.meta(8, u64::from(self.inner.ep.plan().config().top_k), DataType::I32)
    }

    /// Weights of the rows, `[rows, top_k]` f32, strided.
    #[getter]
    fn weights(&self) -> PyResult<Option<Memory>> {
        let top_k = u64::from(self.inner.ep.plan().config().top_k);
        self.meta(8 + 4 * top_k, top_k, DataType::F32)
    }

    /// Scales of the rows as bytes, `[rows, scale_bytes]` u8, strided; `None` in plans without.
    #[getter]
    fn scales(&self) -> PyResult<Option<Memory>> {
        let config = self.inner.ep.plan().config();
        let (top_k, bytes) = (u64::from(config.top_k), u64::from(config.sent_scale_bytes()));
        if bytes == 0 {
            return Ok(None);
        }
        self.meta(8 + 8 * top_k, bytes, DataType::U8)
    }

    /// Gives the slot back without a combine. All ranks of the group do.
    #[pyo3(signature = (*, stream = None))]
    fn release(&self, py: Python<'_>, stream: Option<&Bound<'_, PyAny>>) -> PyResult<()> {
        let ep = ExpertParallel { inner: Unlocked::new(Arc::clone(&self.inner)) };
        let stream = ep.stream_or(py, stream, self)?;
        let handle = taken(&self.handle, "dispatch")?;
        ep.launch(py, &stream, Vec::new(), |ep, stream| ep.release(stream, handle))
    }

    fn __enter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    /// Releases what was not combined.
    #[pyo3(signature = (kind, error, trace))]
    fn __exit__(
        &self,
        py: Python<'_>,
        kind: &Bound<'_, PyAny>,
        error: &Bound<'_, PyAny>,
        trace: &Bound<'_, PyAny>,
    ) -> PyResult<bool> {
        let _ = (error, trace);
        if kind.is_none() && self.tokens_now().is_some() {
            self.release(py, None)?;
        }
        Ok(false)
    }
}

#[pymethods]
impl Routing {
    /// Bytes of device memory that it holds.
    #[getter]
    fn nbytes(&self) -> u64 {
        self.routing.bytes()
    }
}
