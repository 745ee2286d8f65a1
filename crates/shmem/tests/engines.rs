//! Worlds whose routes are copy engines: routes and their reasons, kernels that copy by them, and engines that do not go on.

use std::time::Duration;

use crate::support::all;
use crate::support::engines::{bench, exchange};
use anabranch_ranks::GlobalRank;
use anabranch_shmem::{EngineFaults, Error, HeapMode, RankError, SoftwareConfig, World, spawn_threads};
use anabranch_testkit::{Resources, is_alone, test_path};
use anabranch_transport::{Operation, Scope, Support, TransportKind};

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
                    let engines = world.queues_to(GlobalRank::new(peer));
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
        assert!(text.contains("the copy engines to rank ") && text.contains("reports no error"), "{text}");
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
fn worlds_with_engines_leak_nothing() {
    if !is_alone(test_path!("worlds_with_engines_leak_nothing")) {
        return;
    }
    let bench = bench(2, 1, HeapMode::Static, SoftwareConfig::default());
    let once = || {
        all(spawn_threads(2, |rank| bench.setup(rank), |world: &World| exchange(world, 1)));
    };
    for _ in 0..5 {
        once();
    }
    let before = Resources::at_rest().unwrap();
    for _ in 0..100 {
        once();
    }
    let after = Resources::at_rest().unwrap();
    // Other tests of this binary run at the same time; 100 leaks of 4 queues each would show.
    assert!(after.files < before.files + 100, "{before:?} {after:?}");
    assert!(after.mappings < before.mappings + 200, "{before:?} {after:?}");
}
