//! Buffers of this rank that its NIC may read and write.

use anabranch_hip::DeviceAddress;
use anabranch_transport::{LocalMemory, Origin, Refusal, Region, TransportKind};

use crate::error::Result;
use crate::world::World;

/// A buffer of this rank that kernels may name as the local side of puts and gets, whatever route these take. Ends when it is dropped.
#[derive(Debug)]
pub struct LocalRegistration {
    // Empty where no NIC serves a peer. Ends before the world that the NIC belongs to.
    ranges: Vec<Box<dyn LocalMemory>>,
    _world: World,
}

impl World {
    /// Lets kernels of this rank put from and get to `bytes` bytes at `address`, memory of this rank's device or pinned memory of the
    /// host. The heap needs none of it; nor does other memory where no peer is reached by NIC, so that nothing is done then. A NIC knows up to
    /// 32 ranges at a time, and teams that are there already know of new ones. Not
    /// collective.
    ///
    /// # Errors
    /// What made the world fail; [`anabranch_transport::Error::Export`] with the range: no entry is left, or the NIC's error.
    ///
    /// # Safety
    /// The memory stays allocated until the registration was dropped, and no kernel that names it to the NIC is in flight then.
    pub unsafe fn register_local(&self, address: DeviceAddress, bytes: u64) -> Result<LocalRegistration> {
        self.check()?;
        let region = Region { address: address.0, bytes };
        let ranges: Result<_, Refusal> = self.inner.with_connections(|connections| {
            let serves = |place: usize| {
                let mut peers = connections.memory.iter().zip(&connections.places);
                peers.any(|(memory, of_peer)| memory.origin() == Origin::Remote && *of_peer == place)
            };
            let serving = connections.transports.all().zip(0..).filter(|(_, place)| serves(*place));
            serving.filter_map(|(transport, _)| transport.register_local(region).transpose()).collect()
        });
        let ranges = ranges.map_err(|refusal| anabranch_transport::Error::Export {
            kind: TransportKind::Rdma,
            address: address.0,
            bytes,
            source: Box::new(refusal),
        })?;
        Ok(LocalRegistration { ranges, _world: self.clone() })
    }
}

impl LocalRegistration {
    /// Whether a NIC knows the memory; else none has to.
    pub fn is_needed(&self) -> bool {
        !self.ranges.is_empty()
    }
}
