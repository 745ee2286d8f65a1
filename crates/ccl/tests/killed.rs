//! Ranks that are killed, stall or fail during collectives: every survivor reports an error that names the rank, in time.
#![expect(
    clippy::disallowed_methods,
    reason = "tests of real threads and processes run on the machine's time"
)]

use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::common::{build_ahead_of, failure, jit, on_ranks, world_config};
use anabranch_ccl::{Algorithm, CclConfig, Choice, Communicator, DataType, Error};
use anabranch_conformance::ccl::{self as conformance, Case, Numbers, Scratch, Subset};
use anabranch_hip::{DeviceOrdinal, with_causes};
use anabranch_hip_host::{HostConfig, HostMachine};
use anabranch_shmem::{World, WorldConfig};
use anabranch_testkit::{Ranks, Role, end, end_behind, meet, role, said, say, test_path};

const RANKS: u32 = 4;
const DEADLINE: Duration = Duration::from_secs(3);
/// The longest time from the loss of a rank to the error of a survivor.
const MOST: Duration = Duration::from_secs(6);
/// Limit of the test; only a hang reaches it.
const LIMIT: Duration = Duration::from_secs(60);
const TYPES: [DataType; 2] = [DataType::F32, DataType::Bf16];

/// When the victim ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Moment {
    /// Around a launch of the other ranks.
    BeforeLaunch,
    /// Within microseconds after a launch.
    AfterLaunch,
    /// During the construction of communicators.
    Making,
    /// At any time.
    Running,
}

const MOMENTS: [(&str, Moment); 4] = [
    ("before", Moment::BeforeLaunch),
    ("after", Moment::AfterLaunch),
    ("making", Moment::Making),
    ("running", Moment::Running),
];

/// The victim, the moment and the kind of its end. The seed varies the moment and the calls.
#[derive(Clone, Debug)]
struct Script {
    moment: Moment,
    victim: u32,
    seed: u64,
    stalls: bool,
    file: PathBuf,
}

impl Script {
    fn read(role: &Role) -> Self {
        let mut words = role.argument.splitn(5, ' ');
        let mut word = || words.next().unwrap();
        let name = word();
        Self {
            moment: MOMENTS.into_iter().find(|(known, _)| *known == name).unwrap().1,
            victim: word().parse().unwrap(),
            seed: word().parse().unwrap(),
            stalls: word().parse().unwrap(),
            file: PathBuf::from(word()),
        }
    }

    fn write(&self) -> String {
        let name = MOMENTS.into_iter().find(|(_, moment)| *moment == self.moment).unwrap().0;
        format!("{name} {} {} {} {}", self.victim, self.seed, self.stalls, self.file.display())
    }

    /// Ends the victim now.
    fn end(&self) {
        say("gone", "");
        end(self.stalls);
    }

    /// Ends the victim at a random time within `most` microseconds.
    fn end_within(&self, most: u64) {
        let pause = Duration::from_micros(Numbers(self.seed).below(most));
        end_behind(pause, self.stalls, || say("gone", ""));
    }
}

fn config() -> CclConfig {
    CclConfig { max_blocks: 2, staging_bytes: 64 << 10, ..CclConfig::default() }
}

/// Runs one rank up to its error. It ends without an error only if the loss was missed.
fn live(role: &Role, script: &Script) -> Result<(), Box<dyn std::error::Error>> {
    let is_victim = role.rank == script.victim;
    let rendezvous = Arc::new(meet(role, &script.file, DEADLINE, || ())?);
    let machine = HostMachine::new(HostConfig {
        devices: role.size,
        workers: NonZeroUsize::new(1),
        ..HostConfig::default()
    })?;
    let device = machine.runtime().device(DeviceOrdinal(role.rank))?;
    let config_of_world =
        WorldConfig { heap_bytes: 16 << 20, operation_deadline: DEADLINE, ..world_config() };
    let world = World::join(config_of_world, device, jit(), rendezvous)?;
    let stream = world.device().create_stream()?;
    if is_victim && script.moment == Moment::Making {
        script.end_within(30_000);
    }
    let mut all = Communicator::new(&world, world.group(), config())?;
    let reversed = Subset::new([3, 2, 1, 0]).group(world.group())?;
    let mut other = Communicator::new(&world, &reversed, config())?;
    let mut scratch_of_all = Scratch::new(&world, &all, 256 << 10)?;
    let mut scratch_of_other = Scratch::new(&world, &other, 256 << 10)?;
    if is_victim && script.moment == Moment::Running {
        script.end_within(100_000);
    }
    let mut numbers = Numbers(script.seed);
    let last = 3 + script.seed % 5;
    let end = Instant::now() + LIMIT;
    for call in 0.. {
        let (case, algorithm) = Case::any(&mut numbers, RANKS, &TYPES, 3000);
        let choice = Choice { algorithm: Some(algorithm), ..Choice::default() };
        let (communicator, scratch) = match call % 2 {
            0 => (&mut all, &mut scratch_of_all),
            _ => (&mut other, &mut scratch_of_other),
        };
        let filled = conformance::fill(communicator, scratch, &case)?;
        let is_last = is_victim && call >= last;
        if is_last && script.moment == Moment::BeforeLaunch {
            script.end();
        }
        let work = conformance::launch(communicator, scratch, &case, choice, &stream)?;
        if is_last && script.moment == Moment::AfterLaunch {
            script.end_within(400);
            std::thread::sleep(LIMIT);
        }
        work.join(LIMIT)?;
        filled.judge(scratch)?.unwrap_or_else(|failure| panic!("call {call}: {failure}"));
        assert!(Instant::now() < end, "the victim lives for ever");
    }
    Ok(())
}

/// Body of a process: runs the rank, prints its outcome, and exits in order.
fn play(role: &Role) {
    let script = Script::read(role);
    let started = Instant::now();
    match live(role, &script) {
        Ok(()) => say("well", ""),
        Err(error) => say("failed", &with_causes(error.as_ref())),
    }
    assert!(started.elapsed() < LIMIT);
}

/// Runs one script, and checks the errors of the survivors.
fn survive(test: &str, moment: Moment, victim: u32, seed: u64, stalls: bool) {
    let file = PathBuf::from(env!("CARGO_TARGET_TMPDIR"))
        .join(format!("ccl-{moment:?}-{victim}-{seed}-{stalls}-{}", std::process::id()));
    let _ = std::fs::remove_file(&file);
    let script = Script { moment, victim, seed, stalls, file: file.clone() };
    // A compiling rank does not check for failures.
    build_ahead_of(&jit(), 1, 2, &TYPES);
    let mut ranks = Ranks::start(test, RANKS, &script.write()).unwrap();
    if stalls {
        // A stalled process must be killed.
        for (rank, process) in ranks.processes().iter_mut().enumerate() {
            if rank != victim as usize {
                process.wait_for("@failed", LIMIT).unwrap();
            }
        }
        ranks.processes()[victim as usize].kill().unwrap();
    }
    let outcomes = ranks.wait(LIMIT).unwrap();
    let _ = std::fs::remove_file(&file);
    let context = format!("{moment:?} of rank {victim}, seed {seed}, stalls {stalls}");
    let gone = said(&outcomes[victim as usize].output, "gone");
    let (gone, _) = gone.unwrap_or_else(|| panic!("{context}: {outcomes:#?}"));
    for outcome in outcomes.iter().filter(|outcome| outcome.rank != victim) {
        let context = format!("{context}, rank {}: {}", outcome.rank, outcome.output);
        assert!(outcome.status.success(), "{:?} {context}", outcome.status);
        let (failed, text) = said(&outcome.output, "failed").unwrap_or_else(|| panic!("{context}"));
        let took = failed.saturating_sub(gone);
        assert!(took < MOST, "{took:?} {context}");
        let named = [format!("rank {victim} died"), format!("for rank {victim} in ccl ")];
        assert!(named.iter().any(|words| text.contains(words)), "{context}");
        if stalls {
            assert!(took > DEADLINE / 2, "the deadline was not waited for: {took:?} {context}");
        }
        println!("{moment:?} {victim} {seed}: rank {} after {took:?}: {text}", outcome.rank);
    }
}

#[test]
fn killed_around_a_launch() {
    if let Some(role) = role() {
        return play(&role);
    }
    for (moment, victim, seed) in [
        (Moment::BeforeLaunch, 2, 0),
        (Moment::AfterLaunch, 1, 1),
        (Moment::AfterLaunch, 3, 2),
        (Moment::AfterLaunch, 0, 3),
    ] {
        survive(test_path!("killed_around_a_launch"), moment, victim, seed, false);
    }
}

#[test]
fn killed_while_communicators_are_made() {
    if let Some(role) = role() {
        return play(&role);
    }
    for (victim, seed) in [(1, 4), (3, 5)] {
        survive(test_path!("killed_while_communicators_are_made"), Moment::Making, victim, seed, false);
    }
}

#[test]
fn killed_at_any_moment() {
    if let Some(role) = role() {
        return play(&role);
    }
    for seed in 10..14 {
        survive(test_path!("killed_at_any_moment"), Moment::Running, (seed % 4) as u32, seed, false);
    }
}

#[test]
#[ignore = "extended"]
fn stalled_before_a_launch() {
    if let Some(role) = role() {
        return play(&role);
    }
    survive(test_path!("stalled_before_a_launch"), Moment::BeforeLaunch, 2, 6, true);
}

/// Ranks as threads: rank 1 fails in its fourth call, of this algorithm.
fn failing_thread(algorithm: Algorithm, fail: impl Fn() -> Error + Sync) -> Vec<String> {
    let config_of_world = WorldConfig { operation_deadline: DEADLINE, ..world_config() };
    build_ahead_of(&jit(), 4, 2, &TYPES);
    let start = Instant::now();
    let results = on_ranks(RANKS, 4, &config_of_world, &jit(), |world| {
        let stream = world.device().create_stream()?;
        let mut all = Communicator::new(world, world.group(), config())?;
        let mut scratch = Scratch::new(world, &all, 64 << 10)?;
        let collective = if algorithm == Algorithm::Push {
            anabranch_ccl::Collective::AllReduce
        } else {
            anabranch_ccl::Collective::AllGather
        };
        let case = Case::new(collective, DataType::F32, 500);
        let choice = Choice { algorithm: Some(algorithm), ..Choice::default() };
        for call in 0..1000 {
            if world.rank().get() == 1 && call == 3 {
                return Err::<(), _>(fail());
            }
            conformance::run_as(&mut all, &mut scratch, &case, choice, &stream)?.unwrap();
        }
        Ok(())
    });
    assert!(start.elapsed() < MOST, "{:?}", start.elapsed());
    let texts: Vec<_> = results.iter().map(|result| failure(result.as_ref().unwrap_err())).collect();
    for (rank, text) in texts.iter().enumerate() {
        assert!(rank == 1 || text.contains("rank 1 died"), "{rank}: {text}");
    }
    texts
}

#[test]
fn failing_thread_is_named_on_other_ranks() {
    for algorithm in [Algorithm::Packets, Algorithm::Push] {
        let texts = failing_thread(algorithm, || Error::Foreign { what: "an experiment" });
        assert!(texts[1].contains("an experiment belongs to another"), "{texts:?}");
        let texts = failing_thread(algorithm, || panic!("an experiment"));
        assert!(texts[1].contains("rank 1 panicked: an experiment"), "{texts:?}");
    }
}
