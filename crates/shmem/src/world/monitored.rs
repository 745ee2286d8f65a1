//! The barrier that names the missing ranks.
//!
//! It has a tag of its own at the rendezvous, so that no other step of the world meets it, whatever becomes of it; and the
//! rendezvous counts the calls of each rank. A call that timed out is kept there as failed until every member has come to
//! it: a late rank meets that failure, and never the call after it. That is why a timeout does not end the world.

use std::time::Duration;

use anabranch_bootstrap::{Deadline, Loss, OtherCall};
use anabranch_ranks::{GlobalRank, Group};

use crate::collective::{check_count, compare_fields};
use crate::error::{Error, Result};
use crate::world::World;

const STEP: &str = "monitored barrier";

/// Members that did not come in time; equal on all members that came.
struct Absent {
    by: GlobalRank,
    ranks: Vec<GlobalRank>,
    elsewhere: Vec<OtherCall>,
}

impl World {
    /// Waits on the host until all members of the group have come, and says who has not when `timeout` has passed: torch's
    /// `monitored_barrier`. Says nothing about streams; see [`crate::Team::barrier`]. Collective, apart from the other calls:
    /// it may be made from a second thread, to find out who is missing in another call that hangs.
    ///
    /// The first member whose timeout passes ends the call for all that have come, and for those that come later: these get
    /// the same error, with their own rank in it, at once. The error names the first missing rank in group order, and all
    /// of them with `wait_all_ranks`, which has to be equal on all members. Unlike torch's, which is an error on rank 0 alone, it is
    /// the same on every member.
    ///
    /// A timeout does not end the world. The calls are counted for each rank and group: a rank that came too late to one
    /// call meets the others in the next, and a rank that left one out has that failure still before it.
    ///
    /// A member that was lost ends the world, as always, and this call with the fault at once. With `wait_all_ranks` the
    /// roll of the other members is called to its end before, and [`Error::RanksMissing`] has the lost and the missing. The
    /// same goes for a call in a world that has lost a member already; but then who is done with its own call does not come
    /// again, and is missing. When the rendezvous itself is lost, with the rank that serves it and ended without answering the
    /// others first, no rank can be called, and the fault is the only result.
    ///
    /// # Errors
    /// [`Error::RanksMissing`]; [`Error::Differs`], on all members, when `wait_all_ranks` is not equal; [`Error::NotAMember`];
    /// what made the world fail.
    pub fn monitored_barrier(&self, group: &Group, timeout: Duration, wait_all_ranks: bool) -> Result<()> {
        let deadline = Deadline::after(timeout);
        if !group.contains(self.rank()) {
            return Err(Error::NotAMember { step: STEP.to_owned(), rank: self.rank() });
        }
        match self.check() {
            Err(Error::Fault(_)) if wait_all_ranks && !self.lost_of(group).is_empty() => {}
            checked => checked?,
        }
        let (absent, lost) = if wait_all_ranks {
            self.call_the_rest(group, deadline)?
        } else {
            (self.call_roll(group, false, deadline)?, Vec::new())
        };
        if absent.is_none() && lost.is_empty() {
            return Ok(());
        }
        // The cause is decided and published before this rank may leave because of the error.
        match self.check_fault() {
            Ok(()) | Err(Error::Fault(_)) => {}
            Err(error) => return Err(error),
        }
        Err(missing(group, deadline.waited(), wait_all_ranks, absent, lost))
    }

    /// Calls the roll of the members that are not lost, until no member is lost meanwhile. Also returns the members left
    /// out: a member that is lost later may have come.
    fn call_the_rest(&self, group: &Group, deadline: Deadline) -> Result<(Option<Absent>, Vec<Loss>)> {
        let mut rest = group.clone();
        let mut without = Vec::new();
        loop {
            let lost = self.lost_of(&rest);
            let places: Vec<_> = lost.iter().filter_map(|loss| rest.rank_of(loss.rank)).collect();
            rest = rest.excluding(&places)?;
            without.extend(lost);
            match self.call_roll(&rest, true, deadline) {
                // All that wait in this roll call learn of the loss, and no other member enters it any more.
                Err(Error::Fault(_)) if !self.lost_of(&rest).is_empty() => {}
                called => return called.map(|absent| (absent, without)),
            }
        }
    }

    fn call_roll(&self, group: &Group, wait_all_ranks: bool, deadline: Deadline) -> Result<Option<Absent>> {
        // One tag a world: a call that a rank never came to must not match it in a world that the rendezvous serves later.
        let tag = format!("{STEP} of world {:016x}", self.inner.collectives.world());
        let gathered = self.rendezvous().all_gather(group, &tag, &[u8::from(wait_all_ranks)], deadline);
        match gathered {
            Ok(flags) => {
                check_count(STEP, group, flags.len())?;
                let value = |flag: &Vec<u8>| (flag.as_slice() == [1]).to_string();
                let fields = |flag| vec![("wait_all_ranks".to_owned(), value(flag))];
                let fields: Vec<_> = flags.iter().map(fields).collect();
                compare_fields(STEP, group, &fields).map(|()| None)
            }
            Err(anabranch_bootstrap::Error::Expired { by, missing: ranks, elsewhere, .. }) => {
                Ok(Some(Absent { by, ranks, elsewhere }))
            }
            Err(source) => self.survive(Err(Error::Rendezvous { step: STEP.to_owned(), source })),
        }
    }

    /// Who of the group was lost, in the order in which they were noticed.
    fn lost_of(&self, group: &Group) -> Vec<Loss> {
        self.rendezvous().losses().into_iter().filter(|loss| group.contains(loss.rank)).collect()
    }
}

fn missing(group: &Group, waited: Duration, all: bool, absent: Option<Absent>, lost: Vec<Loss>) -> Error {
    let (by, ranks, elsewhere) = absent
        .map_or((None, Vec::new(), Vec::new()), |absent| (Some(absent.by), absent.ranks, absent.elsewhere));
    let gone = |rank: GlobalRank| ranks.contains(&rank) || lost.iter().any(|loss| loss.rank == rank);
    let named = if all { usize::MAX } else { 1 };
    let missing: Vec<_> = group.members().iter().copied().filter(|rank| gone(*rank)).take(named).collect();
    let elsewhere = elsewhere.into_iter().filter(|other| missing.contains(&other.rank)).collect();
    Error::RanksMissing { size: group.size(), waited, by, missing, all, elsewhere, lost }
}
