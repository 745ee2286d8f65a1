//! Whom an error names: from its values, not from its text.

use std::collections::BTreeSet;
use std::error::Error as StdError;
use std::sync::Arc;

use anabranch_bootstrap::Error as RendezvousError;
use anabranch_hip::HipError;
use anabranch_ranks::GlobalRank;
use anabranch_shmem::{Error as WorldError, Fault, RankError};
use anabranch_transport::Refusal;

/// What an error says about whose fault it is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Blame {
    /// Ranks that it names as the cause.
    pub(crate) ranks: BTreeSet<u32>,
    /// The code of the rank's own call that failed, if that is what it is.
    pub(crate) code: Option<HipError>,
}

impl Blame {
    pub(crate) fn of(error: &RankError<anabranch_ep::Error>) -> Self {
        let mut blame = Self::default();
        match error {
            RankError::World { error, .. }
            | RankError::Work { error: anabranch_ep::Error::Shmem(error), .. } => blame.world(error),
            RankError::Work { error: anabranch_ep::Error::Hip(error), .. } => blame.code = error.code(),
            RankError::Work { error: anabranch_ep::Error::Unreachable { peer, .. }, .. } => {
                blame.rank(*peer);
            }
            RankError::Work { error, .. } => blame.code = code_below(error),
            _ => {}
        }
        blame
    }

    fn rank(&mut self, rank: GlobalRank) {
        self.ranks.insert(rank.get());
    }

    fn all<'a>(&mut self, ranks: impl IntoIterator<Item = &'a GlobalRank>) {
        self.ranks.extend(ranks.into_iter().map(|rank| rank.get()));
    }

    fn world(&mut self, error: &WorldError) {
        match error {
            WorldError::Fault(Fault::PeerLost { rank, .. } | Fault::Poisoned { rank, .. })
            | WorldError::FailedOn { rank, .. } => self.rank(*rank),
            WorldError::Unreachable { peer, considered } => {
                self.rank(*peer);
                self.code = considered.iter().find_map(|(_, refusal)| code_in(refusal));
            }
            WorldError::Fault(Fault::CollectiveFailed { missing, .. }) => self.all(missing),
            WorldError::Fault(Fault::DeadlineExpired(expired)) => self.rank(expired.peer),
            WorldError::Probe { peer, .. } => self.rank(*peer),
            WorldError::Rendezvous { source, .. } => self.rendezvous(source),
            WorldError::Hip(error) => self.code = error.code(),
            other => self.code = code_below(other),
        }
    }

    fn rendezvous(&mut self, error: &RendezvousError) {
        match error {
            RendezvousError::PeerLost { loss, .. } | RendezvousError::GivenUp { loss, .. } => {
                self.rank(loss.rank);
            }
            RendezvousError::KeyNotSet { losses, .. } => self.all(losses.iter().map(|loss| &loss.rank)),
            other => self.all(other.missing()),
        }
    }
}

/// The code in a transport's reason. The reason has it in words only.
fn code_in(refusal: &Refusal) -> Option<HipError> {
    let Refusal::Failed { cause } = refusal else { return None };
    let known = [
        HipError::DEINITIALIZED,
        HipError::OUT_OF_MEMORY,
        HipError::INVALID_HANDLE,
        HipError::LAUNCH_FAILURE,
    ];
    known.into_iter().find(|code| cause.contains(&code.to_string()))
}

/// The code of the first runtime error among the causes.
fn code_below(error: &(dyn StdError + 'static)) -> Option<HipError> {
    let mut next = Some(error);
    while let Some(error) = next {
        let own = error.downcast_ref::<anabranch_hip::Error>();
        let shared = || error.downcast_ref::<Arc<anabranch_hip::Error>>().map(AsRef::as_ref);
        // Its reason is a part of its text and not its source, also within the errors that stand for it.
        let of_launch = || {
            use anabranch_hip_jit::Error as JitError;
            let in_ep = || match error.downcast_ref()? {
                anabranch_ep::Error::Jit(error) => Some(error),
                _ => None,
            };
            let in_world = || match error.downcast_ref()? {
                WorldError::Jit(error) => Some(error),
                _ => None,
            };
            match error.downcast_ref::<JitError>().or_else(in_ep).or_else(in_world)? {
                JitError::Launch { cause, .. } => Some(cause.as_ref()),
                _ => None,
            }
        };
        if let Some(code) = own.or_else(shared).or_else(of_launch).and_then(anabranch_hip::Error::code) {
            return Some(code);
        }
        next = error.source();
    }
    None
}
