//! Copies and signals of the host to members that are reached by NIC, in the order of a stream: kernels of one wave put requests into queue pairs and
//! wait until they are done.

use anabranch_hip::{DeviceAddress, Stream};
use anabranch_ranks::GroupRank;
use bytemuck::Zeroable as _;

use super::Team;
use crate::error::{Error, Result};
use crate::fault::OperationCode;
use crate::inflight::MemoryUse;
use crate::route::{NicCopiesArgs, NicCopy, NicDrainArgs, NicKernels, NicSignalArgs};

/// Copies of one launch.
const MOST_COPIES: usize = 32;

impl NicCopy {
    /// A copy of `bytes` at `local` to a member's heap.
    pub(crate) fn put(peer: GroupRank, offset: u64, local: DeviceAddress, bytes: u64) -> Self {
        Self { local: local.0, offset, bytes, peer: peer.get(), is_get: 0 }
    }

    /// A copy of `bytes` of a member's heap to `local`.
    pub(crate) fn get(peer: GroupRank, offset: u64, local: DeviceAddress, bytes: u64) -> Self {
        Self { is_get: 1, ..Self::put(peer, offset, local, bytes) }
    }
}

impl Team {
    fn nic_kernels(&self, peer: GroupRank) -> Result<&NicKernels> {
        let rank = self.group().global(peer).ok_or_else(|| Error::no_part("copy by NIC", peer))?;
        self.nic().ok_or_else(|| Error::Unreachable { peer: rank, considered: Vec::new() })
    }

    /// Puts copies on the stream, in kernels of [`MOST_COPIES`] each. The members are reached by NIC.
    ///
    /// # Errors
    /// The launch's.
    ///
    /// # Safety
    /// The local sides are memory of this rank, stay so and have no other user until the stream has passed the kernels, and so are the
    /// members' sides.
    pub(crate) unsafe fn copy_by_nic(&self, stream: &Stream, copies: &[NicCopy]) -> Result<()> {
        for some in copies.chunks(MOST_COPIES) {
            let Some(first) = some.first() else { continue };
            let kernels = self.nic_kernels(GroupRank::new(first.peer))?;
            let mut arguments = NicCopiesArgs {
                team: self.view(),
                count: some.len() as u32,
                operation: OperationCode::NIC_COPY.0,
                ..NicCopiesArgs::zeroed()
            };
            for (place, copy) in arguments.copies.iter_mut().zip(some) {
                *place = *copy;
            }
            let wave = self.world().one_wave();
            // SAFETY: the kernel's struct; the queue pairs stay while the world's connections do, and for the rest the caller has
            // promised.
            unsafe { kernels.copies.launch(wave, stream, &arguments) }?;
        }
        Ok(())
    }

    /// Puts a signal on the stream, to the word at `offset` of the heap of a member that is reached by NIC. Its allocation is kept until the
    /// stream has passed it, by the caller.
    ///
    /// # Errors
    /// The launch's.
    pub(crate) fn signal_by_nic(
        &self,
        stream: &Stream,
        offset: u64,
        value: u64,
        adds: bool,
        peer: GroupRank,
    ) -> Result<()> {
        let kernels = self.nic_kernels(peer)?;
        let arguments = NicSignalArgs {
            team: self.view(),
            offset,
            value,
            peer: peer.get(),
            adds: adds.into(),
            operation: OperationCode::NIC_SIGNAL.0,
            reserved: 0,
        };
        let wave = self.world().one_wave();
        // SAFETY: the kernel's struct; queue pairs and control words stay while the world's connections do, and the word is one of an
        // allocation that the caller keeps.
        unsafe { kernels.signal.launch(wave, stream, &arguments) }?;
        Ok(())
    }

    /// Completes what this rank has put to members by NIC, after everything that this team has launched. Call it before you drop
    /// the team, or `uses`, where kernels end before their puts do. Returns at once, and the team's table and `uses` stay
    /// until the puts have ended, so that their range of the heap is not allocated again before. Nothing where no member is reached by NIC. Not
    /// collective; no peer's kernel is waited for.
    ///
    /// What is not done within the operation deadline, or failed, is a fault of the world, with the member and the NIC's syndrome.
    ///
    /// # Errors
    /// The errors of [`World::check`](crate::World::check). Where it cannot be launched in a world that works, that world has failed with it:
    /// a NIC may go on writing to memory that would be allocated again.
    pub fn complete_by_nic(&self, uses: &[MemoryUse]) -> Result<()> {
        let Some(kernels) = self.nic() else { return Ok(()) };
        if !self.group().ranks().any(|rank| self.is_by_nic(rank)) {
            return Ok(());
        }
        self.world().check()?;
        let arguments =
            NicDrainArgs { team: self.view(), operation: OperationCode::NIC_DRAIN.0, reserved: 0 };
        let wave = self.world().one_wave();
        let launched = self.completions().and_then(|stream| {
            self.launch_in_order(&stream, uses, || {
                // SAFETY: the kernel's struct; the team's table stays until the launch is over, and queue pairs while the world's
                // connections do.
                unsafe { kernels.drain.launch(wave, &stream, &arguments) }?;
                Ok(())
            })
        });
        match launched {
            Ok(_) | Err(Error::Fault(_) | Error::Left) => {}
            Err(ref error) => {
                self.world().poison(&format!("what was put by NIC cannot be completed: {error}"));
            }
        }
        launched.map(drop)
    }
}
