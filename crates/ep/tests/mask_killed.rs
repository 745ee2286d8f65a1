//! Processes that are killed or stopped under a plan that masks: the others go on without them, and their results are right bit
//! by bit. What becomes of them without a mask is in `killed.rs`.
#![expect(
    clippy::disallowed_methods,
    reason = "tests of real threads and processes run on the machine's time"
)]

use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use crate::common::{Numbers, jit, world_config};
use crate::mask_common::{LIMIT, Rank, masking, others};
use anabranch_ep::{CombineSource, Error, MaskCause};
use anabranch_hip::{DeviceOrdinal, with_causes};
use anabranch_hip_host::{HostConfig, HostMachine};
use anabranch_ranks::GlobalRank;
use anabranch_shmem::{World, WorldConfig};
use anabranch_testkit::{Ranks, Role, end, end_behind, meet, role, test_path};

const RANKS: u32 = 4;
/// Rounds with everybody, and rounds in which somebody is missing.
const WHOLE: u64 = 2;
const MASKED: u64 = 3;

/// What the victim does in its round `WHOLE`.
#[derive(Clone, Debug)]
struct Script {
    moment: String,
    victim: u32,
    seed: u64,
    stops: bool,
    staged: bool,
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
            stops: word().parse().unwrap(),
            staged: word().parse().unwrap(),
            file: PathBuf::from(word()),
        }
    }

    fn write(&self) -> String {
        let Self { moment, victim, seed, stops, staged, file } = self;
        format!("{moment} {victim} {seed} {stops} {staged} {}", file.display())
    }

    /// The end of the victim, now.
    fn end(&self) {
        end(self.stops);
    }

    /// The end of the victim within the next microseconds, whatever it does then.
    fn end_within(&self, most: u32) {
        let pause = Duration::from_micros(u64::from(Numbers(self.seed).below(most)));
        end_behind(pause, self.stops, || ());
    }
}

fn live(role: &Role, script: &Script) -> Result<(), Box<dyn std::error::Error>> {
    let rendezvous = Arc::new(meet(role, &script.file, LIMIT, || ())?);
    let machine = HostMachine::new(HostConfig {
        devices: role.size,
        workers: NonZeroUsize::new(1),
        ..HostConfig::default()
    })?;
    let device = machine.runtime().device(DeviceOrdinal(role.rank))?;
    let config =
        WorldConfig { heap_bytes: 8 << 20, operation_deadline: Duration::from_secs(30), ..world_config() };
    let world = World::join(config, device, jit(), rendezvous)?;
    let mut case = masking(role.size, 1);
    case.staged = script.staged;
    let source = if script.staged { CombineSource::Buffer } else { CombineSource::Window };
    case.config = case.config.combine_source(source);
    let rank = Rank::new(&world, &case)?;
    (0..WHOLE).try_for_each(|number| rank.round(number))?;
    if role.rank == script.victim {
        return Ok(last_round(script, &rank)?);
    }
    for number in WHOLE..WHOLE + MASKED {
        round_with_present_ranks(script, &rank, number)?;
    }
    let masked = rank.masked()?;
    let [one] = masked.as_slice() else { panic!("{masked:?}") };
    assert!(one.rank.get() == script.victim && matches!(one.cause, MaskCause::TimedOut { .. }), "{one}");
    world.check()?;
    if script.victim != 0 {
        // Rank 0 serves the rendezvous.
        let rest = others(&case, &[script.victim]);
        rank.reset(&rest)?;
        rank.round_without(WHOLE + MASKED, &[script.victim])?;
        let members: Vec<_> = rest.into_iter().map(GlobalRank::new).collect();
        world.barrier(&world.group().subset_of_ranks(&members)?, "the survivors' end")?;
    }
    println!("@well {one}");
    // A peer may still read this rank's memory.
    std::thread::sleep(Duration::from_millis(500));
    Ok(())
}

/// A round; compares the rows of the ranks that this rank has not masked.
fn round_with_present_ranks(script: &Script, rank: &Rank<'_>, number: u64) -> Result<(), Error> {
    let missed =
        || -> Result<Vec<u32>, Error> { Ok(rank.masked()?.into_iter().map(|one| one.rank.get()).collect()) };
    let held = rank.dispatch(number)?;
    let before = missed()?;
    if number == WHOLE && ["dispatch", "combine"].contains(&script.moment.as_str()) {
        assert_eq!(before.contains(&script.victim), script.moment == "dispatch", "{before:?}");
    }
    rank.judge_rows(number, &held.1, &before);
    // Another rank's death changes what the combine leaves out, and so it is known only after it.
    rank.combine_any(number, held)
}

fn last_round(script: &Script, rank: &Rank<'_>) -> Result<(), Error> {
    match script.moment.as_str() {
        "dispatch" => script.end(),
        "running" => script.end_within(3000),
        _ => {}
    }
    let held = rank.dispatch(WHOLE)?;
    if script.moment == "combine" {
        script.end();
    }
    rank.combine(WHOLE, held, &[])?;
    std::thread::sleep(LIMIT);
    Ok(())
}

fn play(role: &Role) {
    let script = Script::read(role);
    if let Err(error) = live(role, &script) {
        println!("@failed {}", with_causes(error.as_ref()));
    }
}

fn go_on_without(test: &str, moment: &str, victim: u32, seed: u64, stops: bool, staged: bool) {
    let file = PathBuf::from(env!("CARGO_TARGET_TMPDIR"))
        .join(format!("ep-mask-{moment}-{victim}-{seed}-{stops}-{}", std::process::id()));
    let _ = std::fs::remove_file(&file);
    let script = Script { moment: moment.to_owned(), victim, seed, stops, staged, file: file.clone() };
    let mut ranks = Ranks::start(test, RANKS, &script.write()).unwrap();
    if stops {
        // A stopped process does not end by itself.
        for (rank, process) in ranks.processes().iter_mut().enumerate() {
            if rank != victim as usize {
                process.wait_for("@", LIMIT).unwrap();
            }
        }
        ranks.processes()[victim as usize].kill().unwrap();
    }
    let outcomes = ranks.wait(LIMIT).unwrap();
    let _ = std::fs::remove_file(&file);
    for outcome in outcomes.iter().filter(|outcome| outcome.rank != victim) {
        let context = format!("{script:?}, rank {}: {}", outcome.rank, outcome.output);
        assert!(
            outcome.status.success() && outcome.output.contains("@well"),
            "{:?} {context}",
            outcome.status
        );
    }
}

#[test]
#[ignore = "extended"]
fn killed_process_is_masked() {
    if let Some(role) = role() {
        return play(&role);
    }
    for (moment, victim, seed, staged) in [
        ("dispatch", 2, 0, false),
        ("combine", 1, 0, true),
        ("combine", 0, 0, false),
        ("running", 3, 1, true),
        ("running", 1, 2, false),
    ] {
        let test = test_path!("killed_process_is_masked");
        go_on_without(test, moment, victim, seed, false, staged);
    }
}

#[test]
#[ignore = "extended"]
fn a_stopped_process_is_masked() {
    if let Some(role) = role() {
        return play(&role);
    }
    for (moment, victim, staged) in [("dispatch", 1, true), ("combine", 2, false)] {
        go_on_without(test_path!("a_stopped_process_is_masked"), moment, victim, 0, true, staged);
    }
}
