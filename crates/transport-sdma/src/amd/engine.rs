//! A queue on one of AMD's engines, as producers in kernels and on the host see it.

use std::sync::Arc;

use anabranch_hip::DeviceAddress;

use super::binding::HostPort;
use super::error::{AmdError, AmdResult};
use super::queue::AmdQueue;
use crate::device_queue::{EngineWords, Port, QueueEngine};
use crate::ring::Ring;

/// A hardware engine with its own queue.
///
/// The host's port keeps the queue too: it is taken away when this and all its ports are gone.
#[derive(Debug)]
pub struct AmdEngine {
    queue: Arc<AmdQueue>,
    ring: Ring,
}

impl AmdEngine {
    /// An engine for producers in kernels.
    ///
    /// # Errors
    /// [`AmdError::HostRings`] if kernels cannot ring the queue's doorbell; the queue is given back. [`AmdError::Words`] if its
    /// ring cannot hold packets.
    pub fn new(queue: AmdQueue) -> AmdResult<Self> {
        if !queue.device_ringable() {
            return Err(AmdError::HostRings { engine: queue.engine() });
        }
        let ring = Ring::new(queue.ring_bytes())?;
        Ok(Self { queue: Arc::new(queue), ring })
    }

    /// The queue.
    pub fn queue(&self) -> &AmdQueue {
        &self.queue
    }
}

impl QueueEngine for AmdEngine {
    fn words(&self) -> EngineWords {
        EngineWords {
            ring: DeviceAddress(self.queue.ring_address()),
            write_pointer: DeviceAddress(self.queue.write_pointer()),
            doorbell: DeviceAddress(self.queue.doorbell()),
            read_pointer: DeviceAddress(self.queue.read_pointer()),
        }
    }

    fn ring(&self) -> Ring {
        self.ring
    }

    fn port(&self) -> Arc<dyn Port> {
        Arc::new(HostPort::new(Arc::clone(&self.queue)))
    }

    fn describe(&self) -> String {
        format!("copy engine {} ({})", self.queue.engine(), self.queue.reason())
    }

    /// Hardware stops silently: waits for it have a deadline.
    fn stopped(&self) -> Option<String> {
        None
    }
}
