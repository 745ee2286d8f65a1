//! NICs of two processes. The test binary starts itself again as the other one.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, Stdio};

use anabranch_clock::{Moment, sleep};
use anabranch_ranks::GlobalRank;
use anabranch_softnic::{Listen, SoftNicConfig, Syndrome};

use crate::common::{LIMIT, Poster, Rank, Way, encode, machine, pattern};

/// How a line that is meant for the other process starts; the test harness prints others.
const MARK: &str = "softnic=";
const BYTES: usize = 300_000;

/// What one process tells the other.
#[derive(Debug)]
struct Handshake {
    heap: u64,
    key: u32,
    endpoint: Vec<u8>,
}

impl Handshake {
    fn of(rank: &Rank, poster: &Poster) -> Self {
        let (heap, key) = rank.remote(0);
        Self { heap, key, endpoint: poster.queue.endpoint() }
    }

    fn line(&self) -> String {
        let text = String::from_utf8(self.endpoint.clone()).unwrap();
        format!("{MARK}{} {} {text}", self.heap, self.key)
    }

    fn parse(line: &str) -> Option<Self> {
        let (_, sent) = line.split_once(MARK)?;
        let mut parts = sent.trim().splitn(3, ' ');
        let heap = parts.next()?.parse().ok()?;
        let key = parts.next()?.parse().ok()?;
        Some(Self { heap, key, endpoint: parts.next()?.as_bytes().to_vec() })
    }

    fn at(&self, offset: u64) -> (u64, u32) {
        (self.heap + offset, self.key)
    }
}

fn rank() -> (Rank, Way) {
    let way = Way::Sockets(Listen::Abstract);
    let rank = Rank::new(&machine(1), 0, &way, SoftNicConfig::default());
    (rank, way)
}

fn wait_for(what: &str, mut done: impl FnMut() -> bool) {
    let until = Moment::now().after(LIMIT);
    while !done() {
        assert!(!until.remaining().is_zero(), "{what} does not come");
        sleep(std::time::Duration::from_micros(50));
    }
}

/// The other process: writes a pattern, then a flag, to the first; counts on its word; then waits until it is asked to end.
#[test]
#[ignore = "the other process of the test below"]
fn other_process() {
    let Some(theirs) = std::env::args().find_map(|argument| Handshake::parse(&argument)) else { return };
    let (rank, _way) = rank();
    let mut poster = Poster::new(rank.queue(0, 0, 16), &rank);
    println!("\n{}", Handshake::of(&rank, &poster).line());
    poster.queue.connect(GlobalRank::new(0), &theirs.endpoint).unwrap();
    rank.store(0, &pattern(5, BYTES));
    let (source, old) = (rank.local(0, BYTES as u32), rank.local(400_000, 8));
    poster.post(|control| encode::write(control, theirs.at(8), &[source]));
    for _ in 0..100 {
        poster.post(|control| encode::atomic(control, encode::FETCH_ADD, theirs.at(500_000), &[3, 0], old));
    }
    poster.post(|control| encode::write_inline(control, theirs.at(600_000), &1u64.to_ne_bytes()));
    poster.quiet().unwrap();
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
    }
}

#[test]
fn processes_reach_each_other_and_notice_a_death() {
    let (rank, _way) = rank();
    let mut poster = Poster::new(rank.queue(1, 0, 16), &rank);
    let child = Command::new(std::env::current_exe().unwrap())
        .args(["--ignored", "--nocapture", "--exact", "processes::other_process"])
        // The harness takes it for one more name of a test.
        .arg(Handshake::of(&rank, &poster).line())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut child = Ends(child);
    let output = BufReader::new(child.0.stdout.take().unwrap());
    let theirs = output.lines().map_while(Result::ok).find_map(|line| Handshake::parse(&line)).unwrap();
    // The other end is connected already, and may have sent.
    poster.queue.connect(GlobalRank::new(1), &theirs.endpoint).unwrap();
    wait_for("the other's flag", || rank.load_64(600_000) == 1);
    assert_eq!(rank.load(8, BYTES), pattern(5, BYTES));
    assert_eq!(rank.load_64(500_000), 300);
    let (place, from) = (rank.local(700_000, BYTES as u32), theirs.at(0));
    poster.post(|control| encode::read(control, from, &[place]));
    poster.quiet().unwrap();
    assert_eq!(rank.load(700_000, BYTES), pattern(5, BYTES));
    child.0.kill().unwrap();
    child.0.wait().unwrap();
    poster.post(|control| encode::write_inline(control, theirs.at(0), &[1; 8]));
    assert!(poster.stopped().contains("transport retry counter exceeded"));
    assert_eq!(poster.completion(), Err(Syndrome::RetryExceeded));
    std::io::stdout().flush().unwrap();
}
