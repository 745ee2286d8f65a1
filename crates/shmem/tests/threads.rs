//! Worlds whose ranks are threads of this process, on the host runtime.
#![expect(
    clippy::disallowed_methods,
    reason = "tests of real threads and processes run on the machine's time"
)]

use crate::support;

use std::sync::Arc;
use std::time::Duration;

use crate::support::{Bench, all, met};
use anabranch_bootstrap::{Deadline, Rendezvous};
use anabranch_conformance::shmem::{COPY, CopyArgs, CopyCase};
use anabranch_hip::LaunchShape;
use anabranch_hip_jit::DevicePointer;
use anabranch_ranks::GroupRank;
use anabranch_shmem::{DEFAULT_ALIGNMENT, Error, HeapMode, RankError, World, spawn_threads};

#[test]
fn every_rank_gets_the_same_offsets_and_reaches_every_peer() {
    for mode in HeapMode::ALL {
        for size in [1, 2, 3, 5, 8] {
            let bench = Bench::in_mode(size, mode);
            let offsets = all(spawn_threads(
                size,
                |rank| bench.setup(rank),
                |world: &World| {
                    support::check_flat(world);
                    let mut memory = world.allocate(world.group(), 100, DEFAULT_ALIGNMENT, "test")?;
                    let aligned = world.allocate(world.group(), 5000, 4096, "aligned")?;
                    assert!(aligned.address().0.is_multiple_of(4096));
                    let mut zeros = [1; 100];
                    memory.read(0, &mut zeros)?;
                    assert_eq!(zeros, [0; 100]);
                    let word = world.rank().get().to_le_bytes();
                    memory.write(8, &word)?;
                    world.barrier(world.group(), "written")?;
                    for peer in world.group().ranks() {
                        let address = memory.peer_address(peer).unwrap();
                        let mut found = [0; 4];
                        // SAFETY: a live allocation of at least 12 bytes on every member.
                        unsafe { world.device().read_memory(address.offset(8), &mut found) }?;
                        assert_eq!(u32::from_le_bytes(found), peer.get());
                    }
                    world.barrier(world.group(), "read")?;
                    assert!(memory.write(98, &word).is_err());
                    assert_eq!(world.routes().len(), size as usize);
                    Ok::<_, Error>((memory.offset(), aligned.offset()))
                },
            ));
            assert!(offsets.windows(2).all(|pair| pair[0] == pair[1]), "{offsets:?}");
        }
    }
}

#[test]
fn locate_names_the_allocation_of_an_address() {
    for mode in HeapMode::ALL {
        let bench = Bench::in_mode(3, mode);
        all(spawn_threads(
            3,
            |rank| bench.setup(rank),
            |world: &World| {
                let everyone = world.allocate(world.group(), 100, DEFAULT_ALIGNMENT, "everyone")?;
                let found = world.locate(everyone.address().offset(99)).unwrap();
                assert_eq!((found.tag.as_str(), found.offset, found.bytes), ("everyone", 99, 100));
                assert_eq!(found.group, *world.group());
                assert_eq!(world.locate(everyone.address().offset(100)), None, "behind the allocation");
                let next = GroupRank::new((world.rank().get() + 1) % 3);
                assert_eq!(world.locate(everyone.peer_address(next).unwrap()), None, "memory of a peer");
                if world.rank().get() > 0 {
                    let pair = world.group().subset(&[2, 1].map(GroupRank::new)).unwrap();
                    let memory = world.allocate(&pair, 8, DEFAULT_ALIGNMENT, "pair")?;
                    let found = world.locate(memory.address()).unwrap();
                    assert_eq!((found.tag.as_str(), found.group), ("pair", pair));
                }
                let address = everyone.address();
                drop(everyone);
                assert_eq!(world.locate(address), None, "dropped");
                Ok::<_, Error>(())
            },
        ));
    }
}

#[test]
fn the_team_barrier_runs_at_any_size_and_wave_width() {
    for mode in HeapMode::ALL {
        for (size, wave) in [(1, 1), (2, 1), (4, 1), (7, 1), (16, 1), (3, 4), (5, 32), (3, 64)] {
            let bench = Bench::with_wave(size, wave).with_mode(mode);
            all(spawn_threads(
                size,
                |rank| bench.setup(rank),
                |world: &World| {
                    let team = world.team(world.group())?;
                    let stream = world.device().create_stream()?;
                    for _ in 0..100 {
                        team.barrier(&stream)?;
                    }
                    world.synchronize(&stream)
                },
            ));
        }
    }
}

/// Every rank writes its number to all others on its stream, rank 0 late; returns whether everybody's was there afterwards.
fn written_before_read(world: &World, with_barrier: bool) -> Result<bool, Error> {
    let size = u64::from(world.size());
    let memory = world.allocate(world.group(), size * 8, DEFAULT_ALIGNMENT, "slots")?;
    let team = world.team(world.group())?;
    let stream = world.device().create_stream()?;
    let mut mine = world.device().allocate(8)?;
    let seen = world.device().allocate((size * 8) as usize)?;
    let mut complete = true;
    for round in 1..20u64 {
        mine.copy_from_host(0, &round.to_le_bytes())?;
        let late = world.rank().get() == 0;
        if late && with_barrier {
            std::thread::sleep(Duration::from_millis(2));
        }
        if late && !with_barrier {
            // The others read before this rank writes: what a missing barrier allows.
            world.barrier(world.group(), "the others have read")?;
        }
        for peer in world.group().ranks() {
            let slot = memory.peer_address(peer).unwrap().offset(u64::from(world.rank().get()) * 8);
            // SAFETY: both live until the stream is synchronised below; each rank has a slot of its own.
            unsafe { stream.copy_async(slot, mine.address(), 8) }?;
        }
        if with_barrier {
            team.barrier(&stream)?;
        }
        // SAFETY: as above.
        unsafe { stream.copy_async(seen.address(), memory.address(), (size * 8) as usize) }?;
        world.synchronize(&stream)?;
        if !late && !with_barrier {
            world.barrier(world.group(), "the others have read")?;
        }
        let mut words = vec![0; (size * 8) as usize];
        seen.copy_to_host(0, &mut words)?;
        complete &= words.chunks_exact(8).all(|word| word == round.to_le_bytes());
        world.barrier(world.group(), "next round")?;
    }
    Ok(complete)
}

#[test]
fn writes_before_the_barrier_are_seen_after_it() {
    for mode in HeapMode::ALL {
        let bench = Bench::in_mode(4, mode);
        let complete =
            all(spawn_threads(4, |rank| bench.setup(rank), |world| written_before_read(world, true)));
        assert_eq!(complete, [true; 4]);
        // The check can fail: without the barrier rank 0's writes are missing.
        let complete =
            all(spawn_threads(4, |rank| bench.setup(rank), |world| written_before_read(world, false)));
        assert_eq!(complete[1..], [false; 3]);
    }
}

#[test]
fn a_captured_barrier_is_replayed_with_new_epochs() {
    for mode in HeapMode::ALL {
        let bench = Bench::in_mode(3, mode);
        all(spawn_threads(
            3,
            |rank| bench.setup(rank),
            |world: &World| {
                let team = world.team(world.group())?;
                let stream = world.device().create_stream()?;
                team.barrier(&stream)?;
                world.synchronize(&stream)?;
                stream.begin_capture()?;
                team.barrier(&stream)?;
                team.barrier(&stream)?;
                let replay = stream.end_capture()?.instantiate()?;
                for _ in 0..50 {
                    // SAFETY: the team lives until the stream is synchronised below.
                    unsafe { replay.launch(&stream) }?;
                }
                team.barrier(&stream)?;
                world.synchronize(&stream)
            },
        ));
    }
}

#[test]
fn teams_of_overlapping_groups_do_not_meet() {
    for mode in HeapMode::ALL {
        let bench = Bench::in_mode(4, mode);
        all(spawn_threads(
            4,
            |rank| bench.setup(rank),
            |world: &World| {
                let everybody = world.team(world.group())?;
                let parity = world.rank().get() % 2;
                let members: Vec<_> =
                    world.group().members().iter().copied().filter(|m| m.get() % 2 == parity).rev().collect();
                let mine = world.team(&world.group().subset_of_ranks(&members)?)?;
                assert_eq!(mine.group().global(mine.rank()), Some(world.rank()));
                let again = world.team(world.group())?;
                let stream = world.device().create_stream()?;
                for round in 0..30 {
                    everybody.barrier(&stream)?;
                    for _ in 0..=(parity * (round % 3)) {
                        mine.barrier(&stream)?;
                    }
                    again.barrier(&stream)?;
                }
                world.synchronize(&stream)
            },
        ));
    }
}

#[test]
fn two_worlds_live_side_by_side() {
    let bench = Bench::new(4);
    let one = |offset: u32| {
        let bench = &bench;
        spawn_threads(
            2,
            move |rank| bench.setup_on(rank.get() + offset),
            |world: &World| {
                let team = world.team(world.group())?;
                let stream = world.device().create_stream()?;
                for _ in 0..50 {
                    team.barrier(&stream)?;
                }
                world.synchronize(&stream)?;
                if world.rank().get() == 0 {
                    world.poison("an experiment");
                }
                world.check()
            },
        )
    };
    let (first, second) = std::thread::scope(|scope| {
        let first = scope.spawn(|| one(0));
        let second = scope.spawn(|| {
            all(spawn_threads(
                2,
                |rank| bench.setup_on(rank.get() + 2),
                |world: &World| {
                    let team = world.team(world.group())?;
                    let stream = world.device().create_stream()?;
                    for _ in 0..400 {
                        team.barrier(&stream)?;
                        world.synchronize(&stream)?;
                    }
                    Ok::<_, Error>(())
                },
            ))
        });
        (first.join().unwrap(), second.join().unwrap())
    });
    // The failure of one world is not the other's.
    assert_eq!(second.len(), 2);
    for result in first {
        let text = match result.unwrap_err() {
            RankError::Work { error, .. } | RankError::World { error, .. } => error.to_string(),
            other => panic!("{other}"),
        };
        assert!(text.contains("rank 0 gave the world up: an experiment"), "{text}");
    }
}

#[test]
fn a_rendezvous_serves_one_world_after_the_other() {
    for mode in HeapMode::ALL {
        let bench = Bench::in_mode(2, mode);
        std::thread::scope(|scope| {
            for rendezvous in anabranch_bootstrap::threads(2) {
                let bench = &bench;
                scope.spawn(move || {
                    let rendezvous: Arc<dyn Rendezvous> = Arc::new(rendezvous);
                    for _ in 0..3 {
                        let setup = bench.setup(rendezvous.rank()).unwrap();
                        let world =
                            World::join(setup.config, setup.device, setup.jit, Arc::clone(&rendezvous))
                                .unwrap();
                        let team = world.team(world.group()).unwrap();
                        let stream = world.device().create_stream().unwrap();
                        team.barrier(&stream).unwrap();
                        world.leave().unwrap();
                        world.leave().unwrap();
                        // What was made from the world may go later, and says what happened when it is used.
                        assert!(matches!(team.barrier(&stream), Err(Error::Left)));
                        assert!(matches!(world.allocate(world.group(), 1, 256, "late"), Err(Error::Left)));
                    }
                    rendezvous.leave().unwrap();
                });
            }
        });
    }
}

#[test]
fn a_missing_rank_in_a_barrier_is_named() {
    for mode in HeapMode::ALL {
        let mut bench = Bench::in_mode(3, mode);
        bench.config.operation_deadline = Duration::from_millis(300);
        let results = spawn_threads(
            3,
            |rank| bench.setup(rank),
            |world: &World| {
                let team = world.team(world.group())?;
                let stream = world.device().create_stream()?;
                if world.rank().get() == 2 {
                    std::thread::sleep(Duration::from_millis(1500));
                } else {
                    team.barrier(&stream)?;
                }
                let first = world.synchronize(&stream);
                if let Err(error) = &first {
                    // The same cause at every call from then on.
                    assert_eq!(world.check().unwrap_err().to_string(), error.to_string());
                    assert_eq!(team.barrier(&stream).unwrap_err().to_string(), error.to_string());
                }
                first
            },
        );
        for result in &results[..2] {
            let Err(RankError::Work { error, .. }) = result else { panic!("{result:?}") };
            let text = error.to_string();
            assert!(text.contains("for rank 2 in team barrier (arrival), epoch 1"), "{text}");
        }
        assert!(results[2].is_err());
    }
}

/// A kernel of the user, of operation 0x1000, that puts 8 bytes to this rank of the group and signals it.
fn put_and_signal(world: &World, peer: u32) -> Result<(), Error> {
    let team = world.team(world.group())?;
    let memory = world.allocate(world.group(), 4096, DEFAULT_ALIGNMENT, "user")?;
    let (remote, local, signal) = (memory.offset(), memory.offset() + 64, memory.offset() + 512);
    let case = CopyCase { remote, local, bytes: 8, signal, value: 1, peer, signal_op: 0 };
    let mut cases = world.device().allocate(size_of::<CopyCase>())?;
    cases.copy_from_host(0, bytemuck::bytes_of(&case))?;
    let statuses = world.device().allocate(4)?;
    let stream = world.device().create_stream()?;
    let kernel = world.jit().load(world.device(), &world.kernel(COPY.unit()))?.get(COPY)?;
    let shape = LaunchShape { grid_blocks: 1, block_threads: world.device().wave_size(), local_bytes: 0 };
    let arguments = CopyArgs {
        team: team.view(),
        cases: DevicePointer::new(cases.address()),
        statuses: DevicePointer::new(statuses.address()),
        case_count: 1,
        kind: 4,
        scope: 1,
        operation: 0x1000,
    };
    // SAFETY: what the arguments name lives until the stream is synchronised.
    unsafe { kernel.launch(shape, &stream, &arguments)? };
    world.synchronize(&stream)
}

#[test]
fn a_rank_that_does_not_exist_is_reported_as_that_and_not_as_a_wait() {
    let bench = Bench::new(2);
    let results = spawn_threads(
        2,
        |rank| bench.setup(rank),
        |world: &World| {
            let done = put_and_signal(world, if world.rank().get() == 0 { 17 } else { 0 });
            world.rendezvous().wait("both are done", Deadline::after(Duration::from_millis(200))).ok();
            done
        },
    );
    let Err(RankError::Work { error, .. }) = &results[0] else { panic!("{results:?}") };
    let text = error.to_string();
    assert!(text.starts_with("rank 0 found in operation 0x1000 of the user (peer not mapped): "), "{text}");
    assert!(text.contains("names group rank 17, and the group has 2 members, 0 to 1"), "{text}");
    assert!(!text.contains("waited"), "{text}");
}

/// Rank 0 waits for a barrier of a team; rank 1 makes another call, or none.
fn barrier_without_rank_1(elsewhere: impl Fn(&World) + Sync) -> String {
    let mut bench = Bench::new(2);
    bench.config.operation_deadline = Duration::from_secs(1);
    let results = spawn_threads(
        2,
        |rank| bench.setup(rank),
        |world: &World| {
            let (team, stream) = met(world)?;
            if world.rank().get() == 1 {
                elsewhere(world);
                return Ok(());
            }
            team.barrier(&stream)?;
            let outcome = world.synchronize(&stream);
            world.rendezvous().set("rank 0 has its error", b"").unwrap();
            outcome
        },
    );
    let Err(RankError::Work { error, .. }) = &results[0] else { panic!("{results:?}") };
    error.to_string()
}

#[test]
fn an_expired_wait_reports_what_the_missing_rank_is_doing() {
    let wait = |world: &World| {
        let deadline = Deadline::after(Duration::from_secs(20));
        world.rendezvous().wait("rank 0 has its error", deadline).unwrap();
    };
    let text = barrier_without_rank_1(wait);
    assert!(text.contains("for rank 1 in team barrier (arrival)"), "{text}");
    assert!(text.contains("rank 0 was in call 2 of team 1 of ranks 0, 1, barrier;"), "{text}");
    assert!(text.contains("rank 1 waits in no call on the host"), "{text}");
    assert!(
        text.contains("the last that it launched, call 1 of team 1 of ranks 0, 1, barrier, is done"),
        "{text}"
    );
    let text = barrier_without_rank_1(|world| {
        // It ends with the world.
        let _ = world.barrier(world.group(), "checkpoint");
    });
    assert!(text.contains("rank 1 is in \"checkpoint\" on the host"), "{text}");
    // Its work is over: it leaves, and waits for rank 0 there.
    let text = barrier_without_rank_1(|_| ());
    assert!(text.contains("rank 1 is in \"leave\" on the host"), "{text}");
}

/// Rank 0 waits for a signal while a barrier is noted too: the wait is named, and not the barrier.
#[test]
fn a_wait_for_a_signal_is_named_by_its_own_call() {
    let mut bench = Bench::new(2);
    bench.config.operation_deadline = Duration::from_secs(1);
    let results = spawn_threads(
        2,
        |rank| bench.setup(rank),
        |world: &World| {
            let team = world.team(world.group())?;
            let words = world.allocate(world.group(), 64, 64, "words")?;
            let stream = world.device().create_stream()?;
            if world.rank().get() == 1 {
                let deadline = Deadline::after(Duration::from_secs(20));
                world.rendezvous().wait("rank 0 has its error", deadline).unwrap();
                return Ok(());
            }
            team.signal_wait(&stream, &words, 0, 1, GroupRank::new(1))?;
            team.barrier(&stream)?;
            let outcome = world.synchronize(&stream);
            world.rendezvous().set("rank 0 has its error", b"").unwrap();
            outcome
        },
    );
    let Err(RankError::Work { error, .. }) = &results[0] else { panic!("{results:?}") };
    let text = error.to_string();
    assert!(text.contains("rank 0 was in operation 1 of team 1 of ranks 0, 1, signal wait;"), "{text}");
    assert!(text.contains("rank 1 waits in no call on the host; no call of a communicator"), "{text}");
}
