//! What can go wrong.

use crate::{FrameError, Loss};
use anabranch_ranks::{GlobalRank, GroupRank};
use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

/// Where a rank was that did not come to a collective call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Elsewhere {
    /// The rank that did not come.
    pub rank: GlobalRank,
    /// The call in which it waits instead, as in `barrier 'heap'`.
    pub phase: String,
}

/// Why a rendezvous could not do what was asked.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Some ranks had not come when this rank's deadline passed.
    #[error(
        "{rank}: {phase} expired after {waited:?}: {} of {members} ranks have come; missing {}{}",
        members.saturating_sub(missing.len() as u32),
        list(missing),
        elsewhere_text(elsewhere)
    )]
    Expired {
        /// This rank.
        rank: GlobalRank,
        /// The call and its tag.
        phase: String,
        /// The time since the deadline was made.
        waited: Duration,
        /// How many ranks the call needs.
        members: u32,
        /// The ranks that have not come. Only the root's, when the root of a store does not answer.
        missing: Vec<GlobalRank>,
        /// Those among them that wait in another call, which is how unequal groups and tags show.
        elsewhere: Vec<Elsewhere>,
    },
    /// Another rank's deadline passed first, which ended the call for all.
    #[error(
        "{phase}: {by} gave up waiting: {} of {members} ranks have come; missing {}{}",
        members.saturating_sub(missing.len() as u32),
        list(missing),
        elsewhere_text(elsewhere)
    )]
    Abandoned {
        /// The call and its tag.
        phase: String,
        /// The rank whose deadline passed.
        by: GlobalRank,
        /// How many ranks the call needs.
        members: u32,
        /// The ranks that had not come by then.
        missing: Vec<GlobalRank>,
        /// Those among them that wait in another call.
        elsewhere: Vec<Elsewhere>,
    },
    /// A rank that the call needs left or died.
    #[error("{phase}: {loss}")]
    PeerLost {
        /// The call and its tag.
        phase: String,
        /// Who, and how.
        loss: Loss,
    },
    /// The others were told that this rank died, because it had been silent for too long.
    #[error("{phase}: this rank was given up by the others: {loss}")]
    GivenUp {
        /// The call and its tag.
        phase: String,
        /// What the others were told.
        loss: Loss,
    },
    /// Nobody has set a key.
    #[error("wait for key '{key}' expired after {waited:?}: no rank has set it{}", lost_text(losses))]
    KeyNotSet {
        /// The key.
        key: String,
        /// The time since the deadline was made.
        waited: Duration,
        /// The ranks lost by then, which may have been meant to set it.
        losses: Vec<Loss>,
    },
    /// Members made different collective calls with one tag.
    #[error("{phase}: {rank} called {called}, but {other} called {other_called}")]
    Disagreement {
        /// This rank's call and its tag.
        phase: String,
        /// The rank that came later.
        rank: GlobalRank,
        /// Its call.
        called: String,
        /// A rank that had come before.
        other: GlobalRank,
        /// Its call.
        other_called: String,
    },
    /// This rank is not in the group that it used.
    #[error("{phase}: {rank} is not a member of the group (ranks {})", list(members))]
    NotAMember {
        /// The call and its tag.
        phase: String,
        /// This rank.
        rank: GlobalRank,
        /// The group's members.
        members: Vec<GlobalRank>,
    },
    /// A group has a rank that the world does not have.
    #[error("{phase}: {given} is a member of the group, but the world has {size} ranks")]
    OutsideWorld {
        /// The call and its tag.
        phase: String,
        /// The rank.
        given: GlobalRank,
        /// The ranks of the world.
        size: u32,
    },
    /// The root of a broadcast is not in the group.
    #[error("{phase}: root {root} is outside the group, which has {size} members")]
    RootOutsideGroup {
        /// The call and its tag.
        phase: String,
        /// The root that was given.
        root: GroupRank,
        /// The members of the group.
        size: u32,
    },
    /// More bytes than one message may have.
    #[error("{phase}: a message of {bytes} bytes is over the maximum of {limit} (max_message_bytes)")]
    TooLarge {
        /// The call and its tag or key.
        phase: String,
        /// What the message would have.
        bytes: u64,
        /// What it may have.
        limit: u64,
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
    /// The root's address could not be listened on.
    #[error("cannot listen on {address}; the value `bind` says where the root listens")]
    Bind {
        /// The address.
        address: String,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// The root's host name has no address.
    #[error("{rank}: cannot resolve the root's address {address}")]
    Resolve {
        /// This rank.
        rank: GlobalRank,
        /// The address.
        address: String,
        /// Why.
        #[source]
        source: std::io::Error,
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
    /// The world cannot form, because a rank of it was refused. All ranks are told the same.
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
         ANABRANCH_SECRET_FILE=FILE or bootstrap.secret_file; or let whoever reaches the port join, with \
         ANABRANCH_INSECURE=1 or bootstrap.insecure"
    )]
    Unprotected {
        /// This rank.
        rank: GlobalRank,
        /// Where the root is.
        address: SocketAddr,
    },
    /// A file that should hold the secret does not, or others may use it.
    #[error("the secret in {}: {problem}", path.display())]
    SecretFile {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        problem: String,
        /// Why, where the system said so.
        #[source]
        source: Option<std::io::Error>,
    },
    /// A secret that could be guessed.
    #[error("{name}: the secret has {bytes} bytes, and at least {} are needed", crate::Secret::MIN_BYTES)]
    ShortSecret {
        /// Where it comes from.
        name: &'static str,
        /// What it has.
        bytes: usize,
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
    /// A system call failed.
    #[error("{call} failed")]
    System {
        /// Which.
        call: &'static str,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// No launcher's variables are there.
    #[error("no launcher found: none of {} is set", looked_for.join(", "))]
    NoLauncher {
        /// The variables that would have named one.
        looked_for: Vec<&'static str>,
    },
    /// A launcher's variable is not there.
    #[error("{launcher} is the launcher, but {variable} ({purpose}) is not set")]
    MissingVariable {
        /// The launcher.
        launcher: crate::launcher::Launcher,
        /// The variable; several, where any would do.
        variable: String,
        /// What it is needed for.
        purpose: &'static str,
    },
    /// A launcher's variable has a value that makes no sense.
    #[error("{variable}={value}: {expected}")]
    MalformedVariable {
        /// The variable.
        variable: String,
        /// Its value.
        value: String,
        /// What is allowed.
        expected: String,
    },
}

impl Error {
    /// The ranks that had not come, where that is what went wrong.
    pub fn missing(&self) -> &[GlobalRank] {
        match self {
            Self::Expired { missing, .. } | Self::Abandoned { missing, .. } => missing,
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
        /// What the rank said.
        given: u32,
        /// The root's.
        expected: u32,
    },
    /// Somebody has joined as this rank.
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
            Self::Protocol => f.write_str("its first message was no greeting of this version"),
        }
    }
}

/// Ranks as people write them: `5, 9-10`.
fn list(ranks: &[GlobalRank]) -> String {
    let mut rest: Vec<u32> = ranks.iter().map(|rank| rank.get()).collect();
    rest.sort_unstable();
    let runs = rest.chunk_by(|a, b| a + 1 == *b).filter_map(|run| Some((run.first()?, run.last()?)));
    let run = |(first, last): (&u32, &u32)| {
        if first == last { first.to_string() } else { format!("{first}-{last}") }
    };
    runs.map(run).collect::<Vec<_>>().join(", ")
}

fn elsewhere_text(elsewhere: &[Elsewhere]) -> String {
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
            rank: GlobalRank::new(0),
            phase: "barrier 'join'".into(),
            waited: Duration::from_secs(60),
            members: 16,
            missing: [10, 5, 9].map(GlobalRank::new).to_vec(),
            elsewhere: Vec::new(),
        };
        let text = "rank 0: barrier 'join' expired after 60s: 13 of 16 ranks have come; missing 5, 9-10";
        assert_eq!(error.to_string(), text);
    }
}
