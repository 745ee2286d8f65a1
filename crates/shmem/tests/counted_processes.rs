//! Worlds of processes, one after the other: each closes the mappings that it opened, and gives back all else.

use crate::support::counted;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use crate::support::altered::{altered, setup};
use crate::support::engines;
use anabranch_bootstrap::Rendezvous;
use anabranch_hip::DeviceOrdinal;
use anabranch_ranks::GlobalRank;
use anabranch_shmem::{Error, HeapMode, SoftwareConfig, World};
use anabranch_testkit::{Ranks, Resources, Role, meet, role, test_path};
use counted::{IPC, MAPPED, PHYSICAL, count_calls, live};

const ROUNDS: u32 = 30;

/// Copies by engines, and a registered buffer, which is mapped while it is one.
fn use_world(world: &World) -> Result<(), Error> {
    engines::exchange(world, 1)?;
    let buffer = world.device().allocate(4096)?;
    // SAFETY: the buffer outlives the registration.
    let registration = unsafe { world.register(world.group(), buffer.address(), 64, "buffer") }?;
    registration.release()
}

/// One rank, which joins one world after the other over one rendezvous.
fn rounds(role: &Role) {
    let (mode, file) = role.argument.split_once(' ').unwrap();
    let mode = HeapMode::ALL.into_iter().find(|one| one.word() == mode).unwrap();
    let bench = engines::bench(role.size, 4, mode, SoftwareConfig::default());
    let runtime = altered(&bench, count_calls);
    let rendezvous: Arc<dyn Rendezvous> =
        Arc::new(meet(role, Path::new(file), Duration::from_secs(30), || ()).unwrap());
    let once = || {
        let setup = setup(&bench, &runtime, GlobalRank::new(role.rank)).unwrap();
        let world = World::join(setup.config, setup.device, setup.jit, Arc::clone(&rendezvous)).unwrap();
        use_world(&world).unwrap();
        world.leave().unwrap();
    };
    let free = || runtime.device(DeviceOrdinal(role.rank)).unwrap().memory_info().unwrap().0;
    // The first rounds start the machine's threads and load the kernels.
    for _ in 0..3 {
        once();
    }
    let (before, of_process, memory) = (live(), Resources::at_rest().unwrap(), free());
    let opened = [IPC.made(), PHYSICAL.made(), MAPPED.made()];
    for _ in 0..ROUNDS {
        once();
    }
    assert_eq!(live(), before);
    assert_eq!(free(), memory, "bytes of device memory");
    let after = Resources::at_rest().unwrap();
    assert!(after.files <= of_process.files, "{of_process:?} {after:?}");
    assert!(after.threads <= of_process.threads, "{of_process:?} {after:?}");
    let each = i64::from(ROUNDS * (role.size - 1));
    let [handles, physical, mapped] =
        [IPC.made() - opened[0], PHYSICAL.made() - opened[1], MAPPED.made() - opened[2]];
    match mode {
        // The heap of each peer, and its buffer.
        HeapMode::Static => assert_eq!((handles, mapped), (2 * each, 0)),
        // Heaps are physical memory, imported from each peer; buffers have handles.
        HeapMode::Flat => assert!(handles == each && physical >= each && mapped >= each),
    }
    rendezvous.leave().unwrap();
    println!("counted {ROUNDS} rounds");
}

#[test]
#[ignore = "extended"]
fn rounds_of_worlds_of_processes_close_every_mapping() {
    if let Some(role) = role() {
        return rounds(&role);
    }
    for mode in HeapMode::ALL {
        let file = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!(
            "counted-{}-{}-address",
            mode.word(),
            std::process::id()
        ));
        let _ = std::fs::remove_file(&file);
        let argument = format!("{} {}", mode.word(), file.display());
        let ranks =
            Ranks::start(test_path!("rounds_of_worlds_of_processes_close_every_mapping"), 3, &argument)
                .unwrap();
        for outcome in ranks.succeed(Duration::from_secs(100)).unwrap() {
            assert!(outcome.output.contains("counted 30 rounds"), "{}", outcome.output);
        }
    }
}
