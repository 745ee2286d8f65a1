//! Capture and graphs.

use core::ffi::{c_int, c_ulonglong};
use std::sync::Arc;

use anabranch_hip::HipError;
use anabranch_hip::types::{HipGraph, HipGraphExec, HipStream};

use super::give;
use crate::calls::current::call;
use crate::machine::HostMachine;
use crate::sync::lock;
use crate::work::graph::NewRecords;
use crate::work::operation::Operation;

pub(super) unsafe extern "C" fn begin(stream: HipStream, mode: c_int) -> HipError {
    call("hipStreamBeginCapture", |current| {
        let stream = current.stream(stream)?;
        current.machine.check_alive(stream.device.ordinal)?;
        current.machine.begin_capture(&stream, mode)
    })
}

/// On failure the graph is null.
pub(super) unsafe extern "C" fn end(stream: HipStream, graph: *mut HipGraph) -> HipError {
    call("hipStreamEndCapture", |current| {
        let stream = current.stream(stream)?;
        // SAFETY: the out pointer.
        unsafe { give(graph, core::ptr::null_mut()) }?;
        let plan = current.machine.end_capture(&stream)?;
        // SAFETY: the out pointer.
        unsafe { give(graph, current.machine.graphs.insert(&current.machine.handles, Arc::new(plan))) }
    })
}

pub(super) unsafe extern "C" fn is_capturing(stream: HipStream, status: *mut c_int) -> HipError {
    call("hipStreamIsCapturing", |current| {
        let stream = current.stream(stream)?;
        // SAFETY: the out pointer.
        unsafe { give(status, HostMachine::capture_status(&stream)) }
    })
}

pub(super) unsafe extern "C" fn capture_info(
    stream: HipStream,
    status: *mut c_int,
    number: *mut c_ulonglong,
) -> HipError {
    call("hipStreamGetCaptureInfo", |current| {
        let stream = current.stream(stream)?;
        let of_capture = lock(&stream.state).capture.as_ref().map_or(0, |capture| capture.graph.number);
        // SAFETY: the out pointers.
        unsafe {
            give(number, of_capture)?;
            give(status, HostMachine::capture_status(&stream))
        }
    })
}

pub(super) unsafe extern "C" fn instantiate(
    executable: *mut HipGraphExec,
    graph: HipGraph,
    _flags: c_ulonglong,
) -> HipError {
    call("hipGraphInstantiateWithFlags", |current| {
        let machine = &current.machine;
        let plan = machine.graphs.get(graph)?;
        if executable.is_null() {
            return Err(HipError::INVALID_VALUE);
        }
        // SAFETY: the out pointer.
        unsafe { give(executable, machine.executables.insert(&machine.handles, plan)) }
    })
}

/// A launch takes the events' records of now (`with_events_of_now`), not those of when the stream comes to it. Branches of the graph run side
/// by side. Launches of one executable on one stream run one after another; on different streams they may overlap, which HIP does not do.
pub(super) unsafe extern "C" fn launch(executable: HipGraphExec, stream: HipStream) -> HipError {
    call("hipGraphLaunch", |current| {
        let plan = current.machine.executables.get(executable)?;
        let stream = current.stream(stream)?;
        let is_captured = lock(&stream.state).capture.is_some();
        let mut records = NewRecords::new(stream.device.ordinal);
        let plan = if is_captured { plan } else { plan.with_events_of_now(&mut records) };
        stream.push(Operation::Graph(plan))?;
        records.publish();
        Ok(())
    })
}

/// Runs that are queued are not affected.
pub(super) unsafe extern "C" fn destroy_executable(executable: HipGraphExec) -> HipError {
    call("hipGraphExecDestroy", |current| current.machine.executables.remove(executable).map(|_| ()))
}

/// Executables of the graph are not affected.
pub(super) unsafe extern "C" fn destroy(graph: HipGraph) -> HipError {
    call("hipGraphDestroy", |current| current.machine.graphs.remove(graph).map(|_| ()))
}
