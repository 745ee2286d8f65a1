//! A world joined, used and left many times leaks nothing. Alone in its process, so that no other test's threads and
//! files are counted.

use crate::support::{Bench, all};
use anabranch_shmem::{DEFAULT_ALIGNMENT, Error, HeapMode, World, spawn_threads};
use anabranch_testkit::{Resources, is_alone, test_path};

fn once(bench: &Bench) {
    all(spawn_threads(
        2,
        |rank| bench.setup(rank),
        |world: &World| {
            let team = world.team(world.group())?;
            let memory = world.allocate(world.group(), 10_000, DEFAULT_ALIGNMENT, "some")?;
            let stream = world.device().create_stream()?;
            team.barrier(&stream)?;
            world.synchronize(&stream)?;
            drop(memory);
            Ok::<_, Error>(())
        },
    ));
}

#[test]
fn joining_and_leaving_leaks_nothing() {
    if !is_alone(test_path!("joining_and_leaving_leaks_nothing")) {
        return;
    }
    for mode in HeapMode::ALL {
        let bench = Bench::in_mode(2, mode);
        // The first rounds start the machine's threads and load the kernel.
        for _ in 0..5 {
            once(&bench);
        }
        let before = Resources::at_rest().unwrap();
        for _ in 0..100 {
            once(&bench);
        }
        let after = Resources::at_rest().unwrap();
        assert!(after.files <= before.files, "{before:?} {after:?}");
        assert!(after.threads <= before.threads, "{before:?} {after:?}");
        // Stacks of ended threads are kept for the next ones, so a few mappings come and go; 100 leaks would show.
        assert!(after.mappings < before.mappings + 30, "{before:?} {after:?}");
        assert!(after.address_space_kib < before.address_space_kib + (200 << 10), "{before:?} {after:?}");
    }
}
