//! Received rows grouped by expert, and the sums of the experts' output.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use anabranch::ccl::DataType;
use anabranch::ep::{self, ExpertMajorPlan, LayoutOutput, ScaleLayout, Tokens};
use anabranch::hip::{DeviceAddress, Stream};
use pyo3::prelude::*;

use super::{Dispatched, ExpertParallel, Inner};
use crate::array::Array;
use crate::memory::{Memory, Owner};
use crate::unlocked::Unlocked;

/// Words of a record of `ep::ExpertRowSource`: row, source rank, source token, k, weight.
const SOURCE_WORDS: u64 = 5;

/// What windows keep.
#[derive(Debug)]
pub(crate) struct Layout {
    // First: its drop waits for launches, which use memory of the plan.
    major: Mutex<ep::ExpertMajor>,
    inner: Arc<Inner>,
    plan: ExpertMajorPlan,
    base: DeviceAddress,
}

impl Layout {
    pub(crate) fn lock(&self) -> MutexGuard<'_, ep::ExpertMajor> {
        self.major.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Rows grouped by expert, `[local experts, capacity, hidden]`: the input of grouped matrix products. Made by
/// `ExpertParallel.expert_major`. Its windows are device memory of this rank and hold one dispatch, from its `dispatch` or `expand` to the
/// next one.
///
/// A pair is a received row and an expert of this rank that its token names; each pair is a row of the layout. The rows of an expert are in
/// the order of source rank, token and place in the token's ids. Pairs beyond the capacity are dropped, and `contract` leaves them out.
#[pyclass(frozen, module = "anabranch", name = "ExpertMajor")]
#[derive(Debug)]
pub(crate) struct ExpertMajor {
    buffers: Unlocked<Arc<Layout>>,
}

impl ExpertMajor {
    pub(super) fn new(inner: Arc<Inner>, major: ep::ExpertMajor) -> Self {
        let (plan, base) =
            (major.plan().clone(), DeviceAddress(major.counts().0 - major.plan().layout().counts));
        let buffers = Layout { major: Mutex::new(major), inner, plan, base };
        Self { buffers: Unlocked::new(Arc::new(buffers)) }
    }

    pub(crate) fn layout(&self) -> &Arc<Layout> {
        &self.buffers
    }

    fn ep(&self) -> ExpertParallel {
        ExpertParallel::of(&self.buffers.inner)
    }

    fn config(&self) -> &ep::EpConfig {
        self.buffers.plan.dispatch_plan().config()
    }

    /// `[local experts, capacity]`.
    fn slots(&self) -> [u64; 2] {
        [self.buffers.plan.local_experts().into(), self.buffers.plan.capacity().into()]
    }

    fn window(&self, offset: u64, shape: &[u64], strides: Option<Vec<u64>>, of: DataType) -> Memory {
        let owner = Owner::Other(Arc::clone(&self.buffers) as Arc<dyn Send + Sync>);
        let address = self.buffers.base.offset(offset).0;
        Memory::new(address, shape.to_vec(), strides, of, self.buffers.inner.state.home, owner)
    }
}

#[pymethods]
impl ExpertMajor {
    /// The experts of this rank, ascending: the n-th is the n-th of the first dimension.
    #[getter]
    fn experts(&self) -> Vec<u32> {
        self.buffers.plan.experts().to_vec()
    }

    /// Rows of each expert.
    #[getter]
    fn capacity(&self) -> u32 {
        self.buffers.plan.capacity()
    }

    /// Zeros pad each expert's rows to a multiple of this.
    #[getter]
    fn alignment(&self) -> u32 {
        self.buffers.plan.alignment()
    }

    /// Bytes of device memory of all windows.
    #[getter]
    fn nbytes(&self) -> u64 {
        self.buffers.plan.bytes()
    }

    /// Rows, `[local experts, capacity, hidden]` of the plan's dispatch type. The first `counts[e]` rows of expert e are its pairs; those up
    /// to the next multiple of the alignment are zeros; the rest is undefined.
    #[getter]
    fn rows(&self) -> Memory {
        let ([experts, capacity], of) = (self.slots(), self.config().dispatch_type);
        let hidden = u64::from(self.config().hidden);
        // Two 4-bit elements are a byte in every library.
        let (extent, of) = if of == DataType::F4E2m1 { (hidden / 2, DataType::U8) } else { (hidden, of) };
        self.window(self.buffers.plan.layout().rows, &[experts, capacity, extent], None, of)
    }

    /// Scales of the rows, zeros in the padding; `None` in plans without. By `scale_layout`: "rows" are bytes, `[local experts, capacity,
    /// scale_bytes]` u8; "columns" `[local experts, capacity, scale_bytes / 4]` f32, whatever was sent, with strides of column-major;
    /// "packed_columns" likewise i32, `scale_bytes / 16` rounded up.
    #[getter]
    fn scales(&self) -> Option<Memory> {
        let ([experts, capacity], plan) = (self.slots(), &self.buffers.plan);
        let bytes = u64::from(plan.scale_layout().row_bytes(self.config().scale_bytes));
        let (count, of) = match plan.scale_layout() {
            ScaleLayout::Rows => (bytes, DataType::U8),
            ScaleLayout::PackedColumns => (bytes / 4, DataType::I32),
            _ => (bytes / 4, DataType::F32),
        };
        let strides = (of != DataType::U8).then(|| vec![count * capacity, 1, capacity]);
        (bytes > 0).then(|| self.window(plan.layout().scales, &[experts, capacity, count], strides, of))
    }

    /// Rows of each expert, `[local experts]` i32.
    #[getter]
    fn counts(&self) -> Memory {
        self.window(self.buffers.plan.layout().counts, &self.slots()[..1], None, DataType::I32)
    }

    /// Pairs of each expert, dropped ones too, `[local experts]` i32.
    #[getter]
    fn pairs(&self) -> Memory {
        self.window(self.buffers.plan.layout().pairs, &self.slots()[..1], None, DataType::I32)
    }

    /// `[local experts, ranks + 1]` i32: the rows of expert e from rank s are `source_offsets[e, s]` up to `source_offsets[e, s + 1]`.
    #[getter]
    fn source_offsets(&self) -> Memory {
        let ranks = u64::from(self.buffers.plan.dispatch_plan().ranks());
        let shape = [self.slots()[0], ranks + 1];
        self.window(self.buffers.plan.layout().source_offsets, &shape, None, DataType::I32)
    }

    /// Where each row is from, `[local experts, capacity, 4]` i32, strided: the row of the dispatch's windows, the rank, the token's number
    /// there, and the place of the expert in the token's ids. All -1 in the padding.
    #[getter]
    fn sources(&self) -> Memory {
        let [experts, capacity] = self.slots();
        let strides = vec![capacity * SOURCE_WORDS, SOURCE_WORDS, 1];
        let offset = self.buffers.plan.layout().sources;
        self.window(offset, &[experts, capacity, 4], Some(strides), DataType::I32)
    }

    /// The dispatched weight of each row, `[local experts, capacity]` f32, strided. 0 in the padding.
    #[getter]
    fn weights(&self) -> Memory {
        let [experts, capacity] = self.slots();
        let (strides, offset) =
            (vec![capacity * SOURCE_WORDS, SOURCE_WORDS], self.buffers.plan.layout().sources);
        self.window(offset + 4 * (SOURCE_WORDS - 1), &[experts, capacity], Some(strides), DataType::F32)
    }

    /// Where each pair is, `[rows_capacity, top_k]` i32 by row of the dispatch's windows: `expert * capacity + row`, -1 where the expert is
    /// not of this rank, -2 for a dropped pair. Undefined for rows that did not come.
    #[getter]
    fn slot_map(&self) -> Memory {
        let shape = [self.buffers.plan.dispatch_plan().rows(), u64::from(self.config().top_k)];
        self.window(self.buffers.plan.layout().slot_map, &shape, None, DataType::I32)
    }

    /// `ExpertParallel.dispatch`, then `expand`, with the same arguments and results, and in one kernel where kernels move the plan's rows and
    /// no rank may be masked. All ranks of the group call it, or none: a rank that calls `ExpertParallel.dispatch` meanwhile is a fault of the
    /// world. It overwrites the dispatch that the windows hold.
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
        let (ep, tensors) = (self.ep(), (x, topk_ids, topk_weights, scales, num_tokens));
        let dispatch = |ep: &ep::ExpertParallel, stream: &Stream, tokens: &Tokens| {
            self.buffers.lock().dispatch(ep, stream, tokens)
        };
        let (stream, handle) = ep.send(py, tensors, stream, dispatch)?;
        Ok(ep.dispatched(stream, handle))
    }

    /// Copies a dispatch's rows into the windows. No other rank takes part. On the stream of the dispatch unless another is given, which has
    /// to come after the dispatch.
    #[pyo3(signature = (dispatched, *, stream = None))]
    fn expand(
        &self,
        py: Python<'_>,
        dispatched: &Dispatched,
        stream: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<()> {
        let ep = self.ep();
        ep.own(&dispatched.inner, "dispatch")?;
        let stream = ep.stream_or(py, stream, &dispatched.stream)?;
        ep.launch_with(py, &stream, dispatched, Vec::new(), |_, stream, handle| {
            self.buffers.lock().expand(stream, handle)
        })
    }

    /// Sums the experts' output of each received row, times the dispatched or late weights, for the combine: `y` is `[local experts, capacity,
    /// hidden]` of the plan's combine type. `weights`, `[local experts, capacity]` float32, take their place. The sums go
    /// into `dispatched.combine_rows`, which `combine(dispatched, out=...)` takes, or into
    /// `out`, `[rows_capacity, hidden]`, for `combine(dispatched, out, out=...)`. No other rank takes part.
    #[pyo3(signature = (dispatched, y, *, weights = None, out = None, stream = None))]
    fn contract(
        &self,
        py: Python<'_>,
        dispatched: &Dispatched,
        y: &Bound<'_, PyAny>,
        weights: Option<&Bound<'_, PyAny>>,
        out: Option<&Bound<'_, PyAny>>,
        stream: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<()> {
        let ep = self.ep();
        ep.own(&dispatched.inner, "dispatch")?;
        let (home, of) = (self.buffers.inner.state.home, self.config().combine_type);
        let ([experts, capacity], hidden) = (self.slots(), u64::from(self.config().hidden));
        let y = Array::new("y", y, home)?;
        y.expect_type(of)?;
        y.expect_shape(
            &[Some(experts), Some(capacity), Some(hidden)],
            &format!("[{experts}, {capacity}, {hidden}]"),
        )?;
        let weights = Array::optional("weights", weights, home)?;
        if let Some(weights) = &weights {
            weights.expect_type(DataType::F32)?;
            weights.expect_shape(&[Some(experts), Some(capacity)], &format!("[{experts}, {capacity}]"))?;
        }
        let out = Array::optional("out", out, home)?.map(Array::written).transpose()?;
        if let Some(out) = &out {
            let rows = self.buffers.plan.dispatch_plan().rows();
            out.expect_type(of)?;
            out.expect_shape(&[Some(rows), Some(hidden)], &format!("[{rows}, {hidden}]"))?;
        }
        let stream = ep.stream(py, stream, Some(&y))?;
        // SAFETY: `launch_with` keeps the tensors until the launch is over.
        let (experts, sums) = unsafe {
            let weights = weights.as_ref().map(|weights| weights.slice());
            (LayoutOutput { rows: y.slice(), weights }, out.as_ref().map(|out| out.slice()))
        };
        let objects = super::tensors::objects([Some(y), weights, out]);
        ep.launch_with(py, &stream, dispatched, objects, |_, stream, handle| {
            let major = self.buffers.lock();
            match sums {
                None => major.contract(stream, handle, experts).map(drop),
                Some(sums) => major.contract_into(stream, handle, experts, sums).map(drop),
            }
        })
    }

    fn __repr__(&self) -> String {
        let [experts, capacity] = self.slots();
        format!("anabranch.ExpertMajor(experts={experts}, capacity={capacity})")
    }
}
