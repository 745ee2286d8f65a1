//! The state that all forms of rendezvous share: who has come to which call, which keys are set, who is lost.
//!
//! It does no I/O and waits for nothing: a request or a loss goes in, and answers to be delivered come out.

use crate::message::{Failure, OperationKey, Reply, Request, gathered_bytes};
use crate::{Loss, LossKind, OtherCall};
use anabranch_ranks::GlobalRank;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// An answer on its way.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Delivery {
    pub(crate) to: GlobalRank,
    /// The request that this answers; 0 for notices.
    pub(crate) request: u64,
    pub(crate) reply: Reply,
}

#[derive(Debug)]
enum Operation {
    Gathering {
        arrived: BTreeMap<GlobalRank, (u64, Vec<u8>)>,
    },
    /// Kept until every member has been informed, so that late members fail too instead of waiting.
    Failed {
        failure: Failure,
        told: BTreeSet<GlobalRank>,
    },
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Hub {
    size: u32,
    /// The most bytes of one answer.
    limit: u64,
    // In order, so that its output depends on its input alone.
    operations: BTreeMap<OperationKey, Operation>,
    values: BTreeMap<String, Arc<Vec<u8>>>,
    waiters: BTreeMap<String, Vec<(GlobalRank, u64)>>,
    losses: Vec<Loss>,
}

impl Hub {
    pub(crate) fn new(size: u32, limit: u64) -> Self {
        Self {
            size,
            limit,
            operations: BTreeMap::new(),
            values: BTreeMap::new(),
            waiters: BTreeMap::new(),
            losses: Vec::new(),
        }
    }

    /// Who is lost, in the order of the losses.
    pub(crate) fn losses(&self) -> &[Loss] {
        &self.losses
    }

    /// Whether this rank is lost.
    pub(crate) fn is_lost(&self, rank: GlobalRank) -> bool {
        self.losses.iter().any(|loss| loss.rank == rank)
    }

    /// Takes a request of a rank. The caller has checked that a group has `from` as a member.
    pub(crate) fn handle(&mut self, from: GlobalRank, request: u64, what: Request) -> Vec<Delivery> {
        match what {
            Request::Contribute { key, bytes } => self.contribute(from, request, &key, bytes),
            Request::Withdraw { key } => self.withdraw(from, &key),
            Request::Set { key, value } => {
                let value = Arc::new(value);
                let waiters = self.waiters.remove(&key).unwrap_or_default();
                self.values.insert(key, Arc::clone(&value));
                waiters
                    .into_iter()
                    .map(|(to, request)| Delivery { to, request, reply: Reply::Value(Arc::clone(&value)) })
                    .collect()
            }
            Request::Wait { key } => {
                if let Some(value) = self.values.get(&key) {
                    return vec![Delivery { to: from, request, reply: Reply::Value(Arc::clone(value)) }];
                }
                self.waiters.entry(key).or_default().push((from, request));
                Vec::new()
            }
            Request::Cancel { key } => {
                if let Some(waiters) = self.waiters.get_mut(&key) {
                    waiters.retain(|waiter| *waiter != (from, request));
                    if waiters.is_empty() {
                        self.waiters.remove(&key);
                    }
                }
                Vec::new()
            }
            Request::Goodbye => {
                self.lose(&Loss { rank: from, kind: LossKind::Left, detail: "it said goodbye".to_owned() })
            }
        }
    }

    /// Records a loss: informs the other ranks, and fails the calls that need the rank. Only the first
    /// loss of a rank counts.
    pub(crate) fn lose(&mut self, loss: &Loss) -> Vec<Delivery> {
        if self.is_lost(loss.rank) {
            return Vec::new();
        }
        self.losses.push(loss.clone());
        for waiters in self.waiters.values_mut() {
            waiters.retain(|(rank, _)| *rank != loss.rank);
        }
        self.waiters.retain(|_, waiters| !waiters.is_empty());
        // The notice comes before the failures, so that the cause of an error is in the list when the error is seen.
        let mut deliveries: Vec<Delivery> = (0..self.size)
            .map(GlobalRank::new)
            .filter(|rank| !self.is_lost(*rank))
            .map(|to| Delivery { to, request: 0, reply: Reply::Lost(loss.clone()) })
            .collect();
        // Calls with a lost member are refused on arrival from now on, so nothing of these has to be kept.
        let needs_it = |key: &&OperationKey| key.group.contains(loss.rank);
        let ended: Vec<_> = self.operations.keys().filter(needs_it).cloned().collect();
        for key in ended {
            if let Some(Operation::Gathering { arrived }) = self.operations.remove(&key) {
                deliveries.extend(arrived.into_iter().filter(|(rank, _)| *rank != loss.rank).map(
                    |(to, (request, _))| Delivery {
                        to,
                        request,
                        reply: Reply::Failed(Failure::Lost(loss.clone())),
                    },
                ));
            }
        }
        deliveries
    }

    fn contribute(
        &mut self,
        from: GlobalRank,
        request: u64,
        key: &OperationKey,
        bytes: Vec<u8>,
    ) -> Vec<Delivery> {
        if let Some(loss) = self.losses.iter().find(|loss| key.group.contains(loss.rank)) {
            return vec![Delivery { to: from, request, reply: Reply::Failed(Failure::Lost(loss.clone())) }];
        }
        let operation = self
            .operations
            .entry(key.clone())
            .or_insert_with(|| Operation::Gathering { arrived: BTreeMap::new() });
        match operation {
            Operation::Failed { failure, told } => {
                told.insert(from);
                let reply = Reply::Failed(failure.clone());
                if told.len() == key.group.members().len() {
                    self.operations.remove(key);
                }
                vec![Delivery { to: from, request, reply }]
            }
            Operation::Gathering { arrived } => {
                arrived.insert(from, (request, bytes));
                if arrived.len() >= key.group.members().len() { self.complete(key) } else { Vec::new() }
            }
        }
    }

    fn complete(&mut self, key: &OperationKey) -> Vec<Delivery> {
        let Some(Operation::Gathering { mut arrived }) = self.operations.remove(key) else {
            return Vec::new();
        };
        let take = |rank: &GlobalRank| {
            arrived.get_mut(rank).map(|(_, bytes)| std::mem::take(bytes)).unwrap_or_default()
        };
        let parts: Vec<Vec<u8>> = key.group.members().iter().map(take).collect();
        let bytes = gathered_bytes(&parts);
        let reply = if bytes > self.limit {
            Reply::Failed(Failure::TooLarge { bytes })
        } else {
            Reply::Gathered(Arc::new(parts))
        };
        arrived.into_iter().map(|(to, (request, _))| Delivery { to, request, reply: reply.clone() }).collect()
    }

    fn withdraw(&mut self, from: GlobalRank, key: &OperationKey) -> Vec<Delivery> {
        let Some(Operation::Gathering { arrived }) = self.operations.get(key) else {
            // It has ended meanwhile, and the answer is on its way.
            return Vec::new();
        };
        if !arrived.contains_key(&from) {
            return Vec::new();
        }
        let missing: Vec<GlobalRank> =
            key.group.members().iter().copied().filter(|rank| !arrived.contains_key(rank)).collect();
        let elsewhere = self.elsewhere(&missing);
        self.fail(key, &Failure::Missing { by: from, missing, elsewhere })
    }

    /// Fails a call for those who have come and for those who will.
    fn fail(&mut self, key: &OperationKey, failure: &Failure) -> Vec<Delivery> {
        let Some(Operation::Gathering { arrived }) = self.operations.remove(key) else {
            return Vec::new();
        };
        if arrived.len() < key.group.members().len() {
            let told = arrived.keys().copied().collect();
            self.operations.insert(key.clone(), Operation::Failed { failure: failure.clone(), told });
        }
        arrived
            .into_iter()
            .map(|(to, (request, _))| Delivery { to, request, reply: Reply::Failed(failure.clone()) })
            .collect()
    }

    /// The calls in which these ranks wait.
    fn elsewhere(&self, ranks: &[GlobalRank]) -> Vec<OtherCall> {
        let mut found = Vec::new();
        for rank in ranks {
            let operation = self.operations.iter().find_map(|(key, operation)| match operation {
                Operation::Gathering { arrived } if arrived.contains_key(rank) => Some(format!(
                    "all_gather '{}' (call {} over {} ranks)",
                    key.tag,
                    key.sequence,
                    key.group.size()
                )),
                _ => None,
            });
            let wait = || {
                self.waiters.iter().find_map(|(key, waiters)| {
                    let waits = !key.starts_with('.') && waiters.iter().any(|(waiter, _)| waiter == rank);
                    waits.then(|| format!("wait for key '{key}'"))
                })
            };
            if let Some(phase) = operation.or_else(wait) {
                found.push(OtherCall { rank: *rank, phase });
            }
        }
        found
    }

    /// Calls that have not ended; for tests.
    #[cfg(test)]
    pub(crate) fn pending(&self) -> usize {
        self.operations.len() + self.waiters.len()
    }
}

#[cfg(test)]
#[path = "hub_tests.rs"]
mod tests;
