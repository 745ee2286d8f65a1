//! Ranks that are killed, stalled or fail: every survivor ends with an error that names the rank, in time.
#![expect(
    clippy::disallowed_methods,
    reason = "tests of real threads and processes run on the machine's time"
)]
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]
#![allow(clippy::print_stdout, reason = "how a rank tells the test what it sees")]

mod common;

use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anabranch_bootstrap::{Deadline, TcpConfig, TcpRendezvous, TcpRoot, Token};
use anabranch_ep::reference::ReferenceExpert;
use anabranch_ep::{Error, ExpertOutput, ExpertParallel, Mode};
use anabranch_hip::{DeviceOrdinal, Stream, with_causes};
use anabranch_hip_host::{HostConfig, HostMachine};
use anabranch_ranks::GlobalRank;
use anabranch_shmem::{World, WorldConfig};
use anabranch_testkit::{Ranks, Role, role};
use common::{Case, Numbers, Uploaded, depart, failure, jit, land, on_ranks, round, work, world_config};
use rustix::process::{Signal, getpid, kill_process};

const RANKS: u32 = 4;
const DEADLINE: Duration = Duration::from_secs(3);
/// What a survivor may take from the loss to its error.
const MOST: Duration = Duration::from_secs(4);
/// Only a test that hangs takes this long.
const LIMIT: Duration = Duration::from_secs(60);

/// What the victim does, and when; the seed varies the moment a little.
#[derive(Clone, Debug)]
struct Script {
    moment: String,
    victim: u32,
    seed: u64,
    stalls: bool,
    file: PathBuf,
}

impl Script {
    fn read(role: &Role) -> Self {
        let mut words = role.argument.splitn(5, ' ');
        let mut word = || words.next().unwrap();
        Self {
            moment: word().to_owned(),
            victim: word().parse().unwrap(),
            seed: word().parse().unwrap(),
            stalls: word().parse().unwrap(),
            file: PathBuf::from(word()),
        }
    }

    fn write(&self) -> String {
        format!("{} {} {} {} {}", self.moment, self.victim, self.seed, self.stalls, self.file.display())
    }

    /// Whether dispatch counts first.
    fn compact(&self) -> bool {
        self.moment.starts_with("compact-")
    }

    /// The end of the victim, now.
    fn end(&self) {
        say("gone", "");
        let signal = if self.stalls { Signal::STOP } else { Signal::KILL };
        kill_process(getpid(), signal).unwrap();
        // The signal may reach another thread first.
        std::thread::sleep(LIMIT);
    }

    /// The end of the victim within the next `most` microseconds, whatever it does then.
    fn end_within(&self, most: u32) {
        let script = self.clone();
        let pause = Duration::from_micros(u64::from(Numbers(self.seed).below(most)));
        std::thread::spawn(move || {
            std::thread::sleep(pause);
            script.end();
        });
    }
}

/// A line with the time, which all processes of a machine share.
fn say(word: &str, text: &str) {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_micros();
    println!("@{word} {now} {text}");
}

/// The time and the text that were said behind a word. The test's own name may stand before it on the line.
fn said<'a>(output: &'a str, word: &str) -> Option<(Duration, &'a str)> {
    let mark = format!("@{word} ");
    let (_, line) = output.lines().find_map(|line| line.split_once(&mark))?;
    let (time, text) = line.split_once(' ')?;
    Some((Duration::from_micros(time.parse().ok()?), text))
}

fn rendezvous(role: &Role, script: &Script) -> Result<TcpRendezvous, anabranch_bootstrap::Error> {
    let rank = GlobalRank::new(role.rank);
    let config = |address: String| {
        let mut config = TcpConfig::new(address, rank, role.size, Deadline::after(DEADLINE));
        config.token = Token::new("test");
        config
    };
    if role.rank == 0 {
        let root = TcpRoot::bind("127.0.0.1:0").unwrap();
        let address = root.address().to_string();
        let partial = script.file.with_extension("partial");
        std::fs::write(&partial, &address).unwrap();
        std::fs::rename(&partial, &script.file).unwrap();
        say("joining", "");
        return TcpRendezvous::join_with_root(config(address), root);
    }
    let end = Instant::now() + LIMIT;
    let address = loop {
        match std::fs::read_to_string(&script.file) {
            Ok(address) => break address,
            Err(_) if Instant::now() < end => std::thread::sleep(Duration::from_millis(2)),
            Err(error) => panic!("{error}"),
        }
    };
    say("joining", "");
    TcpRendezvous::join(config(address))
}

/// One rank's life, up to its error. Only a missed loss lets it end well.
fn live(role: &Role, script: &Script) -> Result<(), Box<dyn std::error::Error>> {
    let dies_at = |moment: &str| role.rank == script.victim && script.moment == moment;
    if dies_at("absent") {
        script.end();
    }
    let rendezvous = Arc::new(rendezvous(role, script)?);
    let machine = HostMachine::new(HostConfig {
        devices: role.size,
        workers: NonZeroUsize::new(1),
        ..HostConfig::default()
    })?;
    let device = machine.runtime().device(DeviceOrdinal(role.rank))?;
    if dies_at("join") {
        script.end();
    }
    if dies_at("joining") {
        script.end_within(20_000);
    }
    let config = WorldConfig { heap_bytes: 8 << 20, operation_deadline: DEADLINE, ..world_config() };
    let world = World::join(config, device, jit(), rendezvous)?;
    if dies_at("plan") {
        script.end();
    }
    if dies_at("planning") {
        script.end_within(10_000);
    }
    let mut case = Case::new(role.size, 1);
    if script.compact() {
        case.config = case.config.mode(Mode::Compact);
    }
    let ep = ExpertParallel::new(&world, world.group(), case.config.clone())?;
    let expert = ReferenceExpert::new(&world, ep.plan(), ep.rank())?;
    let stream = world.device().create_stream()?;
    if dies_at("running") {
        script.end_within(60_000);
    }
    let last = 2 + script.seed % 3;
    let end = Instant::now() + LIMIT;
    for number in 0.. {
        if role.rank == script.victim && number == last {
            last_round(script, &ep, &expert, &stream, &case, number)?;
        }
        round(&ep, &expert, &stream, &world, &case, number)?;
        assert!(Instant::now() < end, "the victim lives for ever");
    }
    Ok(())
}

fn last_round(
    script: &Script,
    ep: &ExpertParallel,
    expert: &ReferenceExpert,
    stream: &Stream,
    case: &Case,
    number: u64,
) -> Result<(), Error> {
    let moment = script.moment.trim_start_matches("compact-");
    match moment {
        "dispatch" => script.end(),
        "dispatching" => script.end_within(400),
        "combine" | "combining" | "half-dispatch" | "half-combine" => {}
        _ => return Ok(()),
    }
    if moment.starts_with("half") {
        return last_half(script, ep, expert, stream, case, number);
    }
    let flight = depart(ep, stream, case, number)?;
    if moment.starts_with("dispatch") {
        std::thread::sleep(LIMIT);
    }
    work(expert, stream, &flight.dispatched)?;
    stream.synchronize()?;
    if moment == "combine" {
        script.end();
    }
    script.end_within(400);
    let landed = land(ep, stream, flight)?;
    std::thread::sleep(LIMIT);
    drop(landed);
    Ok(())
}

/// The victim sends its rows, or offers its experts', and is gone before it waits.
fn last_half(
    script: &Script,
    ep: &ExpertParallel,
    expert: &ReferenceExpert,
    stream: &Stream,
    case: &Case,
    number: u64,
) -> Result<(), Error> {
    let uploaded = Uploaded::new(stream.device(), &case.config, &case.input(ep.rank().get(), number));
    let sent = ep.dispatch_send(stream, &uploaded.tokens(&case.config))?;
    if script.moment == "half-dispatch" {
        stream.synchronize()?;
        script.end();
    }
    let dispatched = ep.dispatch_recv(stream, sent)?;
    work(expert, stream, &dispatched)?;
    let sent = ep.combine_send(stream, ExpertOutput::InWindow, dispatched)?;
    stream.synchronize()?;
    script.end();
    ep.combine_recv(stream, sent, uploaded.output())
}

/// The part of a process: lives, says how it ended, and ends in order.
fn play(role: &Role) {
    let script = Script::read(role);
    let started = Instant::now();
    match live(role, &script) {
        Ok(()) => say("well", ""),
        Err(error) => say("failed", &with_causes(error.as_ref())),
    }
    assert!(started.elapsed() < LIMIT);
}

/// Runs one script, and checks what the survivors said.
fn survive(test: &str, moment: &str, victim: u32, seed: u64, stalls: bool) {
    let file = PathBuf::from(env!("CARGO_TARGET_TMPDIR"))
        .join(format!("ep-{moment}-{victim}-{seed}-{stalls}-{}", std::process::id()));
    let _ = std::fs::remove_file(&file);
    let script = Script { moment: moment.to_owned(), victim, seed, stalls, file: file.clone() };
    let mut ranks = Ranks::start(test, RANKS, &script.write()).unwrap();
    if stalls {
        // A stalled process does not end by itself.
        for (rank, process) in ranks.processes().iter_mut().enumerate() {
            if rank != victim as usize {
                process.wait_for("@failed", LIMIT).unwrap();
            }
        }
        ranks.processes()[victim as usize].kill().unwrap();
    }
    let outcomes = ranks.wait(LIMIT).unwrap();
    let _ = std::fs::remove_file(Path::new(&file));
    let context = format!("{moment} of rank {victim}, seed {seed}, stalls {stalls}");
    let gone = said(&outcomes[victim as usize].output, "gone");
    let (gone, _) = gone.unwrap_or_else(|| panic!("{context}: {}", outcomes[victim as usize].output));
    for outcome in outcomes.iter().filter(|outcome| outcome.rank != victim) {
        let context = format!("{context}, rank {}: {}", outcome.rank, outcome.output);
        assert!(outcome.status.success(), "{:?} {context}", outcome.status);
        let (failed, text) = said(&outcome.output, "failed").unwrap_or_else(|| panic!("{context}"));
        // Nobody misses a rank before it has begun to wait for it.
        let (joining, _) = said(&outcome.output, "joining").unwrap();
        let took = failed.saturating_sub(gone.max(joining));
        assert!(took < MOST, "{took:?} {context}");
        let named = [
            format!("rank {victim} died"),
            format!("for rank {victim} in ep "),
            format!("1 rank has not come: {victim}"),
            // It died between offering its heap and the others' mapping it.
            format!("no transport reaches rank {victim}: "),
        ];
        assert!(named.iter().any(|words| text.contains(words)), "{context}");
        if stalls {
            assert!(took > DEADLINE / 2, "the deadline was not waited for: {took:?} {context}");
            // It stopped before it told its counts, and everybody waits for them.
            let counted = text.contains(&format!("for rank {victim} in ep count"));
            assert_eq!(counted, moment == "compact-dispatch", "{context}");
        }
        println!("{moment} {victim} {seed}: rank {} after {took:?}: {text}", outcome.rank);
    }
}

#[test]
fn killed_in_dispatch() {
    if let Some(role) = role() {
        return play(&role);
    }
    for (moment, victim, seed) in
        [("dispatch", 2, 0), ("dispatching", 1, 1), ("dispatching", 3, 2), ("dispatching", 0, 3)]
    {
        survive("killed_in_dispatch", moment, victim, seed, false);
    }
}

#[test]
fn killed_in_compact_dispatch() {
    if let Some(role) = role() {
        return play(&role);
    }
    for (moment, victim, seed) in [
        ("compact-dispatch", 2, 0),
        ("compact-dispatching", 1, 1),
        ("compact-dispatching", 3, 2),
        ("compact-dispatching", 0, 3),
        ("compact-combine", 1, 0),
    ] {
        survive("killed_in_compact_dispatch", moment, victim, seed, false);
    }
}

#[test]
fn killed_in_combine() {
    if let Some(role) = role() {
        return play(&role);
    }
    for (moment, victim, seed) in
        [("combine", 1, 0), ("combining", 2, 1), ("combining", 3, 2), ("combining", 0, 3)]
    {
        survive("killed_in_combine", moment, victim, seed, false);
    }
}

#[test]
fn killed_in_the_rendezvous() {
    if let Some(role) = role() {
        return play(&role);
    }
    for (moment, victim, seed) in [
        ("absent", 2, 0),
        ("join", 3, 0),
        ("join", 0, 0),
        ("joining", 1, 1),
        ("joining", 2, 2),
        ("plan", 2, 0),
        ("planning", 1, 1),
        ("planning", 3, 2),
    ] {
        survive("killed_in_the_rendezvous", moment, victim, seed, false);
    }
}

#[test]
fn killed_at_any_moment() {
    if let Some(role) = role() {
        return play(&role);
    }
    for seed in 10..16 {
        survive("killed_at_any_moment", "running", (seed % 4) as u32, seed, false);
    }
}

#[test]
fn stalled_in_dispatch() {
    if let Some(role) = role() {
        return play(&role);
    }
    survive("stalled_in_dispatch", "dispatch", 2, 0, true);
    survive("stalled_in_dispatch", "dispatch", 0, 1, true);
}

#[test]
fn stalled_before_its_counts() {
    if let Some(role) = role() {
        return play(&role);
    }
    for (victim, seed) in [(0, 0), (2, 1), (3, 2)] {
        survive("stalled_before_its_counts", "compact-dispatch", victim, seed, true);
    }
}

#[test]
fn gone_between_the_halves() {
    if let Some(role) = role() {
        return play(&role);
    }
    survive("gone_between_the_halves", "half-dispatch", 2, 0, false);
    survive("gone_between_the_halves", "half-dispatch", 1, 1, true);
    survive("gone_between_the_halves", "half-combine", 3, 2, false);
    survive("gone_between_the_halves", "half-combine", 0, 0, true);
}

#[test]
fn stalled_in_combine() {
    if let Some(role) = role() {
        return play(&role);
    }
    survive("stalled_in_combine", "combine", 1, 0, true);
}

/// Threads: rank 1 fails in one way or another in its third round.
fn failing_thread(fail: impl Fn(&ExpertParallel, &Stream, &Case) -> Result<(), Error> + Sync) -> Vec<String> {
    let case = Case::new(RANKS, 1);
    let config = WorldConfig { operation_deadline: DEADLINE, ..world_config() };
    let start = Instant::now();
    let results = on_ranks(RANKS, 1, &config, |world| {
        let ep = ExpertParallel::new(world, world.group(), case.config.clone())?;
        let expert = ReferenceExpert::new(world, ep.plan(), ep.rank())?;
        let stream = world.device().create_stream()?;
        for number in 0..1000 {
            if world.rank().get() == 1 && number == 3 {
                fail(&ep, &stream, &case)?;
            }
            round(&ep, &expert, &stream, world, &case, number)?;
        }
        Ok(())
    });
    assert!(start.elapsed() < MOST, "{:?}", start.elapsed());
    let texts: Vec<_> = results.iter().map(failure).collect();
    for (rank, text) in texts.iter().enumerate() {
        assert!(rank == 1 || text.contains("rank 1 died"), "{rank}: {text}");
    }
    texts
}

#[test]
fn a_thread_that_returns_an_error_is_named_by_the_others() {
    let texts = failing_thread(|_, _, _| Err(Error::ForeignHandle));
    assert!(texts[1].contains("belongs to another plan"), "{texts:?}");
    // With its dispatch launched and never combined.
    let texts = failing_thread(|ep, stream, case| {
        let flight = depart(ep, stream, case, 3)?;
        stream.synchronize()?;
        drop(flight.dispatched);
        Err(Error::ForeignHandle)
    });
    assert!(texts[1].contains("belongs to another plan"), "{texts:?}");
}

#[test]
fn a_thread_that_panics_is_named_by_the_others() {
    let texts = failing_thread(|_, _, _| panic!("an experiment"));
    assert!(texts[1].contains("rank 1 panicked: an experiment"), "{texts:?}");
    let texts = failing_thread(|ep, stream, case| {
        // In the middle of a dispatch that the others have not joined.
        let flight = depart(ep, stream, case, 3)?;
        drop(flight);
        panic!("an experiment")
    });
    assert!(texts[1].contains("rank 1 panicked: an experiment"), "{texts:?}");
}
