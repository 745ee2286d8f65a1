//! Worlds whose ranks are processes, and processes with several ranks each; ranks that are killed.
#![expect(
    clippy::disallowed_methods,
    reason = "tests of real threads and processes run on the machine's time"
)]

use crate::support;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::support::Bench;
use crate::support::altered::{altered, setup};
use crate::support::engines;
use anabranch_bootstrap::{Deadline, Rendezvous as _, TcpRendezvous};
use anabranch_hip::HipError;
use anabranch_hip::types::HipMemGenericAllocationHandle;
use anabranch_ranks::{GlobalRank, Group};
use anabranch_shmem::{DEFAULT_ALIGNMENT, Error, HeapMode, SoftwareConfig, World};
use anabranch_testkit::{Ranks, Resources, Role, meet, role, test_path};

const LIMIT: Duration = Duration::from_secs(60);

/// A file by which rank 0 tells where it listens.
fn address_file(test: &str) -> PathBuf {
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR"));
    std::fs::create_dir_all(&folder).unwrap();
    let file = folder.join(format!("{test}-{}-address", std::process::id()));
    let _ = std::fs::remove_file(&file);
    file
}

fn rendezvous(rank: u32, size: u32, file: &Path) -> TcpRendezvous {
    let role = Role { rank, size, argument: String::new() };
    meet(&role, file, Duration::from_secs(30), || ()).unwrap()
}

/// Writes to all peers' memory, meets them, and checks what they wrote.
fn use_world(world: &World) -> Result<(), Error> {
    support::check_flat(world);
    let size = u64::from(world.size());
    let memory = world.allocate(world.group(), size * 8, DEFAULT_ALIGNMENT, "slots")?;
    let team = world.team(world.group())?;
    let stream = world.device().create_stream()?;
    let mut mine = world.device().allocate(8)?;
    for round in 1..50u64 {
        mine.copy_from_host(0, &(round * 100 + u64::from(world.rank().get())).to_le_bytes())?;
        for peer in world.group().ranks() {
            let slot = memory.peer_address(peer).unwrap().offset(u64::from(world.rank().get()) * 8);
            // SAFETY: both live until the stream is synchronised; each rank has a slot of its own.
            unsafe { stream.copy_async(slot, mine.address(), 8) }?;
        }
        team.barrier(&stream)?;
        world.synchronize(&stream)?;
        let mut seen = vec![0; (size * 8) as usize];
        memory.read(0, &mut seen)?;
        for (rank, word) in seen.chunks_exact(8).enumerate() {
            assert_eq!(u64::from_le_bytes(word.try_into().unwrap()), round * 100 + rank as u64);
        }
        world.barrier(world.group(), "next round")?;
    }
    let mut buffer = world.device().allocate(4096)?;
    buffer.copy_from_host(512, &world.rank().get().to_le_bytes())?;
    // SAFETY: the buffer lives until the registration is released on all.
    let registered = unsafe { world.register(world.group(), buffer.address().offset(512), 64, "buffer") }?;
    for peer in world.group().ranks() {
        let mut word = [0; 4];
        // SAFETY: registered with 64 bytes and not released yet.
        unsafe { world.device().read_memory(registered.peer_address(peer).unwrap(), &mut word) }?;
        assert_eq!(u32::from_le_bytes(word), peer.get());
    }
    registered.release()?;
    // SAFETY: the allocation lives longer.
    let part = unsafe { world.register(world.group(), memory.address().offset(8), 8, "part of the heap") }?;
    for peer in world.group().ranks() {
        let mut word = [0; 8];
        // SAFETY: registered with 8 bytes and not released yet.
        unsafe { world.device().read_memory(part.peer_address(peer).unwrap(), &mut word) }?;
        assert_eq!(u64::from_le_bytes(word) % 100, 1);
    }
    part.release()
}

fn join(bench: &Bench, device: u32, rank: u32, size: u32, file: &Path) -> World {
    let setup = bench.setup_on(device).unwrap();
    let rendezvous = rendezvous(rank, size, file);
    World::join(setup.config, setup.device, setup.jit, Arc::new(rendezvous)).unwrap()
}

#[test]
fn processes_form_a_world() {
    if let Some(role) = role() {
        let (mode, file) = heap_mode(&role.argument);
        let bench = Bench::in_mode(role.size, mode);
        let world = join(&bench, role.rank, role.rank, role.size, file);
        use_world(&world).unwrap();
        let peer = (role.rank + 1) % role.size;
        println!("{}", world.routes()[peer as usize]);
        world.leave().unwrap();
        world.rendezvous().leave().unwrap();
        return;
    }
    for (size, mode) in
        [(2, HeapMode::Static), (4, HeapMode::Static), (2, HeapMode::Flat), (5, HeapMode::Flat)]
    {
        let file = address_file(&format!("processes-{mode}-{size}"));
        let argument = format!("{mode} {}", file.display());
        let ranks = Ranks::start(test_path!("processes_form_a_world"), size, &argument).unwrap();
        let outcomes = ranks.succeed(LIMIT).unwrap();
        let words = match mode {
            HeapMode::Static => "rank 1: p2p (same host, IPC handle",
            HeapMode::Flat => "rank 1: p2p (same host, file descriptor mapped at slot 1 of a flat range",
        };
        assert!(outcomes[0].output.contains(words), "{}", outcomes[0].output);
    }
}

#[test]
fn processes_reach_each_other_by_their_engines() {
    if let Some(role) = role() {
        let (mode, file) = heap_mode(&role.argument);
        let bench = engines::bench(role.size, 4, mode, SoftwareConfig::default());
        let world = join(&bench, role.rank, role.rank, role.size, file);
        use_world(&world).unwrap();
        engines::exchange(&world, 10).unwrap();
        println!("{}", world.routes()[((role.rank + 1) % role.size) as usize]);
        world.leave().unwrap();
        world.rendezvous().leave().unwrap();
        return;
    }
    for (size, mode) in [(3, HeapMode::Static), (2, HeapMode::Flat)] {
        let file = address_file(&format!("engines-{mode}-{size}"));
        let argument = format!("{mode} {}", file.display());
        let ranks =
            Ranks::start(test_path!("processes_reach_each_other_by_their_engines"), size, &argument).unwrap();
        let outcomes = ranks.succeed(LIMIT).unwrap();
        assert!(outcomes[0].output.contains("rank 1: sdma (2 queues of"), "{}", outcomes[0].output);
    }
}

/// The mode and the file that an argument names.
fn heap_mode(argument: &str) -> (HeapMode, &Path) {
    let (word, file) = argument.split_once(' ').unwrap();
    let mode = HeapMode::ALL.into_iter().find(|mode| mode.word() == word).unwrap();
    (mode, Path::new(file))
}

/// Two threads of each process are ranks; each process has one machine.
fn mixed_rank(role: &Role) {
    let (mode, file) = heap_mode(&role.argument);
    let bench = Bench::in_mode(2, mode);
    let size = role.size * 2;
    let routes: Vec<String> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..2)
            .map(|device| {
                let bench = &bench;
                scope.spawn(move || {
                    let rank = role.rank * 2 + device;
                    let world = join(bench, device, rank, size, file);
                    use_world(&world).unwrap();
                    let routes =
                        world.routes().iter().map(ToString::to_string).collect::<Vec<_>>().join("\n");
                    world.leave().unwrap();
                    world.rendezvous().leave().unwrap();
                    routes
                })
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    println!("{}", routes[0]);
}

#[test]
fn threads_of_several_processes_form_a_world() {
    if let Some(role) = role() {
        return mixed_rank(&role);
    }
    for (mode, to_the_other) in [(HeapMode::Static, "IPC"), (HeapMode::Flat, "file descriptor")] {
        let file = address_file(&format!("mixed-{mode}"));
        let argument = format!("{mode} {}", file.display());
        let ranks =
            Ranks::start(test_path!("threads_of_several_processes_form_a_world"), 2, &argument).unwrap();
        let outcomes = ranks.succeed(LIMIT).unwrap();
        let output = &outcomes[0].output;
        let across = format!("rank 2: p2p (same host, {to_the_other}");
        for words in ["rank 0: p2p (own memory", "rank 1: p2p (same process", &across] {
            assert!(output.contains(words), "{output}");
        }
    }
}

/// Tries to join with an import that fails on rank 1; prints the error and what is free of the device's memory.
fn join_in_vain(role: &Role) {
    unsafe extern "C" fn refuse(
        _handle: *mut HipMemGenericAllocationHandle,
        _shareable: *mut core::ffi::c_void,
        _kind: core::ffi::c_int,
    ) -> HipError {
        HipError::INVALID_VALUE
    }
    let bench = Bench::in_mode(role.size, HeapMode::Flat);
    let runtime = altered(&bench, |api| {
        if role.rank == 1 {
            api.hipMemImportFromShareableHandle = Some(refuse);
        }
    });
    let setup = setup(&bench, &runtime, GlobalRank::new(role.rank)).unwrap();
    let (before, _) = setup.device.memory_info().unwrap();
    let rendezvous = Arc::new(rendezvous(role.rank, role.size, Path::new(&role.argument)));
    let files = Resources::at_rest().unwrap().files;
    let joined = World::join(setup.config, setup.device.clone(), setup.jit, Arc::clone(&rendezvous) as _);
    println!("failed: {}", joined.unwrap_err());
    assert_eq!(setup.device.memory_info().unwrap().0, before);
    let left = Resources::at_rest().unwrap().files;
    // Rank 0 serves the rendezvous and holds a socket for each rank until that one leaves: none does before all have
    // counted.
    rendezvous.all_gather(&Group::world(role.size).unwrap(), "counted", &[], Deadline::after(LIMIT)).unwrap();
    assert_eq!(left, files, "no socket and no descriptor is left");
    rendezvous.leave().unwrap();
}

#[test]
fn an_import_that_fails_is_named_on_all() {
    if let Some(role) = role() {
        return join_in_vain(&role);
    }
    let file = address_file("import");
    let ranks =
        Ranks::start(test_path!("an_import_that_fails_is_named_on_all"), 3, file.to_str().unwrap()).unwrap();
    let outcomes = ranks.succeed(LIMIT).unwrap();
    let own = "no transport reaches rank 0: p2p: the memory of rank 0 cannot be opened over p2p: its file descriptor \
               cannot be imported: hipMemImportFromShareableHandle: hipErrorInvalidValue";
    for outcome in &outcomes {
        let prefix = if outcome.rank == 1 { "" } else { "map the peers' heaps failed on rank 1: " };
        assert!(outcome.output.contains(&format!("failed: {prefix}{own}")), "{}", outcome.output);
    }
}

/// Meets the others for ever; ends with the error.
fn run_until_it_fails(role: &Role) {
    let (how, rest) = role.argument.split_once(' ').unwrap();
    let (mode, file) = heap_mode(rest);
    let bench = Bench::in_mode(role.size, mode);
    let world = join(&bench, role.rank, role.rank, role.size, file);
    let team = world.team(world.group()).unwrap();
    let stream = world.device().create_stream().unwrap();
    println!("ready");
    let failed = loop {
        let result = match how {
            "device" => team.barrier(&stream).and_then(|()| world.synchronize(&stream)),
            _ => world.barrier(world.group(), "meeting"),
        };
        if let Err(error) = result {
            break (error, Instant::now());
        }
    };
    println!("failed: {}", failed.0);
    drop((team, stream));
    drop(world);
    println!("ended");
}

#[test]
fn survivors_name_a_killed_rank() {
    if let Some(role) = role() {
        return run_until_it_fails(&role);
    }
    // The last rank, one in the middle, and the one that serves the rendezvous.
    let (fixed, flat) = (HeapMode::Static, HeapMode::Flat);
    for (how, victim, mode) in
        [("device", 2, fixed), ("host", 1, fixed), ("device", 0, fixed), ("device", 1, flat)]
    {
        let file = address_file(&format!("killed-{how}-{victim}"));
        let argument = format!("{how} {mode} {}", file.display());
        let mut ranks = Ranks::start(test_path!("survivors_name_a_killed_rank"), 3, &argument).unwrap();
        for process in ranks.processes() {
            process.wait_for("ready", LIMIT).unwrap();
        }
        std::thread::sleep(Duration::from_millis(100));
        let killed = Instant::now();
        ranks.processes()[victim].kill().unwrap();
        let outcomes = ranks.wait(LIMIT).unwrap();
        // The operation deadline is 5 s; the news of a death comes much sooner.
        assert!(killed.elapsed() < Duration::from_secs(6), "{:?}", killed.elapsed());
        for outcome in outcomes.iter().filter(|outcome| outcome.rank as usize != victim) {
            let text = &outcome.output;
            let line = text.lines().find(|line| line.starts_with("failed: ")).unwrap_or_default();
            assert!(line.contains(&format!("rank {victim} died")), "{how} {victim}: {text}");
            assert!(outcome.status.success() && text.contains("ended"), "{text}");
        }
    }
}
