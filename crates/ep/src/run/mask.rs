//! The mask on the host: the masked ranks, masking by hand, and the reset.

use std::time::Duration;

use anabranch_hip::{DeviceAddress, Stream};
use anabranch_hip_jit::bytemuck::Zeroable;
use anabranch_ranks::{Group, GroupRank};
use anabranch_shmem::OperationName;

use super::ExpertParallel;
use crate::args::RankMask;
use crate::error::{Error, Result};
use crate::options::{MaskCause, MaskedRank};
use crate::route::{COMBINE, COMBINE_NAME, DISPATCH, DISPATCH_NAME, MaskTable};
use crate::slot::Slot;

/// An entry of a rank that was masked by hand.
fn by_hand() -> RankMask {
    RankMask { masked: 1, claimed: 1, ..RankMask::zeroed() }
}

fn cause_of(entry: &RankMask) -> MaskCause {
    let OperationName { name, phases } = match entry.operation {
        operation if operation == DISPATCH.0 => DISPATCH_NAME,
        operation if operation == COMBINE.0 => COMBINE_NAME,
        _ => return MaskCause::ByHand,
    };
    MaskCause::TimedOut {
        operation: name.to_owned(),
        phase: phases
            .get(entry.phase as usize)
            .map_or_else(|| format!("phase {}", entry.phase), ToString::to_string),
        slot: entry.slot,
        epoch: entry.epoch,
        waited: Duration::from_nanos(entry.waited_ns),
    }
}

impl ExpertParallel {
    /// The ranks that this one has masked, ascending, each with the cause: a wait for it expired ([`MaskCause::TimedOut`]), or it was
    /// masked by hand. A rank that stalls until the others mask it finds that it has masked them. Waits for the stream and for
    /// operations in flight on other streams, but not for replays of graphs on other streams. Not collective.
    ///
    /// # Errors
    /// [`Error::NotPlanned`] for a plan without [`OnTimeout::Mask`](crate::OnTimeout::Mask); [`Error::CallOrder`]; a fault of the world.
    pub fn masked(&self, stream: &Stream) -> Result<Vec<MaskedRank>> {
        let entries = self.quiet_mask(stream)?.read()?;
        let masked = (0..).zip(&entries).filter(|(_, entry)| entry.masked != 0);
        Ok(masked
            .map(|(rank, entry)| MaskedRank { rank: GroupRank::new(rank), cause: cause_of(entry) })
            .collect())
    }

    /// The mask in this rank's device memory, for work in stream order after an operation: the address of a 64-bit word that is 1 where
    /// rank 0 is masked and else 0, and the bytes from the word of a rank to that of the next. It lives as long as this. Only read it.
    ///
    /// # Errors
    /// [`Error::NotPlanned`] for a plan without [`OnTimeout::Mask`](crate::OnTimeout::Mask).
    pub fn mask_words(&self) -> Result<(DeviceAddress, u64)> {
        // `masked` is the first field of the entry.
        Ok((self.mask_table()?.address(), size_of::<RankMask>() as u64))
    }

    /// Masks a rank by hand: operations from the next one on leave it out. Has no effect on a rank that is masked already. Waits as
    /// [`Self::masked`] does; no replay of a graph may be in flight. Not collective: each rank that is to leave it out makes this call
    /// between the same two operations; a rank that makes it later waits for the masked rank once, until the patience ends.
    ///
    /// # Errors
    /// As [`Self::masked`]; [`Error::Mask`] for this rank itself, or one outside the group.
    pub fn mask_rank(&self, stream: &Stream, rank: GroupRank) -> Result<()> {
        self.check_member(rank)?;
        if rank == self.rank() {
            return Err(Error::mask(rank, "does not mask itself"));
        }
        let table = self.quiet_mask(stream)?;
        let mut entries = table.read()?;
        if let Some(entry) = entries.get_mut(rank.index()).filter(|entry| entry.masked == 0) {
            *entry = by_hand();
            table.write(&entries)?;
        }
        Ok(())
    }

    /// Resets the mask: the ranks `together`, which include this one, unmask each other, and all other ranks are masked. Collective
    /// over `together`, through the rendezvous; it fails when the first of the ranks has waited for `limit`. Call it between
    /// operations: every dispatch has been combined or released, also on a rank that was masked meanwhile, and no graph is in flight.
    /// Slots whose handles were dropped are free afterwards. The slots' epochs continue after the greatest that one of the ranks may have
    /// sent, so that no flag from before the reset is taken for one from after it.
    ///
    /// A reset that fails changes nothing, and may be repeated. A rank that comes after the failure gets it at once.
    ///
    /// # Errors
    /// [`Error::Mask`] for a rank outside the group, a rank given twice, or when this rank is not in `together`. On all ranks that came:
    /// [`Error::CallOrder`] on a rank that has operations in flight, and on the others
    /// [`anabranch_shmem::Error::FailedOn`] with that rank; [`anabranch_shmem::Error::Rendezvous`] with the ranks that did not come
    /// or were lost; a fault of the world.
    pub fn reset_mask(&self, stream: &Stream, together: &[GroupRank], limit: Duration) -> Result<()> {
        let table = self.mask_table()?;
        let group = self.resetting(together)?;
        let epochs = self.quiet_epochs(stream);
        let offer = encode(&epochs);
        // Resets of different plans, also of plans in the same memory, have different names.
        let plan =
            self.context.pool.slots().first().map_or((0, 0), |slot| (slot.heap_offset(), slot.sequence()));
        let step = format!("ep mask reset of plan {} at {:#x}", plan.1, plan.0);
        let offers = self.context.world.exchange_within(&group, &step, &offer, limit);
        let mut greatest = epochs?;
        for (offer, member) in offers?.iter().zip(group.members()) {
            let theirs = decode(offer).map_err(|cause| anabranch_shmem::Error::FailedOn {
                step: step.clone(),
                rank: *member,
                cause,
            })?;
            for (mine, theirs) in greatest.iter_mut().zip(theirs) {
                *mine = theirs.max(*mine);
            }
        }
        for (slot, epoch) in self.context.pool.slots().iter().zip(greatest) {
            slot.set_epoch(epoch)?;
        }
        let mut entries = table.read()?;
        for (rank, entry) in (0..).map(GroupRank::new).zip(&mut entries) {
            if together.contains(&rank) {
                *entry = RankMask::zeroed();
            } else if entry.masked == 0 {
                *entry = by_hand();
            }
        }
        table.write(&entries)?;
        self.context.pool.recover();
        Ok(())
    }

    /// The members of a reset, in the order of the group, whatever order they were named in.
    fn resetting(&self, together: &[GroupRank]) -> Result<Group> {
        let mut ranks = together.to_vec();
        ranks.sort_unstable();
        if let Some(pair) = ranks.windows(2).find(|pair| pair[0] == pair[1]) {
            return Err(Error::mask(pair[0], "was named twice"));
        }
        ranks.iter().try_for_each(|rank| self.check_member(*rank))?;
        if !ranks.contains(&self.rank()) {
            return Err(Error::mask(self.rank(), "is not among the ranks of its reset"));
        }
        #[expect(clippy::expect_used, reason = "every rank was checked, and none is there twice")]
        Ok(self.group().subset(&ranks).expect("ranks of the group"))
    }

    /// The epoch of each slot, between operations.
    fn quiet_epochs(&self, stream: &Stream) -> Result<Vec<u64>> {
        self.quiet_mask(stream)?;
        match self.context.pool.held() {
            0 => self.context.pool.slots().iter().map(Slot::sent_epoch).collect(),
            held => Err(Error::CallOrder { call: "reset_mask", problem: in_flight(held) }),
        }
    }

    fn mask_table(&self) -> Result<&MaskTable> {
        self.route
            .near()
            .and_then(|near| near.mask.as_ref())
            .ok_or(Error::NotPlanned { what: "mask", why: "on_timeout is fault" })
    }

    fn check_member(&self, rank: GroupRank) -> Result<()> {
        if rank.get() < self.context.plan.ranks() {
            return Ok(());
        }
        Err(Error::mask(rank, "is no rank of the group"))
    }

    /// The mask, while no launch of this rank is at work on it.
    fn quiet_mask(&self, stream: &Stream) -> Result<&MaskTable> {
        let table = self.mask_table()?;
        if stream.is_capturing()? {
            let problem = "it waits, which a capture does not allow; call it before or after".to_owned();
            return Err(Error::CallOrder { call: "the mask", problem });
        }
        self.context.world.synchronize(stream)?;
        let limit = self.patience();
        if !self.context.pool.wait_until_idle(limit) {
            return Err(anabranch_shmem::Error::StreamBusy { waited: limit }.into());
        }
        Ok(table)
    }
}

fn in_flight(held: usize) -> String {
    format!("{held} operations have not ended; combine or release their dispatches first")
}

/// Epochs, or why there are none, for the others.
fn encode(epochs: &Result<Vec<u64>>) -> Vec<u8> {
    match epochs {
        Ok(epochs) => {
            core::iter::once(0).chain(epochs.iter().flat_map(|epoch| epoch.to_le_bytes())).collect()
        }
        Err(error) => {
            let text = anabranch_hip::with_causes(error);
            core::iter::once(1).chain(text.into_bytes()).collect()
        }
    }
}

fn decode(offer: &[u8]) -> Result<Vec<u64>, String> {
    let malformed = || "its offer cannot be read".to_owned();
    match offer.split_first() {
        Some((0, words)) => {
            let (words, rest) = words.as_chunks::<8>();
            let epochs = words.iter().copied().map(u64::from_le_bytes).collect();
            if rest.is_empty() { Ok(epochs) } else { Err(malformed()) }
        }
        Some((1, text)) => Err(String::from_utf8_lossy(text).into_owned()),
        _ => Err(malformed()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn offers_survive_encoding() {
        assert_eq!(decode(&encode(&Ok(vec![3, u64::MAX]))), Ok(vec![3, u64::MAX]));
        assert_eq!(decode(&encode(&Ok(vec![]))), Ok(vec![]));
        let text = decode(&encode(&Err(Error::CallOrder { call: "reset_mask", problem: in_flight(2) })))
            .unwrap_err();
        assert!(text.starts_with("reset_mask: 2 operations"), "{text}");
        for wrong in [&[][..], &[0, 1], &[2]] {
            decode(wrong).unwrap_err();
        }
    }
}
