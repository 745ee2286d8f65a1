//! What ranks tell each other of causes: each has a key of its own at the rendezvous, which others read when they lose or miss it.

use std::sync::Arc;
use std::time::Duration;

use anabranch_bootstrap::{Deadline, LossKind, Rendezvous};
use anabranch_clock::Moment;
use anabranch_ranks::GlobalRank;
use anabranch_transport_rdma::StoppedQueue;
use serde::{Deserialize, Serialize};

use crate::activity::Activity;
use crate::alarm::Alarm;
use crate::fault::{Circumstances, Fault};

/// How long a cause that was told may take to be read.
const READ: Duration = Duration::from_millis(20);
/// The same of a rank that is lost: what it told is at the rendezvous since before the loss and comes at once, but for a busy machine. It
/// takes this long only where nothing was told, and nobody asks again.
const READ_OF_LOST: Duration = Duration::from_secs(1);

/// [`Fault`] as ranks tell each other about it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Told {
    Lost { rank: u32, left: bool, detail: String },
    Expired(Expired),
    Collective { step: String, detail: String, missing: Vec<u32> },
    Poisoned { rank: u32, reason: String },
    Reported { rank: u32, operation: String, phase: String, detail: String },
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Expired {
    pub(crate) rank: u32,
    pub(crate) operation: String,
    pub(crate) phase: String,
    pub(crate) epoch: u64,
    pub(crate) peer: u32,
    pub(crate) expected: u64,
    pub(crate) seen: u64,
    pub(crate) waited_ns: u64,
    /// The call that it waits in.
    pub(crate) call: Option<String>,
    /// What the peer is doing.
    pub(crate) doing: Option<String>,
}

impl From<&Fault> for Told {
    fn from(fault: &Fault) -> Self {
        match fault.clone() {
            Fault::PeerLost { rank, kind, detail } => {
                Self::Lost { rank: rank.get(), left: kind == LossKind::Left, detail }
            }
            Fault::DeadlineExpired {
                rank,
                operation,
                phase,
                epoch,
                peer,
                expected,
                seen,
                waited,
                circumstances,
            } => Self::Expired(Expired {
                rank: rank.get(),
                operation,
                phase,
                epoch,
                peer: peer.get(),
                expected,
                seen,
                waited_ns: u64::try_from(waited.as_nanos()).unwrap_or(u64::MAX),
                call: circumstances.call,
                doing: circumstances.doing,
            }),
            Fault::CollectiveFailed { step, detail, missing } => {
                let missing = missing.into_iter().map(GlobalRank::get).collect();
                Self::Collective { step, detail, missing }
            }
            Fault::Poisoned { rank, reason } => Self::Poisoned { rank: rank.get(), reason },
            Fault::Reported { rank, operation, phase, detail } => {
                Self::Reported { rank: rank.get(), operation, phase, detail }
            }
        }
    }
}

impl From<Told> for Fault {
    fn from(told: Told) -> Self {
        match told {
            Told::Lost { rank, left, detail } => Self::PeerLost {
                rank: GlobalRank::new(rank),
                kind: if left { LossKind::Left } else { LossKind::Died },
                detail,
            },
            Told::Expired(expired) => Self::DeadlineExpired {
                rank: GlobalRank::new(expired.rank),
                operation: expired.operation,
                phase: expired.phase,
                epoch: expired.epoch,
                peer: GlobalRank::new(expired.peer),
                expected: expired.expected,
                seen: expired.seen,
                waited: Duration::from_nanos(expired.waited_ns),
                circumstances: Box::new(Circumstances { call: expired.call, doing: expired.doing }),
            },
            Told::Collective { step, detail, missing } => {
                let missing = missing.into_iter().map(GlobalRank::new).collect();
                Self::CollectiveFailed { step, detail, missing }
            }
            Told::Poisoned { rank, reason } => Self::Poisoned { rank: GlobalRank::new(rank), reason },
            Told::Reported { rank, operation, phase, detail } => {
                Self::Reported { rank: GlobalRank::new(rank), operation, phase, detail }
            }
        }
    }
}

impl Told {
    /// A queue pair of `rank` that has stopped, and what the rank was doing: which request it was of, only its kernels know.
    pub(crate) fn of_stopped(rank: GlobalRank, stopped: &StoppedQueue, activity: &Activity) -> Self {
        let (operation, phase) = ("requests by NIC".to_owned(), "completion".to_owned());
        let detail = format!("{}; {rank} {}", stopped.words, activity.doing());
        Self::Reported { rank: rank.get(), operation, phase, detail }
    }

    /// Whether it may be why a queue pair of `rank` has stopped: a wait is none, nor is that this rank went.
    fn may_stop(&self, rank: GlobalRank) -> bool {
        match self {
            Self::Expired(_) => false,
            Self::Lost { rank: lost, .. } => *lost != rank.get(),
            Self::Collective { .. } | Self::Poisoned { .. } | Self::Reported { .. } => true,
        }
    }
}

/// The causes that the ranks of a world have told, without the world.
#[derive(Debug)]
pub(crate) struct Causes {
    pub(crate) rank: GlobalRank,
    /// The world's number.
    pub(crate) world: u64,
    pub(crate) rendezvous: Arc<dyn Rendezvous>,
    pub(crate) alarm: Arc<Alarm>,
    pub(crate) activity: Arc<Activity>,
}

impl Causes {
    /// Tells the others this rank's cause: what is decided and, until something is, this.
    pub(crate) fn tell(&self, until_decided: &Told) {
        self.alarm.tell(!matches!(until_decided, Told::Expired(_)), |decided| {
            let decided = decided.map(Told::from);
            let Ok(text) = serde_json::to_vec(decided.as_ref().unwrap_or(until_decided)) else { return };
            if let Err(error) = self.rendezvous.set(&self.key(self.rank.get()), &text) {
                tracing::debug!(%error, "the cause of the failure could not be told to the others");
            }
        });
    }

    /// Tells the others that a queue pair has stopped, or the cause of it that its peer has told.
    pub(crate) fn tell_stopped(&self, stopped: &StoppedQueue, theirs: Option<Told>) {
        self.tell(&theirs.unwrap_or_else(|| Told::of_stopped(self.rank, stopped, &self.activity)));
    }

    /// What a rank has told.
    pub(crate) fn told_by(&self, rank: u32) -> Option<Told> {
        self.told_within(rank, READ)
    }

    /// What a rank that is lost has told before.
    pub(crate) fn told_by_lost(&self, rank: u32) -> Option<Told> {
        // Under a driver no machine is busy, and the clock passes over the whole limit.
        self.told_within(rank, if anabranch_clock::is_attached() { READ } else { READ_OF_LOST })
    }

    fn told_within(&self, rank: u32, limit: Duration) -> Option<Told> {
        let text = self.rendezvous.wait(&self.key(rank), Deadline::after(limit)).ok()?;
        serde_json::from_slice(&text).ok()
    }

    /// The cause that the peer of a queue pair that has stopped has told. Where something else had failed before, the peer gets so long to
    /// tell it, as it makes sure that nobody is lost first, while `goes_on`, which rests, says so.
    pub(crate) fn told_by_peer(
        &self,
        stopped: &StoppedQueue,
        patience: Duration,
        goes_on: impl Fn() -> bool,
    ) -> Option<Told> {
        let end = Moment::now().after(if stopped.is_consequence { patience } else { Duration::ZERO });
        loop {
            let told = self.told_by(stopped.peer.get()).filter(|told| told.may_stop(self.rank));
            if told.is_some() || end.remaining().is_zero() || !goes_on() {
                return told;
            }
        }
    }

    fn key(&self, rank: u32) -> String {
        format!("shmem/{:016x}/cause/{rank}", self.world)
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use anabranch_hip::DeviceOrdinal;
    use anabranch_hip_host::{HostConfig, HostMachine};

    use super::*;
    use crate::control::Control;

    /// A wait of one rank for another that nobody answered.
    pub(crate) fn expired(rank: u32, peer: u32) -> Told {
        Told::Expired(Expired {
            rank,
            operation: "team barrier".into(),
            phase: "arrival".into(),
            epoch: 1,
            peer,
            expected: 1,
            seen: 0,
            waited_ns: 5,
            call: Some("call 1".into()),
            doing: None,
        })
    }

    #[test]
    fn nothing_takes_the_place_of_what_is_decided() {
        let machine = HostMachine::new(HostConfig::default()).unwrap();
        let device = machine.runtime().device(DeviceOrdinal(0)).unwrap();
        let alarm = Arc::new(Alarm::new(Control::new(&device, Duration::from_secs(1)).unwrap()));
        let rank = GlobalRank::new(0);
        let rendezvous = Arc::new(anabranch_bootstrap::threads(1).pop().unwrap());
        let causes =
            Causes { rank, world: 1, rendezvous, alarm: Arc::clone(&alarm), activity: Arc::default() };
        let stopped =
            StoppedQueue { peer: GlobalRank::new(1), words: "stopped".into(), is_consequence: false };
        let told = || causes.told_by(0);

        assert_eq!(told(), None);
        causes.tell(&expired(0, 1));
        assert_eq!(told(), Some(expired(0, 1)));
        causes.tell_stopped(&stopped, None);
        let Some(Told::Reported { rank: 0, detail, .. }) = told() else { panic!("{:?}", told()) };
        assert!(detail.starts_with("stopped; rank 0 waits for nobody"), "{detail}");
        causes.tell(&expired(0, 1));
        assert!(matches!(told(), Some(Told::Reported { .. })), "a wait is no cause");
        let decided = Fault::Poisoned { rank, reason: "decided".into() };
        alarm.decide(decided.clone());
        causes.tell_stopped(&stopped, None);
        assert_eq!(told(), Some(Told::from(&decided)));
    }

    #[test]
    fn faults_survive_being_told() {
        for fault in [
            Fault::PeerLost { rank: GlobalRank::new(1), kind: LossKind::Died, detail: "d".into() },
            Fault::CollectiveFailed {
                step: "s".into(),
                detail: "d".into(),
                missing: vec![GlobalRank::new(3)],
            },
            Fault::Poisoned { rank: GlobalRank::new(2), reason: "r".into() },
            Fault::Reported {
                rank: GlobalRank::new(0),
                operation: "o".into(),
                phase: "p".into(),
                detail: "d".into(),
            },
            Fault::from(expired(1, 2)),
        ] {
            let text = serde_json::to_vec(&Told::from(&fault)).unwrap();
            assert_eq!(Fault::from(serde_json::from_slice::<Told>(&text).unwrap()), fault);
        }
    }
}
