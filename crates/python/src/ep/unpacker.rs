//! Received rows in tensors of the caller.

use std::sync::Arc;

use anabranch::ccl::DataType;
use anabranch::ep::{self, Unpacked};
use anabranch::hip::Stream;
use pyo3::prelude::*;

use super::tensors::objects;
use super::{Dispatched, ExpertParallel, Inner};
use crate::array::Array;
use crate::errors::usage;
use crate::unlocked::{Ends, Unlocked};

impl Ends for ep::RowUnpacker {}

/// Copies received rows out of a plan's windows into tensors of the caller. Made by `ExpertParallel.unpacker`.
#[pyclass(frozen, module = "anabranch", name = "RowUnpacker")]
#[derive(Debug)]
pub(crate) struct RowUnpacker {
    // First: its drop waits for launches, which use memory of the plan.
    unpacker: Unlocked<ep::RowUnpacker>,
    inner: Unlocked<Arc<Inner>>,
}

impl RowUnpacker {
    pub(super) fn new(inner: Arc<Inner>, unpacker: ep::RowUnpacker) -> Self {
        Self { unpacker: Unlocked::new(unpacker), inner: Unlocked::new(inner) }
    }
}

#[pymethods]
impl RowUnpacker {
    /// Copies the rows of a dispatch into the tensors that are given, one row after the other in the order of source rank, then token. They have
    /// one number of rows, which may be more or less than came; at least one is given. `rows`: `[n, hidden]`; 4-bit types as bytes. `scales`:
    /// `[n, scale_bytes]` bytes of any type. `ids`: `[n, top_k]` int64, numbers of the experts among this rank's, -1 for experts of other ranks
    /// and behind the rows that came. `weights`: `[n, top_k]` float32, 0 where the id is -1. Rows and scales behind those that came are left as
    /// they are. No other rank takes part.
    #[pyo3(signature = (dispatched, *, rows = None, scales = None, ids = None, weights = None, stream = None))]
    fn unpack(
        &self,
        py: Python<'_>,
        dispatched: &Dispatched,
        rows: Option<&Bound<'_, PyAny>>,
        scales: Option<&Bound<'_, PyAny>>,
        ids: Option<&Bound<'_, PyAny>>,
        weights: Option<&Bound<'_, PyAny>>,
        stream: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<()> {
        let ep = ExpertParallel::of(&self.inner);
        ep.own(&dispatched.inner, "dispatch")?;
        let (config, home) = (ep.config(), self.inner.state.home);
        let output = |name, given| Array::optional(name, given, home)?.map(Array::written).transpose();
        let outputs = [
            output("rows", rows)?,
            output("scales", scales)?,
            output("ids", ids)?,
            output("weights", weights)?,
        ];
        let first = outputs.iter().flatten().next().ok_or_else(|| usage("unpack: no tensor is given"))?;
        let count = first.shape().first().copied().unwrap_or(0);
        let top_k = u64::from(config.top_k);
        let row_bytes = config.dispatch_type.bytes_of(config.hidden.into());
        for (array, (bytes, of)) in outputs.iter().zip([
            (row_bytes, None),
            (u64::from(config.scale_bytes), None),
            (8 * top_k, Some(DataType::I64)),
            (4 * top_k, Some(DataType::F32)),
        ]) {
            let Some(array) = array else { continue };
            if let Some(of) = of {
                array.expect_type(of)?;
                array.expect_shape(&[Some(count), Some(top_k)], &format!("[{count}, {top_k}]"))?;
            } else if array.shape().first() != Some(&count) || array.bytes() != count * bytes {
                return Err(usage(format!(
                    "an output of unpack has shape {:?} of {}; {bytes} bytes for each of {count} rows are needed",
                    array.shape(),
                    array.data_type()
                )));
            }
        }
        let count =
            u32::try_from(count).map_err(|_| usage(format!("{count} rows; less than 2^32 are allowed")))?;
        let stream = ep.stream(py, stream, Some(first))?;
        // SAFETY: `launch_with` keeps the tensors until the launch is over.
        let [rows, scales, ids, weights] =
            unsafe { outputs.each_ref().map(|array| array.as_ref().map(|array| array.slice())) };
        let unpacked = Unpacked { count, rows, scales, ids, weights };
        let unpacker: &ep::RowUnpacker = &self.unpacker;
        ep.launch_with(py, &stream, dispatched, objects(outputs), |_, stream: &Stream, handle| {
            unpacker.unpack(stream, handle, &unpacked)
        })
    }
}
