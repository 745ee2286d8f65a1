//! Works: collectives that were launched.

use std::sync::Arc;
use std::time::Duration;

use anabranch::ccl;
use pyo3::prelude::*;

use crate::errors::{raise, usage};
use crate::logs;
use crate::state::{State, wait_in_slices};
use crate::unlocked::Unlocked;

/// A collective that was launched.
#[pyclass(frozen, module = "anabranch", name = "Work")]
#[derive(Debug)]
pub(crate) struct Work {
    pub(crate) state: Unlocked<Arc<State>>,
    pub(crate) work: Unlocked<Arc<ccl::Work>>,
}

#[pymethods]
impl Work {
    /// Makes later work on the stream wait for this work. Does not wait itself.
    #[pyo3(signature = (stream = None))]
    fn wait_on(&self, py: Python<'_>, stream: Option<&Bound<'_, PyAny>>) -> PyResult<()> {
        self.state.live()?;
        let stream = self.state.stream(py, stream, None)?;
        self.work.wait_on(&stream).map_err(raise)
    }

    /// Waits on the host until the work is done. Ctrl-C ends the wait.
    #[pyo3(signature = (timeout = None))]
    fn join(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<()> {
        let timeout = timeout.map(seconds).transpose()?;
        let result =
            wait_in_slices(py, timeout, |slice| self.work.join(slice).map_err(anabranch::Error::from));
        self.state.release();
        logs::flush(py);
        result
    }

    /// Whether the work is done.
    fn poll(&self) -> PyResult<bool> {
        let is_done = self.work.poll().map_err(raise)?;
        self.state.release();
        Ok(is_done)
    }

    /// The number of the call on its communicator, from 1.
    #[getter]
    fn sequence(&self) -> u64 {
        self.work.sequence()
    }

    /// What runs, and how: the collective, its algorithm, blocks and bytes.
    fn describe(&self) -> String {
        self.work.describe().to_owned()
    }

    fn __repr__(&self) -> String {
        format!("anabranch.Work({})", self.work.describe())
    }
}

/// A duration from Python's seconds.
pub(crate) fn seconds(given: f64) -> PyResult<Duration> {
    Duration::try_from_secs_f64(given).map_err(|_| usage(format!("{given} is no number of seconds")))
}
