//! Ranks of two processes by libfabric, over its providers that every machine has. The test binary starts itself again as the other one.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anabranch_ranks::GlobalRank;
use anabranch_transport_rdma::RdmaConfig;

use common::{Between, Poster, Rank, config, pattern, wait_for};

/// How a line that is meant for the other process starts; the test harness prints others.
const MARK: &str = "libfabric=";
const HEAP: usize = 1 << 20;
const BYTES: u32 = 300_000;

/// What one process tells the other.
#[derive(Debug)]
struct Told {
    provider: String,
    heap: (u64, u32),
    endpoint: Vec<u8>,
}

impl Told {
    fn line(provider: &str, rank: &Rank, poster: &Poster) -> String {
        let (heap, key) = rank.heap();
        let text = String::from_utf8(poster.queue.endpoint()).unwrap();
        format!("{MARK}{provider} {heap} {key} {text}")
    }

    fn parse(line: &str) -> Option<Self> {
        let (_, told) = line.split_once(MARK)?;
        let mut parts = told.trim().splitn(4, ' ');
        let provider = parts.next()?.to_owned();
        let heap = (parts.next()?.parse().ok()?, parts.next()?.parse().ok()?);
        Some(Self { provider, heap, endpoint: parts.next()?.as_bytes().to_vec() })
    }
}

fn rank(provider: &str) -> Rank {
    Rank::open(provider, HEAP, &RdmaConfig { patience: Duration::from_secs(5), ..config(provider) }).unwrap()
}

/// The other process: writes a pattern, adds to a counter, then writes a flag, to the first; waits until it is ended.
#[test]
#[ignore = "the other process of the tests below"]
fn other_process() {
    let Some(theirs) = std::env::args().find_map(|argument| Told::parse(&argument)) else { return };
    let rank = rank(&theirs.provider);
    let mut poster = rank.poster(0, 0, 16);
    println!("\n{}", Told::line(&theirs.provider, &rank, &poster));
    poster.queue.connect(GlobalRank::new(0), &theirs.endpoint).unwrap();
    let between = Between { local: rank.heap(), remote: theirs.heap };
    rank.store(0, &pattern(5, BYTES as usize));
    poster.post(between.write(0, 16, BYTES));
    for _ in 0..100 {
        poster.post(between.add(3, 400_000, 500_000));
    }
    poster.post(between.value(1, 600_000, 8));
    poster.quiet();
    assert_eq!(rank.load_64(400_000), 297);
    // Until the first process ends this one.
    wait_for("the end", || false);
}

/// Ends a process that is left over.
struct Ends(Child);

impl Drop for Ends {
    fn drop(&mut self) {
        // It may have ended.
        let _ = self.0.kill();
        let _ = self.0.wait();
        // What `shm` of a killed process leaves behind, named for the process.
        let left = format!("{}:", self.0.id());
        for entry in std::fs::read_dir("/dev/shm").into_iter().flatten().flatten() {
            if entry.file_name().to_string_lossy().starts_with(&left) {
                let _ = std::fs::remove_file(entry.path());
            }
        }
    }
}

/// A rank, its queue to one of another process, and that process.
fn start(provider: &str) -> (Rank, Poster, Between, Ends) {
    let rank = rank(provider);
    let poster = rank.poster(1, 0, 64);
    let child = Command::new(std::env::current_exe().unwrap())
        .args(["--ignored", "--nocapture", "--exact", "other_process"])
        // The harness takes it for one more name of a test.
        .arg(Told::line(provider, &rank, &poster))
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut child = Ends(child);
    let output = BufReader::new(child.0.stdout.take().unwrap());
    let theirs = output.lines().map_while(Result::ok).find_map(|line| Told::parse(&line)).unwrap();
    poster.queue.connect(GlobalRank::new(1), &theirs.endpoint).unwrap();
    let between = Between { local: rank.heap(), remote: theirs.heap };
    (rank, poster, between, child)
}

fn reach_each_other_and_notice_a_death(provider: &str) {
    let (rank, mut poster, between, mut child) = start(provider);
    wait_for("the other's flag", || rank.load_64(600_000) == 1);
    assert_eq!(rank.load(16, BYTES as usize), pattern(5, BYTES as usize));
    assert_eq!(rank.load_64(500_000), 300);
    // What the other has: read, written in pieces, read back.
    poster.post(between.read(700_000, 0, BYTES));
    poster.quiet();
    assert_eq!(rank.load(700_000, BYTES as usize), pattern(5, BYTES as usize));
    for round in 0..20u64 {
        let sent = pattern(round, BYTES as usize);
        rank.store(0, &sent);
        let (mut at, mut bytes) = (0, 1 + round as u32);
        while at < BYTES {
            // Lengths from a byte to some tens of thousands, odd ones among them.
            let piece = bytes.min(BYTES - at);
            poster.post(between.write(at.into(), at.into(), piece));
            (at, bytes) = (at + piece, bytes * 5 % 70_001 + 1);
        }
        poster.post(between.value(round, 800_000, 8));
        poster.post(between.read(400_000, 0, BYTES));
        poster.post(between.swap(round, round + 100, 900_000, 800_000));
        poster.post(between.read(900_008, 800_000, 8));
        poster.quiet();
        assert!(rank.load(400_000, BYTES as usize) == sent, "{provider}: round {round}");
        assert_eq!((rank.load_64(900_000), rank.load_64(900_008)), (round, round + 100));
    }
    child.0.kill().unwrap();
    child.0.wait().unwrap();
    poster.post(between.write(0, 0, 64));
    let stopped = poster.stopped();
    assert!(stopped.contains("to rank 1 (channel 0)"), "{stopped}");
    let words = ["no answer", "does not answer", "libfabric: ", "general error"];
    assert!(words.iter().any(|word| stopped.contains(word)), "{stopped}");
}

#[test]
fn processes_reach_each_other_by_tcp_and_notice_a_death() {
    if !common::is_installed() {
        return;
    }
    reach_each_other_and_notice_a_death("tcp");
}

#[test]
fn processes_reach_each_other_by_shared_memory_and_notice_a_death() {
    if !common::is_installed() {
        return;
    }
    reach_each_other_and_notice_a_death("shm");
}

#[test]
fn shared_memory_within_a_process_is_refused() {
    if !common::is_installed() {
        return;
    }
    let rank = rank("shm");
    let (one, other) = (rank.poster(1, 0, 16), rank.poster(0, 0, 16));
    let refused = one.queue.connect(GlobalRank::new(1), &other.queue.endpoint()).unwrap_err().to_string();
    assert!(refused.contains("both are in process") && refused.contains("rank 1"), "{refused}");
}
