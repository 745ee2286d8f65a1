//! Buffers of this rank that its NIC may read and write.

use anabranch_hip::DeviceAddress;
use anabranch_transport::Region;
use anabranch_transport_rdma::LocalRange;

use crate::error::{Error, Result};
use crate::world::World;

/// A buffer of this rank that kernels may name as the local side of puts and gets, whatever route these take. Ends when it is dropped.
#[derive(Debug)]
pub struct LocalRegistration {
    // `None` where no NIC serves a peer. Ends before the world that the NIC belongs to.
    range: Option<LocalRange>,
    _world: World,
}

impl World {
    /// Lets kernels of this rank put from and get to `bytes` bytes at `address`, memory of this rank's device or pinned memory of the
    /// host. The heap needs none of it; nor does other memory where no peer is reached by NIC, so that nothing is done then. A NIC knows up to
    /// [`MOST_RANGES`](anabranch_transport_rdma::MOST_RANGES) ranges at a time, and teams that are there already know of new ones. Not
    /// collective.
    ///
    /// # Errors
    /// What made the world fail; [`Error::RegisterLocal`] with the range: no place left, or what the NIC says.
    ///
    /// # Safety
    /// The memory stays allocated until the registration was dropped, and no kernel that names it to the NIC is in flight then.
    pub unsafe fn register_local(&self, address: DeviceAddress, bytes: u64) -> Result<LocalRegistration> {
        self.check()?;
        let region = Region { address: address.0, bytes };
        let range = self.inner.with_connections(|connections| {
            let rdma = connections.transports.rdma().filter(|_| self.uses_nic(connections));
            rdma.map(|rdma| rdma.register_local(region)).transpose()
        });
        let range = range.map_err(|source| Error::RegisterLocal { address: address.0, bytes, source })?;
        Ok(LocalRegistration { range, _world: self.clone() })
    }
}

impl LocalRegistration {
    /// Whether a NIC knows the memory; else none has to.
    pub fn is_needed(&self) -> bool {
        self.range.is_some()
    }
}
