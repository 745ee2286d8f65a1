//! Requests that differ, settings that differ, and heaps that are too small: the same error on every rank, naming the odd one.

use std::sync::Arc;

use crate::support::{Bench, all, error_texts};
use anabranch_bootstrap::Rendezvous as _;
use anabranch_hip::DeviceAddress;
use anabranch_ranks::{GlobalRank, GroupRank};
use anabranch_shmem::{DEFAULT_ALIGNMENT, Error, HeapMode, RankError, World, spawn_threads};
use anabranch_transport::{
    Audience, Operation, Origin, PeerInfo, PeerMemory, Reach, Refusal, Region, Scope, Support, Transport,
    TransportKind,
};

#[test]
fn a_differing_request_is_named_on_all_ranks_and_harmless() {
    let bench = Bench::new(3);
    let texts = all(spawn_threads(
        3,
        |rank| bench.setup(rank),
        |world: &World| {
            let bytes = if world.rank().get() == 2 { 2048 } else { 1024 };
            let one = world.allocate(world.group(), bytes, DEFAULT_ALIGNMENT, "rows").unwrap_err();
            let tag = if world.rank().get() == 0 { "flags" } else { "rows" };
            // The tag is part of the step, so that ranks in different calls see where the others are.
            let two = world.allocate(world.group(), 64, DEFAULT_ALIGNMENT, tag).unwrap_err();
            let alignment = if world.rank().get() == 1 { 3 } else { 256 };
            let three = world.allocate(world.group(), 64, alignment, "odd").unwrap_err();
            let memory = world.allocate(world.group(), 64, DEFAULT_ALIGNMENT, "after all")?;
            Ok::<_, Error>((one.to_string(), two.to_string(), three.to_string(), memory.offset()))
        },
    ));
    for (rank, (one, two, three, offset)) in texts.iter().enumerate() {
        assert_eq!(one, "allocate (rows): bytes differs: rank 2 has 2048, rank 0 has 1024");
        assert!(two.contains("allocate (flags)") && two.contains("allocate (rows)"), "{two}");
        let own = rank == 1;
        assert_eq!(three.starts_with("allocate (odd) failed on rank 1: "), !own, "{three}");
        assert!(three.contains("alignment 3; allowed: a power of two up to 4096"), "{three}");
        assert_eq!(*offset, texts[0].3);
    }
}

#[test]
fn exhaustion_reports_the_missing_bytes_and_dropped_memory_is_reused() {
    for mode in HeapMode::ALL {
        let bench = Bench::in_mode(2, mode);
        let heap = bench.config.heap_bytes;
        all(spawn_threads(
            2,
            |rank| bench.setup(rank),
            |world: &World| {
                let all_but_header = heap - 256;
                let big = world.allocate(world.group(), all_but_header - 4096, DEFAULT_ALIGNMENT, "big")?;
                let text =
                    world.allocate(world.group(), 8000, DEFAULT_ALIGNMENT, "more").unwrap_err().to_string();
                assert!(text.contains("cannot hold 8192 bytes (alignment 256, more)"), "{text}");
                assert!(
                    text.contains("has 4096 of 4096 free bytes, so 4096 are missing; raise heap.bytes"),
                    "{text}"
                );
                // Only one rank drops: the place stays taken, on both.
                let (kept, dropped) =
                    if world.rank().get() == 0 { (Some(big), None) } else { (None, Some(big)) };
                drop(dropped);
                assert!(world.allocate(world.group(), 8000, DEFAULT_ALIGNMENT, "still").is_err());
                drop(kept);
                // The first round of this call tells of the last drop, the second finds the place.
                let again = world.allocate(world.group(), all_but_header, DEFAULT_ALIGNMENT, "all of it")?;
                again.free()?;
                assert_eq!(world.heap_usage().free, all_but_header);
                assert_eq!(world.heap_usage().live, 0);
                let empty = world.allocate(world.group(), 0, DEFAULT_ALIGNMENT, "empty")?;
                assert_eq!(empty.bytes(), 0);
                Ok::<_, Error>(())
            },
        ));
    }
}

#[test]
fn groups_share_the_heap_without_meeting() {
    let bench = Bench::new(4);
    all(spawn_threads(
        4,
        |rank| bench.setup(rank),
        |world: &World| {
            let half = world.rank().get() / 2;
            let group = world.group().split_strided(GroupRank::new(half * 2), 1, 2)?;
            let mut mine = Vec::new();
            for round in 0..=half {
                mine.push(world.allocate(
                    &group,
                    1000 * u64::from(half + 1),
                    DEFAULT_ALIGNMENT,
                    &format!("pair {round}"),
                )?);
            }
            let common = world.allocate(world.group(), 100, DEFAULT_ALIGNMENT, "common")?;
            assert!(mine.iter().all(|one| one.offset() + one.bytes() <= common.offset()));
            let stranger = world.group().split_strided(GroupRank::new((1 - half) * 2), 1, 2)?;
            let refused = world.allocate(&stranger, 1, DEFAULT_ALIGNMENT, "stranger").unwrap_err();
            assert!(matches!(refused, Error::NotAMember { .. }), "{refused}");
            Ok::<_, Error>(())
        },
    ));
}

#[test]
fn different_settings_are_named() {
    let bench = Bench::new(3);
    let differing = |rank: GlobalRank| {
        let mut setup = bench.setup(rank)?;
        if rank.get() == 1 {
            setup.config.heap_bytes *= 2;
        }
        Ok(setup)
    };
    let results = spawn_threads(3, differing, |_: &World| Ok::<_, Error>(()));
    for text in error_texts(results) {
        assert_eq!(text, "join: heap.bytes differs: rank 1 has 8388608, rank 0 has 4194304");
    }
    let nonsense = |rank: GlobalRank| {
        let mut setup = bench.setup(rank)?;
        if rank.get() == 2 {
            setup.config.heap_bytes = 17;
        }
        Ok(setup)
    };
    let texts = error_texts(spawn_threads(3, nonsense, |_: &World| Ok::<_, Error>(())));
    assert_eq!(texts[2], "heap.bytes = 17: 0 (chosen), or at least 1048576 (1 MiB) expected");
    assert_eq!(texts[0], format!("join failed on rank 2: {}", texts[2]));
}

/// With as much memory in use on one rank as leaves 9 MiB.
#[test]
fn chosen_heap_is_that_of_the_fullest_device() {
    for mode in HeapMode::ALL {
        let mut bench = Bench::in_mode(3, mode);
        bench.config.heap_bytes = 0;
        let used = std::sync::Mutex::new(None);
        let setup = |rank: GlobalRank| {
            let setup = bench.setup(rank)?;
            if rank.get() == 1 {
                let free = setup.device.memory_info()?.0;
                *used.lock().unwrap() = Some(setup.device.allocate(free - (9 << 20))?);
            }
            Ok(setup)
        };
        let sizes = all(spawn_threads(3, setup, |world: &World| {
            let memory = world.allocate(world.group(), 1 << 20, DEFAULT_ALIGNMENT, "a quarter")?;
            drop(memory);
            Ok::<_, Error>((world.config().heap_bytes, world.heap_usage().heap_bytes))
        }));
        assert_eq!(sizes, [(4 << 20, 4 << 20); 3], "{mode}");
    }
}

#[test]
fn a_transport_that_the_machine_lacks_is_named_with_what_it_lacks() {
    let mut bench = Bench::new(2);
    bench.config.transports = vec![TransportKind::Rdma];
    let texts = error_texts(spawn_threads(2, |rank| bench.setup(rank), |_: &World| Ok::<_, Error>(())));
    assert!(texts.iter().all(|text| text.contains("cannot be offered over rdma")), "{texts:?}");
    bench.config.transports = vec![TransportKind::Rdma, TransportKind::P2p];
    let routes = all(spawn_threads(
        2,
        |rank| bench.setup(rank),
        |world: &World| Ok::<_, Error>(world.routes().iter().map(ToString::to_string).collect::<Vec<_>>()),
    ));
    assert!(routes[0][0].starts_with("rank 0: p2p (own memory"), "{routes:?}");
    assert!(routes[0][1].starts_with("rank 1: p2p (same process, plain address"), "{routes:?}");
    // The library of verbs, or a NIC for it.
    let lacks = ["libibverbs.so.1", "no NIC can be used"];
    assert!(lacks.iter().any(|words| routes[0][1].contains(words)), "{routes:?}");
}

#[test]
fn registered_buffers_are_reachable_and_checked() {
    let bench = Bench::new(3);
    all(spawn_threads(
        3,
        |rank| bench.setup(rank),
        |world: &World| {
            let mut buffer = world.device().allocate(8192)?;
            buffer.copy_from_host(1000, &world.rank().get().to_le_bytes())?;
            let address = buffer.address().offset(1000);
            // SAFETY: the buffer outlives the registration, which ends with `release` on all.
            let registration = unsafe { world.register(world.group(), address, 64, "tokens") }?;
            for peer in world.group().ranks() {
                let mut word = [0; 4];
                // SAFETY: registered with 64 bytes, and alive until the release below.
                unsafe { world.device().read_memory(registration.peer_address(peer).unwrap(), &mut word) }?;
                assert_eq!(u32::from_le_bytes(word), peer.get());
            }
            // SAFETY: as above.
            let twice = unsafe { world.register(world.group(), address, 64, "tokens") }?;
            registration.release()?;
            twice.release()?;
            let bytes = if world.rank().get() == 0 { 9000 } else { 64 };
            // SAFETY: refused before anything is used.
            let outside =
                unsafe { world.register(world.group(), address, bytes, "outside") }.unwrap_err().to_string();
            assert!(outside.contains("9000 bytes at"), "{outside}");
            // SAFETY: refused before anything is used.
            let nowhere =
                unsafe { world.register(world.group(), DeviceAddress(64), 8, "nowhere") }.unwrap_err();
            assert!(matches!(nowhere, Error::Transport(_)), "{nowhere}");
            Ok::<_, Error>(())
        },
    ));
}

#[test]
fn a_failing_or_panicking_rank_is_named_by_the_others() {
    let bench = Bench::new(3);
    let results = spawn_threads(
        3,
        |rank| bench.setup(rank),
        |world: &World| {
            assert!(world.rank().get() != 1, "rank 1 has a bug");
            let team = world.team(world.group())?;
            let stream = world.device().create_stream()?;
            team.barrier(&stream)?;
            world.synchronize(&stream)
        },
    );
    assert!(matches!(&results[1], Err(RankError::Panicked { message, .. }) if message == "rank 1 has a bug"));
    for index in [0, 2] {
        let Err(RankError::Work { error, .. }) = &results[index] else { panic!("{:?}", results[index]) };
        assert!(error.to_string().contains("rank 1"), "{error}");
    }
}

/// A user's transport that reaches no peer, or claims to and then cannot.
#[derive(Debug)]
struct Brought {
    claims: bool,
}

impl Transport for Brought {
    fn kind(&self) -> TransportKind {
        TransportKind::Rdma
    }

    fn support(&self, _: Operation, _: Scope) -> Support {
        Support::Unsupported
    }

    fn reaches(&self, peer: &PeerInfo) -> Result<Reach, Refusal> {
        if self.claims {
            Ok(Reach { origin: Origin::Ipc, reason: "so it says".to_owned() })
        } else {
            Err(Refusal::OtherHost { local: peer.host.clone(), peer: peer.host.clone() })
        }
    }

    fn export(&self, _: Region, _: Audience) -> Result<Vec<u8>, anabranch_transport::Error> {
        Ok(vec![1])
    }

    fn open(
        &self,
        peer: &PeerInfo,
        _: &[u8],
        _: u64,
    ) -> Result<Box<dyn PeerMemory>, anabranch_transport::Error> {
        Err(anabranch_transport::Error::Offer { peer: peer.rank, kind: self.kind(), problem: "a lie" })
    }

    fn close(&mut self) {}
}

#[test]
fn a_brought_transport_is_asked_in_order_and_its_refusals_are_kept() {
    let mut bench = Bench::new(2);
    bench.config.transports = vec![TransportKind::Rdma, TransportKind::P2p];
    for (claims, words) in
        [(false, "not rdma: the peer is on another host"), (true, "is not one of rdma: a lie")]
    {
        std::thread::scope(|scope| {
            for rendezvous in anabranch_bootstrap::threads(2) {
                let bench = &bench;
                scope.spawn(move || {
                    let setup = bench.setup(rendezvous.rank()).unwrap();
                    let world = World::join_with(
                        setup.config,
                        setup.device,
                        setup.jit,
                        Arc::new(rendezvous),
                        vec![Box::new(Brought { claims })],
                    )
                    .unwrap();
                    let route = &world.routes()[1];
                    assert_eq!(route.kind, TransportKind::P2p);
                    assert!(route.to_string().contains(words), "{route}");
                    world.leave().unwrap();
                });
            }
        });
    }
}
