//! Runs a program on ranks that are threads under a seed, and notes what each of them saw.

use super::program::{How, Program, What};
use crate::{Deadline, Error, Loss, Rendezvous, ThreadRendezvous, threads};
use anabranch_clock::{Moment, give_way, sleep};
use anabranch_lockstep::{Lockstep, Step};
use anabranch_ranks::GroupRank;
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// One rank's part of one call.
#[derive(Debug)]
pub(super) struct Record {
    pub(super) call: usize,
    /// Turns of all threads before it began.
    pub(super) entered: usize,
    pub(super) entered_at: Duration,
    /// Turns before it returned.
    pub(super) left: usize,
    pub(super) left_at: Duration,
    pub(super) outcome: Result<Vec<Vec<u8>>, Error>,
    /// Whom the rank knew to be lost right after.
    pub(super) losses: Vec<Loss>,
}

/// What one rank saw, up to its end.
#[derive(Debug)]
pub(super) struct Seen {
    pub(super) records: Vec<Record>,
    /// What its observer got.
    pub(super) told: Vec<Loss>,
    /// Turns before it began to go, and how it went.
    pub(super) gone: (usize, How),
    /// Whom it knew to be lost then.
    pub(super) losses: Vec<Loss>,
}

#[derive(Debug)]
pub(super) struct Run {
    pub(super) ranks: Vec<Seen>,
    pub(super) trace: Vec<Step>,
    /// Deadlocks, and panics that were not meant.
    pub(super) problems: Vec<String>,
}

pub(super) fn run(program: &Program, seed: u64) -> Run {
    let lockstep = Lockstep::new(seed);
    // Outside of the threads, for the sake of those that panic.
    let seen: Vec<Mutex<Option<Seen>>> = (0..program.size).map(|_| Mutex::default()).collect();
    let bodies = threads(program.size)
        .into_iter()
        .zip(&seen)
        .map(|(rendezvous, seen)| {
            let lockstep = &lockstep;
            move || work(program, rendezvous, lockstep, seen)
        })
        .collect();
    let ended = lockstep.run(bodies);
    let mut problems = lockstep.problems();
    let mut ranks = Vec::new();
    for (ended, seen) in ended.into_iter().zip(seen) {
        let seen = seen.into_inner().unwrap();
        let meant = seen.as_ref().is_some_and(|seen| seen.gone.1 == How::Panics);
        if ended.is_err() && !meant {
            problems.push("a thread unwound".to_owned());
        }
        ranks.extend(seen);
    }
    Run { ranks, trace: lockstep.trace(), problems }
}

fn work(program: &Program, rendezvous: ThreadRendezvous, lockstep: &Lockstep, end: &Mutex<Option<Seen>>) {
    let me = rendezvous.rank();
    let told = Arc::new(Mutex::new(Vec::new()));
    let observed = Arc::clone(&told);
    rendezvous.observe(Arc::new(move |loss: &Loss| {
        observed.lock().unwrap().push(loss.clone());
        give_way("observed");
    }));
    let mut records = Vec::new();
    let mut how = How::Leaves;
    for (index, call) in program.calls.iter().enumerate() {
        let goes = program.victims.iter().find(|victim| victim.rank == me.get() && victim.before == index);
        if let Some(victim) = goes {
            how = victim.how;
            break;
        }
        if !call.group.contains(me) {
            continue;
        }
        if !call.pauses[me.index()].is_zero() {
            sleep(call.pauses[me.index()]);
        }
        let (entered, entered_at) = (lockstep.steps(), Moment::now().since_origin());
        let outcome = make(program, index, &rendezvous);
        let (left, left_at) = (lockstep.steps(), Moment::now().since_origin());
        let losses = rendezvous.losses();
        records.push(Record { call: index, entered, entered_at, left, left_at, outcome, losses });
    }
    let gone = (lockstep.steps(), how);
    let told = told.lock().unwrap().clone();
    *end.lock().unwrap() = Some(Seen { records, told, gone, losses: rendezvous.losses() });
    match how {
        How::Leaves => rendezvous.leave().unwrap(),
        How::Drops => drop(rendezvous),
        How::Panics => std::panic::resume_unwind(Box::new("on purpose")),
    }
}

fn make(program: &Program, index: usize, rendezvous: &ThreadRendezvous) -> Result<Vec<Vec<u8>>, Error> {
    let (call, me) = (&program.calls[index], rendezvous.rank());
    let (group, tag) = (&call.group, call.tag);
    let deadline = Deadline::after(call.limits[me.index()]);
    let mine = Program::bytes(me, index);
    let first = group.global(GroupRank::new(0)) == Some(me);
    match &call.what {
        What::Gather => rendezvous.all_gather(group, tag, &mine, deadline),
        What::Key if first => rendezvous.set(&key(index), &mine).map(|()| Vec::new()),
        What::Key => rendezvous.wait(&key(index), deadline).map(|bytes| vec![bytes]),
    }
}

pub(super) fn key(index: usize) -> String {
    format!("key {index}")
}

/// What a call of a rank is in the trace.
pub(super) fn name(what: &What, first: bool) -> &'static str {
    match what {
        What::Gather => "all_gather",
        What::Key if first => "set",
        What::Key => "wait",
    }
}

/// What a call is in errors.
pub(super) fn phase(program: &Program, index: usize) -> String {
    let call = &program.calls[index];
    match call.what {
        What::Key => format!("wait for key '{}'", key(index)),
        What::Gather => format!("all_gather '{}'", call.tag),
    }
}
