//! Ranks that exchange data by kernels.

use std::collections::BTreeSet;

use anabranch_hip::{DeviceAddress, Result};
use anabranch_weakmem::SeededSchedule;

use crate::machine::lab::{
    self, MachineArgs, NO_ACQUIRE, NO_RELEASE, Outcome, Rank, THREADS, WHOLE, args, seeded, words, world,
    world_with,
};

const BLOCKS: u32 = 2;
const COUNT: usize = (BLOCKS * THREADS) as usize;
const EPOCHS: u64 = 2;

/// Each rank writes to the next one's memory and reads its own, `EPOCHS` times; what it read at last.
pub fn ring(rank: &Rank<'_>, put: u32, take: u32) -> Result<Vec<u64>> {
    let gpu = rank.gpu().inspect_err(|_| {
        rank.meet(&[DeviceAddress::NULL]);
    })?;
    let (data, flag, out) = (gpu.zeroed(COUNT)?, gpu.zeroed(BLOCKS as usize)?, gpu.zeroed(COUNT)?);
    let all = rank.meet(&[data.address(), flag.address()]).expect("all are there");
    let next = &all[((rank.number + 1) % rank.ranks) as usize];
    let other = gpu.device.create_stream()?;
    for epoch in 1..=EPOCHS {
        let value = epoch * 1000;
        let sent = MachineArgs { mode: put, ..args(next[0], next[1], out.address(), value) };
        gpu.launch(lab::PUT, BLOCKS, &sent)?;
        let taken = MachineArgs { mode: take, ..args(data.address(), flag.address(), out.address(), value) };
        gpu.launch_on(&other, lab::TAKE, BLOCKS, &taken)?;
        other.synchronize()?;
        // No lane writes again before its reader has read.
        gpu.stream.synchronize()?;
        rank.barrier();
    }
    words(&out, COUNT)
}

impl Rank<'_> {
    /// All have come as often as this rank.
    pub fn barrier(&self) {
        let mut all = self.shared.addresses.lock().unwrap();
        all[self.number as usize].push(DeviceAddress(1));
        let count = all[self.number as usize].len();
        self.shared.changed.notify_all();
        while all.iter().any(|each| each.len() < count) {
            all = self.shared.changed.wait(&self.shared.addresses, all, None);
        }
    }
}

fn expected() -> Vec<u64> {
    (0..COUNT as u64).map(|at| EPOCHS * 1000 + at).collect()
}

fn run(ranks: u32, schedule: SeededSchedule, put: u32, take: u32) -> Outcome<Vec<u64>> {
    let outcome = world(ranks, schedule, |rank| ring(rank, put, take).unwrap());
    assert!(outcome.failure.is_none(), "{}", outcome.failure.unwrap());
    outcome
}

#[test]
fn three_ranks_exchange_whole_messages_under_every_seed() {
    for seed in 0..40 {
        let outcome = run(3, SeededSchedule::new(seed), WHOLE, WHOLE);
        for got in outcome.ranks {
            assert_eq!(got, expected(), "seed {seed}");
        }
    }
}

#[test]
fn a_missing_release_and_a_missing_acquire_show() {
    for (put, take) in [(NO_RELEASE, WHOLE), (WHOLE, NO_ACQUIRE)] {
        let wrong = |seed: &u64| {
            run(2, SeededSchedule::new(*seed), put, take).ranks.iter().any(|got| *got != expected())
        };
        let first = (0..200).find(wrong);
        println!("put {put}, take {take}: first seed {first:?}");
        assert!(first.is_some(), "put {put}, take {take}: no seed shows it");
    }
}

#[test]
fn a_mistake_of_the_prelude_is_one_setting_for_a_whole_world() {
    let jit = lab::jit(anabranch_testkit::mutant("NO_RELEASE"));
    let wrong = |seed: &u64| {
        let outcome =
            world_with(&jit, 2, &SeededSchedule::new(*seed), |rank| ring(rank, WHOLE, WHOLE).unwrap());
        outcome.ranks.iter().any(|got| *got != expected())
    };
    let first = (0..200).find(wrong);
    println!("nobody releases: first seed {first:?}");
    assert!(first.is_some());
}

#[test]
fn equal_seeds_give_equal_logs_and_others_differ() {
    let log = |seed| {
        let outcome = run(2, seeded(seed), WHOLE, WHOLE);
        (outcome.run.digest, outcome.log())
    };
    let first: Vec<_> = (0..8).map(log).collect();
    let again: Vec<_> = (0..8).map(log).collect();
    for (first, again) in first.iter().zip(&again) {
        let differs = first.1.lines().zip(again.1.lines()).find(|(first, again)| first != again);
        assert_eq!(differs, None);
        assert_eq!(first.0, again.0);
        assert_eq!(first.1, again.1);
    }
    let distinct: BTreeSet<_> = first.iter().map(|(digest, _)| digest).collect();
    assert_eq!(distinct.len(), 8);
    let text = &first[0].1;
    for part in ["hipModuleLaunchKernel", "machine_put block 1 wave 1", "device1.0+", "kernel ends"] {
        assert!(text.contains(part), "{part} in {text}");
    }
}

/// The log does not depend on the process: this prints a digest that a second process must print too.
#[test]
fn another_process_has_the_same_digest() {
    let name = anabranch_testkit::test_path!("another_process_has_the_same_digest");
    let digest = format!("digest {:016x}", run(3, SeededSchedule::new(11), WHOLE, WHOLE).run.digest);
    println!("{digest}");
    let has = |wanted: &str| std::env::args().any(|argument| argument == wanted);
    if has("--exact") && has("--nocapture") {
        // The second process.
        return;
    }
    let program = std::env::current_exe().unwrap();
    let output = std::process::Command::new(program).args(["--exact", name, "--nocapture"]).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(text.contains(&digest), "{digest}: {text}");
}
