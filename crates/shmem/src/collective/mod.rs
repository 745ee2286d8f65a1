//! Collective steps of the host. Each carries every rank's status, so that a step that fails on one rank ends with an
//! error on all that names it.

mod frame;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anabranch_bootstrap::{Deadline, Rendezvous};
use anabranch_ranks::{GlobalRank, Group};
use serde::Serialize;
use serde::de::DeserializeOwned;
use sha2::{Digest as _, Sha256};

use self::frame::Header;
use crate::error::{Error, Result};
use crate::fault::activity::{Activity, members_in_words};

/// One tag for all steps, so that ranks in different steps find each other, and the error names both steps.
const TAG: &str = "shmem";

/// A number for a group, equal on all members and (but for collisions of 64 bits) different for different groups.
pub(crate) fn group_id(group: &Group) -> u64 {
    let mut hash = Sha256::new();
    for member in group.members() {
        hash.update(member.get().to_le_bytes());
    }
    let digest = hash.finalize();
    digest.iter().take(8).fold(0, |id, byte| (id << 8) | u64::from(*byte))
}

/// The values of all members in one step, and the number of the step.
#[derive(Debug)]
pub(crate) struct Agreed<T> {
    /// In group order.
    pub(crate) parts: Vec<T>,
    /// The group's count of steps.
    pub(crate) sequence: u64,
}

#[derive(Debug)]
pub(crate) struct Collectives {
    rendezvous: Arc<dyn Rendezvous>,
    /// The number that the ranks of this world agreed on at join.
    world: u64,
    deadline: Duration,
    sequences: Mutex<HashMap<u64, u64>>,
    activity: Arc<Activity>,
}

impl Collectives {
    pub(crate) fn new(rendezvous: Arc<dyn Rendezvous>, world: u64, deadline: Duration) -> Self {
        Self { rendezvous, world, deadline, sequences: Mutex::default(), activity: Arc::default() }
    }

    /// What this rank is doing.
    pub(crate) fn activity(&self) -> &Arc<Activity> {
        &self.activity
    }

    pub(crate) fn rendezvous(&self) -> &Arc<dyn Rendezvous> {
        &self.rendezvous
    }

    pub(crate) fn rank(&self) -> GlobalRank {
        self.rendezvous.rank()
    }

    pub(crate) fn world(&self) -> u64 {
        self.world
    }

    /// [`Self::agree_by`] with the deadline of the configuration, from now.
    pub(crate) fn agree<T: Serialize + DeserializeOwned>(
        &self,
        group: &Group,
        step: &str,
        mine: Result<T>,
    ) -> Result<Agreed<T>> {
        self.agree_by(group, step, mine, Deadline::after(self.deadline))
    }

    /// All members come with a value or with their own failure. When one failed, all get an error: the failed rank
    /// its own, the others [`Error::FailedOn`]. The lock of the sequences is not held across the wait.
    pub(crate) fn agree_by<T: Serialize + DeserializeOwned>(
        &self,
        group: &Group,
        step: &str,
        mine: Result<T>,
        deadline: Deadline,
    ) -> Result<Agreed<T>> {
        let malformed = |rank, problem: String| Error::Malformed { step: step.to_owned(), rank, problem };
        let encoded = mine.and_then(|value| {
            serde_json::to_vec(&value).map_err(|error| malformed(self.rank(), error.to_string()))
        });
        let agreed = self.agree_bytes_by(group, step, encoded, deadline)?;
        let parse = |(bytes, rank): (&Vec<u8>, &GlobalRank)| {
            serde_json::from_slice(bytes).map_err(|error| malformed(*rank, error.to_string()))
        };
        let parts = agreed.parts.iter().zip(group.members()).map(parse).collect::<Result<_>>()?;
        Ok(Agreed { parts, sequence: agreed.sequence })
    }

    /// [`Self::agree`] with plain bytes.
    pub(crate) fn agree_bytes(
        &self,
        group: &Group,
        step: &str,
        mine: Result<Vec<u8>>,
    ) -> Result<Agreed<Vec<u8>>> {
        self.agree_bytes_by(group, step, mine, Deadline::after(self.deadline))
    }

    fn agree_bytes_by(
        &self,
        group: &Group,
        step: &str,
        mine: Result<Vec<u8>>,
        deadline: Deadline,
    ) -> Result<Agreed<Vec<u8>>> {
        if !group.contains(self.rank()) {
            return Err(Error::NotAMember { step: step.to_owned(), rank: self.rank() });
        }
        let sequence = self.next_sequence(group);
        let failure = mine.as_ref().err().map(|error| anabranch_hip::with_causes(error));
        let header = Header { world: self.world, step: step.to_owned(), sequence, failure };
        let message = frame::encode(&header, mine.as_deref().unwrap_or_default());
        let in_call = self
            .activity
            .call(format!("\"{step}\" on the host (step {sequence} of {})", members_in_words(group)));
        let gathered = self.rendezvous.all_gather(group, TAG, &message, deadline);
        drop(in_call);
        // A broken exchange is the graver error: it ends the world, also for a rank that had failed by itself.
        let messages = gathered.map_err(|source| {
            if let Err(error) = &mine {
                tracing::warn!(step, %error, "failed here, and the others did not learn it");
            }
            Error::Rendezvous { step: step.to_owned(), source }
        })?;
        mine?;
        check_count(step, group, messages.len())?;
        let mut parts = Vec::with_capacity(messages.len());
        let mut failed = None;
        for (message, rank) in messages.iter().zip(group.members()) {
            let (theirs, bytes) = frame::decode(message).map_err(|error| Error::Malformed {
                step: step.to_owned(),
                rank: *rank,
                problem: error.to_string(),
            })?;
            if (theirs.world, &theirs.step, theirs.sequence) != (header.world, &header.step, header.sequence)
            {
                return Err(Error::OutOfStep {
                    rank: *rank,
                    called: describe(&theirs, header.world),
                    other: self.rank(),
                    other_called: describe(&header, header.world),
                });
            }
            if let Some(cause) = theirs.failure {
                failed = failed.or(Some((*rank, cause)));
            }
            parts.push(bytes.to_vec());
        }
        match failed {
            None => Ok(Agreed { parts, sequence }),
            Some((rank, cause)) => Err(Error::FailedOn { step: step.to_owned(), rank, cause }),
        }
    }

    /// All members come with the same fields, or all get the error that names the first field that differs.
    pub(crate) fn compare(&self, group: &Group, step: &str, fields: Vec<(String, String)>) -> Result<()> {
        let agreed = self.agree(group, step, Ok(fields))?;
        compare_fields(step, group, &agreed.parts)
    }

    fn next_sequence(&self, group: &Group) -> u64 {
        let mut sequences = self.sequences.lock().unwrap_or_else(PoisonError::into_inner);
        let next = sequences.entry(group_id(group)).or_insert(0);
        *next += 1;
        *next
    }
}

fn describe(header: &Header, world: u64) -> String {
    let whose = if header.world == world { "" } else { " of another world" };
    format!("{} (step {} of the group){whose}", header.step, header.sequence)
}

/// Checks that an answer has a part of each member: a rendezvous may be the caller's own.
pub(crate) fn check_count(step: &str, group: &Group, given: usize) -> Result<()> {
    if given == group.size() as usize {
        return Ok(());
    }
    let problem = format!("the answer has {given} parts, the group {} members", group.size());
    let source = anabranch_bootstrap::Error::Answer { phase: step.to_owned(), problem };
    Err(Error::Rendezvous { step: step.to_owned(), source })
}

/// Compares the members' fields one by one. The value that most members have (of equally many, the one of the
/// lowest group rank) counts as the right one, so that the error names the odd rank out.
pub(crate) fn compare_fields(step: &str, group: &Group, parts: &[Vec<(String, String)>]) -> Result<()> {
    let names: Vec<&str> = parts.iter().flatten().map(|(name, _)| name.as_str()).collect();
    let mut looked_at = Vec::new();
    for name in names {
        if looked_at.contains(&name) {
            continue;
        }
        looked_at.push(name);
        let values: Vec<&str> = parts
            .iter()
            .map(|fields| {
                fields.iter().find(|(other, _)| other == name).map_or("nothing", |(_, v)| v.as_str())
            })
            .collect();
        let Some((odd, usual)) = odd_one_out(&values) else { continue };
        return Err(Error::Differs {
            step: step.to_owned(),
            field: name.to_owned(),
            rank: group.members()[odd],
            value: values[odd].to_owned(),
            other: group.members()[usual],
            other_value: values[usual].to_owned(),
        });
    }
    Ok(())
}

/// The first index with a value that is not the most frequent one, and the first index with that one.
fn odd_one_out(values: &[&str]) -> Option<(usize, usize)> {
    let mut usual = 0;
    let mut most = 0;
    for (index, value) in values.iter().enumerate() {
        let count = values.iter().filter(|other| *other == value).count();
        if count > most {
            (usual, most) = (index, count);
        }
    }
    let right = values.get(usual)?;
    values.iter().position(|value| value != right).map(|odd| (odd, usual))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fields(pairs: &[(&str, &str)]) -> Vec<(String, String)> {
        pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
    }

    #[test]
    fn the_odd_rank_is_named_with_both_values() {
        let group = Group::world(4).unwrap();
        let usual = fields(&[("heap.bytes", "64"), ("transport.order", "p2p")]);
        let mut parts = vec![usual.clone(); 4];
        compare_fields("join", &group, &parts).unwrap();
        parts[2] = fields(&[("heap.bytes", "64"), ("transport.order", "sdma")]);
        let message = compare_fields("join", &group, &parts).unwrap_err().to_string();
        assert_eq!(message, "join: transport.order differs: rank 2 has sdma, rank 0 has p2p");
        parts[0] = fields(&[("heap.bytes", "32"), ("transport.order", "p2p")]);
        let message = compare_fields("join", &group, &parts).unwrap_err().to_string();
        assert_eq!(message, "join: heap.bytes differs: rank 0 has 32, rank 1 has 64");
        let parts = vec![usual.clone(), usual[..1].to_vec()];
        let message = compare_fields("join", &Group::world(2).unwrap(), &parts).unwrap_err().to_string();
        assert_eq!(message, "join: transport.order differs: rank 1 has nothing, rank 0 has p2p");
    }

    #[test]
    fn group_ids_depend_on_members_and_order() {
        let world = Group::world(4).unwrap();
        let other = world.subset_of_ranks(&[1, 0, 2, 3].map(GlobalRank::new)).unwrap();
        assert_eq!(group_id(&world), group_id(&Group::world(4).unwrap()));
        assert_ne!(group_id(&world), group_id(&other));
        assert_ne!(group_id(&world), group_id(&Group::world(5).unwrap()));
    }

    #[test]
    fn a_failure_on_one_rank_is_an_error_on_all() {
        let group = Group::world(3).unwrap();
        let results: Vec<Result<Agreed<u32>>> = std::thread::scope(|scope| {
            let handles: Vec<_> = anabranch_bootstrap::threads(3)
                .into_iter()
                .map(|rendezvous| {
                    let group = &group;
                    scope.spawn(move || {
                        let rank = rendezvous.rank();
                        let all = Collectives::new(Arc::new(rendezvous), 9, Duration::from_secs(5));
                        let first = all.agree(group, "one", Ok(rank.get())).unwrap();
                        assert_eq!(first.parts, [0, 1, 2]);
                        let mine = if rank.get() == 1 { Err(Error::Left) } else { Ok(0) };
                        let second = all.agree(group, "two", mine);
                        // The world goes on after it.
                        all.agree(group, "three", Ok(0)).unwrap();
                        second
                    })
                })
                .collect();
            handles.into_iter().map(|handle| handle.join().unwrap()).collect()
        });
        for (rank, result) in results.into_iter().enumerate() {
            match result.unwrap_err() {
                Error::Left => assert_eq!(rank, 1),
                error => assert_eq!(error.to_string(), "two failed on rank 1: the world was left"),
            }
        }
    }

    #[test]
    fn ranks_in_different_steps_are_reported() {
        let group = Group::world(2).unwrap();
        std::thread::scope(|scope| {
            for rendezvous in anabranch_bootstrap::threads(2) {
                let group = &group;
                scope.spawn(move || {
                    let rank = rendezvous.rank();
                    let all = Collectives::new(Arc::new(rendezvous), 9, Duration::from_secs(5));
                    let step = if rank.get() == 0 { "allocate" } else { "register" };
                    let error = all.agree(group, step, Ok(0)).unwrap_err();
                    assert!(matches!(error, Error::OutOfStep { .. }), "{error}");
                });
            }
        });
    }
}
