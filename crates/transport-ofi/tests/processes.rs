//! Ranks of two processes by libfabric, over its providers that every machine has. The test binary starts itself again as the other one.

use crate::common;

use std::fs::File;
use std::io::{BufRead, BufReader, ErrorKind};
use std::os::unix::fs::FileExt as _;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anabranch_clock::sleep;
use anabranch_ranks::GlobalRank;
use anabranch_transport_rdma::RdmaConfig;
use anabranch_transport_rdma::posting::status;
use rustix::process::{Pid, Signal, kill_process};

use crate::common::{Between, Poster, Rank, config, pattern, wait_for};

/// How a line that is meant for the other process starts; the test harness prints others.
const MARK: &str = "libfabric=";
const HEAP: usize = 1 << 20;
const BYTES: u32 = 300_000;

/// What one process tells the other.
#[derive(Debug)]
struct Handshake {
    provider: String,
    heap: (u64, u32),
    endpoint: Vec<u8>,
}

impl Handshake {
    fn line(provider: &str, rank: &Rank, poster: &Poster) -> String {
        let (heap, key) = rank.heap();
        let text = String::from_utf8(poster.queue.endpoint()).unwrap();
        format!("{MARK}{provider} {heap} {key} {text}")
    }

    fn parse(line: &str) -> Option<Self> {
        let (_, sent) = line.split_once(MARK)?;
        let mut parts = sent.trim().splitn(4, ' ');
        let provider = parts.next()?.to_owned();
        let heap = (parts.next()?.parse().ok()?, parts.next()?.parse().ok()?);
        Some(Self { provider, heap, endpoint: parts.next()?.as_bytes().to_vec() })
    }
}

fn rank(provider: &str) -> Rank {
    Rank::open(provider, HEAP, &RdmaConfig { patience: Duration::from_secs(5), ..config(provider) }).unwrap()
}

/// The other process: answers the first, until it is ended.
#[test]
#[ignore = "the other process of the tests below"]
fn other_process_that_waits() {
    let Some((_rank, _poster, _)) = connected() else { return };
    wait_for("the end", || false);
}

/// The rank of the other process and its queue to the first, as the first's line says.
fn connected() -> Option<(Rank, Poster, Between)> {
    let theirs = std::env::args().find_map(|argument| Handshake::parse(&argument))?;
    let rank = rank(&theirs.provider);
    let poster = rank.poster(0, 0, 16);
    println!("\n{}", Handshake::line(&theirs.provider, &rank, &poster));
    poster.queue.connect(GlobalRank::new(0), &theirs.endpoint).unwrap();
    let between = Between { local: rank.heap(), remote: theirs.heap };
    Some((rank, poster, between))
}

/// The other process: writes a pattern, adds to a counter, then writes a flag, to the first; waits until it is ended.
#[test]
#[ignore = "the other process of the tests below"]
fn other_process() {
    let Some((rank, mut poster, between)) = connected() else { return };
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
fn start(provider: &str, other: &str) -> (Rank, Poster, Between, Ends) {
    let rank = rank(provider);
    let poster = rank.poster(1, 0, 64);
    let child = Command::new(std::env::current_exe().unwrap())
        .args(["--ignored", "--nocapture", "--exact", other])
        // The harness takes it for one more name of a test.
        .arg(Handshake::line(provider, &rank, &poster))
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut child = Ends(child);
    let output = BufReader::new(child.0.stdout.take().unwrap());
    let theirs = output.lines().map_while(Result::ok).find_map(|line| Handshake::parse(&line)).unwrap();
    poster.queue.connect(GlobalRank::new(1), &theirs.endpoint).unwrap();
    let between = Between { local: rank.heap(), remote: theirs.heap };
    (rank, poster, between, child)
}

/// How a death is reported: any of these numbers, and these words.
type Death<'a> = (&'a [u32], &'a str);

fn reach_each_other_and_notice_a_death(provider: &str, (statuses, words): Death<'_>) {
    let (rank, mut poster, between, mut child) = start(provider, "processes::other_process");
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
    let (_, reported) = poster.failure().unwrap();
    assert!(statuses.iter().any(|status| u64::from(*status) == reported), "{reported}: {stopped}");
    assert!(stopped.contains(words), "{stopped}");
}

/// Whether every thread of a process has been stopped.
fn stands_still(process: &Child) -> bool {
    let threads = std::fs::read_dir(format!("/proc/{}/task", process.id())).unwrap();
    // A thread that has just ended has no state.
    let mut states =
        threads.flatten().flat_map(|thread| std::fs::read_to_string(thread.path().join("status")));
    states.all(|state| state.contains("State:\tT"))
}

/// A peer that stands still when it is asked for something, and goes on when the queue has ended and the memory is used for something else.
fn what_has_stopped_is_used_by_no_peer_that_comes_late(provider: &str) {
    const BEFORE: u8 = 0x11;
    const AFTER: u8 = 0x22;
    for is_read in [true, false] {
        let (rank, mut poster, between, child) = start(provider, "processes::other_process_that_waits");
        rank.store(0, &vec![BEFORE; HEAP]);
        let asked = |at| if is_read { between.read(at, at, BYTES) } else { between.write(at, at, BYTES) };
        // Connecting is over with the first.
        poster.post(asked(0));
        poster.quiet();
        let peer = Pid::from_child(&child.0);
        kill_process(peer, Signal::STOP).unwrap();
        wait_for("standing still", || stands_still(&child.0));
        poster.post(asked(400_000));
        // Until the thread has given it to libfabric.
        sleep(Duration::from_millis(100));
        poster.queue.stop("the world has ended");
        assert_eq!(poster.complete(), 1, "{provider}: the peer stood still");
        rank.store(0, &vec![AFTER; HEAP]);
        kill_process(peer, Signal::CONT).unwrap();
        sleep(Duration::from_millis(500));
        assert!(rank.load(0, HEAP) == vec![AFTER; HEAP], "{provider}: what had ended has come");
        let memory = match File::open(format!("/proc/{}/mem", child.0.id())) {
            Err(error) if error.kind() == ErrorKind::PermissionDenied => {
                println!("skipped what the peer has taken: this system lets nobody read its memory: {error}");
                continue;
            }
            memory => memory.unwrap(),
        };
        let mut theirs = vec![0; HEAP];
        memory.read_exact_at(&mut theirs, between.remote.0).unwrap();
        assert!(!theirs.contains(&AFTER), "{provider}: the peer took what is there for something else");
    }
}

#[test]
fn memory_of_a_stopped_queue_is_not_used() {
    if !common::is_installed() {
        return;
    }
    what_has_stopped_is_used_by_no_peer_that_comes_late("tcp");
    common::run_again("processes::by_shared_memory_of_a_peer_that_comes_late", Some("1"));
}

#[test]
#[ignore = "the process that the test above starts"]
fn by_shared_memory_of_a_peer_that_comes_late() {
    if !common::is_own_process() {
        return;
    }
    what_has_stopped_is_used_by_no_peer_that_comes_late("shm");
}

#[test]
fn processes_reach_each_other_by_tcp_and_notice_a_death() {
    if !common::is_installed() {
        return;
    }
    // Its connection ends: what is posted then fails, and what was on its way is flushed; a provider that connects again for what is posted is
    // refused until the patience is over.
    let statuses = [status::NO_ANSWER, status::FLUSHED, status::TIMEOUT];
    reach_each_other_and_notice_a_death("tcp", (&statuses, "to rank 1"));
}

#[test]
#[ignore = "extended"]
fn processes_reach_each_other_by_shared_memory_and_notice_a_death() {
    if !common::is_installed() {
        return;
    }
    common::run_again("processes::by_shared_memory", Some("1"));
}

#[test]
#[ignore = "the process that the test above starts"]
fn by_shared_memory() {
    if !common::is_own_process() {
        return;
    }
    // Nothing takes requests out of the dead process's file, and no error is reported.
    let words = "no answer within the patience of 5";
    reach_each_other_and_notice_a_death("shm", (&[status::TIMEOUT], words));
}

#[test]
fn shared_memory_that_peers_write_on_their_own_is_refused_with_what_to_set() {
    if !common::is_installed() {
        return;
    }
    for value in [None, Some("0"), Some("maybe")] {
        common::run_again("processes::by_shared_memory_with_cma", value);
    }
}

#[test]
#[ignore = "the process that the test above starts"]
fn by_shared_memory_with_cma() {
    if !common::is_own_process() {
        return;
    }
    let refused = Rank::open("shm", HEAP, &config("shm")).err().expect("it is refused").to_string();
    let words = "FI_SHM_DISABLE_CMA=1 has to be in the environment before the process starts";
    assert!(refused.contains(words), "{refused}");
}

#[test]
fn shared_memory_within_a_process_is_refused() {
    if !common::is_installed() {
        return;
    }
    common::run_again("processes::by_shared_memory_within_a_process", Some("1"));
}

#[test]
#[ignore = "the process that the test above starts"]
fn by_shared_memory_within_a_process() {
    if !common::is_own_process() {
        return;
    }
    let rank = rank("shm");
    let (one, other) = (rank.poster(1, 0, 16), rank.poster(0, 0, 16));
    let refused = one.queue.connect(GlobalRank::new(1), &other.queue.endpoint()).unwrap_err().to_string();
    assert!(refused.contains("both are in process") && refused.contains("rank 1"), "{refused}");
}
