//! What a run may come to.

use anabranch_hip_jit::control::FaultRecord;
use anabranch_shmem::device_api::{PHASE_DONE, PHASE_POST};

use super::choice::{Choice, Trouble};
use super::{Left, Lives, Sdma};

/// `shmem::Status` in `shmem/types.h`.
const OK: u64 = 0;
const FAULT: u64 = 1;

impl Sdma {
    /// What a run came to, in words; or what is wrong with it.
    pub(super) fn judge(&self, choice: &Choice, lives: &Lives) -> Result<&'static str, String> {
        if let Some(why) = &lives.broken {
            return Err(format!("the run does not end: {why}"));
        }
        let ranks = lives.ranks.as_ref().map_err(|why| format!("the ranks could not be made: {why}"))?;
        let dead = match choice.trouble {
            Some(Trouble::Dead { rank, .. }) => Some(rank),
            _ => None,
        };
        let (mut failed, mut named) = (0, false);
        for (me, left) in (0..).zip(ranks) {
            let left = match left {
                Ok(left) => left,
                Err(_) if dead == Some(me) => continue,
                Err(why) => return Err(format!("rank {me} could not tell: {why}")),
            };
            self.messages_are_right(me, left, choice.scope)?;
            if dead == Some(me) {
                continue;
            }
            if self.ends(me, left, choice)? {
                failed += 1;
                let names = |record: &FaultRecord| {
                    let whose = culprits(choice.trouble);
                    // Of its own NIC a rank says to whom it did not get.
                    whose.contains(&record.peer) || (is_of_nic(record.phase) && whose.contains(&me))
                };
                named |= left.record.as_ref().is_some_and(names);
            }
        }
        match choice.trouble {
            _ if failed == 0 && !matches!(choice.trouble, Some(Trouble::Gone { .. })) => Ok("all right"),
            Some(Trouble::Gone { from, to }) => {
                let stopped = |left: &Left| left.stopped.iter().any(|(peer, _)| *peer == to);
                let stopped =
                    ranks.get(from as usize).and_then(|left| left.as_ref().ok()).is_some_and(stopped);
                if stopped && named {
                    Ok("the engine stops, and the wait names its peer")
                } else {
                    Err(format!("rank {from} copies to memory that is gone, and nobody says so"))
                }
            }
            _ if named => Ok("waits end in vain and name the culprit"),
            _ => Err(format!("{failed} ranks fail and none names the culprit")),
        }
    }

    /// What came is what was sent, up to where it came.
    fn messages_are_right(&self, me: u32, left: &Left, scope: u32) -> Result<(), String> {
        let groups = self.groups(scope);
        let words = self.case.tokens;
        let rows = self.case.ranks * groups;
        for (row, rounds) in (0..).zip(&left.received) {
            let (from, group) = (row / groups, row % groups);
            for round in 1..=*rounds {
                let first = ((round as u32 - 1) * rows + row) * words;
                for word in 0..words {
                    let found = left.log.get((first + word) as usize).copied();
                    let sent = message_word(from, me, group, round, word);
                    if found != Some(sent) {
                        return Err(format!(
                            "rank {me}, message {round} from rank {from} to group {group}: word {word} is {:#x}, expected {sent:#x}",
                            found.unwrap_or_default()
                        ));
                    }
                }
            }
        }
        Ok(())
    }

    /// Whether a rank failed; what it says about that is complete.
    fn ends(&self, me: u32, left: &Left, choice: &Choice) -> Result<bool, String> {
        let groups = self.groups(choice.scope) as usize;
        for (group, status) in left.statuses.iter().enumerate() {
            if !matches!(*status, OK | FAULT) {
                return Err(format!("rank {me}, group {group} answers {status}"));
            }
            let rounds = left.received.iter().skip(group).step_by(groups);
            if *status == OK && rounds.clone().any(|rounds| *rounds != u64::from(self.case.rounds)) {
                let rounds: Vec<u64> = rounds.copied().collect();
                return Err(format!("rank {me}, group {group} is right without its messages: {rounds:?}"));
            }
        }
        let failed = left.statuses.contains(&FAULT);
        let Some(record) = left.record else {
            return if failed { Err(format!("rank {me} fails and has no record")) } else { Ok(false) };
        };
        let (phase, peer) = (record.phase, record.peer);
        if choice.trouble.is_none() {
            return Err(format!(
                "rank {me} fails without a cause: phase {phase:#x}, peer {peer}, expected {}, seen {}; engines {:?}",
                record.expected, record.seen, left.stopped
            ));
        }
        if peer >= self.case.ranks || record.rank != me {
            return Err(format!("rank {me}: the record of rank {} names rank {peer}", record.rank));
        }
        if let Some(Trouble::Nic { rank, .. }) = choice.trouble
            && is_of_nic(phase)
            && me != rank
            && peer != rank
        {
            return Err(format!("rank {me} blames its NIC for rank {peer}, and both work"));
        }
        let of_engine = matches!(phase, PHASE_POST | PHASE_DONE);
        if of_engine && engine_of(choice.trouble) != Some((me, peer)) {
            return Err(format!("rank {me} blames the engine to rank {peer}, which works"));
        }
        Ok(failed)
    }
}

/// As in the kernel.
pub(super) fn message_word(from: u32, to: u32, group: u32, round: u64, word: u32) -> u64 {
    u64::from(from) << 56 | u64::from(to) << 48 | u64::from(group) << 32 | round << 16 | u64::from(word)
}

/// Whether a kernel says so of a queue pair.
fn is_of_nic(phase: u32) -> bool {
    anabranch_transport_rdma::device::phase_name(phase).is_some()
}

/// Whose fault it may be.
fn culprits(trouble: Option<Trouble>) -> Vec<u32> {
    match trouble {
        None => Vec::new(),
        Some(Trouble::LostDoorbell { queue, .. } | Trouble::Stall { queue, .. }) => {
            vec![queue.from, queue.to]
        }
        Some(Trouble::Dead { rank, .. } | Trouble::Nic { rank, .. }) => vec![rank],
        Some(Trouble::Gone { from, to }) => vec![from, to],
    }
}

/// The engine that does not work, by its rank and the peer.
fn engine_of(trouble: Option<Trouble>) -> Option<(u32, u32)> {
    match trouble? {
        Trouble::LostDoorbell { queue, .. } | Trouble::Stall { queue, .. } => Some((queue.from, queue.to)),
        Trouble::Gone { from, to } => Some((from, to)),
        Trouble::Dead { .. } | Trouble::Nic { .. } => None,
    }
}
