//! Losses that do not end the world, for operations that can do without a rank.

use std::fmt;
use std::time::Duration;

use anabranch_bootstrap::{Deadline, Loss};
use anabranch_ranks::{GlobalRank, Group};

use crate::error::{Error, Result};
use crate::world::World;

/// As long as it lives, the loss of a member of its group does not end the world: [`World::tolerate_losses`].
#[must_use = "losses end the world again when it is dropped"]
pub struct LossTolerance {
    world: World,
    number: u64,
}

/// Whose losses are tolerated, and who was lost.
#[derive(Debug, Default)]
pub(crate) struct Tolerated {
    groups: Vec<(u64, Group)>,
    next: u64,
    lost: Vec<Loss>,
}

impl Tolerated {
    fn begin(&mut self, group: &Group) -> u64 {
        self.next += 1;
        self.groups.push((self.next, group.clone()));
        self.next
    }

    /// Whether the loss is tolerated. It is remembered then.
    pub(crate) fn takes(&mut self, loss: &Loss) -> bool {
        let taken = self.covers(loss);
        if taken && self.lost.iter().all(|known| known.rank != loss.rank) {
            self.lost.push(loss.clone());
        }
        taken
    }

    fn covers(&self, loss: &Loss) -> bool {
        self.names(loss.rank)
    }

    /// Whether a loss of the rank would be tolerated.
    pub(crate) fn names(&self, rank: GlobalRank) -> bool {
        self.groups.iter().any(|(_, group)| group.contains(rank))
    }

    /// The losses that nobody tolerates any more.
    fn end(&mut self, number: u64) -> Vec<Loss> {
        self.groups.retain(|(other, _)| *other != number);
        let lost = std::mem::take(&mut self.lost);
        let (kept, told) = lost.into_iter().partition(|loss| self.covers(loss));
        self.lost = kept;
        told
    }
}

impl World {
    /// Until the value is dropped, a member of the group that leaves or dies is no failure of this rank's world: kernels do not
    /// end because of it, and calls go on. For operations whose kernels can do without a rank that does not come, whose
    /// memory stays mapped here. Not collective; each member that is to outlive the others calls it. When the last tolerance of
    /// a lost rank is dropped, its loss ends the world as ever.
    ///
    /// What needs the lost rank still fails: a collective call of the host that it belongs to ends the world with its loss,
    /// [`World::leave`] among them, and so does a kernel that waits for it in vain. Calls of groups without it go on as before,
    /// unless the lost rank serves the rendezvous.
    ///
    /// # Errors
    /// What made the world fail before.
    pub fn tolerate_losses(&self, group: &Group) -> Result<LossTolerance> {
        self.check()?;
        let number = self.inner.alarm.tolerated(|tolerated| tolerated.begin(group));
        Ok(LossTolerance { world: self.clone(), number })
    }

    /// [`World::exchange`] with a time limit of its own, and not to come to its end does not end the world. The calls are counted
    /// for each rank, group and step: the first member whose limit passes ends the call for all, and those that come later get
    /// that failure at once, and never meet the others in another call. `step` names the call; each name is counted as
    /// long as the rendezvous lives, so there should be few. Collective.
    ///
    /// # Errors
    /// [`Error::Rendezvous`], with who has not come, or was lost; [`Error::NotAMember`]; what made the world fail before.
    pub fn exchange_within(
        &self,
        group: &Group,
        step: &str,
        bytes: &[u8],
        limit: Duration,
    ) -> Result<Vec<Vec<u8>>> {
        self.check()?;
        if !group.contains(self.rank()) {
            return Err(Error::NotAMember { step: step.to_owned(), rank: self.rank() });
        }
        // Worlds that one rendezvous serves do not meet each other's calls.
        let tag = format!("{step} of world {:016x}", self.inner.collectives.world());
        let said = self.rendezvous().all_gather(group, &tag, bytes, Deadline::after(limit));
        said.map_err(|source| Error::Rendezvous { step: step.to_owned(), source })
    }
}

impl Drop for LossTolerance {
    fn drop(&mut self) {
        let alarm = &self.world.inner.alarm;
        for loss in alarm.tolerated(|tolerated| tolerated.end(self.number)) {
            alarm.lost(&loss);
        }
    }
}

impl fmt::Debug for LossTolerance {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LossTolerance").field("rank", &self.world.rank().get()).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use anabranch_bootstrap::LossKind;

    use super::*;

    fn loss(rank: u32) -> Loss {
        Loss { rank: GlobalRank::new(rank), kind: LossKind::Died, detail: "gone".to_owned() }
    }

    #[test]
    fn a_loss_counts_again_when_the_last_that_tolerates_it_goes() {
        let world = Group::world(4).unwrap();
        let pair = world.subset_of_ranks(&[1, 2].map(GlobalRank::new)).unwrap();
        let mut tolerated = Tolerated::default();
        assert!(!tolerated.takes(&loss(1)));
        let (all, some) = (tolerated.begin(&world), tolerated.begin(&pair));
        for lost in [3, 1, 1] {
            assert!(tolerated.takes(&loss(lost)));
        }
        assert_eq!(tolerated.end(all), [loss(3)], "nobody else tolerates it");
        assert!(!tolerated.takes(&loss(0)));
        assert_eq!(tolerated.end(some), [loss(1)], "once");
        assert_eq!(tolerated.end(some), []);
    }
}
