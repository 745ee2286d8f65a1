//! What can go wrong.

use crate::{FrameError, Loss};
use anabranch_ranks::{ErrorKind, GlobalRank};
use std::fmt;
use std::net::SocketAddr;
use std::time::Duration;

/// The call in which a rank waits that is missing in another one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OtherCall {
    /// The rank that did not come.
    pub rank: GlobalRank,
    /// The call in which it waits instead, as in `all_gather 'heap'`.
    pub phase: String,
}

/// Why a rendezvous could not do what was asked.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Some ranks had not come when a deadline passed, which ended the call for all that had.
    #[error(
        "{phase}{}: {} of {members} ranks have come; missing {}{}",
        expiry_text(*by, *waited),
        members.saturating_sub(missing.len() as u32),
        list(missing),
        elsewhere_text(elsewhere)
    )]
    Expired {
        /// The call and its tag.
        phase: String,
        /// The rank whose deadline passed first.
        by: GlobalRank,
        /// The time since this rank's deadline was made, where that is the one that passed; `None` on the other ranks.
        waited: Option<Duration>,
        /// How many ranks the call needs.
        members: u32,
        /// The ranks that had not come. Only the root's, when the root of a store does not answer.
        missing: Vec<GlobalRank>,
        /// Those among them that wait in another call, which is how unequal groups and tags show.
        elsewhere: Vec<OtherCall>,
    },
    /// A rank that the call needs left or died.
    #[error("{phase}: {loss}")]
    PeerLost {
        /// The call and its tag.
        phase: String,
        /// Who, and how.
        loss: Loss,
    },
    /// The others count this rank as dead, because it was silent for too long.
    #[error("{phase}: the others gave this rank up: {loss}")]
    GivenUp {
        /// The call and its tag.
        phase: String,
        /// The loss as the others see it.
        loss: Loss,
    },
    /// No rank set a key in time.
    #[error("wait for key '{key}' expired after {waited:?}: no rank has set it{}", lost_text(losses))]
    KeyNotSet {
        /// The key.
        key: String,
        /// The time since the deadline was made.
        waited: Duration,
        /// The ranks lost by then, which may have been meant to set it.
        losses: Vec<Loss>,
    },
    /// A group or a message that this rank or this world does not take. Nothing was sent, except where the parts of a
    /// collective are too large together: then all members get this error.
    #[error("{phase}: {given}; {allowed}")]
    Invalid {
        /// The call and its tag or key.
        phase: String,
        /// What was given.
        given: String,
        /// What is allowed.
        allowed: String,
    },
    /// This rank has left.
    #[error("{phase}: this rank has left the rendezvous")]
    Left {
        /// The call and its tag or key.
        phase: String,
    },
    /// The root did not confirm the goodbye.
    #[error("{rank}: the root did not confirm the goodbye within {waited:?}")]
    LeaveUnconfirmed {
        /// This rank.
        rank: GlobalRank,
        /// How long it was waited for.
        waited: Duration,
    },
    /// The root has stopped serving ranks that had not left.
    #[error("the root stopped serving after {waited:?} with ranks still joined: {}", list(ranks))]
    StillJoined {
        /// Those ranks.
        ranks: Vec<GlobalRank>,
        /// How long they were waited for.
        waited: Duration,
    },
    /// A configuration value makes no sense.
    #[error("{name} = {given}: {expected}")]
    Config {
        /// The value's name.
        name: &'static str,
        /// What was given.
        given: String,
        /// What is allowed.
        expected: &'static str,
    },
    /// The root could not be reached before the deadline.
    #[error("{rank}: cannot reach the root at {address} after {waited:?} and {attempts} attempts")]
    Connect {
        /// This rank.
        rank: GlobalRank,
        /// The address.
        address: String,
        /// The time since the deadline was made.
        waited: Duration,
        /// Attempts made.
        attempts: u32,
        /// Why the last attempt failed.
        #[source]
        source: std::io::Error,
    },
    /// The root refused this rank.
    #[error("the root at {address} refused {rank}: {refusal}")]
    Refused {
        /// The root's address.
        address: String,
        /// This rank.
        rank: GlobalRank,
        /// Why.
        refusal: Refusal,
    },
    /// The world cannot form, because one of its ranks was refused. All ranks get this error.
    #[error("{rank}: the world cannot form: {by} was refused: {refusal}")]
    CannotForm {
        /// This rank.
        rank: GlobalRank,
        /// The rank that was refused, as it called itself.
        by: GlobalRank,
        /// Why.
        refusal: Refusal,
    },
    /// Other machines reach the rendezvous, and there is no secret that keeps them out.
    #[error(
        "{rank}: the rendezvous is at {address}, which other machines reach, and no secret keeps them out. Write one into a file \
         that only its owner reads, `(umask 077; openssl rand -hex 32 > FILE)`, and give it to all ranks as \
         ANABRANCH_SECRET_FILE=FILE or bootstrap.secret_file; or allow everyone who reaches the port to join, with \
         ANABRANCH_INSECURE=1 or bootstrap.insecure"
    )]
    Unprotected {
        /// This rank.
        rank: GlobalRank,
        /// Where the root is.
        address: SocketAddr,
    },
    /// The job's secret cannot be read, others may read it too, or it could be guessed.
    #[error("{origin}: {problem}")]
    Secret {
        /// The file or the variable.
        origin: String,
        /// What is wrong with it, and what is allowed.
        problem: String,
        /// The system's error, if it gave one.
        #[source]
        source: Option<std::io::Error>,
    },
    /// The machine has no such network interface, or it has no address.
    #[error("the network interface {name} has no address here; interfaces with one are {}", known.join(", "))]
    Interface {
        /// The name that was given.
        name: String,
        /// Those that are there.
        known: Vec<String>,
    },
    /// What answers at the root's address does not know the secret.
    #[error("the root at {address} did not prove that it knows the secret; another job may use this port")]
    RootUnproven {
        /// The address.
        address: String,
    },
    /// What answers at the root's address does not speak this protocol, or not this version of it.
    #[error("the peer at {address} sent a bad frame")]
    Frame {
        /// The address.
        address: String,
        /// What is wrong.
        #[source]
        source: FrameError,
    },
    /// The system refused something: an address, a name, a thread, random bytes.
    #[error("{what} failed")]
    System {
        /// What was tried, with the address or the name.
        what: String,
        /// The system's error.
        #[source]
        source: std::io::Error,
    },
    /// The root answered a call with something that cannot be its answer.
    #[error("{phase}: {problem}")]
    Answer {
        /// The call.
        phase: String,
        /// What is wrong with the answer.
        problem: String,
    },
    /// No launcher's variables are there.
    #[error("no launcher found: none of {} is set", looked_for.join(", "))]
    NoLauncher {
        /// The variables that would have named one.
        looked_for: Vec<&'static str>,
    },
    /// A launcher's variable is not set, or has a value that is not allowed.
    #[error("{problem}")]
    Variable {
        /// The variable; several, where any would do.
        variable: String,
        /// The variable with its value and what is allowed, or what it is needed for.
        problem: String,
    },
}

impl Error {
    pub(crate) fn system(what: impl Into<String>) -> impl FnOnce(std::io::Error) -> Self {
        let what = what.into();
        move |source| Self::System { what, source }
    }

    /// Who can do something about it.
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::Config { .. } => ErrorKind::Config,
            Self::NoLauncher { .. }
            | Self::Variable { .. }
            | Self::Secret { .. }
            | Self::Unprotected { .. }
            | Self::Interface { .. }
            | Self::System { .. } => ErrorKind::Environment,
            Self::Invalid { .. } | Self::Left { .. } => ErrorKind::Usage,
            _ => ErrorKind::Peer,
        }
    }

    /// The ranks that had not come, where that is what went wrong.
    pub fn missing(&self) -> &[GlobalRank] {
        match self {
            Self::Expired { missing, .. } => missing,
            _ => &[],
        }
    }
}

/// Why a root refused a rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Refusal {
    /// It did not prove that it knows the secret.
    Secret,
    /// It belongs to another run of the job, or to another job.
    Run,
    /// It belongs to another start of this run.
    Generation {
        /// The rank's generation.
        given: u32,
        /// The root's.
        expected: u32,
    },
    /// The rank does not exist in a world of this size.
    Rank {
        /// The root's size.
        size: u32,
    },
    /// The root has another size.
    Size {
        /// The rank's.
        given: u32,
        /// The root's.
        expected: u32,
    },
    /// Another process has joined as this rank.
    Duplicate,
    /// This rank had joined and was lost.
    Lost,
    /// The root is about to end.
    Ending,
    /// The first frame was not what it should be.
    Protocol,
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Secret => f.write_str("its secret is another one than the root's"),
            Self::Run => f.write_str("it belongs to another run than the root"),
            Self::Generation { given, expected } => {
                write!(f, "it belongs to start {given} of this run, the root to start {expected}")
            }
            Self::Rank { size } => write!(f, "the world has ranks 0 to {}", size.saturating_sub(1)),
            Self::Size { given, expected } => {
                write!(f, "it was started for a world of {given} ranks, the root for {expected}")
            }
            Self::Duplicate => f.write_str("another process has joined as this rank"),
            Self::Lost => f.write_str("this rank had joined and has left or died"),
            Self::Ending => f.write_str("the root is leaving"),
            Self::Protocol => f.write_str("its first message is not the hello of this protocol version"),
        }
    }
}

/// Ranks as people write them: `5, 9-10`.
pub(crate) fn list(ranks: &[GlobalRank]) -> String {
    let mut rest: Vec<u32> = ranks.iter().map(|rank| rank.get()).collect();
    rest.sort_unstable();
    let runs = rest.chunk_by(|a, b| a + 1 == *b).filter_map(|run| Some((run.first()?, run.last()?)));
    let run = |(first, last): (&u32, &u32)| {
        if first == last { first.to_string() } else { format!("{first}-{last}") }
    };
    runs.map(run).collect::<Vec<_>>().join(", ")
}

fn expiry_text(by: GlobalRank, waited: Option<Duration>) -> String {
    match waited {
        Some(waited) => format!(": the deadline of {by} expired after {waited:?}"),
        None => format!(": the deadline of {by} expired first"),
    }
}

fn elsewhere_text(elsewhere: &[OtherCall]) -> String {
    elsewhere
        .iter()
        .map(|other| format!("; {} waits in {}", other.rank, other.phase))
        .collect::<Vec<_>>()
        .concat()
}

fn lost_text(losses: &[Loss]) -> String {
    losses.iter().map(|loss| format!("; {loss}")).collect::<Vec<_>>().concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_ranks_are_counted_and_listed_as_ranges() {
        let error = Error::Expired {
            phase: "all_gather 'join'".into(),
            by: GlobalRank::new(0),
            waited: Some(Duration::from_secs(60)),
            members: 16,
            missing: [10, 5, 9].map(GlobalRank::new).to_vec(),
            elsewhere: Vec::new(),
        };
        let text = "all_gather 'join': the deadline of rank 0 expired after 60s: 13 of 16 ranks have come; missing 5, 9-10";
        assert_eq!(error.to_string(), text);
    }
}
