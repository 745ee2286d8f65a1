//! What is made from a world goes later than the world, in any order and from any thread; used, it says that the world was left.

use std::sync::Arc;
use std::thread;

use crate::support::{Bench, all, engines};
use anabranch_bootstrap::Rendezvous;
use anabranch_hip::Stream;
use anabranch_ranks::GroupRank;
use anabranch_shmem::{
    DEFAULT_ALIGNMENT, Error, HeapMode, Registration, Signal, SignalOp, SoftwareConfig, SymmetricMemory,
    Team, World, spawn_threads,
};

/// Runs in a thread of its own, which ends.
fn in_a_thread<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    thread::spawn(work).join().unwrap()
}

/// Memory is given back by whichever thread drops it: there is nothing to say where it belongs, and the place is free again.
#[test]
fn memory_is_given_back_from_any_thread_and_to_its_own_heap() {
    for mode in HeapMode::ALL {
        // Two worlds of one process, each with a heap of its own, whose memory meets in one thread.
        let bench = Bench::in_mode(4, mode);
        let all_but_header = bench.config.heap_bytes - 256;
        let (sender, receiver) = std::sync::mpsc::channel::<Vec<SymmetricMemory>>();
        let dropper = thread::spawn(move || {
            let mut seen = 0;
            for both in receiver {
                seen += both.len();
                drop(both);
            }
            seen
        });
        let worlds = |first: u32, sender: std::sync::mpsc::Sender<Vec<SymmetricMemory>>| {
            let bench = &bench;
            move || {
                all(spawn_threads(
                    2,
                    |rank| bench.setup_on(first + rank.get()),
                    |world: &World| {
                        for round in 0..20u64 {
                            let tag = format!("round {round}");
                            let one = world.allocate(world.group(), 100_000, DEFAULT_ALIGNMENT, &tag)?;
                            let two = world.allocate(world.group(), 5000 * round, DEFAULT_ALIGNMENT, &tag)?;
                            sender.send(vec![two, one]).unwrap();
                        }
                        // Wait for the other thread: what it has not dropped yet is still allocated.
                        while world.heap_usage().live > 0 {
                            anabranch_clock::sleep(std::time::Duration::from_millis(1));
                        }
                        world.barrier(world.group(), "all is dropped")?;
                        // Drops become known with collective calls of the heap: the first may still miss some.
                        let first =
                            world.allocate(world.group(), all_but_header, DEFAULT_ALIGNMENT, "all of it");
                        drop(first);
                        world
                            .allocate(world.group(), all_but_header, DEFAULT_ALIGNMENT, "all again")?
                            .free()?;
                        assert_eq!(world.heap_usage().free, all_but_header);
                        Ok::<_, Error>(())
                    },
                ));
            }
        };
        thread::scope(|scope| {
            scope.spawn(worlds(0, sender.clone()));
            scope.spawn(worlds(2, sender));
        });
        assert_eq!(dropper.join().unwrap(), 2 * 2 * 20 * 2);
    }
}

/// All that can be made from a world, and a stream that the host made.
struct Made {
    team: Team,
    memory: SymmetricMemory,
    registration: Registration,
    stream: Stream,
}

fn make(world: &World, memory_of_host: &anabranch_hip::DeviceBuffer) -> Result<Made, Error> {
    let (team, group) = (world.team(world.group())?, world.group());
    let memory = world.allocate(group, 4096, DEFAULT_ALIGNMENT, "rows")?;
    // SAFETY: the buffer is dropped behind the registration.
    let registration = unsafe { world.register(group, memory_of_host.address(), 64, "buffer") }?;
    let stream = world.device().create_stream()?;
    team.barrier(&stream)?;
    world.synchronize(&stream)?;
    Ok(Made { team, memory, registration, stream })
}

/// Every call that needs the world says that it was left.
fn refused(world: &World, made: &Made, source: &anabranch_hip::DeviceBuffer) {
    let Made { team, memory, stream, .. } = made;
    let (group, peer) = (world.group(), GroupRank::new(0));
    let signal = Signal { memory, offset: 0, value: 1, op: SignalOp::Set };
    // SAFETY: refused before anything moves.
    let (put, get, put_signal, register) = unsafe {
        (
            team.put(stream, memory, 0, source.address(), 8, peer),
            team.get(stream, source.address(), memory, 0, 8, peer),
            team.put_signal(stream, memory, 8, source.address(), 8, signal, peer),
            world.register(group, source.address(), 8, "late").map(drop),
        )
    };
    let results = [
        ("put", put),
        ("get", get),
        ("put_signal", put_signal),
        ("register", register),
        ("signal", team.signal(stream, signal, peer)),
        ("signal_wait", team.signal_wait(stream, memory, 0, 1, peer)),
        ("team barrier", team.barrier(stream)),
        ("check", world.check()),
        ("barrier", world.barrier(group, "late")),
        ("exchange", world.exchange(group, "late", &[]).map(drop)),
        ("allocate", world.allocate(group, 8, DEFAULT_ALIGNMENT, "late").map(drop)),
        ("team", world.team(group).map(drop)),
    ];
    for (call, result) in results {
        match result {
            Err(Error::Left) => {}
            other => panic!("{call}: {other:?}"),
        }
    }
    assert_eq!(Error::Left.to_string(), "the world was left");
}

#[test]
fn dependents_are_dropped_after_the_world_in_any_order_and_thread() {
    let software = SoftwareConfig::default();
    for bench in
        [Bench::new(2), Bench::in_mode(2, HeapMode::Flat), engines::bench(2, 4, HeapMode::Static, software)]
    {
        let device = bench.setup_on(0).unwrap().device;
        let free_before = device.memory_info().unwrap().0;
        for order in 0..4 {
            thread::scope(|scope| {
                for rendezvous in anabranch_bootstrap::threads(2) {
                    let bench = &bench;
                    scope.spawn(move || {
                        let setup = bench.setup(rendezvous.rank()).unwrap();
                        let rendezvous: Arc<dyn Rendezvous> = Arc::new(rendezvous);
                        let buffer = setup.device.allocate(4096).unwrap();
                        let world =
                            World::join(setup.config, setup.device, setup.jit, Arc::clone(&rendezvous))
                                .unwrap();
                        let made = make(&world, &buffer).unwrap();
                        world.leave().unwrap();
                        refused(&world, &made, &buffer);
                        let Made { team, memory, registration, stream } = made;
                        drop(world);
                        in_a_thread(move || match order {
                            0 => drop((team, memory, registration, stream, buffer)),
                            1 => drop((stream, registration, buffer, memory, team)),
                            2 => {
                                // Ending it with the others comes too late, and says so.
                                assert!(matches!(registration.release(), Err(Error::Left)));
                                assert!(matches!(memory.free(), Err(Error::Left)));
                                assert!(matches!(team.barrier(&stream), Err(Error::Left)));
                            }
                            _ => {
                                in_a_thread(move || drop(memory));
                                in_a_thread(move || drop(team));
                                in_a_thread(move || drop((registration, buffer, stream)));
                            }
                        });
                        rendezvous.leave().unwrap();
                    });
                }
            });
        }
        assert_eq!(device.memory_info().unwrap().0, free_before);
    }
}
