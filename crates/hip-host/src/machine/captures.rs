//! Stream capture: how streams get into captures and out of them, and what captures refuse.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use anabranch_hip::HipError;
use anabranch_hip::types::flags;

use super::HostMachine;
use crate::sync::lock;
use crate::work::capture::{CaptureGraph, CapturedPoint, Membership};
use crate::work::event::{Event, Mark};
use crate::work::graph::GraphPlan;
use crate::work::stream::{Stream, StreamKind};

impl HostMachine {
    /// `hipStreamBeginCapture`.
    pub(crate) fn begin_capture(&self, stream: &Stream, mode: i32) -> Result<(), HipError> {
        if !(flags::CAPTURE_MODE_GLOBAL..=flags::CAPTURE_MODE_RELAXED).contains(&mode) {
            return Err(HipError::INVALID_VALUE);
        }
        if stream.kind == StreamKind::Null {
            return Err(HipError::STREAM_CAPTURE_UNSUPPORTED);
        }
        let mut state = lock(&stream.state);
        if state.capture.is_some() {
            return Err(HipError::ILLEGAL_STATE);
        }
        let graph = Arc::new(CaptureGraph {
            number: self.capture_numbers.fetch_add(1, Ordering::Relaxed),
            mode,
            thread: std::thread::current().id(),
            invalid: AtomicBool::new(false),
            nodes: Mutex::default(),
        });
        lock(&self.captures).push(Arc::clone(&graph));
        state.capture = Some(Membership { graph, tail: Vec::new(), origin: true });
        Ok(())
    }

    /// `hipStreamEndCapture`: the graph, or why there is none. The capture is over in both cases, unless the
    /// call came on the wrong stream or thread.
    pub(crate) fn end_capture(&self, stream: &Stream) -> Result<GraphPlan, HipError> {
        let mut state = lock(&stream.state);
        let membership = state.capture.as_ref().ok_or(HipError::ILLEGAL_STATE)?;
        if !membership.origin {
            membership.graph.invalidate();
            return Err(HipError::STREAM_CAPTURE_UNMATCHED);
        }
        let graph = Arc::clone(&membership.graph);
        if graph.mode != flags::CAPTURE_MODE_RELAXED && graph.thread != std::thread::current().id() {
            graph.invalidate();
            return Err(HipError::STREAM_CAPTURE_WRONG_THREAD);
        }
        let tail = state.capture.take().map(|membership| membership.tail).unwrap_or_default();
        drop(state);
        self.forget_capture(&graph);
        graph.check()?;
        // A late use of an event that still names this capture must not add to it.
        graph.invalidate();
        let nodes = core::mem::take(&mut *lock(&graph.nodes));
        let mut followed = vec![false; nodes.len()];
        for index in nodes.iter().flat_map(|node| &node.after).chain(&tail) {
            followed[*index] = true;
        }
        if followed.contains(&false) {
            return Err(HipError::STREAM_CAPTURE_UNJOINED);
        }
        Ok(GraphPlan::new(nodes))
    }

    /// Takes every stream out of a capture.
    fn forget_capture(&self, graph: &Arc<CaptureGraph>) {
        for stream in self.devices.iter().flat_map(|device| device.streams()) {
            let mut state = lock(&stream.state);
            if state.capture.as_ref().is_some_and(|membership| Arc::ptr_eq(&membership.graph, graph)) {
                state.capture = None;
            }
        }
        lock(&self.captures).retain(|capture| !Arc::ptr_eq(capture, graph));
    }

    /// Ends the capture of a stream that is destroyed.
    pub(crate) fn abandon_capture(&self, stream: &Stream) {
        let membership = lock(&stream.state).capture.take();
        if let Some(membership) = membership {
            membership.graph.invalidate();
            if membership.origin {
                self.forget_capture(&membership.graph);
            }
        }
    }

    /// `hipStreamIsCapturing`.
    pub(crate) fn capture_status(stream: &Stream) -> i32 {
        match &lock(&stream.state).capture {
            None => flags::CAPTURE_STATUS_NONE,
            Some(membership) if membership.graph.check().is_ok() => flags::CAPTURE_STATUS_ACTIVE,
            Some(_) => flags::CAPTURE_STATUS_INVALIDATED,
        }
    }

    /// Refuses a call that waits by way of the null stream or for a whole device: any thread's, while any stream of any device
    /// is captured in whatever mode. So does HIP 7.2, whose `hipThreadExchangeStreamCaptureMode` does not lift it.
    pub(crate) fn refuse_beside_captures(&self, code: HipError) -> Result<(), HipError> {
        let captures = lock(&self.captures);
        captures.iter().for_each(|capture| capture.invalidate());
        if captures.is_empty() { Ok(()) } else { Err(code) }
    }

    /// Refuses a call that no capture can hold (an allocation, a module, a wait for a stream): any thread's
    /// while a global capture is open, this thread's while its own thread-local one is.
    pub(crate) fn refuse_in_capture(&self) -> Result<(), HipError> {
        let captures = lock(&self.captures);
        let mut refused = false;
        for capture in &*captures {
            let concerned = match capture.mode {
                flags::CAPTURE_MODE_GLOBAL => true,
                flags::CAPTURE_MODE_THREAD_LOCAL => capture.thread == std::thread::current().id(),
                _ => false,
            };
            if concerned {
                capture.invalidate();
                refused = true;
            }
        }
        if refused { Err(HipError::STREAM_CAPTURE_UNSUPPORTED) } else { Ok(()) }
    }

    /// Refuses to wait for, or ask about, a stream that is captured, and any stream but the null stream where an allocation
    /// would be refused.
    pub(crate) fn refuse_captured(&self, stream: &Stream) -> Result<(), HipError> {
        if let Some(membership) = &lock(&stream.state).capture {
            membership.graph.invalidate();
            return Err(HipError::STREAM_CAPTURE_UNSUPPORTED);
        }
        if stream.kind == StreamKind::Null { Ok(()) } else { self.refuse_in_capture() }
    }

    /// If the stream is captured, makes the event stand for its present point.
    pub(crate) fn record_captured(stream: &Stream, event: &Event) -> Result<bool, HipError> {
        let state = lock(&stream.state);
        let Some(membership) = &state.capture else { return Ok(false) };
        membership.graph.check()?;
        let point = CapturedPoint { graph: Arc::clone(&membership.graph), tail: membership.tail.clone() };
        drop(state);
        *lock(&event.mark) = Mark::Captured(point);
        Ok(true)
    }

    /// Makes a stream wait for a point of a capture, joining the capture if it is in none.
    pub(crate) fn await_captured(stream: &Stream, point: &CapturedPoint) -> Result<(), HipError> {
        if stream.kind == StreamKind::Null {
            point.graph.invalidate();
            return Err(HipError::STREAM_CAPTURE_IMPLICIT);
        }
        point.graph.check()?;
        let mut state = lock(&stream.state);
        match &mut state.capture {
            None => {
                let (graph, tail) = (Arc::clone(&point.graph), point.tail.clone());
                state.capture = Some(Membership { graph, tail, origin: false });
            }
            Some(membership) if Arc::ptr_eq(&membership.graph, &point.graph) => {
                for node in &point.tail {
                    if !membership.tail.contains(node) {
                        membership.tail.push(*node);
                    }
                }
            }
            Some(membership) => {
                membership.graph.invalidate();
                point.graph.invalidate();
                return Err(HipError::STREAM_CAPTURE_MERGE);
            }
        }
        Ok(())
    }

    /// Refuses a captured stream that is to wait for work outside of its capture.
    pub(crate) fn refuse_isolation(stream: &Stream) -> Result<(), HipError> {
        match &lock(&stream.state).capture {
            None => Ok(()),
            Some(membership) => {
                membership.graph.invalidate();
                Err(HipError::STREAM_CAPTURE_ISOLATION)
            }
        }
    }
}
