//! Worlds whose routes are copy engines: routes and their reasons, kernels that copy by them, and engines that do not go on.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

mod support;

use std::time::Duration;

use anabranch_hip_jit::DevicePointer;
use anabranch_ranks::GlobalRank;
use anabranch_shmem::device_api::conformance::{COPY, CopyArgs, CopyCase};
use anabranch_shmem::{
    DEFAULT_ALIGNMENT, EngineFaults, Error, HeapMode, RankError, SdmaConfig, SoftwareConfig, World,
    spawn_threads,
};
use anabranch_testkit::Resources;
use anabranch_transport::{Operation, Scope, Support, TransportKind};
use support::{Bench, all};

const ENTRY: &str = "anabranch_shmem_conformance_copy";
const BYTES: u64 = 5000;

fn bench(ranks: u32, wave: u32, mode: HeapMode, software: SoftwareConfig) -> Bench {
    let mut bench = Bench::with_wave(ranks, wave).with_mode(mode);
    bench.config.transports = vec![TransportKind::Sdma, TransportKind::P2p];
    bench.config.sdma =
        SdmaConfig { queues: 2, ring_bytes: 512, most_copy_bytes: 1024, software, ..SdmaConfig::default() };
    bench
}

/// Every rank puts to every rank by its engines, `rounds` times, and reads what came.
fn exchange(world: &World, rounds: u64) -> Result<(), Error> {
    let (me, size) = (u64::from(world.rank().get()), u64::from(world.size()));
    let team = world.team(world.group())?;
    let mut out = world.allocate(world.group(), BYTES, DEFAULT_ALIGNMENT, "out")?;
    let incoming = world.allocate(world.group(), size * BYTES, DEFAULT_ALIGNMENT, "in")?;
    let words = world.allocate(world.group(), size * 8, DEFAULT_ALIGNMENT, "words")?;
    let case = |peer: u64| CopyCase {
        remote: incoming.offset() + me * BYTES,
        local: out.offset(),
        bytes: BYTES,
        signal: words.offset() + me * 8,
        value: 1,
        peer: peer as u32,
        signal_op: 1,
    };
    let cases: Vec<CopyCase> = (0..size).map(case).collect();
    let mut buffer = world.device().allocate(size_of_val(&cases[..]))?;
    buffer.copy_from_host(0, bytemuck::cast_slice(&cases))?;
    let statuses = world.device().allocate(cases.len() * 4)?;
    let stream = world.device().create_stream()?;
    let unit = world.jit().load(world.device(), &world.kernel(&COPY))?;
    let byte = |rank: u64, round: u64, at: u64| (at * 7 + rank * 31 + round * 13) as u8;
    for round in 0..rounds {
        let mine: Vec<u8> = (0..BYTES).map(|at| byte(me, round, at)).collect();
        out.write(0, &mine)?;
        let arguments = CopyArgs {
            team: team.view(),
            cases: DevicePointer::new(buffer.address()),
            statuses: DevicePointer::new(statuses.address()),
            case_count: cases.len() as u32,
            // put_signal_nbi, and a quiet behind all.
            kind: 5,
            scope: 1,
            operation: 0x1001,
        };
        // SAFETY: the kernel's struct; what it names lives until the stream is synchronised.
        unsafe {
            unit.kernel(ENTRY)?.launch(2, 2 * world.device().wave_size(), 0, &stream, &arguments)?;
        }
        team.barrier(&stream)?;
        world.synchronize(&stream)?;
        let mut seen = vec![0; (size * BYTES) as usize];
        incoming.read(0, &mut seen)?;
        for (from, seen) in seen.chunks(BYTES as usize).enumerate() {
            let sent: Vec<u8> = (0..BYTES).map(|at| byte(from as u64, round, at)).collect();
            assert_eq!(seen, sent, "round {round}, from {from} to {me}");
        }
        let mut counts = vec![0; (size * 8) as usize];
        words.read(0, &mut counts)?;
        assert!(counts.chunks(8).all(|count| count == (round + 1).to_le_bytes()), "{counts:?}");
        // Nobody overwrites what a peer has not read.
        team.barrier(&stream)?;
        world.synchronize(&stream)?;
    }
    Ok(())
}

#[test]
fn every_rank_is_reached_by_its_own_engines() {
    for (ranks, wave, mode) in [
        (2, 4, HeapMode::Static),
        (4, 32, HeapMode::Static),
        (3, 1, HeapMode::Flat),
        (16, 4, HeapMode::Static),
    ] {
        let bench = bench(ranks, wave, mode, SoftwareConfig::default());
        all(spawn_threads(
            ranks,
            |rank| bench.setup(rank),
            |world: &World| {
                for (route, peer) in world.routes().iter().zip(0..) {
                    assert_eq!(route.kind, TransportKind::Sdma, "{route}");
                    assert!(
                        route.reason.contains("2 queues of sdma 4.4.2 packets, written by kernels"),
                        "{route}"
                    );
                    let engines = world.engines(GlobalRank::new(peer));
                    assert_eq!(engines.len(), 2);
                    assert!(engines.iter().all(|(_, stopped)| stopped.is_none()), "{engines:?}");
                    let put = world.support(GlobalRank::new(peer), Operation::Put, Scope::Wave);
                    assert_eq!(put, Support::Implemented);
                }
                exchange(world, 10)
            },
        ));
    }
}

#[test]
fn engines_that_do_not_go_on_are_named_within_the_deadline() {
    // After the probe's copy and fence they read two packets more.
    let faults = EngineFaults { stalls_after: Some(4), ..EngineFaults::default() };
    let mut bench = bench(2, 4, HeapMode::Static, SoftwareConfig { faults, ..SoftwareConfig::default() });
    bench.config.operation_deadline = Duration::from_millis(500);
    let results = spawn_threads(2, |rank| bench.setup(rank), |world: &World| exchange(world, 3));
    for result in results {
        let Err(RankError::Work { error, .. }) = result else { panic!("{result:?}") };
        let text = error.to_string();
        assert!(text.contains("the copy engines to rank ") && text.contains("says nothing"), "{text}");
    }
}

#[test]
fn a_doorbell_that_an_engine_does_not_hear_is_made_up_for_by_the_next_or_named() {
    let faults = EngineFaults { lost_doorbell: Some(2), ..EngineFaults::default() };
    let mut bench = bench(2, 4, HeapMode::Static, SoftwareConfig { faults, ..SoftwareConfig::default() });
    bench.config.operation_deadline = Duration::from_millis(500);
    for result in spawn_threads(2, |rank| bench.setup(rank), |world: &World| exchange(world, 3)) {
        match result {
            // What came was right: `exchange` compares it.
            Ok(()) => {}
            Err(RankError::Work { error, .. }) => {
                assert!(error.to_string().contains("the copy engines to rank "), "{error}");
            }
            Err(other) => panic!("{other:?}"),
        }
    }
}

#[test]
fn an_engine_that_is_dead_from_the_start_is_no_route() {
    let faults = EngineFaults { stalls_after: Some(0), ..EngineFaults::default() };
    let mut bench = bench(2, 1, HeapMode::Static, SoftwareConfig { faults, ..SoftwareConfig::default() });
    bench.config.rendezvous_deadline = Duration::from_secs(4);
    let routes = all(spawn_threads(
        2,
        |rank| bench.setup(rank),
        |world: &World| Ok::<_, Error>(world.routes().to_vec()),
    ));
    for route in routes.iter().flatten() {
        assert_eq!(route.kind, TransportKind::P2p);
        let text = route.to_string();
        assert!(text.contains("not sdma") && text.contains("did not do a copy and a fence"), "{text}");
    }
}

#[test]
fn worlds_with_engines_leave_nothing_behind() {
    let bench = bench(2, 1, HeapMode::Static, SoftwareConfig::default());
    let once = || {
        all(spawn_threads(2, |rank| bench.setup(rank), |world: &World| exchange(world, 1)));
    };
    for _ in 0..5 {
        once();
    }
    let before = Resources::now().unwrap();
    for _ in 0..100 {
        once();
    }
    let after = Resources::now().unwrap();
    // Other tests of this binary run at the same time; 100 leaks of 4 queues each would show.
    assert!(after.files < before.files + 100, "{before:?} {after:?}");
    assert!(after.mappings < before.mappings + 200, "{before:?} {after:?}");
}
