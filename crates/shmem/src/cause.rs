//! Which of several pieces of bad news is the first cause.
//!
//! Failures spread: a rank that waits in vain gives up and goes, and then others miss *it*. Each rank therefore publishes its
//! cause before it goes, and a rank that loses or misses a peer asks what that peer's cause was:
//!
//! * A rank that was lost and published a cause went because of that cause; one that published none is the cause itself.
//! * An expired wait for a peer that published an expired wait of its own goes back to that peer's peer, and so on, to the one
//!   that published nothing: that one keeps everybody waiting.
//! * A queue pair of this rank that has stopped is a cause: what goes by it never comes, here or at its peer. One that stopped because its
//!   peer is lost belongs to that loss; and where the peer has told a cause, it is that one: a request that is refused stops both ends, and
//!   only the rank that made it knows which it was.
//! * A request that a NIC has not answered when a wait for its peer expires is a cause: what the peer waits for in turn may be behind it.
//! * What a kernel found wrong by itself, and an explainer put into words, is a cause, whoever was lost meanwhile.

use std::sync::atomic::Ordering;
use std::time::Duration;

use anabranch_bootstrap::{Loss, LossKind};
use anabranch_clock::Moment;
use anabranch_hip_jit::control::FaultRecord;
use anabranch_ranks::{GlobalRank, GroupRank};

use anabranch_transport_rdma::{Provider, StoppedQueue, Unanswered, device as nic};

use crate::device_api::{
    PHASE_DONE, PHASE_MISUSE, PHASE_NIC_CONTENDED, PHASE_POST, PHASE_UNREACHABLE, PHASE_UNSUPPORTED,
};
use crate::fault::{Fault, OperationCode};
use crate::told::{Causes, Expired, Told};
use crate::world::World;

/// Between two looks at a request that a NIC has not answered. A NIC that works answers within microseconds, and one that sends a lost
/// packet again within some times of that.
const BETWEEN_LOOKS: Duration = Duration::from_millis(20);

impl World {
    /// Decides the cause of what has been raised, and publishes it. Takes up to the grace period when all that is known is
    /// an expired wait.
    pub(crate) fn judge(&self, record: Option<&FaultRecord>) {
        let alarm = &self.inner.alarm;
        let mine = record.map(|record| self.expired(record));
        if let (Some(record), Some(mine)) = (record, &mine)
            && let Some(detail) = self.inner.explainers.explain(record)
        {
            let Expired { rank, operation, phase, .. } = mine.clone();
            return self.fail(Told::Reported { rank, operation, phase, detail }.into());
        }
        if record.is_some_and(|record| matches!(record.phase, PHASE_POST | PHASE_DONE)) {
            // The engines may still copy, to and from memory of this rank and of its peers.
            self.inner.unproven.store(true, Ordering::Release);
        }
        let route = record.zip(mine.as_ref()).and_then(|(record, mine)| self.explain_route(record, mine));
        let route = route.zip(mine.clone()).map(|(detail, mine)| {
            let Expired { rank, operation, phase, .. } = mine;
            Told::Reported { rank, operation, phase, detail }
        });
        let awaited = mine.as_ref().map(|mine| GlobalRank::new(mine.peer));
        let stopped = match (&route, record) {
            (None, _) => self.stopped_nic(awaited),
            // What failed under a kernel may have failed because of something else.
            (Some(_), Some(record)) if record.phase == nic::PHASE_NIC_ERROR => {
                self.stopped_nic_to(awaited).filter(|stopped| stopped.is_consequence)
            }
            (Some(_), _) => None,
        };
        let route =
            route.or_else(|| stopped.as_ref().map(|stopped| self.told_stopped(stopped, mine.as_ref())));
        let route = route.or_else(|| mine.clone().and_then(|mine| self.unanswered_by_nic(mine)));
        // Others may be following their own waits to this rank already. But a queue pair may have stopped because of a loss, or of
        // something at its peer, that is not known yet.
        let known = route.clone().filter(|_| stopped.is_none());
        if let Some(known) = known.or_else(|| mine.clone().map(Told::Expired)) {
            self.causes().tell(&known);
        }
        // A lost peer is the cause of all waits for it, and news of the loss may be on its way.
        let end = Moment::now().after(self.inner.config.loss_grace);
        while alarm.losses().is_empty() && !end.remaining().is_zero() {
            anabranch_clock::sleep(Duration::from_millis(2));
        }
        let me = self.rank().get();
        let theirs = stopped.as_ref().and_then(|stopped| {
            let goes_on = || {
                anabranch_clock::sleep(Duration::from_millis(2));
                alarm.losses().is_empty()
            };
            self.causes().told_by_peer(stopped, self.inner.config.loss_grace, goes_on)
        });
        let route = theirs.or(route);
        let missed = stopped.map(|stopped| stopped.peer).or(awaited);
        let cause = match (alarm.losses().into_iter().next(), route, mine) {
            (Some(mut loss), route, _) => {
                // What the NIC says of a peer that is gone belongs to its loss.
                if let Some(Told::Reported { detail, .. }) = route.filter(|_| missed == Some(loss.rank)) {
                    loss.detail = format!("{}; {detail}", loss.detail);
                }
                self.cause_of_loss(loss)
            }
            (None, Some(route), _) => route,
            (None, None, Some(mine)) => follow(me, Told::Expired(mine), |rank| self.told_by(rank)),
            (None, None, None) => return,
        };
        self.fail(self.with_the_peers_doing(cause).into());
    }

    /// An expired wait, with what its peer is doing.
    fn with_the_peers_doing(&self, mut cause: Told) -> Told {
        if let Told::Expired(expired) = &mut cause
            && expired.doing.is_none()
        {
            expired.doing = self.doing_of(expired.peer);
        }
        cause
    }

    /// What a kernel met on a route that is no mapping: its own engines, unless a peer was lost.
    fn explain_route(&self, record: &FaultRecord, mine: &Expired) -> Option<String> {
        let peer = GlobalRank::new(mine.peer);
        match record.phase {
            PHASE_UNSUPPORTED => {
                let route = self.routes().get(peer.index()).map(|route| route.reason.clone());
                Some(format!("kernels cannot copy to {peer}: {}", route.unwrap_or_default()))
            }
            PHASE_POST | PHASE_DONE => {
                let of_queue = |(engine, stopped): (String, Option<String>)| match stopped {
                    Some(why) => format!("{engine} has stopped {why}"),
                    None => format!("{engine} says nothing"),
                };
                let engines: Vec<_> = self.engines(peer).into_iter().map(of_queue).collect();
                let (expected, seen) = (mine.expected, mine.seen);
                let what = if record.phase == PHASE_POST {
                    format!(
                        "no room up to position {expected} within the deadline, the engine has read up to {seen}"
                    )
                } else {
                    format!("unit {expected} was not done within the deadline, the last one done is {seen}")
                };
                Some(format!("the copy engines to {peer} do not go on: {what}; {}", engines.join(", ")))
            }
            PHASE_UNREACHABLE => Some(self.unreachable_words(record, peer)),
            PHASE_MISUSE => Some(match record.seen {
                0 => format!("lanes of a wave name different ranks in one call, {peer} among them"),
                bytes => format!(
                    "a word of {bytes} bytes of {peer} at offset {:#x} is off its boundary",
                    record.expected
                ),
            }),
            phase if is_users_report(record, phase) => Some(format!(
                "its kernel reports {peer} with the values {:#x} and {:#x}, epoch {}; nothing was waited for",
                record.expected, record.seen, record.epoch
            )),
            phase => {
                let provider = self.nic_format().map(|(provider, _)| provider);
                let what = nic_words(phase, peer, mine.expected, mine.seen, provider)?;
                Some(format!("{what}; {}", self.nics_in_words(peer)))
            }
        }
    }

    /// Why a rank that a kernel named is not reached.
    fn unreachable_words(&self, record: &FaultRecord, peer: GlobalRank) -> String {
        let groups = self.inner.groups.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let group = groups.get(&record.group).unwrap_or(&self.inner.group);
        if record.peer >= group.size() {
            let (named, members) = (record.peer, group.size());
            return format!(
                "it names group rank {named}, and the group has {members} members, 0 to {}",
                members - 1
            );
        }
        let route = self.routes().get(peer.index()).map(|route| route.reason.clone());
        let offset = record.expected;
        format!(
            "it names {peer}, whose heap kernels do not reach by loads and stores, at offset {offset:#x}: {}",
            route.unwrap_or_default()
        )
    }

    /// A queue pair of this rank that has stopped: of those to the rank that was waited for in vain, else the one that was found, else any.
    fn stopped_nic(&self, awaited: Option<GlobalRank>) -> Option<StoppedQueue> {
        let alarm = &self.inner.alarm;
        let any = || {
            let is_left_out = |rank| alarm.tolerated(|tolerated| tolerated.names(rank));
            self.inner.with_connections(|connections| connections.stopped_nic(is_left_out))
        };
        self.stopped_nic_to(awaited).or_else(|| alarm.stopped_nic().cloned()).or_else(any)
    }

    fn stopped_nic_to(&self, peer: Option<GlobalRank>) -> Option<StoppedQueue> {
        let is_other = |rank| Some(rank) != peer;
        peer.and_then(|_| self.inner.with_connections(|connections| connections.stopped_nic(is_other)))
    }

    /// An expired wait for a peer whose NIC has not answered what this rank asked of it: which queue pair, and its oldest request.
    fn unanswered_by_nic(&self, mine: Expired) -> Option<Told> {
        let (peer, waited) = (GlobalRank::new(mine.peer), Duration::from_nanos(mine.waited_ns));
        let unanswered = self.unanswered(peer)?;
        let Expired { rank, operation, phase, epoch, expected, seen, call, .. } = mine;
        let call = call.map_or_else(String::new, |call| format!("; {} was in {call}", GlobalRank::new(rank)));
        let detail = format!(
            "waited {waited:?} for {peer}; epoch {epoch}, expected {expected}, seen {seen}{call}; {unanswered}"
        );
        Some(Told::Reported { rank, operation, phase, detail })
    }

    /// What the first queue pair to a peer that is stuck does not answer: its oldest request was on its way at both of two looks. One that
    /// is answered late is not taken for it.
    fn unanswered(&self, peer: GlobalRank) -> Option<Unanswered> {
        let look = || {
            self.inner.with_connections(|connections| Some(connections.transports.rdma()?.unanswered(peer)))
        };
        let first = look().filter(|first| !first.is_empty())?;
        anabranch_clock::sleep(BETWEEN_LOOKS);
        look()?.into_iter().find(|last| first.iter().any(|one| one.oldest == last.oldest))
    }

    fn told_stopped(&self, stopped: &StoppedQueue, mine: Option<&Expired>) -> Told {
        match mine {
            None => Told::of_stopped(self.rank(), stopped, self.inner.collectives.activity()),
            Some(mine) => {
                let Expired { rank, operation, phase, peer, waited_ns, .. } = mine.clone();
                let (peer, waited) = (GlobalRank::new(peer), Duration::from_nanos(waited_ns));
                let detail = format!("waited {waited:?} for {peer}; {}", stopped.words);
                Told::Reported { rank, operation, phase, detail }
            }
        }
    }

    /// The causes of this world's ranks.
    pub(crate) fn causes(&self) -> Causes {
        self.inner.causes()
    }

    fn nics_in_words(&self, peer: GlobalRank) -> String {
        let unanswered = self.unanswered(peer);
        let of_queue = |(queue, stopped): (String, Option<String>)| match (stopped, &unanswered) {
            (Some(why), _) => format!("{queue} has stopped: {why}"),
            (None, Some(unanswered)) if unanswered.queue == queue => unanswered.to_string(),
            (None, _) => format!("{queue} says nothing"),
        };
        self.nics(peer).into_iter().map(of_queue).collect::<Vec<_>>().join(", ")
    }

    /// Makes `fault` the cause, unless there is one, and tells the others what the cause is.
    pub(crate) fn fail(&self, fault: Fault) {
        self.inner.alarm.decide(fault);
        if let Some(cause) = self.inner.alarm.cause() {
            self.causes().tell(&Told::from(cause));
        }
    }

    fn cause_of_loss(&self, loss: Loss) -> Told {
        let lost = loss.rank.get();
        match self.causes().told_by_lost(lost) {
            Some(told) => follow(self.rank().get(), told, |rank| self.told_by(rank)),
            None => Told::Lost { rank: lost, left: loss.kind == LossKind::Left, detail: loss.detail },
        }
    }

    fn expired(&self, record: &FaultRecord) -> Expired {
        let groups = self.inner.groups.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let group = groups.get(&record.group).unwrap_or(&self.inner.group);
        let global = |rank: u32| group.global(GroupRank::new(rank)).map_or(rank, GlobalRank::get);
        let (operation, phase) = self.inner.names.look_up(OperationCode(record.operation), record.phase);
        Expired {
            rank: global(record.rank),
            operation,
            phase,
            epoch: record.epoch,
            peer: global(record.peer),
            expected: record.expected,
            seen: record.seen,
            waited_ns: record.waited_ns,
            call: self.inner.collectives.activity().of_team(record.group, OperationCode(record.operation)),
            doing: None,
        }
    }

    fn told_by(&self, rank: u32) -> Option<Told> {
        self.causes().told_by(rank)
    }
}

/// Whether a kernel of the user has reported something of its own, and no wait: waits take some time.
fn is_users_report(record: &FaultRecord, phase: u32) -> bool {
    OperationCode(record.operation).is_users()
        && record.waited_ns == 0
        && crate::device_api::phase_name(phase).is_none()
}

/// `Opcode::WRITE_IMMEDIATE` of `rdma/operation.h`.
const WRITE_IMMEDIATE: u64 = 1;
/// ... and `READ`.
const READ: u64 = 2;
/// All of them, by their numbers.
const OPCODES: [&str; 10] = [
    "write",
    "write with an immediate value",
    "read",
    "write of a value",
    "fetch-and-add",
    "compare-and-swap",
    "swap",
    "fetch-and-and",
    "fetch-and-or",
    "fetch-and-xor",
];

/// What a kernel met on a route by NIC.
fn nic_words(
    phase: u32,
    peer: GlobalRank,
    expected: u64,
    seen: u64,
    provider: Option<Provider>,
) -> Option<String> {
    Some(match phase {
        nic::PHASE_NIC_POST => format!(
            "a queue pair to {peer} does not go on: no room or turn at position {expected} within the deadline, it has come to {seen}"
        ),
        nic::PHASE_NIC_DONE => format!(
            "a queue pair to {peer} does not go on: position {expected} was not done within the deadline, the last one done is {seen}"
        ),
        nic::PHASE_NIC_ERROR => {
            let words = anabranch_transport_rdma::syndrome_words(provider?, seen);
            format!("the NIC reports for the request at position {expected} to {peer}: {words}")
        }
        nic::PHASE_NIC_UNREGISTERED => format!(
            "{seen} bytes at {expected:#x} of this rank, to be copied to or from {peer}, are neither in the heap nor registered (World::register_local)"
        ),
        nic::PHASE_NIC_UNSUPPORTED if expected == WRITE_IMMEDIATE => {
            format!("the NIC of {peer} takes no write of {seen} bytes with an immediate value")
        }
        nic::PHASE_NIC_UNSUPPORTED if expected == READ => format!(
            "a read of {seen} bytes of {peer} is refused: nothing orders what the NIC brings before its completion"
        ),
        nic::PHASE_NIC_UNSUPPORTED => {
            // A word of no operation that there is: no number is believed.
            let bits = seen.saturating_mul(8);
            let name = usize::try_from(expected).ok().and_then(|number| OPCODES.get(number));
            let name = name.map_or_else(String::new, |name| format!(" ({name})"));
            format!(
                "operation {expected}{name} on a word of {bits} bits of {peer} is not one that the NIC has, or that brings a value in order"
            )
        }
        nic::PHASE_NIC_OUT_OF_RANGE => {
            format!("{seen} bytes at {expected:#x} are beyond the heap of {peer}, or off a word's boundary")
        }
        PHASE_NIC_CONTENDED => format!(
            "a word of {peer} was changed by others before each try within the deadline; it was {expected:#x}"
        ),
        _ => return None,
    })
}

/// Follows expired waits from peer to peer. When they go in a circle, the first one is as good as any.
fn follow(me: u32, first: Told, told_by: impl Fn(u32) -> Option<Told>) -> Told {
    let mut visited = vec![me];
    let mut last = first.clone();
    loop {
        let Told::Expired(expired) = &last else { return last };
        if expired.peer == me && expired.rank != me {
            // Somebody waited for this rank, which is then the one that keeps the others waiting.
            return last;
        }
        if visited.contains(&expired.peer) {
            return first;
        }
        visited.push(expired.peer);
        match told_by(expired.peer) {
            Some(next) => last = next,
            None => return last,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;
    use crate::told::tests::expired;

    #[test]
    fn waits_are_followed_to_the_rank_that_said_nothing() {
        let told = HashMap::from([(1, expired(1, 2)), (2, expired(2, 3))]);
        assert_eq!(follow(0, expired(0, 1), |rank| told.get(&rank).cloned()), expired(2, 3));
        let lost = Told::Lost { rank: 7, left: false, detail: "gone".into() };
        let told = HashMap::from([(1, expired(1, 2)), (2, lost.clone())]);
        assert_eq!(follow(0, expired(0, 1), |rank| told.get(&rank).cloned()), lost);
    }

    #[test]
    fn whatever_a_kernel_saw_of_a_nic_has_words() {
        let phases = [
            nic::PHASE_NIC_POST,
            nic::PHASE_NIC_DONE,
            nic::PHASE_NIC_ERROR,
            nic::PHASE_NIC_UNREGISTERED,
            nic::PHASE_NIC_UNSUPPORTED,
            nic::PHASE_NIC_OUT_OF_RANGE,
            PHASE_NIC_CONTENDED,
        ];
        for (phase, number) in phases.into_iter().flat_map(|phase| [(phase, 0), (phase, u64::MAX)]) {
            let words = nic_words(phase, GlobalRank::new(3), number, number, Some(Provider::Mlx5)).unwrap();
            assert!(words.contains("rank 3"), "{words}");
        }
        let words = nic_words(nic::PHASE_NIC_UNSUPPORTED, GlobalRank::new(3), 7, 4, None).unwrap();
        assert!(words.contains("a word of 32 bits"), "{words}");
        let number = nic::PHASE_NIC_UNSUPPORTED;
        let words = nic_words(number, GlobalRank::new(3), WRITE_IMMEDIATE, 4096, None).unwrap();
        assert!(words.contains("rank 3 takes no write of 4096 bytes with an immediate value"), "{words}");
    }

    #[test]
    fn circles_end() {
        let told = HashMap::from([(1, expired(1, 2)), (2, expired(2, 1))]);
        assert_eq!(follow(0, expired(0, 1), |rank| told.get(&rank).cloned()), expired(0, 1));
        let told = HashMap::from([(1, expired(1, 0))]);
        assert_eq!(follow(0, expired(0, 1), |rank| told.get(&rank).cloned()), expired(1, 0));
    }
}
