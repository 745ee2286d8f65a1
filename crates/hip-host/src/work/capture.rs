//! Stream capture: what is given to a stream becomes nodes of a graph instead of running.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::ThreadId;

use anabranch_hip::HipError;

use crate::sync::lock;
use crate::work::graph::Node;
use crate::work::operation::Operation;

/// The graph that a capture builds.
#[derive(Debug)]
pub(crate) struct CaptureGraph {
    /// No other capture of the machine has it.
    pub(crate) number: u64,
    pub(crate) mode: i32,
    pub(crate) thread: ThreadId,
    pub(crate) invalid: AtomicBool,
    pub(crate) nodes: Mutex<Vec<Node>>,
}

/// A point of a capture that an event stands for.
#[derive(Clone, Debug)]
pub(crate) struct CapturedPoint {
    pub(crate) graph: Arc<CaptureGraph>,
    pub(crate) tail: Vec<usize>,
}

/// A stream's part in a capture.
#[derive(Debug)]
pub(crate) struct Membership {
    pub(crate) graph: Arc<CaptureGraph>,
    /// The nodes that the stream's next one comes after.
    pub(crate) tail: Vec<usize>,
    /// Whether the capture began on this stream.
    pub(crate) origin: bool,
}

impl CaptureGraph {
    /// Makes the capture fail when it ends.
    pub(crate) fn invalidate(&self) {
        self.invalid.store(true, Ordering::Release);
    }

    pub(crate) fn check(&self) -> Result<(), HipError> {
        if self.invalid.load(Ordering::Acquire) { Err(HipError::STREAM_CAPTURE_INVALIDATED) } else { Ok(()) }
    }
}

/// Adds an operation to the capture that a stream is in.
pub(crate) fn captured_push(membership: &mut Membership, operation: Operation) -> Result<(), HipError> {
    membership.graph.check()?;
    let after = core::mem::take(&mut membership.tail);
    let mut nodes = lock(&membership.graph.nodes);
    membership.tail = vec![nodes.len()];
    nodes.push(Node { operation, after });
    Ok(())
}
