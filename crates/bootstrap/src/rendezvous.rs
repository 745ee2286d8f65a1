//! The trait.

use crate::{Deadline, Error, Loss, LossObserver};
use anabranch_ranks::{GlobalRank, Group};
use std::fmt::Debug;
use std::sync::Arc;

/// How one rank talks to the others before and beside the fast paths.
///
/// The collective calls have to be made by every member of `group` with the same tag, and in the same order
/// for each pair of group and tag; calls with different groups or tags may overlap in any order, from
/// several threads too. A tag names the phase in error messages; use a fixed set of them (a count is kept
/// for each pair of group and tag). Back-to-back calls with the same tag are distinguished.
///
/// When a call fails because of a deadline or a lost rank, it fails for every member that takes part.
pub trait Rendezvous: Send + Sync + Debug {
    /// This rank.
    fn rank(&self) -> GlobalRank;

    /// The number of ranks in the world.
    fn size(&self) -> u32;

    /// Gives this rank's bytes to every member and returns all members' bytes in group order. The lengths
    /// may differ. With no bytes it is a barrier: it returns when all members have come. A member that gives none where others give some is
    /// no error here: callers check the parts.
    ///
    /// # Errors
    /// [`Error::Expired`] when a member has not come, [`Error::PeerLost`] when a
    /// member left or died, [`Error::Invalid`], [`Error::Left`].
    fn all_gather(
        &self,
        group: &Group,
        tag: &str,
        bytes: &[u8],
        deadline: Deadline,
    ) -> Result<Vec<Vec<u8>>, Error>;

    /// Stores a value for all ranks under this key, replacing one that is there. Never blocks: it is on its way when this
    /// returns, also when no rank has seen it.
    ///
    /// # Errors
    /// [`Error::Invalid`], [`Error::PeerLost`] when the root is lost, [`Error::Left`].
    fn set(&self, key: &str, value: &[u8]) -> Result<(), Error>;

    /// Returns the value under this key, waiting until some rank has set it. A wait for a key that begins with a dot is a service of a
    /// thread: reports of where a missing rank waits do not name it.
    ///
    /// # Errors
    /// [`Error::KeyNotSet`] on expiry, [`Error::PeerLost`] when the root is lost, [`Error::Left`].
    fn wait(&self, key: &str, deadline: Deadline) -> Result<Vec<u8>, Error>;

    /// The ranks that were noticed to have left or died, in the order in which that was noticed.
    fn losses(&self) -> Vec<Loss>;

    /// Reports every loss from now on to `observer`, and at once (on this thread) about those that were
    /// given to others already. Observers are dropped when this rank leaves, or by [`Rendezvous::unobserve`].
    fn observe(&self, observer: Arc<dyn LossObserver>);

    /// Removes this observer. A notice that another thread is delivering may still reach it.
    fn unobserve(&self, observer: &Arc<dyn LossObserver>);

    /// Says goodbye. The others see [`LossKind::Left`](crate::LossKind::Left); calls that wait in other
    /// threads of this rank end with [`Error::Left`]. Doing it again does nothing. Going without it counts
    /// as having died.
    ///
    /// # Errors
    /// The rank has left in any case. [`Error::LeaveUnconfirmed`] when the root did not answer,
    /// [`Error::StillJoined`] when the root of a store stopped serving ranks that had not left.
    fn leave(&self) -> Result<(), Error>;
}
