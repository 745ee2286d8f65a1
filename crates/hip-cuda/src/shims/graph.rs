//! Capture and graphs. Capture modes, capture states and instantiation flags have the same numbers in both.

use core::ffi::{c_int, c_ulonglong};

use anabranch_hip::types::{HipGraph, HipGraphExec, HipStream};

use crate::call::forward;

forward! {
    /// Starts to record a stream instead of running it.
    fn hipStreamBeginCapture(stream: HipStream, mode: c_int) via cuStreamBeginCapture_v2(stream, mode);
    /// Ends the recording; the graph is the caller's.
    fn hipStreamEndCapture(stream: HipStream, graph: *mut HipGraph) via cuStreamEndCapture(stream, graph);
    /// Whether a stream is being recorded.
    fn hipStreamIsCapturing(stream: HipStream, status: *mut c_int) via cuStreamIsCapturing(stream, status);
    /// Makes a graph launchable.
    fn hipGraphInstantiateWithFlags(exec: *mut HipGraphExec, graph: HipGraph, flags: c_ulonglong)
        via cuGraphInstantiateWithFlags(exec, graph, flags);
    /// Moves a graph to the device ahead of its first launch.
    fn hipGraphUpload(exec: HipGraphExec, stream: HipStream) via cuGraphUpload(exec, stream);
    /// Launches a graph in stream order.
    fn hipGraphLaunch(exec: HipGraphExec, stream: HipStream) via cuGraphLaunch(exec, stream);
    /// Destroys a launchable graph.
    fn hipGraphExecDestroy(exec: HipGraphExec) via cuGraphExecDestroy(exec);
    /// Destroys a graph.
    fn hipGraphDestroy(graph: HipGraph) via cuGraphDestroy(graph);
}
