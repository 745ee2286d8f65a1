//! Failure reports, one key per rank in the rendezvous store, which other ranks read when they lose this one or a wait for it expires.

use std::sync::Arc;
use std::time::Duration;

use anabranch_bootstrap::{Deadline, Rendezvous};
use anabranch_clock::Moment;
use anabranch_ranks::GlobalRank;
use anabranch_transport::StoppedQueue;

use super::activity::Activity;
use super::state::FaultState;
use crate::error::Fault;

/// How long the read of a report may take.
const READ: Duration = Duration::from_millis(20);
/// The same of a rank that is lost: its report is in the store since before the loss and comes at once, but for a busy machine. It takes
/// this long only where there is none, and no rank asks again.
const READ_OF_LOST: Duration = Duration::from_secs(1);

/// A queue of `rank` that has stopped, and what the rank was doing: which request it was of, only its kernels know.
pub(crate) fn of_stopped(rank: GlobalRank, stopped: &StoppedQueue, activity: &Activity) -> Fault {
    let (operation, phase) = ("requests by NIC".to_owned(), "completion".to_owned());
    let detail = format!("{}; {rank} {}", stopped.words, activity.doing());
    Fault::Reported { rank, operation, phase, detail }
}

/// Whether it may be why a queue of `rank` has stopped: a wait is none, nor is that this rank went.
fn may_stop(fault: &Fault, rank: GlobalRank) -> bool {
    match fault {
        Fault::DeadlineExpired(_) => false,
        Fault::PeerLost { rank: lost, .. } => *lost != rank,
        Fault::CollectiveFailed { .. } | Fault::Poisoned { .. } | Fault::Reported { .. } => true,
    }
}

/// The reports of the ranks of a world.
#[derive(Debug)]
pub(crate) struct FaultReports {
    pub(crate) rank: GlobalRank,
    /// The world's number.
    pub(crate) world: u64,
    pub(crate) rendezvous: Arc<dyn Rendezvous>,
    pub(crate) state: Arc<FaultState>,
    pub(crate) activity: Arc<Activity>,
    /// A driver runs the ranks one thread at a time: there are no threads beside them.
    pub(crate) is_simulated: bool,
}

impl FaultReports {
    /// Publishes this rank's cause: the one that is decided and, until one is, this.
    pub(crate) fn publish(&self, until_decided: &Fault) {
        self.state.publish(!matches!(until_decided, Fault::DeadlineExpired(_)), |decided| {
            let Ok(text) = serde_json::to_vec(decided.unwrap_or(until_decided)) else { return };
            if let Err(error) = self.rendezvous.set(&self.key(self.rank), &text) {
                tracing::debug!(%error, "the cause of the failure could not be published");
            }
        });
    }

    /// Publishes that a queue has stopped, or the cause of it in its peer's report.
    pub(crate) fn publish_stopped(&self, stopped: &StoppedQueue, theirs: Option<Fault>) {
        self.publish(&theirs.unwrap_or_else(|| of_stopped(self.rank, stopped, &self.activity)));
    }

    /// The report of a rank.
    pub(crate) fn of_rank(&self, rank: GlobalRank) -> Option<Fault> {
        self.read(rank, READ)
    }

    /// The report that a lost rank left.
    pub(crate) fn of_lost(&self, rank: GlobalRank) -> Option<Fault> {
        // Under a driver no machine is busy, and the clock passes over the whole limit.
        self.read(rank, if anabranch_clock::is_attached() { READ } else { READ_OF_LOST })
    }

    fn read(&self, rank: GlobalRank, limit: Duration) -> Option<Fault> {
        let text = self.rendezvous.wait(&self.key(rank), Deadline::after(limit)).ok()?;
        serde_json::from_slice(&text).ok()
    }

    /// The cause in the report of the peer of a queue that has stopped. Where something else had failed before, the peer gets so long to
    /// publish it, as it first makes sure that no rank is lost, while `goes_on`, which sleeps a little, is true.
    pub(crate) fn of_peer(
        &self,
        stopped: &StoppedQueue,
        patience: Duration,
        goes_on: impl Fn() -> bool,
    ) -> Option<Fault> {
        let end = Moment::now().after(if stopped.is_consequence { patience } else { Duration::ZERO });
        loop {
            let report = self.of_rank(stopped.peer).filter(|report| may_stop(report, self.rank));
            if report.is_some() || end.remaining().is_zero() || !goes_on() {
                return report;
            }
        }
    }

    fn key(&self, rank: GlobalRank) -> String {
        format!("shmem/{:016x}/cause/{}", self.world, rank.get())
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use anabranch_hip::DeviceOrdinal;
    use anabranch_hip_host::{HostConfig, HostMachine};

    use anabranch_bootstrap::LossKind;

    use super::*;
    use crate::error::ExpiredWait;
    use crate::fault::control::Control;

    /// An expired wait of one rank for another.
    pub(crate) fn expired(rank: u32, peer: u32) -> Fault {
        Fault::DeadlineExpired(Box::new(ExpiredWait {
            rank: GlobalRank::new(rank),
            operation: "team barrier".into(),
            phase: "arrival".into(),
            epoch: 1,
            peer: GlobalRank::new(peer),
            expected: 1,
            seen: 0,
            waited: Duration::from_nanos(5),
            call: Some("call 1".into()),
            doing: None,
        }))
    }

    #[test]
    fn nothing_replaces_a_decided_cause() {
        let machine = HostMachine::new(HostConfig::default()).unwrap();
        let device = machine.runtime().device(DeviceOrdinal(0)).unwrap();
        let state = Arc::new(FaultState::new(Control::new(&device, Duration::from_secs(1)).unwrap()));
        let rank = GlobalRank::new(0);
        let rendezvous = Arc::new(anabranch_bootstrap::threads(1).pop().unwrap());
        let reports = FaultReports {
            rank,
            world: 1,
            rendezvous,
            state: Arc::clone(&state),
            activity: Arc::default(),
            is_simulated: true,
        };
        let stopped =
            StoppedQueue { peer: GlobalRank::new(1), words: "stopped".into(), is_consequence: false };
        let report = || reports.of_rank(rank);

        assert_eq!(report(), None);
        reports.publish(&expired(0, 1));
        assert_eq!(report(), Some(expired(0, 1)));
        reports.publish_stopped(&stopped, None);
        let Some(Fault::Reported { detail, .. }) = report() else { panic!("{:?}", report()) };
        assert!(detail.starts_with("stopped; rank 0 waits in no call"), "{detail}");
        reports.publish(&expired(0, 1));
        assert!(matches!(report(), Some(Fault::Reported { .. })), "a wait is no cause");
        let decided = Fault::Poisoned { rank, reason: "decided".into() };
        state.decide(decided.clone());
        reports.publish_stopped(&stopped, None);
        assert_eq!(report(), Some(decided));
    }

    #[test]
    fn faults_survive_being_report() {
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
            expired(1, 2),
        ] {
            let text = serde_json::to_vec(&fault).unwrap();
            assert_eq!(serde_json::from_slice::<Fault>(&text).unwrap(), fault);
        }
    }
}
