//! Launches behind which no event can be left: the world is left with the call that failed, and soon.

use std::num::NonZeroUsize;
use std::time::Duration;

use crate::support::Bench;
use anabranch_clock::Moment;
use anabranch_hip::{DeviceOrdinal, HipError, Runtime};
use anabranch_hip_host::HostConfig;
use anabranch_ranks::GlobalRank;
use anabranch_shmem::{Error, RankError, RankSetup, World, spawn_threads};
use anabranch_weakmem::{Fault, SeededHost, SeededSchedule};

/// Leaves a launch guard while the `nth` call from now fails.
fn launch_and_fail(machine: &SeededHost, world: &World, nth: u64) -> Result<(), Error> {
    let stream = world.device().create_stream()?;
    let guard = world.launching(&stream)?;
    let calls = machine.run().calls[0];
    machine.add_fault(Fault::FailCall { rank: 0, nth: calls + nth, code: HipError::OUT_OF_MEMORY });
    drop(guard);
    world.leave()
}

/// What a world of one rank ends with, and how long that takes.
fn ended(bench: &Bench, seed: u64, nth: u64) -> (Result<(), RankError<Error>>, Duration) {
    let config =
        HostConfig { devices: 1, wave_width: 4, workers: Some(NonZeroUsize::MIN), ..HostConfig::default() };
    let machine = SeededHost::new(config, &SeededSchedule::new(seed)).unwrap();
    let runtime: Runtime = machine.runtime();
    let setup = |_: GlobalRank| -> Result<RankSetup, Error> {
        let jit = bench.setup_on(0)?.jit;
        let device = runtime.device(DeviceOrdinal(0))?;
        Ok(RankSetup { config: bench.config.clone(), device, jit })
    };
    let shared = machine.clone();
    let mut results = spawn_threads(1, setup, |world: &World| {
        let begun = Moment::now();
        let ended = launch_and_fail(&shared, world, nth);
        Ok::<_, Error>((ended, begun.elapsed()))
    });
    let (ended, took) = results.remove(0).unwrap();
    let ended = ended.map_err(|error| RankError::Work { rank: GlobalRank::new(0), error });
    // SAFETY: the rank's thread has ended; what its world leaked has no name any more.
    unsafe { machine.retire() };
    (ended, took)
}

#[test]
fn a_launch_without_an_event_is_reported_at_once() {
    let bench = Bench::new(1);
    // Asking whether the stream captures, making the event, recording it: each with the choice of the device before it.
    let mut untracked = 0;
    for nth in 0..6 {
        let (ended, took) = ended(&bench, nth, nth);
        assert!(took < Duration::from_millis(500), "call {nth}: {took:?}");
        let Err(RankError::Work { error, .. }) = ended else { panic!("call {nth} was not missed") };
        let Error::Untracked { source } = error else { panic!("call {nth}: {error}") };
        assert_eq!(source.code(), Some(HipError::OUT_OF_MEMORY));
        untracked += 1;
    }
    assert_eq!(untracked, 6);
}
