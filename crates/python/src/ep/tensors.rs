//! Tensors of dispatch and combine, checked against the plan, and launches with them.

use std::sync::{Arc, Mutex, PoisonError};

use anabranch::ccl::DataType;
use anabranch::ep::{self, CombineOutput, ExpertOutput, Tokens};
use anabranch::hip::Stream;
use pyo3::prelude::*;

use super::dispatched::{Dispatched, HandleStream};
use super::{ExpertParallel, Inner, taken};
use crate::array::Array;
use crate::errors::{raise, usage};
use crate::logs;
use crate::state::State;
use crate::unlocked::Unlocked;

/// Tensors of a dispatch, checked against the plan.
pub(super) struct Sent {
    pub(super) count: u64,
    pub(super) rows: Array,
    pub(super) ids: Option<Array>,
    pub(super) weights: Option<Array>,
    pub(super) scales: Option<Array>,
    pub(super) device_count: Option<Array>,
}

/// `x`, `topk_ids`, `topk_weights`, `scales` and `num_tokens` of a dispatch.
pub(super) type SentObjects<'a, 'py> = (
    &'a Bound<'py, PyAny>,
    &'a Bound<'py, PyAny>,
    Option<&'a Bound<'py, PyAny>>,
    Option<&'a Bound<'py, PyAny>>,
    Option<&'a Bound<'py, PyAny>>,
);

impl Sent {
    pub(super) fn into_objects(self) -> Vec<Py<PyAny>> {
        objects([Some(self.rows), self.ids, self.weights, self.scales, self.device_count])
    }

    /// # Safety
    /// The tensors stay valid until the launch is over.
    pub(super) unsafe fn tokens(&self, data_type: DataType) -> Option<Tokens> {
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
        Self::of(&Arc::new(Inner { state, ep }))
    }

    /// The same plan again, for an object that belongs to it.
    pub(super) fn of(inner: &Arc<Inner>) -> Self {
        Self { inner: Unlocked::new(Arc::clone(inner)) }
    }

    pub(crate) fn inner(&self) -> &Arc<Inner> {
        &self.inner
    }

    pub(super) fn shared(&self) -> Unlocked<Arc<Inner>> {
        Unlocked::new(Arc::clone(&self.inner))
    }

    pub(super) fn config(&self) -> &ep::EpConfig {
        self.inner.ep.plan().config()
    }

    pub(super) fn own(&self, inner: &Arc<Inner>, what: &str) -> PyResult<()> {
        if Arc::ptr_eq(&self.inner, inner) {
            Ok(())
        } else {
            Err(usage(format!("this {what} is of another plan")))
        }
    }

    pub(super) fn array(
        &self,
        name: &'static str,
        object: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Option<Array>> {
        Array::optional(name, object, self.inner.state.home)
    }

    /// Rows of `x`: `[tokens, hidden]`, or bytes of as many rows.
    pub(super) fn rows(
        &self,
        name: &'static str,
        object: &Bound<'_, PyAny>,
        of: DataType,
    ) -> PyResult<Array> {
        let rows = Array::new(name, object, self.inner.state.home)?;
        let hidden = u64::from(self.config().hidden);
        // 8-bit floats are bytes in libraries that have no such types, and two 4-bit floats are a byte in all.
        if rows.data_type() == DataType::U8 && of.bits() <= 8 {
            rows.expect_shape(
                &[None, Some(of.bytes_of(hidden))],
                &format!("[tokens, {}] bytes", of.bytes_of(hidden)),
            )?;
        } else {
            rows.expect_type(if of == DataType::F4E2m1 { DataType::U8 } else { of })?;
            rows.expect_shape(&[None, Some(hidden)], &format!("[tokens, {hidden}]"))?;
        }
        Ok(rows)
    }

    pub(super) fn sent(
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
        let ids = per_choice(self.array("topk_ids", topk_ids)?, self.config().id_type)?;
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

    /// Launches a dispatch, or its send, of `(x, topk_ids, topk_weights, scales, num_tokens)`.
    pub(super) fn send<T: Send>(
        &self,
        py: Python<'_>,
        (x, topk_ids, topk_weights, scales, num_tokens): SentObjects<'_, '_>,
        stream: Option<&Bound<'_, PyAny>>,
        call: impl FnOnce(&ep::ExpertParallel, &Stream, &Tokens) -> ep::Result<T> + Send,
    ) -> PyResult<(HandleStream, T)> {
        self.send_to(py, (x, topk_ids, topk_weights, scales, num_tokens), Vec::new(), stream, call)
    }

    /// The same with tensors that the call writes.
    pub(super) fn send_to<T: Send>(
        &self,
        py: Python<'_>,
        (x, topk_ids, topk_weights, scales, num_tokens): SentObjects<'_, '_>,
        written: Vec<Py<PyAny>>,
        stream: Option<&Bound<'_, PyAny>>,
        call: impl FnOnce(&ep::ExpertParallel, &Stream, &Tokens) -> ep::Result<T> + Send,
    ) -> PyResult<(HandleStream, T)> {
        let sent = self.sent(x, Some(topk_ids), topk_weights, scales, num_tokens)?;
        let of_call = self.stream(py, stream, Some(&sent.rows))?;
        // SAFETY: `launch` keeps the tensors until the launch is over.
        let tokens =
            unsafe { sent.tokens(self.config().token_type()) }.ok_or_else(|| usage("topk_ids is None"))?;
        let kept = sent.into_objects().into_iter().chain(written).collect();
        let value = self.launch(py, &of_call, kept, |ep, stream| call(ep, stream, &tokens))?;
        Ok((HandleStream::new(stream, of_call), value))
    }

    /// Launches on the stream of the call, without the interpreter's lock, and keeps the tensors until that is over.
    pub(super) fn launch<T: Send>(
        &self,
        py: Python<'_>,
        stream: &Arc<Stream>,
        objects: Vec<Py<PyAny>>,
        call: impl FnOnce(&ep::ExpertParallel, &Stream) -> ep::Result<T> + Send,
    ) -> PyResult<T> {
        let state = &self.inner.state;
        state.release_before(stream);
        let result = py.detach(|| {
            let value = call(&self.inner.ep, stream);
            // Also after an error: the first of two kernels may have been launched.
            state.hold(stream, None, objects);
            value
        });
        logs::flush(py);
        result.map_err(raise)
    }

    /// The same with a dispatch that the call leaves as it is.
    pub(super) fn launch_with<T: Send>(
        &self,
        py: Python<'_>,
        stream: &Arc<Stream>,
        dispatched: &Dispatched,
        objects: Vec<Py<PyAny>>,
        call: impl FnOnce(&ep::ExpertParallel, &Stream, &mut ep::Dispatched) -> ep::Result<T> + Send,
    ) -> PyResult<T> {
        // Not locked during the call: others may hold the interpreter's lock and wait for the handle.
        let mut handle = taken(&dispatched.handle, "dispatch")?;
        let result = self.launch(py, stream, objects, |ep, stream| call(ep, stream, &mut handle));
        *dispatched.handle.lock().unwrap_or_else(PoisonError::into_inner) = Some(handle);
        result
    }

    pub(super) fn stream(
        &self,
        py: Python<'_>,
        stream: Option<&Bound<'_, PyAny>>,
        array: Option<&Array>,
    ) -> PyResult<Arc<Stream>> {
        self.inner.state.live()?;
        self.inner.state.stream(py, stream, array)
    }

    pub(super) fn dispatched(&self, stream: HandleStream, handle: ep::Dispatched) -> Dispatched {
        Dispatched { inner: self.shared(), stream, handle: Unlocked::new(Mutex::new(Some(handle))) }
    }

    /// What combine gets from the experts, unless it is in the window.
    pub(super) fn experts_rows(&self, y: Option<&Bound<'_, PyAny>>) -> PyResult<Option<Array>> {
        y.filter(|y| !y.is_none()).map(|y| self.rows("y", y, self.config().combine_type)).transpose()
    }

    /// Where the sums of combine go.
    pub(super) fn combined(
        &self,
        out: &Bound<'_, PyAny>,
        out_weights: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<(Array, Option<Array>)> {
        let out = self.rows("out", out, self.config().combine_type)?.written()?;
        let out_weights = self.array("out_weights", out_weights)?.map(Array::written).transpose()?;
        if let Some(weights) = &out_weights {
            weights.expect_type(DataType::F32)?;
            let top_k = u64::from(self.config().top_k);
            weights.expect_shape(&[None, Some(top_k)], &format!("[tokens, {top_k}]"))?;
        }
        Ok((out, out_weights))
    }
}

/// # Safety
/// The tensors stay valid until the launch is over.
pub(super) unsafe fn expert_output(y: Option<&Array>) -> ExpertOutput {
    // SAFETY: the caller's promise.
    y.map_or(ExpertOutput::InWindow, |y| ExpertOutput::Staged(unsafe { y.slice() }))
}

/// # Safety
/// As [`expert_output`].
pub(super) unsafe fn combine_output(out: &Array, weights: Option<&Array>) -> CombineOutput {
    // SAFETY: the caller's promise.
    unsafe { CombineOutput { rows: out.slice(), weights: weights.map(|weights| weights.slice()) } }
}

pub(super) fn objects(arrays: impl IntoIterator<Item = Option<Array>>) -> Vec<Py<PyAny>> {
    arrays.into_iter().flatten().flat_map(Array::into_objects).collect()
}
