//! Worlds that all their ranks make, use and leave at once, round after round in one process, give back all that they took. Alone in its
//! process, so that no calls, files and threads of other tests are counted.

use crate::support::counted;

use crate::support::altered::{altered, setup};
use crate::support::engines::{self, exchange};
use crate::support::{Bench, all};
use anabranch_hip::DeviceOrdinal;
use anabranch_shmem::{DEFAULT_ALIGNMENT, Error, HeapMode, SoftwareConfig, World, spawn_threads};
use anabranch_testkit::{Resources, is_alone, test_path};
use counted::{
    EVENTS, GRAPHS, HOST_MEMORY, MAPPED, MEMORY, MODULES, PHYSICAL, RANGES, REPLAYS, STREAMS, count_calls,
    live,
};

const RANKS: u32 = 4;
/// Of each kind of world.
const ROUNDS: u32 = 100;

/// Copies by every route, a team, a barrier in a replayed graph, and a registered buffer.
fn use_world(world: &World) -> Result<(), Error> {
    exchange(world, 1)?;
    let team = world.team(world.group())?;
    let memory = world.allocate(world.group(), 4096, DEFAULT_ALIGNMENT, "rows")?;
    let stream = world.device().create_stream()?;
    stream.begin_capture()?;
    team.barrier(&stream)?;
    let replay = stream.end_capture()?.instantiate()?;
    // SAFETY: the team lives until the stream is synchronised below.
    unsafe { replay.launch(&stream) }?;
    world.synchronize(&stream)?;
    let buffer = world.device().allocate(4096)?;
    // SAFETY: the buffer outlives the registration.
    unsafe { world.register(world.group(), buffer.address(), 64, "buffer") }?.release()?;
    // One member frees by its drop alone.
    if world.rank().get() != 1 {
        drop(memory);
    }
    Ok(())
}

#[test]
#[ignore = "extended"]
fn rounds_of_worlds_give_back_all_that_they_took() {
    if !is_alone(test_path!("rounds_of_worlds_give_back_all_that_they_took")) {
        return;
    }
    let software = SoftwareConfig::default();
    let benches = [
        Bench::with_wave(RANKS, 4),
        Bench::in_mode(RANKS, HeapMode::Flat),
        engines::bench(RANKS, 1, HeapMode::Static, software),
        engines::bench(RANKS, 4, HeapMode::Flat, software),
    ];
    for (number, bench) in benches.iter().enumerate() {
        let runtime = altered(bench, count_calls);
        let once = || all(spawn_threads(RANKS, |rank| setup(bench, &runtime, rank), use_world));
        let free = |ordinal| runtime.device(DeviceOrdinal(ordinal)).unwrap().memory_info().unwrap().0;
        // The first rounds start the machine's threads and load the kernels.
        for _ in 0..5 {
            once();
        }
        let made = MEMORY.made();
        let (before, of_process, memory) = (live(), Resources::at_rest().unwrap(), [0, 1, 2, 3].map(free));
        for _ in 0..ROUNDS {
            once();
        }
        assert_eq!(live(), before, "bench {number}");
        assert_eq!([0, 1, 2, 3].map(free), memory, "bench {number}: bytes of device memory");
        let after = Resources::at_rest().unwrap();
        assert!(after.files <= of_process.files, "bench {number}: {of_process:?} {after:?}");
        assert!(after.threads <= of_process.threads, "bench {number}: {of_process:?} {after:?}");
        // One stream too many would show.
        let stream = runtime.device(DeviceOrdinal(1)).unwrap().create_stream().unwrap();
        assert_ne!(live(), before, "bench {number}");
        drop(stream);
        // The counts are those of rounds: each rank takes memory in each.
        assert!(MEMORY.made() >= made + i64::from(ROUNDS * RANKS), "bench {number}");
    }
    for used in [&HOST_MEMORY, &STREAMS, &EVENTS, &MODULES, &GRAPHS, &REPLAYS, &RANGES, &PHYSICAL, &MAPPED] {
        assert!(used.made() > 0, "{used:?}");
    }
}
