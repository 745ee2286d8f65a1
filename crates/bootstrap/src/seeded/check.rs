//! What must hold of a run, whatever its order. The run's trace says who had come to a call when, so that the checks are
//! exact: ranks named as missing were missing, no rank waits longer than necessary, and all members of a call see the same end.

use super::program::{Call, How, Program, What};
use super::run::{Record, Run, name, phase};
use crate::{Error, Loss, LossKind, OtherCall};
use anabranch_ranks::{GlobalRank, GroupRank};
use std::time::Duration;

/// A turn and its time.
type Turn = (usize, Duration);

/// The first thing that does not hold.
pub(super) fn check(program: &Program, run: &Run) -> Result<(), String> {
    if let Some(problem) = run.problems.first() {
        return Err(problem.clone());
    }
    let checker = Checker { program, run };
    for index in 0..program.calls.len() {
        checker.call(index).map_err(|problem| format!("call {index}: {problem}"))?;
    }
    for rank in (0..program.size).map(GlobalRank::new) {
        checker.losses(rank).map_err(|problem| format!("{rank}: {problem}"))?;
    }
    Ok(())
}

struct Checker<'a> {
    program: &'a Program,
    run: &'a Run,
}

fn ensure(holds: bool, problem: impl FnOnce() -> String) -> Result<(), String> {
    if holds { Ok(()) } else { Err(problem()) }
}

impl Checker<'_> {
    /// The turn in which a rank did what it had announced, not before the turn `from`.
    fn turn(&self, rank: GlobalRank, from: usize, what: &str) -> Option<Turn> {
        let steps = self.run.trace.iter().enumerate().skip(from);
        let mut own = steps.filter(|(_, step)| step.seat.0 == rank.get());
        own.find(|(_, step)| step.what == what).map(|(at, step)| (at, step.at))
    }

    fn record(&self, rank: GlobalRank, index: usize) -> Option<&Record> {
        self.run.ranks[rank.index()].records.iter().find(|record| record.call == index)
    }

    /// When a rank came to a call.
    fn came(&self, rank: GlobalRank, index: usize) -> Option<Turn> {
        let call = &self.program.calls[index];
        let first = call.group.global(GroupRank::new(0)) == Some(rank);
        self.turn(rank, self.record(rank, index)?.entered, name(&call.what, first))
    }

    /// When a rank was lost, and how that looks.
    fn lost(&self, rank: GlobalRank) -> Option<(Turn, LossKind)> {
        let (from, how) = self.run.ranks[rank.index()].gone;
        let (what, kind) = match how {
            How::Leaves => ("leave", LossKind::Left),
            How::Drops | How::Panics => ("drop", LossKind::Died),
        };
        Some((self.turn(rank, from, what)?, kind))
    }

    fn call(&self, index: usize) -> Result<(), String> {
        let call = &self.program.calls[index];
        let mut ended = [0, 0];
        for rank in call.group.members() {
            let Some(record) = self.record(*rank, index) else { continue };
            let limit = call.limits[rank.index()];
            ensure(record.left_at <= record.entered_at + limit, || format!("{rank} is late: {record:?}"))?;
            let checked = match &call.what {
                What::Key => self.key(index, *rank, record),
                What::Gather => self.collective(index, *rank, record),
            };
            checked.map_err(|problem| format!("{rank}: {problem}: {record:?}"))?;
            ended[usize::from(record.outcome.is_ok())] += 1;
        }
        let one_end = matches!(call.what, What::Key) || ended.contains(&0);
        ensure(one_end, || format!("it failed on {} members and not on {}", ended[0], ended[1]))
    }

    fn collective(&self, index: usize, rank: GlobalRank, record: &Record) -> Result<(), String> {
        let call = &self.program.calls[index];
        let came = self.came(rank, index).ok_or("it ended before it began")?;
        // The turn in which it ended.
        let now = record.left - 1;
        match &record.outcome {
            Ok(parts) => {
                ensure(*parts == expected(call, index), || "wrong bytes".to_owned())?;
                let all: Option<Vec<Turn>> =
                    call.group.members().iter().map(|member| self.came(*member, index)).collect();
                let last = all.and_then(|all| all.into_iter().max()).ok_or("somebody has never come")?;
                ensure(last.0 <= now, || "not all had come".to_owned())?;
                ensure(last.1 == record.left_at, || format!("all had come at {:?}", last.1))
            }
            Err(Error::Expired { by, waited: Some(_), missing, elsewhere, phase: named, .. }) => {
                ensure(*by == rank && *named == phase(self.program, index), || "misnamed".to_owned())?;
                let end = record.entered_at + call.limits[rank.index()];
                ensure(record.left_at == end, || format!("its deadline is at {end:?}"))?;
                let absent: Vec<_> = call
                    .group
                    .members()
                    .iter()
                    .copied()
                    .filter(|member| self.came(*member, index).is_none_or(|(at, _)| at > now))
                    .collect();
                ensure(*missing == absent && !absent.is_empty(), || format!("missing are {absent:?}"))?;
                let gone = call.group.members().iter().filter_map(|member| self.lost(*member));
                ensure(gone.into_iter().all(|(at, _)| at.0 > now), || "a member was lost".to_owned())?;
                elsewhere.iter().try_for_each(|other| self.elsewhere(other, missing, now))
            }
            Err(Error::Expired { by, waited: None, missing, .. }) => {
                let other = self.record(*by, index).ok_or("who gave up never called")?;
                let Err(Error::Expired { waited: Some(_), missing: theirs, .. }) = &other.outcome else {
                    return Err("who gave up did not".to_owned());
                };
                ensure(missing == theirs, || "the missing differ".to_owned())?;
                let told = came.1.max(other.left_at);
                ensure(record.left_at == told, || format!("it could have known at {told:?}"))
            }
            Err(Error::PeerLost { loss, .. }) => {
                let members = call.group.members().iter();
                let first = members.filter_map(|member| Some((self.lost(*member)?.0, *member))).min();
                let (at, who) = first.ok_or("nobody was lost")?;
                ensure(who == loss.rank && at.0 <= now, || format!("the first to go was {who}"))?;
                self.is_loss(loss)?;
                ensure(record.losses.contains(loss), || "its cause is not in the list of losses".to_owned())?;
                let told = came.1.max(at.1);
                ensure(record.left_at == told, || format!("it could have known at {told:?}"))
            }
            Err(_) => Err("an error that nothing here brings about".to_owned()),
        }
    }

    fn key(&self, index: usize, rank: GlobalRank, record: &Record) -> Result<(), String> {
        let group = &self.program.calls[index].group;
        let setter = group.global(GroupRank::new(0)).ok_or("no setter")?;
        let now = record.left - 1;
        let came = self.came(rank, index).ok_or("it ended before it began")?;
        let set = self.came(setter, index);
        match &record.outcome {
            Ok(parts) if rank == setter => ensure(parts.is_empty(), || "wrong bytes".to_owned()),
            Ok(parts) => {
                ensure(*parts == [Program::bytes(setter, index)], || "wrong bytes".to_owned())?;
                let set = set.ok_or("nobody has set it")?;
                ensure(record.left_at == came.1.max(set.1), || format!("it was set at {:?}", set.1))
            }
            Err(Error::KeyNotSet { .. }) => {
                let end = record.entered_at + self.program.calls[index].limits[rank.index()];
                ensure(record.left_at == end, || format!("its deadline is at {end:?}"))?;
                ensure(set.is_none_or(|set| set.0 > now), || "it was set".to_owned())
            }
            Err(_) => Err("an error that nothing here brings about".to_owned()),
        }
    }

    /// A rank reported to wait in another call does, at that turn.
    fn elsewhere(&self, other: &OtherCall, missing: &[GlobalRank], now: usize) -> Result<(), String> {
        ensure(missing.contains(&other.rank), || "elsewhere is who is here".to_owned())?;
        let waits = self.run.ranks[other.rank.index()].records.iter().any(|record| {
            self.came(other.rank, record.call).is_some_and(|(came, _)| came < now)
                && record.left > now
                && other.phase.starts_with(&phase(self.program, record.call))
        });
        ensure(waits, || format!("{} does not wait in {}", other.rank, other.phase))
    }

    fn is_loss(&self, loss: &Loss) -> Result<(), String> {
        let (_, kind) = self.lost(loss.rank).ok_or_else(|| format!("{} is there", loss.rank))?;
        ensure(kind == loss.kind, || format!("{} is not how it went", loss.kind))
    }

    /// At its end a rank knows of all losses so far and of no other, and none was reported twice.
    fn losses(&self, rank: GlobalRank) -> Result<(), String> {
        let seen = &self.run.ranks[rank.index()];
        seen.losses.iter().try_for_each(|loss| self.is_loss(loss))?;
        for other in (0..self.program.size).map(GlobalRank::new).filter(|other| *other != rank) {
            let known = seen.losses.iter().filter(|loss| loss.rank == other).count();
            let lost = self.lost(other).is_some_and(|(at, _)| at.0 < seen.gone.0);
            ensure(known == usize::from(lost), || format!("it knows of {known} losses of {other}"))?;
            let told = seen.told.iter().filter(|loss| loss.rank == other).count();
            ensure(told <= known, || format!("it was told {told} times of {other}"))?;
        }
        Ok(())
    }
}

fn expected(call: &Call, index: usize) -> Vec<Vec<u8>> {
    let members = call.group.members().iter();
    match call.what {
        What::Gather => members.map(|member| Program::bytes(*member, index)).collect(),
        What::Key => Vec::new(),
    }
}
