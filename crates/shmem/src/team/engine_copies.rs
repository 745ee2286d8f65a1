//! Copies in the order of a stream by the queues of copy engines: a kernel of one wave posts them and waits until they are done.

use anabranch_hip::{DeviceAddress, Stream};
use anabranch_ranks::GroupRank;
use anabranch_transport::TransportKind;
use bytemuck::Zeroable as _;

use super::Team;
use crate::error::Result;
use crate::fault::names::OperationCode;
use crate::route::{EngineCopiesArgs, EngineCopy};

/// Copies of one launch.
pub(crate) const MAX_COPIES: usize = 32;

impl Team {
    /// Whether copies to a member go by queues of copy engines that kernels write (`anabranch_team::queues`). Not
    /// collective.
    pub fn copies_by_queues(&self, peer: GroupRank) -> bool {
        let route = self.group().global(peer).and_then(|rank| self.world().routes().get(rank.index()));
        let by_engine = route.is_some_and(|route| route.kind == TransportKind::Sdma);
        by_engine && self.engine_copies().is_some()
    }

    /// Puts copies on the stream, in kernels of [`MAX_COPIES`] each. The members have queues.
    ///
    /// # Errors
    /// The launch's.
    ///
    /// # Safety
    /// Sources and targets are memory that this rank's device reaches, stay so and have no other user until the stream has
    /// passed the kernels.
    pub(crate) unsafe fn post_copies(&self, stream: &Stream, copies: &[EngineCopy]) -> Result<()> {
        let Some(kernel) = self.engine_copies() else { return Ok(()) };
        for some in copies.chunks(MAX_COPIES) {
            let mut arguments = EngineCopiesArgs {
                team: self.view(),
                count: some.len() as u32,
                operation: OperationCode::ENGINE_COPY.0,
                ..EngineCopiesArgs::zeroed()
            };
            for (place, copy) in arguments.copies.iter_mut().zip(some) {
                *place = *copy;
            }
            let wave = self.world().one_wave();
            // SAFETY: the kernel's struct; the queues stay while the world's mappings do, and for the rest the caller has promised.
            unsafe { kernel.launch(wave, stream, &arguments) }?;
        }
        Ok(())
    }
}

impl EngineCopy {
    /// A copy by the queues to `peer`.
    pub(crate) fn new(peer: GroupRank, target: DeviceAddress, source: DeviceAddress, bytes: u64) -> Self {
        Self { source: source.0, target: target.0, bytes, peer: peer.get(), reserved: 0 }
    }
}
