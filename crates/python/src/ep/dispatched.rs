//! What a dispatch brought, and handles of operations that are under way.

use std::sync::{Arc, Mutex, PoisonError};

use anabranch::ccl::DataType;
use anabranch::ep;
use anabranch::hip::{DeviceAddress, Stream};
use pyo3::prelude::*;

use super::{ExpertParallel, Inner, taken};
use crate::errors::usage;
use crate::memory::{Memory, Owner};
use crate::unlocked::{Ends, Unlocked};

/// Rows that a dispatch brought, until they are combined or released. Its windows are memory of the plan.
#[pyclass(frozen, module = "anabranch", name = "Dispatched")]
#[derive(Debug)]
pub(crate) struct Dispatched {
    pub(super) inner: Unlocked<Arc<Inner>>,
    pub(super) stream: HandleStream,
    pub(super) handle: Unlocked<Mutex<Option<ep::Dispatched>>>,
}

/// Which rank gets which token: kept from a dispatch, to send other rows the same way.
#[pyclass(frozen, module = "anabranch", name = "Routing")]
#[derive(Debug)]
pub(crate) struct Routing {
    pub(super) inner: Unlocked<Arc<Inner>>,
    pub(super) saved: Unlocked<ep::Routing>,
    /// What keeps memory of the caller.
    pub(super) memory: Vec<Py<PyAny>>,
}

impl Ends for ep::Routing {}

/// The stream of an operation that is under way, with the object by which the caller named it.
#[derive(Debug)]
pub(super) struct HandleStream {
    pub(super) stream: Unlocked<Arc<Stream>>,
    /// Kept, because the stream is the caller's.
    given: Option<Py<PyAny>>,
}

impl HandleStream {
    pub(super) fn new(given: Option<&Bound<'_, PyAny>>, stream: Arc<Stream>) -> Self {
        Self { stream: Unlocked::new(stream), given: given.map(|given| given.clone().unbind()) }
    }

    /// The same stream, for the next handle of the operation.
    pub(super) fn again(&self, py: Python<'_>) -> Self {
        let given = self.given.as_ref().map(|given| given.clone_ref(py));
        Self { stream: Unlocked::new(Arc::clone(&self.stream)), given }
    }
}

/// A dispatch that was sent and not received yet.
#[pyclass(frozen, module = "anabranch", name = "DispatchSent")]
#[derive(Debug)]
pub(crate) struct DispatchSent {
    pub(super) inner: Unlocked<Arc<Inner>>,
    pub(super) stream: HandleStream,
    pub(super) sent: Unlocked<Mutex<Option<ep::DispatchSent>>>,
}

/// A combine that was sent and not received yet.
#[pyclass(frozen, module = "anabranch", name = "CombineSent")]
#[derive(Debug)]
pub(crate) struct CombineSent {
    pub(super) inner: Unlocked<Arc<Inner>>,
    pub(super) sent: Unlocked<Mutex<Option<ep::CombineSent>>>,
}

impl Dispatched {
    /// Tokens of a dispatch that was not used yet.
    pub(super) fn tokens_now(&self) -> Option<u32> {
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

    /// A field of the meta records, `{token u32, place u32, ids i32[K], weights f32[K], scales}` and what the library keeps behind them.
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
    pub(super) fn tokens(&self) -> PyResult<u32> {
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

    /// Weights of `ExpertParallel.send_weights`, `[rows, top_k]` f32 at the indices of the rows received; `None` before that call.
    #[getter]
    fn late_weights(&self) -> PyResult<Option<Memory>> {
        let plan = self.inner.ep.plan();
        let shape = vec![plan.rows(), u64::from(plan.config().top_k)];
        self.window(ep::Dispatched::late_weights, shape, None, DataType::F32)
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

    /// Gives the slot back without a combine. All ranks of the group do. On the stream of the dispatch unless another is given: it has to
    /// come after the experts' work.
    #[pyo3(signature = (*, stream = None))]
    fn release(&self, py: Python<'_>, stream: Option<&Bound<'_, PyAny>>) -> PyResult<()> {
        let ep = ExpertParallel::of(&self.inner);
        let stream = ep.stream_or(py, stream, &self.stream)?;
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
        self.saved.bytes()
    }
}
