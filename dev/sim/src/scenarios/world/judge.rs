//! What a run under faults may come to, and what not.

use std::collections::BTreeSet;

use anabranch_hip::{HipError, with_causes};
use anabranch_shmem::RankError;
use anabranch_weakmem::Fault as MachineFault;

use super::blame::Blame;
use super::life::SIGHTS;
use super::{Lives, OPERATION, RENDEZVOUS};
use crate::Fault;

/// How a rank ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Ending {
    /// Without an error.
    Right,
    /// With an error.
    Failed {
        /// Its text with all causes.
        text: String,
        /// Whom it names.
        blame: Blame,
    },
    /// In a panic.
    Panicked(String),
}

impl Ending {
    pub(crate) fn of(ended: &Result<(), RankError<anabranch_ep::Error>>) -> Self {
        match ended {
            Ok(()) => Self::Right,
            Err(RankError::Panicked { message, .. }) => Self::Panicked(message.clone()),
            Err(error) => Self::Failed { text: with_causes(error), blame: Blame::of(error) },
        }
    }
}

/// What the faults of a run allow.
struct Allowed {
    /// Ranks whose fault it may be.
    culprits: BTreeSet<u32>,
    /// Whether a rank may fail at all.
    failures: bool,
    /// Whether a store may be missing without anybody having been told.
    losses: bool,
}

impl Allowed {
    fn by(faults: &[Fault]) -> Self {
        let mut allowed = Self { culprits: BTreeSet::new(), failures: false, losses: false };
        // Half of a deadline is short of it, whatever else takes time.
        let short = |ns: u64, deadline: core::time::Duration| u128::from(ns) * 2 <= deadline.as_nanos();
        for fault in faults {
            let harmless = match fault {
                Fault::Machine(MachineFault::RepeatFlag { .. }) => true,
                Fault::Machine(MachineFault::Stall { ns, .. }) => short(*ns, OPERATION),
                // Kernels of the others may wait meanwhile.
                Fault::Slow { by, .. } => {
                    short(u64::try_from(by.as_nanos()).unwrap_or(u64::MAX), OPERATION.min(RENDEZVOUS) / 8)
                }
                _ => false,
            };
            allowed.losses |= matches!(fault, Fault::Machine(MachineFault::LoseStore { told: false, .. }));
            if !harmless {
                allowed.failures = true;
                allowed.culprits.extend(fault.ranks());
            }
        }
        allowed
    }
}

/// What a run came to, in words that do not depend on ranks; or what is wrong with it.
pub(crate) fn judge(faults: &[Fault], lives: &Lives) -> Result<&'static str, String> {
    if let Some(why) = &lives.broken {
        return Err(format!("the run does not end: {why}"));
    }
    let allowed = Allowed::by(faults);
    let wrong = lives.seen.iter().find_map(|seen| seen.wrong.as_ref().map(|wrong| (seen, wrong)));
    if let Some((seen, wrong)) = wrong.filter(|_| !allowed.losses) {
        return Err(format!("rank {} reports wrong rows in round {}: {wrong}", seen.rank, seen.round));
    }
    for (rank, ending) in (0..).zip(&lives.endings) {
        judge_rank(rank, ending, faults, &allowed, lives)?;
    }
    let failed = |rank: &u32| !matches!(lives.endings.get(*rank as usize), Some(Ending::Right));
    let ranks = 0..lives.endings.len() as u32;
    let failures = ranks.clone().filter(failed).count();
    let (others, bad): (Vec<u32>, Vec<u32>) = ranks.partition(|rank| !allowed.culprits.contains(rank));
    let others_failed = others.iter().filter(|rank| failed(rank)).count();
    Ok(match () {
        () if wrong.is_some() => "the oracle says that rows are wrong",
        () if failures == 0 => "all right",
        () if others.is_empty() => "an error names a rank of the link",
        () if others_failed == 0 && !bad.is_empty() => "the faulty rank fails, the others are right",
        () if others_failed == others.len() => "every other rank names the faulty one",
        () => "some of the others name the faulty one, some are right",
    })
}

fn judge_rank(
    rank: u32,
    ending: &Ending,
    faults: &[Fault],
    allowed: &Allowed,
    lives: &Lives,
) -> Result<(), String> {
    let (text, blame) = match ending {
        Ending::Panicked(message) => return Err(format!("rank {rank} panics: {message}")),
        Ending::Right => {
            let compared = lives.seen.iter().filter(|seen| seen.rank == rank).count();
            let all = compared > 0 && compared.is_multiple_of(SIGHTS);
            return if all { Ok(()) } else { Err(format!("rank {rank} is right without a comparison")) };
        }
        Ending::Failed { text, blame } => (text, blame),
    };
    if !allowed.failures {
        return Err(format!("rank {rank} fails without a cause: {text}"));
    }
    if blame.ranks.iter().any(|named| allowed.culprits.contains(named)) {
        return Ok(());
    }
    let mut own = faults.iter().filter(|fault| fault.ranks().contains(&rank));
    if own.any(|fault| says_its_own(fault, blame)) {
        return Ok(());
    }
    if allowed.culprits.contains(&rank) {
        return Err(format!("faulty rank {rank} fails with something else: {text}"));
    }
    Err(format!("rank {rank} names another than the faulty rank: {text}"))
}

/// Whether a faulty rank's error is what its fault does to it.
fn says_its_own(fault: &Fault, blame: &Blame) -> bool {
    match *fault {
        Fault::Machine(MachineFault::Kill { .. }) => {
            matches!(blame.code, Some(HipError::DEINITIALIZED | HipError::LAUNCH_FAILURE))
        }
        Fault::Machine(MachineFault::FailCall { code, .. }) => blame.code == Some(code),
        Fault::Machine(MachineFault::LoseStore { told: true, .. }) => {
            blame.code == Some(HipError::LAUNCH_FAILURE)
        }
        // It learns that the others have gone, or that it is cut off from them.
        Fault::Machine(MachineFault::Stall { .. }) | Fault::Cut { .. } | Fault::Slow { .. } => {
            !blame.ranks.is_empty()
        }
        Fault::Machine(_) => false,
    }
}
