//! Groups of processes that lose a rank: every survivor ends with an error that names it, in time.
#![expect(
    clippy::disallowed_methods,
    reason = "tests of real threads and processes run on the machine's time"
)]
#![allow(dead_code, unreachable_pub, reason = "each test binary uses a part")]

use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use anabranch_conformance::ep::reference::ReferenceExpert;
use anabranch_ep::{Across, CombineSource, Error, ExpertParallel, Mode, Nodes};
use anabranch_hip::{DeviceOrdinal, Stream, with_causes};
use anabranch_hip_host::{HostConfig, HostMachine};
use anabranch_shmem::{World, WorldConfig};
use anabranch_testkit::{Ranks, Role, end, end_behind, meet, role, said, say};

use crate::common::{
    Case, Numbers, Uploaded, depart, failure, jit, on_ranks, round, run_expert, window_bytes, world_config,
};

pub const RANKS: u32 = 4;
pub const DEADLINE: Duration = Duration::from_secs(5);
/// What a survivor may take from the loss to its error: the deadline, a second in which the missing rank may answer what it is doing, a
/// second for which rank 0's store outlives it, and room for a busy machine.
pub const MOST: Duration = Duration::from_secs(10);
/// Only a test that hangs takes this long.
const LIMIT: Duration = Duration::from_secs(60);

/// What the victim does, and when; the seed varies the moment a little.
#[derive(Clone, Debug)]
struct Script {
    moment: String,
    victim: u32,
    seed: u64,
    stalls: bool,
    /// Where the plan's experts may leave their output; all ranks push unless it is the window.
    source: CombineSource,
    file: PathBuf,
}

impl Script {
    fn read(role: &Role) -> Self {
        let mut words = role.argument.splitn(6, ' ');
        let mut word = || words.next().unwrap();
        Self {
            moment: word().to_owned(),
            victim: word().parse().unwrap(),
            seed: word().parse().unwrap(),
            stalls: word().parse().unwrap(),
            source: word().parse().unwrap(),
            file: PathBuf::from(word()),
        }
    }

    fn write(&self) -> String {
        let Self { moment, victim, seed, stalls, source, file } = self;
        format!("{moment} {victim} {seed} {stalls} {source} {}", file.display())
    }

    fn case(&self, ranks: u32) -> Case {
        let mut case = Case::new(ranks, 1);
        if self.compact() {
            case.config = case.config.mode(Mode::Compact);
        }
        case.config = case.config.combine_source(self.source);
        if let Some(way) = self.way() {
            let nodes: Vec<_> = (0..ranks).map(|rank| rank / 2).collect();
            case.config = case.config.nodes(Nodes::new(&nodes)).across(way);
        }
        case.staged = self.source.pushes();
        case
    }

    /// Whether dispatch counts first.
    fn compact(&self) -> bool {
        self.moment.starts_with("compact-")
    }

    /// By which way rows go to other nodes, where ranks are on some.
    fn way(&self) -> Option<Across> {
        self.moment.split_once('-').and_then(|(way, _)| way.parse().ok())
    }

    /// The end of the victim, now.
    fn end(&self) {
        say("gone", "");
        end(self.stalls);
    }

    /// The end of the victim within the next `most` microseconds, whatever it does then.
    fn end_within(&self, most: u32) {
        let pause = Duration::from_micros(u64::from(Numbers(self.seed).below(most)));
        end_behind(pause, self.stalls, || say("gone", ""));
    }
}

/// One rank's life, up to its error. Only a missed loss lets it end well.
fn live(role: &Role, script: &Script) -> Result<(), Box<dyn std::error::Error>> {
    let dies_at = |moment: &str| role.rank == script.victim && script.moment == moment;
    if dies_at("absent") {
        script.end();
    }
    let rendezvous = Arc::new(meet(role, &script.file, DEADLINE, || say("joining", ""))?);
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
    let case = script.case(role.size);
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
        let passed = round(&ep, &expert, &stream, &world, &case, number);
        if passed.is_err() && script.stalls {
            // Others may have begun to wait a moment later; they are not to miss this rank before their deadlines.
            std::thread::sleep(DEADLINE / 6);
        }
        passed?;
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
    let moment = ["compact-", "direct-", "node-"]
        .iter()
        .fold(script.moment.as_str(), |moment, prefix| moment.trim_start_matches(prefix));
    match moment {
        "dispatch" => script.end(),
        "dispatching" => script.end_within(400),
        "combine" | "combining" => {}
        "half-dispatch" | "half-combining" | "half-combine" | "half-summing" => {
            return last_half(moment, script, ep, expert, stream, case, number);
        }
        _ => return Ok(()),
    }
    let flight = depart(ep, stream, case, number)?;
    if moment.starts_with("dispatch") {
        std::thread::sleep(LIMIT);
    }
    let staging = stream.device().allocate(window_bytes(ep))?;
    let experts = run_expert(expert, stream, &flight.dispatched, case, &staging)?;
    stream.synchronize()?;
    if moment == "combine" {
        script.end();
    }
    script.end_within(400);
    ep.combine(stream, experts, flight.dispatched, flight.uploaded.output())?;
    std::thread::sleep(LIMIT);
    Ok(())
}

/// The victim sends its rows, or offers or pushes its experts', and is gone before it waits, or in the midst of either.
fn last_half(
    moment: &str,
    script: &Script,
    ep: &ExpertParallel,
    expert: &ReferenceExpert,
    stream: &Stream,
    case: &Case,
    number: u64,
) -> Result<(), Error> {
    let uploaded = Uploaded::new(stream.device(), &case.config, &case.input(ep.rank().get(), number));
    let sent = ep.dispatch_send(stream, &uploaded.tokens(&case.config))?;
    if moment == "half-dispatch" {
        stream.synchronize()?;
        script.end();
    }
    let dispatched = ep.dispatch_recv(stream, sent)?;
    let staging = stream.device().allocate(window_bytes(ep))?;
    let experts = run_expert(expert, stream, &dispatched, case, &staging)?;
    if moment == "half-combining" {
        stream.synchronize()?;
        script.end_within(400);
    }
    let sent = ep.combine_send(stream, experts, dispatched)?;
    stream.synchronize()?;
    match moment {
        "half-combine" => script.end(),
        "half-summing" => script.end_within(400),
        _ => std::thread::sleep(LIMIT),
    }
    ep.combine_recv(stream, sent, uploaded.output())?;
    std::thread::sleep(LIMIT);
    Ok(())
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

/// What becomes of the victim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    Killed,
    Stalled,
}

/// Runs the scripts of the test with this name: moment, victim, seed. In a rank's process, plays its part.
pub fn survive_all(test: &str, source: CombineSource, end: End, scripts: &[(&str, u32, u64)]) {
    if let Some(role) = role() {
        return play(&role);
    }
    for (moment, victim, seed) in scripts {
        survive(test, moment, *victim, *seed, source, end == End::Stalled);
    }
}

/// Runs one script, and checks what the survivors said.
fn survive(test: &str, moment: &str, victim: u32, seed: u64, source: CombineSource, stalls: bool) {
    let file = PathBuf::from(env!("CARGO_TARGET_TMPDIR"))
        .join(format!("ep-{moment}-{victim}-{seed}-{source}-{stalls}-{}", std::process::id()));
    let _ = std::fs::remove_file(&file);
    let script = Script { moment: moment.to_owned(), victim, seed, stalls, source, file: file.clone() };
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
    let context = format!("{moment} of rank {victim}, seed {seed}, stalls {stalls}, {source}");
    let gone = said(&outcomes[victim as usize].output, "gone");
    let (gone, _) = gone.unwrap_or_else(|| panic!("{context}: {}", outcomes[victim as usize].output));
    for outcome in outcomes.iter().filter(|outcome| outcome.rank != victim) {
        let context = format!("{context}, rank {}: {}", outcome.rank, outcome.output);
        assert!(outcome.status.success(), "{:?} {context}", outcome.status);
        let (failed, text) = said(&outcome.output, "failed").unwrap_or_else(|| panic!("{context}"));
        // A rank reports another as missing only once it waits for it.
        let (joining, _) = said(&outcome.output, "joining").unwrap();
        let took = failed.saturating_sub(gone.max(joining));
        assert!(took < MOST, "{took:?} {context}");
        let named = [
            format!("rank {victim} died"),
            format!("for rank {victim} in ep "),
            format!("ranks have come; missing {victim}"),
            // It died between offering its heap and the others' mapping it.
            format!("no transport reaches rank {victim}: "),
        ];
        assert!(named.iter().any(|words| text.contains(words)), "{context}");
        if stalls {
            assert!(took > DEADLINE / 2, "the deadline was not waited for: {took:?} {context}");
            // It stopped before it sent its counts, and everybody waits for them.
            let counted = text.contains(&format!("for rank {victim} in ep count"));
            assert_eq!(counted, moment == "compact-dispatch", "{context}");
            // Its rows have come, and its experts' have not.
            let combined = text.contains(&format!("for rank {victim} in ep combine"));
            let plain = moment.trim_start_matches("direct-").trim_start_matches("node-");
            let before = ["combine", "compact-combine", "half-dispatch"].contains(&plain);
            assert_eq!(combined, before, "{context}");
        }
        println!("{moment} {victim} {seed}: rank {} after {took:?}: {text}", outcome.rank);
    }
}

/// Threads: rank 1 fails in one way or another in its third round. What every rank says; the others name it.
pub fn failing_thread(
    case: &Case,
    fail: impl Fn(&ExpertParallel, &ReferenceExpert, &Stream) -> Result<(), Error> + Sync,
) -> Vec<String> {
    let config = WorldConfig { operation_deadline: DEADLINE, ..world_config() };
    let start = Instant::now();
    let results = on_ranks(RANKS, 1, &config, |world| {
        let ep = ExpertParallel::new(world, world.group(), case.config.clone())?;
        let expert = ReferenceExpert::new(world, ep.plan(), ep.rank())?;
        let stream = world.device().create_stream()?;
        for number in 0..1000 {
            if world.rank().get() == 1 && number == 3 {
                fail(&ep, &expert, &stream)?;
            }
            round(&ep, &expert, &stream, world, case, number)?;
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

/// Threads: in its third round rank 1 stops at the moment at which `work` calls what it is given, until all others have failed.
/// What every rank says; the others have waited for rank 1, in the operation of this name.
pub fn stalling_thread(
    case: &Case,
    operation: &str,
    work: impl Fn(&ExpertParallel, &ReferenceExpert, &Stream, &dyn Fn()) -> Result<(), Error> + Sync,
) -> Vec<String> {
    stalling_thread_in(&world_config(), case, operation, work)
}

/// The same in worlds of this kind.
pub fn stalling_thread_in(
    config: &WorldConfig,
    case: &Case,
    operation: &str,
    work: impl Fn(&ExpertParallel, &ReferenceExpert, &Stream, &dyn Fn()) -> Result<(), Error> + Sync,
) -> Vec<String> {
    let config = WorldConfig { operation_deadline: DEADLINE, ..config.clone() };
    let (stopped, failed) = (Mutex::new(None), AtomicU32::new(0));
    let stall = || {
        let start = Instant::now();
        *stopped.lock().unwrap() = Some(start);
        while failed.load(Ordering::Acquire) < RANKS - 1 {
            assert!(start.elapsed() < LIMIT, "the others wait for ever");
            std::thread::sleep(Duration::from_millis(1));
        }
    };
    let live = |world: &World, case: &Case| {
        let ep = ExpertParallel::new(world, world.group(), case.config.clone())?;
        let expert = ReferenceExpert::new(world, ep.plan(), ep.rank())?;
        let stream = world.device().create_stream()?;
        for number in 0..1000 {
            if world.rank().get() == 1 && number == 3 {
                work(&ep, &expert, &stream, &stall)?;
            }
            round(&ep, &expert, &stream, world, case, number)?;
        }
        Ok(())
    };
    let results = on_ranks(RANKS, 1, &config, |world| {
        let outcome = live(world, case);
        if world.rank().get() != 1 {
            let took = stopped.lock().unwrap().map_or(Duration::ZERO, |start| start.elapsed());
            failed.fetch_add(1, Ordering::Release);
            assert!((DEADLINE / 2..MOST).contains(&took), "{took:?}");
        }
        outcome
    });
    let texts: Vec<_> = results.iter().map(failure).collect();
    for (rank, text) in texts.iter().enumerate() {
        assert!(rank == 1 || text.contains(&format!("for rank 1 in {operation}")), "{rank}: {text}");
    }
    texts
}
