//! Queues by the runtime's own function.

use core::ffi::c_void;
use core::fmt;
use std::sync::Arc;

use super::functions::{HsaQueue, QueueDescriptor, QueueFunctions};
use super::session::{Session, check};
use crate::amd::driver::{Driver, DriverNode, DriverQueue, QueueToken, RingPlace};
use crate::amd::error::{AmdError, AmdResult};
use crate::amd::topology::Gpu;

/// The first interface that reports a queue's pointers and makes rings uncached.
const INTERFACE: (u16, u16) = (1, 31);

/// `hsa_queue_info_attribute_t`: of a queue of a copy engine, the doorbell's address and not a number.
const DOORBELL: u32 = 1;
const SDMA_ENGINE: u32 = 14;
const READ_POINTER: u32 = 15;
const WRITE_POINTER: u32 = 16;

/// `HSA_STATUS_ERROR_OUT_OF_RESOURCES`, which is all that the runtime says when the kernel refuses a queue.
const OUT_OF_RESOURCES: u32 = 0x1008;

const CREATE: &str = "hsa_amd_queue_create";
const DESTROY: &str = "hsa_queue_destroy";

/// Makes queues with `hsa_amd_queue_create`. Rings lie in the host's memory, uncached.
pub(super) struct RuntimeDriver {
    session: Arc<Session>,
    functions: QueueFunctions,
    origin: String,
}

impl fmt::Debug for RuntimeDriver {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("RuntimeDriver").field("origin", &self.origin).finish_non_exhaustive()
    }
}

impl RuntimeDriver {
    /// A driver, or in words why this runtime has none.
    pub(super) fn new(session: Arc<Session>, functions: QueueFunctions) -> Result<Self, String> {
        let found = session.interface().map_err(|error| error.to_string())?;
        // Another major number would have other layouts.
        if found.0 != INTERFACE.0 || found < INTERFACE {
            return Err(format!(
                "interface {}.{} of AMD's extension, and {}.{} is needed",
                found.0, found.1, INTERFACE.0, INTERFACE.1
            ));
        }
        let origin = format!("{CREATE} of {} (interface {}.{})", session.name(), found.0, found.1);
        Ok(Self { session, functions, origin })
    }

    /// What the runtime made. The queue is there.
    fn describe(&self, place: &str, queue: *mut HsaQueue) -> AmdResult<DriverQueue> {
        let info = |attribute: u32, value: *mut c_void| {
            // SAFETY: the queue is there; the attributes used below write as many bytes as their places have.
            let code = unsafe { (self.functions.hsa_amd_queue_get_info)(queue, attribute, value) };
            check("hsa_amd_queue_get_info", || format!("attribute {attribute} of {place}"), code)
        };
        let (mut doorbell, mut read_pointer, mut write_pointer, mut engine) = (0u64, 0u64, 0u64, 0u32);
        info(DOORBELL, (&raw mut doorbell).cast())?;
        info(READ_POINTER, (&raw mut read_pointer).cast())?;
        info(WRITE_POINTER, (&raw mut write_pointer).cast())?;
        info(SDMA_ENGINE, (&raw mut engine).cast())?;
        // SAFETY: the queue is there, and these members do not change.
        let (ring, ring_bytes) = unsafe { ((*queue).base_address as u64, u64::from((*queue).size)) };
        Ok(DriverQueue {
            token: QueueToken::new(queue as u64),
            engine,
            ring,
            ring_bytes,
            ring_place: RingPlace::Host,
            write_pointer,
            read_pointer,
            doorbell,
            device_ringable: false,
        })
    }

    fn checked(&self, place: &str, queue: *mut HsaQueue, engine: u32, bytes: u64) -> AmdResult<DriverQueue> {
        let mut made = self.describe(place, queue)?;
        if let Some(what) = made.flaw(engine, bytes) {
            return Err(AmdError::Returned { call: CREATE, place: place.to_owned(), what });
        }
        made.device_ringable = self.session.shows_mapping(made.doorbell)?;
        Ok(made)
    }

    /// Destroys a queue of this runtime, which is not used any more.
    fn take_away(&self, place: impl FnOnce() -> String, queue: *mut HsaQueue) -> AmdResult<()> {
        // SAFETY: the caller has the queue from this runtime, and gives it up.
        check(DESTROY, place, unsafe { (self.functions.hsa_queue_destroy)(queue) })
    }
}

impl Driver for RuntimeDriver {
    fn origin(&self) -> &str {
        &self.origin
    }

    fn node(&self, gpu: &Gpu) -> AmdResult<DriverNode> {
        let shown = self.session.find(gpu)?;
        Ok(DriverNode { node: shown.node, agent: shown.agent.handle })
    }

    fn create(&self, node: DriverNode, engine: u32, ring_bytes: u64) -> AmdResult<DriverQueue> {
        let place = format!("engine {engine} of node {}", node.node);
        let bytes = u32::try_from(ring_bytes).map_err(|_| AmdError::Returned {
            call: CREATE,
            place: place.clone(),
            what: format!("nothing: it takes sizes of 32 bits, and the ring has {ring_bytes} bytes"),
        })?;
        let mut descriptor = QueueDescriptor::sdma(engine, bytes);
        let agent = super::functions::Agent { handle: node.agent };
        // SAFETY: one descriptor of version 1 with its reserved members cleared; the agent is the runtime's own.
        let code = unsafe { (self.functions.hsa_amd_queue_create)(agent, &raw mut descriptor, 1) };
        if code == OUT_OF_RESOURCES {
            return Err(AmdError::QueueRefused { call: CREATE, node: node.node, engine, code });
        }
        check(CREATE, || place.clone(), code)?;
        if descriptor.queue.is_null() {
            return Err(AmdError::Returned { call: CREATE, place, what: "no queue".to_owned() });
        }
        self.checked(&place, descriptor.queue, engine, ring_bytes).map_err(|failed| {
            match self.take_away(|| place.clone(), descriptor.queue) {
                Ok(()) => failed,
                Err(undo) => AmdError::Undo { failed: Box::new(failed), undo: Box::new(undo) },
            }
        })
    }

    fn destroy(&self, queue: DriverQueue) -> AmdResult<()> {
        // The runtime frees the ring after the queue.
        self.take_away(|| format!("engine {}", queue.engine), queue.token.value() as *mut HsaQueue)
    }
}
