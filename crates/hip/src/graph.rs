//! Work captured from a stream and replayed.

use crate::device::Device;
use crate::error::Result;
use crate::stream::Stream;
use crate::trace::StreamWork;
use crate::types::{HipError, HipGraph, HipGraphExec, flags};

/// Captured work.
#[derive(Debug)]
pub struct Graph {
    device: Device,
    raw: HipGraph,
}

// SAFETY: a graph is used through `&self` calls that HIP serialises; it may move between threads.
unsafe impl Send for Graph {}

/// A graph made ready to run.
#[derive(Debug)]
pub struct GraphExec {
    device: Device,
    raw: HipGraphExec,
}

// SAFETY: as for Graph.
unsafe impl Send for GraphExec {}

impl Stream {
    /// Starts to capture, in thread-local mode: work given to the stream from now on is recorded, not run.
    ///
    /// Until the end of the capture this thread may not allocate, free, load modules, or wait for streams. What other threads may not do
    /// is the runtime's: HIP refuses `hipMemcpy` and `hipMemset` (906) and `hipDeviceSynchronize` (900) on *all* threads of the process,
    /// for all devices, in each mode, and invalidates the capture; [`Self::end_capture`] then gives 901. This workspace calls none of
    /// these three (see [`HipApi`](crate::HipApi)), so that worlds, plans and communicators may be made and used meanwhile. CUDA itself
    /// allows them to other threads; the table over its driver refuses them in the same way.
    ///
    /// # Errors
    /// The code of `hipStreamBeginCapture`.
    pub fn begin_capture(&self) -> Result<()> {
        let _guard = self.device().guard()?;
        // SAFETY: the handle is live.
        let code = unsafe {
            (self.device().runtime().api().hipStreamBeginCapture)(
                self.raw(),
                flags::CAPTURE_MODE_THREAD_LOCAL,
            )
        };
        self.device().check("hipStreamBeginCapture", code)
    }

    /// Ends the capture.
    ///
    /// # Errors
    /// The code of `hipStreamEndCapture`: something that cannot be captured was called meanwhile.
    pub fn end_capture(&self) -> Result<Graph> {
        let _guard = self.device().guard()?;
        let mut raw = std::ptr::null_mut();
        // SAFETY: the handle is live; the call writes one handle.
        let code = unsafe { (self.device().runtime().api().hipStreamEndCapture)(self.raw(), &raw mut raw) };
        self.device().check("hipStreamEndCapture", code)?;
        Ok(Graph { device: self.device().clone(), raw })
    }
}

impl Graph {
    /// Makes the graph ready to run, any number of times.
    ///
    /// # Errors
    /// The code of `hipGraphInstantiateWithFlags`.
    pub fn instantiate(&self) -> Result<GraphExec> {
        let _guard = self.device.guard()?;
        let mut raw = std::ptr::null_mut();
        // SAFETY: the graph is live; the call writes one handle.
        let code =
            unsafe { (self.device.runtime().api().hipGraphInstantiateWithFlags)(&raw mut raw, self.raw, 0) };
        self.device.check("hipGraphInstantiateWithFlags", code)?;
        Ok(GraphExec { device: self.device.clone(), raw })
    }
}

impl GraphExec {
    /// Puts one run of the graph on the stream.
    ///
    /// # Errors
    /// The code of `hipGraphLaunch`.
    ///
    /// # Safety
    /// Every address that the captured work uses must still be valid, and stay so until the run is done.
    pub unsafe fn launch(&self, stream: &Stream) -> Result<()> {
        let work = || StreamWork { name: "graph".into(), grid: None, bytes: None };
        stream.device().timed(stream, work, || {
            let _guard = self.device.guard()?;
            // SAFETY: both handles are live; the caller vouches for the captured addresses.
            let code = unsafe { (self.device.runtime().api().hipGraphLaunch)(self.raw, stream.raw()) };
            self.device.check("hipGraphLaunch", code)
        })
    }
}

impl Drop for Graph {
    fn drop(&mut self) {
        let Ok(_guard) = self.device.guard() else {
            tracing::warn!("graph leaked: its device cannot be made current");
            return;
        };
        // SAFETY: the handle came from hipStreamEndCapture and is destroyed once, here.
        let code = unsafe { (self.device.runtime().api().hipGraphDestroy)(self.raw) };
        if code != HipError::SUCCESS {
            tracing::warn!(%code, "hipGraphDestroy failed");
        }
    }
}

impl Drop for GraphExec {
    fn drop(&mut self) {
        let Ok(_guard) = self.device.guard() else {
            tracing::warn!("graph leaked: its device cannot be made current");
            return;
        };
        // SAFETY: the handle came from an instantiate call and is destroyed once, here.
        let code = unsafe { (self.device.runtime().api().hipGraphExecDestroy)(self.raw) };
        if code != HipError::SUCCESS {
            tracing::warn!(%code, "hipGraphExecDestroy failed");
        }
    }
}
