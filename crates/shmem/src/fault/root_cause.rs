//! Selects the root cause among concurrent failures.
//!
//! Failures spread: a rank whose wait expires gives up and leaves, and then others miss *it*. Each rank therefore publishes its
//! cause before it goes, and a rank that loses or misses a peer asks what that peer's cause was:
//!
//! * A rank that was lost and published a cause went because of that cause; one that published none is the cause itself.
//! * An expired wait for a peer that published an expired wait of its own goes back to that peer's peer, and so on, to the one
//!   that published nothing: that one keeps everybody waiting.
//! * A queue pair of this rank that has stopped is a cause: what goes by it never comes, here or at its peer. One that stopped because its
//!   peer is lost belongs to that loss; and where the peer has reported a cause, it is that one: a request that is refused stops both ends, and
//!   only the rank that made it knows which it was.
//! * A request that a NIC has not answered when a wait for its peer expires is a cause: it may delay what the peer waits for in turn.
//! * An error that a kernel itself detected, and an explainer describes, is a cause even if a rank was lost meanwhile.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError, RwLock};
use std::time::Duration;

use anabranch_bootstrap::Loss;
use anabranch_clock::Moment;
use anabranch_hip_jit::control::FaultRecord;
use anabranch_ranks::{GlobalRank, Group, GroupRank};
use anabranch_transport::{Explanation, Route, StoppedQueue, UnansweredQueue};

use super::names::{Explainers, OperationCode, OperationNames};
use super::report::{FaultReports, of_stopped};
use super::state::FaultState;
use crate::device_api::{
    PHASE_DONE, PHASE_MISUSE, PHASE_NIC_CONTENDED, PHASE_POST, PHASE_UNREACHABLE, PHASE_UNSUPPORTED,
};
use crate::error::{ExpiredWait, Fault};
use crate::route::Connections;

/// Between two looks at a request that a NIC has not answered. A NIC that works answers within microseconds, and one that sends a lost
/// packet again within some times of that.
const BETWEEN_LOOKS: Duration = Duration::from_millis(20);

/// The parts of a world that a diagnosis needs.
#[derive(Debug)]
pub(crate) struct FaultContext<'a> {
    pub(crate) reports: FaultReports,
    pub(crate) state: &'a FaultState,
    pub(crate) group: &'a Group,
    /// The groups of teams, by the number in fault records.
    pub(crate) groups: &'a Mutex<HashMap<u64, Group>>,
    pub(crate) names: &'a OperationNames,
    pub(crate) explainers: &'a Explainers,
    pub(crate) routes: &'a [Route],
    pub(crate) connections: &'a RwLock<Connections>,
    /// Set where work may go on whatever happens.
    pub(crate) unproven: &'a AtomicBool,
    pub(crate) loss_grace: Duration,
}

impl FaultContext<'_> {
    /// Decides the cause of what has been raised, and publishes it. Takes up to the grace period when all that is known is
    /// an expired wait.
    pub(crate) fn judge(&self, record: Option<&FaultRecord>) {
        let state = self.state;
        let mine = record.map(|record| self.expired(record));
        if let (Some(record), Some(mine)) = (record, &mine)
            && let Some(detail) = self.explainers.explain(record, mine)
        {
            return self.fail(reported(mine, detail));
        }
        if record.is_some_and(|record| matches!(record.phase, PHASE_POST | PHASE_DONE)) {
            // The engines may still copy, to and from memory of this rank and of its peers.
            self.unproven.store(true, Ordering::Release);
        }
        let explained = record.zip(mine.as_ref()).and_then(|(record, mine)| self.explain_route(record, mine));
        let has_stopped = explained.as_ref().is_some_and(|explained| explained.has_stopped);
        let route = explained.zip(mine.as_ref()).map(|(explained, mine)| reported(mine, explained.words));
        let awaited = mine.as_ref().map(|mine| mine.peer);
        let stopped = match &route {
            None => self.stopped_nic(awaited),
            // What failed under a kernel may have failed because of something else.
            Some(_) if has_stopped => self.stopped_nic_to(awaited).filter(|stopped| stopped.is_consequence),
            Some(_) => None,
        };
        let route = route.or_else(|| stopped.as_ref().map(|stopped| self.of_stopped(stopped, mine.as_ref())));
        let route = route.or_else(|| mine.as_ref().and_then(|mine| self.unanswered_by_nic(mine)));
        // Others may be following their own waits to this rank already. But a queue pair may have stopped because of a loss, or of
        // something at its peer, that is not known yet.
        let known = route.clone().filter(|_| stopped.is_none());
        if let Some(known) = known.or_else(|| mine.clone().map(expired)) {
            self.reports.publish(&known);
        }
        // A lost peer is the cause of all waits for it, and news of the loss may be on its way.
        let end = Moment::now().after(self.loss_grace);
        while state.losses().is_empty() && !end.remaining().is_zero() {
            anabranch_clock::sleep(Duration::from_millis(2));
        }
        let theirs = stopped.as_ref().and_then(|stopped| {
            let goes_on = || {
                anabranch_clock::sleep(Duration::from_millis(2));
                state.losses().is_empty()
            };
            self.reports.of_peer(stopped, self.loss_grace, goes_on)
        });
        let route = theirs.or(route);
        let missed = stopped.map(|stopped| stopped.peer).or(awaited);
        let cause = match (state.losses().into_iter().next(), route, mine) {
            (Some(mut loss), route, _) => {
                // What the NIC reports about a peer that is gone belongs to its loss.
                if let Some(Fault::Reported { detail, .. }) = route.filter(|_| missed == Some(loss.rank)) {
                    loss.detail = format!("{}; {detail}", loss.detail);
                }
                self.cause_of_loss(loss)
            }
            (None, Some(route), _) => route,
            (None, None, Some(mine)) => self.follow(expired(mine)),
            (None, None, None) => return,
        };
        self.fail(self.with_doing_of_peer(cause));
    }

    /// An expired wait, with what its peer is doing.
    fn with_doing_of_peer(&self, mut cause: Fault) -> Fault {
        if let Fault::DeadlineExpired(expired) = &mut cause
            && expired.doing.is_none()
        {
            expired.doing = self.reports.doing_of(expired.peer, self.group.size());
        }
        cause
    }

    /// What a kernel met on a route that is no mapping: its own engines, unless a peer was lost.
    fn explain_route(&self, record: &FaultRecord, mine: &ExpiredWait) -> Option<Explanation> {
        let peer = mine.peer;
        let words = match record.phase {
            PHASE_UNSUPPORTED => {
                let route = self.routes.get(peer.index()).map(|route| route.reason.clone());
                format!("kernels cannot copy to {peer}: {}", route.unwrap_or_default())
            }
            PHASE_POST | PHASE_DONE => {
                let of_queue = |(engine, stopped): (String, Option<String>)| match stopped {
                    Some(why) => format!("{engine} has stopped {why}"),
                    None => format!("{engine} reports no error"),
                };
                let engines: Vec<_> = self.queues_to(peer).into_iter().map(of_queue).collect();
                let (expected, seen) = (mine.expected, mine.seen);
                let what = if record.phase == PHASE_POST {
                    format!(
                        "no room up to position {expected} within the deadline, the engine has read up to {seen}"
                    )
                } else {
                    format!("unit {expected} was not done within the deadline, the last one done is {seen}")
                };
                format!("the copy engines to {peer} do not go on: {what}; {}", engines.join(", "))
            }
            PHASE_UNREACHABLE => self.unreachable_words(record, peer),
            PHASE_MISUSE => match record.seen {
                0 => format!("lanes of a wave name different ranks in one call, {peer} among them"),
                bytes => format!(
                    "a word of {bytes} bytes of {peer} at offset {:#x} is off its boundary",
                    record.expected
                ),
            },
            phase if is_users_report(record, phase) => format!(
                "its kernel reports {peer} with the values {:#x} and {:#x}, epoch {}; nothing was waited for",
                record.expected, record.seen, record.epoch
            ),
            PHASE_NIC_CONTENDED => format!(
                "a word of {peer} was changed by others before each try within the deadline; it was {:#x}; {}",
                record.expected,
                self.queues_in_words(peer)
            ),
            phase => {
                let explain = |connections: &Connections| {
                    let mut all = connections.transports.all();
                    all.find_map(|transport| transport.explain(phase, peer, mine.expected, mine.seen))
                };
                let explained = explain(&self.connections())?;
                let words = format!("{}; {}", explained.words, self.queues_in_words(peer));
                return Some(Explanation { words, ..explained });
            }
        };
        Some(Explanation { words, has_stopped: false })
    }

    /// Why a rank that a kernel named is not reached.
    fn unreachable_words(&self, record: &FaultRecord, peer: GlobalRank) -> String {
        let groups = self.groups.lock().unwrap_or_else(PoisonError::into_inner);
        let group = groups.get(&record.group).unwrap_or(self.group);
        if record.peer >= group.size() {
            let (named, members) = (record.peer, group.size());
            return format!(
                "it names group rank {named}, and the group has {members} members, 0 to {}",
                members - 1
            );
        }
        let route = self.routes.get(peer.index()).map(|route| route.reason.clone());
        let offset = record.expected;
        format!(
            "it names {peer}, whose heap kernels do not reach by loads and stores, at offset {offset:#x}: {}",
            route.unwrap_or_default()
        )
    }

    /// A queue pair of this rank that has stopped: one to the rank that an expired wait was for, else the one that was found, else any.
    fn stopped_nic(&self, awaited: Option<GlobalRank>) -> Option<StoppedQueue> {
        let any = || {
            let is_left_out = |rank| self.state.tolerated(|tolerated| tolerated.names(rank));
            self.connections().stopped_nic(is_left_out)
        };
        self.stopped_nic_to(awaited).or_else(|| self.state.stopped_nic().cloned()).or_else(any)
    }

    fn stopped_nic_to(&self, peer: Option<GlobalRank>) -> Option<StoppedQueue> {
        let is_other = |rank| Some(rank) != peer;
        peer.and_then(|_| self.connections().stopped_nic(is_other))
    }

    /// An expired wait for a peer whose NIC has not answered what this rank asked of it: which queue pair, and its oldest request.
    fn unanswered_by_nic(&self, mine: &ExpiredWait) -> Option<Fault> {
        let ExpiredWait { rank, peer, epoch, expected, seen, waited, call, .. } = mine;
        let unanswered = self.unanswered(*peer)?;
        let call = call.as_ref().map_or_else(String::new, |call| format!("; {rank} was in {call}"));
        let detail = format!(
            "waited {waited:?} for {peer}, epoch {epoch}: expected {expected:#x}, saw {seen:#x}{call}; {unanswered}"
        );
        Some(reported(mine, detail))
    }

    /// What the first queue pair to a peer that is stuck does not answer: its oldest request was on its way at both of two looks. One that
    /// is answered late is not taken for it.
    fn unanswered(&self, peer: GlobalRank) -> Option<UnansweredQueue> {
        let look = || Some(self.connections().route_to(peer)?.unanswered(peer));
        let first = look().filter(|first| !first.is_empty())?;
        anabranch_clock::sleep(BETWEEN_LOOKS);
        look()?.into_iter().find(|last| first.iter().any(|one| one.oldest == last.oldest))
    }

    fn of_stopped(&self, stopped: &StoppedQueue, mine: Option<&ExpiredWait>) -> Fault {
        match mine {
            None => of_stopped(self.reports.rank, stopped, &self.reports.activity),
            Some(mine) => {
                let detail = format!("waited {:?} for {}; {}", mine.waited, mine.peer, stopped.words);
                reported(mine, detail)
            }
        }
    }

    fn connections(&self) -> std::sync::RwLockReadGuard<'_, Connections> {
        self.connections.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn queues_to(&self, peer: GlobalRank) -> Vec<(String, Option<String>)> {
        let connections = self.connections();
        connections.route_to(peer).map(|transport| transport.describe_queues(peer)).unwrap_or_default()
    }

    fn queues_in_words(&self, peer: GlobalRank) -> String {
        let unanswered = self.unanswered(peer);
        let of_queue = |(queue, stopped): (String, Option<String>)| match (stopped, &unanswered) {
            (Some(why), _) => format!("{queue} has stopped: {why}"),
            (None, Some(unanswered)) if unanswered.queue == queue => unanswered.to_string(),
            (None, _) => format!("{queue} reports no error"),
        };
        self.queues_to(peer).into_iter().map(of_queue).collect::<Vec<_>>().join(", ")
    }

    /// Makes `fault` the cause, unless there is one, and publishes the cause.
    pub(crate) fn fail(&self, fault: Fault) {
        self.state.decide(fault);
        if let Some(cause) = self.state.cause() {
            self.reports.publish(cause);
        }
    }

    fn cause_of_loss(&self, loss: Loss) -> Fault {
        match self.reports.of_lost(loss.rank) {
            Some(report) => self.follow(report),
            None => Fault::PeerLost { rank: loss.rank, kind: loss.kind, detail: loss.detail },
        }
    }

    fn follow(&self, first: Fault) -> Fault {
        follow(self.reports.rank, first, |rank| self.reports.of_rank(rank))
    }

    fn expired(&self, record: &FaultRecord) -> ExpiredWait {
        let groups = self.groups.lock().unwrap_or_else(PoisonError::into_inner);
        let group = groups.get(&record.group).unwrap_or(self.group);
        let global = |rank: u32| group.global(GroupRank::new(rank)).unwrap_or(GlobalRank::new(rank));
        let (operation, phase) = self.names.look_up(OperationCode(record.operation), record.phase);
        ExpiredWait {
            rank: global(record.rank),
            operation,
            phase,
            epoch: record.epoch,
            peer: global(record.peer),
            expected: record.expected,
            seen: record.seen,
            waited: Duration::from_millis(record.waited_ns.div_ceil(1_000_000)),
            call: self.reports.activity.of_team(record.group, OperationCode(record.operation)),
            doing: None,
        }
    }
}

fn expired(wait: ExpiredWait) -> Fault {
    Fault::DeadlineExpired(Box::new(wait))
}

/// Something that the kernel of a wait found, not an expired wait.
fn reported(wait: &ExpiredWait, detail: String) -> Fault {
    let ExpiredWait { rank, operation, phase, .. } = wait.clone();
    Fault::Reported { rank, operation, phase, detail }
}

/// Whether a kernel of the user has reported something of its own, and no wait: waits take some time.
fn is_users_report(record: &FaultRecord, phase: u32) -> bool {
    OperationCode(record.operation).is_users()
        && record.waited_ns == 0
        && crate::device_api::phase_name(phase).is_none()
}

/// Follows expired waits from peer to peer. When they go in a circle, the first one is as good as any.
fn follow(me: GlobalRank, first: Fault, report_of: impl Fn(GlobalRank) -> Option<Fault>) -> Fault {
    let mut visited = vec![me];
    let mut last = first.clone();
    loop {
        let Fault::DeadlineExpired(expired) = &last else { return last };
        if expired.peer == me && expired.rank != me {
            // A rank waited for this one, which then keeps the others waiting.
            return last;
        }
        if visited.contains(&expired.peer) {
            return first;
        }
        visited.push(expired.peer);
        match report_of(expired.peer) {
            Some(next) => last = next,
            None => return last,
        }
    }
}

#[cfg(test)]
mod tests {
    use anabranch_bootstrap::LossKind;

    use super::*;
    use crate::fault::report::tests::expired;

    const fn rank(rank: u32) -> GlobalRank {
        GlobalRank::new(rank)
    }

    #[test]
    fn waits_are_followed_to_the_silent_rank() {
        let reports = HashMap::from([(rank(1), expired(1, 2)), (rank(2), expired(2, 3))]);
        assert_eq!(follow(rank(0), expired(0, 1), |rank| reports.get(&rank).cloned()), expired(2, 3));
        let lost = Fault::PeerLost { rank: rank(7), kind: LossKind::Died, detail: "gone".into() };
        let reports = HashMap::from([(rank(1), expired(1, 2)), (rank(2), lost.clone())]);
        assert_eq!(follow(rank(0), expired(0, 1), |rank| reports.get(&rank).cloned()), lost);
    }

    #[test]
    fn circles_end() {
        let reports = HashMap::from([(rank(1), expired(1, 2)), (rank(2), expired(2, 1))]);
        assert_eq!(follow(rank(0), expired(0, 1), |rank| reports.get(&rank).cloned()), expired(0, 1));
        let reports = HashMap::from([(rank(1), expired(1, 0))]);
        assert_eq!(follow(rank(0), expired(0, 1), |rank| reports.get(&rank).cloned()), expired(1, 0));
    }
}
