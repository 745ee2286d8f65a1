//! What is in flight when a team is dropped, a world left, or a join broken off.
#![expect(
    clippy::disallowed_methods,
    reason = "tests of real threads and processes run on the machine's time"
)]

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::support::{Bench, all};
use anabranch_bootstrap::Rendezvous;
use anabranch_hip::{DeviceBuffer, Stream};
use anabranch_ranks::GlobalRank;
use anabranch_shmem::{DEFAULT_ALIGNMENT, Error, World, spawn_threads};
use anabranch_transport::{
    Audience, Operation, PeerInfo, PeerMemory, Reach, Refusal, Region, Scope, Support, Transport,
    TransportKind,
};

/// A stream that stands still until it is let go.
struct Gate {
    stream: Stream,
    word: DeviceBuffer,
}

impl Gate {
    fn new(world: &World) -> Result<Self, Error> {
        let mut word = world.device().allocate(8)?;
        word.fill(0)?;
        let stream = world.device().create_stream()?;
        // SAFETY: the word lives until the stream has passed: every test lets go.
        unsafe { stream.wait_value64_at_least(word.address(), 1) }?;
        Ok(Self { stream, word })
    }

    fn let_go(&mut self) {
        self.word.copy_from_host(0, &1u64.to_le_bytes()).unwrap();
    }
}

#[test]
fn a_team_dropped_with_its_barrier_in_flight_keeps_its_memory() {
    let bench = Bench::new(2);
    all(spawn_threads(
        2,
        |rank| bench.setup(rank),
        |world: &World| {
            let place = || -> Result<u64, Error> {
                let memory = world.allocate(world.group(), 16, DEFAULT_ALIGNMENT, "place")?;
                let offset = memory.offset();
                memory.free()?;
                Ok(offset)
            };
            let flags = place()?;
            let team = world.team(world.group())?;
            assert_ne!(place()?, flags, "the team's flags lie there");
            let table = team.view().peer_bases;
            let mut gate = Gate::new(world)?;
            team.barrier(&gate.stream)?;
            drop(team);
            // Nothing of it is used again while the barrier has not run. Drops are told in one call, and count in the next.
            place()?;
            assert_ne!(place()?, flags);
            let other = world.team(world.group())?;
            assert_ne!(other.view().peer_bases.address(), table.address());
            world.barrier(world.group(), "all have looked")?;
            gate.let_go();
            world.synchronize(&gate.stream)?;
            world.barrier(world.group(), "all are through")?;
            place()?;
            assert_eq!(place()?, flags);
            assert_eq!(world.team(world.group())?.view().peer_bases.address(), table.address());
            Ok::<_, Error>(())
        },
    ));
}

#[test]
fn barriers_of_one_team_on_several_streams_keep_their_order() {
    let bench = Bench::new(2);
    all(spawn_threads(
        2,
        |rank| bench.setup(rank),
        |world: &World| {
            let team = world.team(world.group())?;
            let mut gate = Gate::new(world)?;
            let second = world.device().create_stream()?;
            team.barrier(&gate.stream)?;
            team.barrier(&second)?;
            assert!(matches!(
                world.synchronize_within(&second, Duration::from_millis(50)),
                Err(Error::StreamBusy { .. })
            ));
            gate.let_go();
            world.synchronize(&second)?;
            assert!(gate.stream.is_idle()?);
            Ok::<_, Error>(())
        },
    ));
}

/// Neither `leave` nor the end of a world hangs on a stream that never ends, and the other rank hears why at once.
#[test]
fn leaving_with_work_that_does_not_end_is_an_error_on_all_ranks() {
    let mut bench = Bench::new(2);
    bench.config.operation_deadline = Duration::from_millis(200);
    std::thread::scope(|scope| {
        for rendezvous in anabranch_bootstrap::threads(2) {
            let bench = &bench;
            scope.spawn(move || {
                let rank = rendezvous.rank();
                let setup = bench.setup(rank).unwrap();
                let world = World::join(setup.config, setup.device, setup.jit, Arc::new(rendezvous)).unwrap();
                let team = world.team(world.group()).unwrap();
                let mut gate = (rank.get() == 1).then(|| Gate::new(&world).unwrap());
                if let Some(gate) = &gate {
                    team.barrier(&gate.stream).unwrap();
                }
                let start = Instant::now();
                let error = world.leave().unwrap_err();
                if rank.get() == 1 {
                    assert!(matches!(error, Error::StreamBusy { .. }), "{error}");
                } else {
                    let text = error.to_string();
                    assert!(
                        text.starts_with("leave failed on rank 1: the stream has not completed"),
                        "{text}"
                    );
                }
                drop((team, world));
                assert!(start.elapsed() < Duration::from_secs(8), "{:?}", start.elapsed());
                // The heap and the words are still there for what comes now.
                if let Some(gate) = &mut gate {
                    gate.let_go();
                    gate.stream.synchronize().unwrap();
                }
            });
        }
    });
}

#[test]
fn leaving_waits_for_launches_under_way_and_for_what_they_launched() {
    let bench = Bench::new(1);
    let rendezvous = Arc::new(anabranch_bootstrap::threads(1).pop().unwrap());
    let setup = bench.setup(GlobalRank::new(0)).unwrap();
    let world = World::join(setup.config, setup.device, setup.jit, rendezvous).unwrap();
    let gate = Gate::new(&world).unwrap();
    std::thread::scope(|scope| {
        let launching = world.launching(&gate.stream).unwrap();
        let (sender, left) = std::sync::mpsc::channel();
        let world = &world;
        scope.spawn(move || sender.send(world.leave()).unwrap());
        let soon = Duration::from_millis(100);
        assert!(left.recv_timeout(soon).is_err(), "a launch is under way");
        drop(launching);
        assert!(left.recv_timeout(soon).is_err(), "what it launched is in flight");
        assert!(matches!(world.launching(&gate.stream), Err(Error::Left)));
        // SAFETY: the word is live, and this is what the stream waits for.
        unsafe { world.device().write_memory(gate.word.address(), &1u64.to_le_bytes()) }.unwrap();
        left.recv().unwrap().unwrap();
    });
}

#[test]
fn dropped_worlds_get_no_loss_reports() {
    let bench = Bench::new(1);
    let rendezvous: Arc<dyn Rendezvous> = Arc::new(anabranch_bootstrap::threads(1).pop().unwrap());
    let join = || {
        let setup = bench.setup(GlobalRank::new(0)).unwrap();
        World::join(setup.config, setup.device, setup.jit, Arc::clone(&rendezvous)).unwrap()
    };
    for round in 0..100 {
        let world = join();
        assert!(format!("{rendezvous:?}").contains("observers: 1"), "{rendezvous:?}");
        if round % 2 == 0 {
            world.leave().unwrap();
            assert!(format!("{rendezvous:?}").contains("observers: 0"), "{rendezvous:?}");
        }
    }
    assert!(format!("{rendezvous:?}").contains("observers: 0"), "{rendezvous:?}");
}

/// A transport that takes its time to say no.
#[derive(Debug)]
struct Slow(Duration);

impl Transport for Slow {
    fn kind(&self) -> TransportKind {
        TransportKind::Rdma
    }

    fn support(&self, _: Operation, _: Scope) -> Support {
        Support::Unsupported
    }

    fn reaches(&self, peer: &PeerInfo) -> Result<Reach, Refusal> {
        std::thread::sleep(self.0);
        Err(Refusal::OtherHost { local: peer.host.clone(), peer: peer.host.clone() })
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
fn a_failed_join_waits_once() {
    let mut bench = Bench::new(2);
    bench.config.transports = vec![TransportKind::Rdma, TransportKind::P2p];
    bench.config.rendezvous_deadline = Duration::from_millis(1500);
    std::thread::scope(|scope| {
        for rendezvous in anabranch_bootstrap::threads(2) {
            let bench = &bench;
            scope.spawn(move || {
                let rank = rendezvous.rank();
                let slow = Slow(Duration::from_millis(if rank.get() == 1 { 2500 } else { 0 }));
                let setup = bench.setup(rank).unwrap();
                let start = Instant::now();
                let joined = World::join_with(
                    setup.config,
                    setup.device,
                    setup.jit,
                    Arc::new(rendezvous),
                    vec![Box::new(slow)],
                );
                assert!(matches!(joined, Err(Error::Rendezvous { .. })), "{joined:?}");
                if rank.get() == 0 {
                    assert!(start.elapsed() < Duration::from_millis(2400), "{:?}", start.elapsed());
                }
            });
        }
    });
}
