//! Calls that go on when a rank is lost or does not come.

use std::fmt;
use std::time::Duration;

use anabranch_bootstrap::Deadline;
use anabranch_ranks::Group;

use super::World;
use crate::error::{Error, Result};

/// As long as it lives, the loss of a member of its group does not end the world: [`World::tolerate_losses`].
#[must_use = "losses end the world again when it is dropped"]
pub struct LossTolerance {
    world: World,
    number: u64,
}

impl World {
    /// Until the value is dropped, a member of the group that leaves or dies is no failure of this rank's world: kernels do not
    /// end because of it, and calls go on. For operations whose kernels can do without a rank that does not come, whose
    /// memory stays mapped here. Not collective; each member that is to outlive the others calls it. When the last tolerance of
    /// a lost rank is dropped, its loss ends the world as ever.
    ///
    /// What needs the lost rank still fails: a collective call of the host that it belongs to ends the world with its loss,
    /// [`World::leave`] among them, and so does a kernel whose wait for it expires. Calls of groups without it go on as before,
    /// unless the lost rank serves the rendezvous.
    ///
    /// # Errors
    /// What made the world fail before.
    pub fn tolerate_losses(&self, group: &Group) -> Result<LossTolerance> {
        self.check()?;
        let number = self.inner.state.tolerated(|tolerated| tolerated.begin(group));
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
        let gathered = self.rendezvous().all_gather(group, &tag, bytes, Deadline::after(limit));
        gathered.map_err(|source| Error::Rendezvous { step: step.to_owned(), source })
    }
}

impl Drop for LossTolerance {
    fn drop(&mut self) {
        let state = &self.world.inner.state;
        for loss in state.tolerated(|tolerated| tolerated.end(self.number)) {
            state.lost(&loss);
        }
    }
}

impl fmt::Debug for LossTolerance {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LossTolerance").field("rank", &self.world.rank().get()).finish_non_exhaustive()
    }
}
