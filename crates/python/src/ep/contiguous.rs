//! Rows of all experts one after the other, in tensors of the caller, and the sums of the experts' output.

use std::sync::Arc;

use anabranch::ccl::DataType;
use anabranch::ep::{self, ContiguousLayout, ContiguousOutput, ContiguousRows, ContiguousWeights, Tokens};
use anabranch::hip::Stream;
use pyo3::prelude::*;

use super::config::word;
use super::tensors::objects;
use super::{Dispatched, ExpertParallel, Inner};
use crate::array::Array;
use crate::errors::usage;
use crate::unlocked::{Ends, Unlocked};

impl Ends for ep::ContiguousExperts {}

/// Copies received rows to their experts, the rows of all experts one after the other: `[places, hidden]`, the input of grouped matrix
/// products with contiguous groups. Sums the experts' output for the combine. Layouts and slot maps are tensors of the caller, so several
/// dispatches may be expanded at once. Made by `ExpertParallel.contiguous`.
///
/// A pair is a received row and an expert of this rank that its token names; each has a place of its own. The rows of an expert are in the order of
/// source rank, token and place in the token's ids. Pairs for which there is no place are dropped, and `contract` leaves them out.
#[pyclass(frozen, module = "anabranch", name = "ContiguousExperts")]
#[derive(Debug)]
pub(crate) struct ContiguousExperts {
    // First: its drop waits for launches, which use memory of the plan.
    experts: Unlocked<ep::ContiguousExperts>,
    inner: Unlocked<Arc<Inner>>,
}

/// The slot map, counts and starts.
type Layout<'py> = (Bound<'py, PyAny>, Bound<'py, PyAny>, Bound<'py, PyAny>);

/// What an expand writes.
struct Written {
    output: ContiguousRows,
    rows: Array,
    kept: Vec<Py<PyAny>>,
}

impl ContiguousExperts {
    pub(super) fn new(inner: Arc<Inner>, experts: ep::ContiguousExperts) -> Self {
        Self { experts: Unlocked::new(experts), inner: Unlocked::new(inner) }
    }

    fn ep(&self) -> ExpertParallel {
        ExpertParallel::of(&self.inner)
    }

    /// The places of `[places, hidden]` of a type, or of as many bytes.
    fn rows(&self, what: &str, array: &Array, of: DataType) -> PyResult<u32> {
        let hidden = u64::from(self.ep().config().hidden);
        let count = array.shape().first().copied().unwrap_or(0);
        // 4-bit types travel as bytes.
        if array.shape().len() != 2 || array.bytes() != count * of.bytes_of(hidden) {
            return Err(usage(format!(
                "{what} has shape {:?} of {}; [places, {hidden}] of {of} is needed",
                array.shape(),
                array.data_type()
            )));
        }
        u32::try_from(count)
            .map_err(|_| usage(format!("{what} has {count} rows; less than 2^32 are allowed")))
    }

    /// The tensors that an expand writes, checked. The caller keeps them until the launch is over.
    fn written(
        &self,
        rows: &Bound<'_, PyAny>,
        (slot_map, counts, starts): Layout<'_>,
        layout: ContiguousLayout,
        scales: Option<&Bound<'_, PyAny>>,
        weights: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Written> {
        let (ep, home) = (self.ep(), self.inner.state.home);
        let output = |name, given| Array::new(name, given, home)?.written();
        let optional = |name, given| Array::optional(name, given, home)?.map(Array::written).transpose();
        let (rows, slot_map) = (output("rows", rows)?, output("slot_map", &slot_map)?);
        let (counts, starts) = (output("counts", &counts)?, output("starts", &starts)?);
        let (scales, weights) = (optional("scales", scales)?, optional("weights", weights)?);
        let places = self.rows("rows", &rows, ep.config().dispatch_type)?;
        self.check_slot_map(&slot_map)?;
        let local = u64::from(self.experts.local_experts());
        for (array, count) in [(&counts, local), (&starts, local + 1)] {
            array.expect_type(DataType::I32)?;
            array.expect_shape(&[Some(count)], &format!("[{count}]"))?;
        }
        if let Some(scales) = &scales {
            let needed = self.experts.scale_bytes(layout.scale_layout, places);
            if scales.bytes() != needed {
                return Err(usage(format!(
                    "scales has shape {:?} of {}; {needed} bytes are needed for {places} places",
                    scales.shape(),
                    scales.data_type()
                )));
            }
        }
        if let Some(weights) = &weights {
            weights.expect_type(DataType::F32)?;
            weights.expect_shape(&[Some(places.into())], &format!("[{places}]"))?;
        }
        // SAFETY: the caller keeps the tensors until the launch is over.
        let output = unsafe {
            ContiguousRows {
                layout,
                places,
                rows: rows.slice(),
                scales: scales.as_ref().map(|scales| scales.slice()),
                weights: weights.as_ref().map(|weights| weights.slice()),
                slot_map: slot_map.slice(),
                counts: counts.slice(),
                starts: starts.slice(),
            }
        };
        let kept = objects([Some(slot_map), Some(counts), Some(starts), scales, weights]);
        Ok(Written { output, rows, kept })
    }

    fn check_slot_map(&self, array: &Array) -> PyResult<()> {
        let ep = self.ep();
        let (rows, top_k) = (self.inner.ep.plan().rows(), u64::from(ep.config().top_k));
        array.expect_type(DataType::I32)?;
        array.expect_shape(&[Some(rows), Some(top_k)], &format!("[{rows}, {top_k}]"))
    }
}

#[pymethods]
impl ContiguousExperts {
    /// Places that are enough for every routing: all pairs that this rank can receive, and each expert's padding.
    #[pyo3(signature = (*, alignment = 1))]
    fn most_places(&self, alignment: u32) -> u64 {
        self.experts.most_places(alignment)
    }

    /// Copies the received rows of a dispatch into `rows`, `[places, hidden]` of the plan's dispatch type, or of as many bytes. Without
    /// places it only counts. Each expert begins at a multiple of `alignment` places, 1 to 65536. `layout` is three tensors, which it
    /// writes too:
    ///
    /// * the slot map, `[rows_capacity, top_k]` int32: the place of each pair by row of the dispatch's windows, -1 where the expert is not of
    ///   this rank, -2 for a dropped pair. Entries of rows that did not come are left as they are;
    /// * the counts, `[local experts]` int32: the rows of each expert that have a place;
    /// * the starts, `[local experts + 1]` int32: the first place of each expert, a multiple of the alignment; the last number is the places
    ///   that all experts need.
    ///
    /// And for each place
    ///
    /// * `scales`, in plans with scales, by `scale_layout` (as of `expert_major`): "rows" `[places, scale_bytes]` bytes of any type;
    ///   "columns" `[scale_bytes / 4, places rounded up to a multiple of 4]` of 4-byte elements; "packed_columns" `[scale_bytes / 16 rounded
    ///   up, ..]`;
    /// * `weights`, optional, `[places]` float32: the dispatched weights, 0 in places without a row.
    ///
    /// With `zero_padding` the rows and scales of the places between experts are zeros; otherwise they are left as they are, and so are
    /// always those after all experts. No other rank takes part. On the stream of the
    /// tensors unless another is given; it has to come after the dispatch.
    #[pyo3(signature = (
        dispatched, rows, layout, *, alignment = 1, scale_layout = "rows", zero_padding = false, scales = None, weights = None,
        stream = None
    ))]
    #[expect(clippy::too_many_arguments, reason = "keywords of Python")]
    fn expand(
        &self,
        py: Python<'_>,
        dispatched: &Dispatched,
        rows: &Bound<'_, PyAny>,
        layout: Layout<'_>,
        alignment: u32,
        scale_layout: &str,
        zero_padding: bool,
        scales: Option<&Bound<'_, PyAny>>,
        weights: Option<&Bound<'_, PyAny>>,
        stream: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<()> {
        let ep = self.ep();
        ep.own(&dispatched.inner, "dispatch")?;
        let form = ContiguousLayout { alignment, scale_layout: word(scale_layout)?, zero_padding };
        let Written { output, rows, kept } = self.written(rows, layout, form, scales, weights)?;
        let stream = ep.stream(py, stream, Some(&rows))?;
        let kept = objects([Some(rows)]).into_iter().chain(kept).collect();
        let experts: &ep::ContiguousExperts = &self.experts;
        ep.launch_with(py, &stream, dispatched, kept, |_, stream: &Stream, handle| {
            experts.expand(stream, handle, &output)
        })
    }

    /// `ExpertParallel.dispatch`, then `expand`, with the same results, and in one kernel where kernels move the plan's rows and no rank may be
    /// masked. The tensors that come for each place, `expand`'s `scales` and `weights`, are `row_scales` and `row_weights` here. All ranks of
    /// the group call it, or none: a rank that only calls `ExpertParallel.dispatch` meanwhile is a fault of the world.
    #[pyo3(signature = (
        x, topk_ids, topk_weights = None, scales = None, *, rows, layout, alignment = 1, scale_layout = "rows", zero_padding = false,
        row_scales = None, row_weights = None, num_tokens = None, stream = None
    ))]
    #[expect(clippy::too_many_arguments, reason = "keywords of Python")]
    fn dispatch(
        &self,
        py: Python<'_>,
        x: &Bound<'_, PyAny>,
        topk_ids: &Bound<'_, PyAny>,
        topk_weights: Option<&Bound<'_, PyAny>>,
        scales: Option<&Bound<'_, PyAny>>,
        rows: &Bound<'_, PyAny>,
        layout: Layout<'_>,
        alignment: u32,
        scale_layout: &str,
        zero_padding: bool,
        row_scales: Option<&Bound<'_, PyAny>>,
        row_weights: Option<&Bound<'_, PyAny>>,
        num_tokens: Option<&Bound<'_, PyAny>>,
        stream: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Dispatched> {
        let ep = self.ep();
        let form = ContiguousLayout { alignment, scale_layout: word(scale_layout)?, zero_padding };
        let Written { output, rows, kept } = self.written(rows, layout, form, row_scales, row_weights)?;
        let kept = objects([Some(rows)]).into_iter().chain(kept).collect();
        let experts: &ep::ContiguousExperts = &self.experts;
        let tensors = (x, topk_ids, topk_weights, scales, num_tokens);
        let dispatch = |ep: &ep::ExpertParallel, stream: &Stream, tokens: &Tokens| {
            experts.dispatch(ep, stream, tokens, &output)
        };
        let (stream, handle) = ep.send_to(py, tensors, kept, stream, dispatch)?;
        Ok(ep.dispatched(stream, handle))
    }

    /// Sums the experts' output of each received row into `dispatched.combine_rows`, for `combine(dispatched, out=...)`. `y` is `[places,
    /// hidden]` of the plan's combine type, `slot_map` what an expand of this dispatch wrote, or of another dispatch along the same routing.
    /// Rows are multiplied by `weights`, `[places]` float32, or else by the late or the dispatched weights; with `weighted=False` by none. No
    /// other rank takes part.
    #[pyo3(signature = (dispatched, y, slot_map, *, weights = None, weighted = true, stream = None))]
    fn contract(
        &self,
        py: Python<'_>,
        dispatched: &Dispatched,
        y: &Bound<'_, PyAny>,
        slot_map: &Bound<'_, PyAny>,
        weights: Option<&Bound<'_, PyAny>>,
        weighted: bool,
        stream: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<()> {
        let ep = self.ep();
        ep.own(&dispatched.inner, "dispatch")?;
        if weights.is_some() && !weighted {
            return Err(usage("contract: weights are given, and weighted is False"));
        }
        let home = self.inner.state.home;
        let (y, slot_map) = (Array::new("y", y, home)?, Array::new("slot_map", slot_map, home)?);
        y.expect_type(ep.config().combine_type)?;
        let places = self.rows("y", &y, ep.config().combine_type)?;
        self.check_slot_map(&slot_map)?;
        let weights = Array::optional("weights", weights, home)?;
        if let Some(weights) = &weights {
            weights.expect_type(DataType::F32)?;
            weights.expect_shape(&[Some(places.into())], &format!("[{places}]"))?;
        }
        let stream = ep.stream(py, stream, Some(&y))?;
        // SAFETY: `launch_with` keeps the tensors until the launch is over.
        let output = unsafe {
            let weights = match &weights {
                Some(weights) => ContiguousWeights::Given(weights.slice()),
                None if weighted => ContiguousWeights::Dispatched,
                None => ContiguousWeights::Ones,
            };
            ContiguousOutput { places, rows: y.slice(), weights, slot_map: slot_map.slice() }
        };
        let experts: &ep::ContiguousExperts = &self.experts;
        let kept = objects([Some(y), Some(slot_map), weights]);
        ep.launch_with(py, &stream, dispatched, kept, |_, stream: &Stream, handle| {
            experts.contract(stream, handle, &output).map(drop)
        })
    }

    fn __repr__(&self) -> String {
        format!("anabranch.ContiguousExperts(experts={})", self.experts.local_experts())
    }
}
