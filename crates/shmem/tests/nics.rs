//! Worlds across machines: routes and their reasons, kernels and streams that reach others by NIC, and NICs that do not go on.

use std::sync::Arc;
use std::time::Duration;

use crate::support::engines::exchange;
use crate::support::nics::{ChangedNic, Machines, soft};
use crate::support::{all, error_texts};
use anabranch_ranks::{GlobalRank, GroupRank};
use anabranch_shmem::{
    DEFAULT_ALIGNMENT, Error, NicDriver, NicError, NicSource, PeerCopy, Provider, RankError, Signal,
    SignalOp, World, spawn_threads,
};
use anabranch_softnic::{SoftNicConfig, SoftNics};
use anabranch_transport::{Operation, Region, Scope, Support, TransportKind};
use anabranch_transport_rdma::{NicLimits, NicQueue, QueueSpec, ReadOrder, Registered};

fn machines(sizes: &[u32], wave: u32, seed: Option<u64>) -> Machines {
    Machines::new(sizes, wave, SoftNics::in_process(soft(seed)))
}

#[test]
fn memory_is_mapped_within_machines_and_nics_reach_the_others() {
    for (sizes, wave, seed) in [
        (&[2, 2][..], 1, None),
        (&[4, 4], 4, Some(1)),
        (&[2, 2, 2], 32, None),
        (&[1, 3], 4, Some(2)),
        (&[1, 1], 64, Some(3)),
    ] {
        let machines = machines(sizes, wave, seed);
        all(spawn_threads(
            machines.ranks(),
            |rank| machines.setup(rank),
            |world: &World| {
                let here = machines.machine(world.rank());
                for route in world.routes() {
                    let together = machines.machine(route.peer) == here;
                    assert_eq!(world.is_by_nic(route.peer), !together, "{route}");
                    assert_eq!(world.peer_base(route.peer).is_some(), together, "{route}");
                    let kind = if together { TransportKind::P2p } else { TransportKind::Rdma };
                    assert_eq!(route.kind, kind, "{route}");
                    let nics = world.queues_to(route.peer);
                    assert_eq!(nics.len(), if together { 0 } else { 2 });
                    assert!(nics.iter().all(|(_, stopped)| stopped.is_none()), "{nics:?}");
                    assert_eq!(world.node_of(route.peer), Some(machines.machine(route.peer)));
                    for operation in [Operation::Put, Operation::AtomicSwap] {
                        let support = world.support(route.peer, operation, Scope::Thread);
                        assert_eq!(support, Support::Implemented);
                    }
                }
                let nodes = world.nodes()?;
                let inside: Vec<u32> =
                    (0..nodes.count()).map(|node| nodes.members_of(node).len() as u32).collect();
                assert_eq!((inside.as_slice(), nodes.are_contiguous()), (sizes, true));
                exchange(world, 5)
            },
        ));
    }
}

#[test]
fn one_machine_by_nic_alone() {
    let mut machines = machines(&[3], 4, Some(4));
    machines.bench.config.transports = vec![TransportKind::Rdma];
    all(spawn_threads(
        3,
        |rank| machines.setup(rank),
        |world: &World| {
            let own = world.rank();
            for route in world.routes() {
                assert_eq!(route.kind, TransportKind::Rdma);
                assert_eq!(world.peer_base(route.peer).is_some(), route.peer == own);
                assert_eq!(world.is_by_nic(route.peer), route.peer != own);
            }
            exchange(world, 3)
        },
    ));
}

const BYTES: usize = 10_007;

fn bytes_of(from: u32, round: u64) -> Vec<u8> {
    (0..BYTES as u64).map(|at| (at * 7 + u64::from(from) * 31 + round * 13) as u8).collect()
}

/// A ring over machines: each rank puts to the next one, signals behind it, and reads what came from the one before, over both ways.
#[test]
fn streams_put_get_and_signal_by_nic() {
    for (sizes, wave, seed) in [(&[2, 1][..], 1, None), (&[1, 1, 1], 32, Some(5))] {
        let machines = machines(sizes, wave, seed);
        all(spawn_threads(
            3,
            |rank| machines.setup(rank),
            |world: &World| {
                let team = world.team(world.group())?;
                let data = world.allocate(world.group(), 16 << 10, DEFAULT_ALIGNMENT, "data")?;
                let words = world.allocate(world.group(), 64, DEFAULT_ALIGNMENT, "words")?;
                let stream = world.device().create_stream()?;
                let (me, size) = (team.rank().get(), team.size());
                let (next, before) =
                    (GroupRank::new((me + 1) % size), GroupRank::new((me + size - 1) % size));
                let mut source = world.device().allocate(BYTES)?;
                let fetched = world.device().allocate(BYTES)?;
                // SAFETY: the buffers are dropped behind the registrations, which are declared later.
                let known = [&source, &fetched]
                    .map(|buffer| unsafe { world.register_local(buffer.address(), BYTES as u64) });
                for known in known.iter().flatten() {
                    assert!(known.is_needed());
                }
                for round in 1..=20u64 {
                    source.copy_from_host(0, &bytes_of(me, round))?;
                    let added = Signal { memory: &words, offset: 8, value: 1, op: SignalOp::Add };
                    let set = Signal { memory: &words, offset: 16, value: round, op: SignalOp::Set };
                    // SAFETY: the buffers live until the stream is synchronised below.
                    unsafe {
                        team.put_signal(&stream, &data, 3, source.address(), BYTES, added, next)?;
                        team.signal_wait(&stream, &words, 8, round, before)?;
                        team.signal(&stream, set, before)?;
                        team.signal_wait(&stream, &words, 16, round, next)?;
                        team.get(&stream, fetched.address(), &data, 3, BYTES, next)?;
                    }
                    world.synchronize(&stream)?;
                    let mut got = vec![0; BYTES];
                    data.read(3, &mut got)?;
                    assert_eq!(got, bytes_of(before.get(), round), "put, round {round}");
                    fetched.copy_to_host(0, &mut got)?;
                    assert_eq!(got, bytes_of(me, round), "get, round {round}");
                    team.barrier(&stream)?;
                    world.synchronize(&stream)?;
                }
                drop(known);
                Ok::<_, Error>(())
            },
        ));
    }
}

/// A read of what a NIC with these brings; put and signal go in any case.
fn read_by_streams(config: SoftNicConfig, refused: &'static [(&'static str, &'static str)]) {
    let machines = Machines::new(&[1, 1], 4, SoftNics::in_process(config));
    all(spawn_threads(
        2,
        |rank| machines.setup(rank),
        |world: &World| {
            let team = world.team(world.group())?;
            let mut data = world.allocate(world.group(), 4096, DEFAULT_ALIGNMENT, "data")?;
            let words = world.allocate(world.group(), 64, DEFAULT_ALIGNMENT, "words")?;
            let stream = world.device().create_stream()?;
            let peer = GroupRank::new(1 - team.rank().get());
            let target = data.address().offset(2048);
            let signal = |op| Signal { memory: &words, offset: 8, value: 1, op };
            let reason = world.routes()[peer.get() as usize].reason.clone();
            for round in 1..=8u8 {
                data.write(0, &[round + team.rank().get() as u8; 512])?;
                team.barrier(&stream)?;
                world.synchronize(&stream)?;
                // SAFETY: the heap lives until the stream is synchronised below.
                let got = unsafe { team.get(&stream, target, &data, 0, 512, peer) };
                let added = team.signal(&stream, signal(SignalOp::Add), peer);
                for (what, result) in [("get_nbi", &got), ("signal", &added)] {
                    let refusal = refused.iter().find(|(name, _)| *name == what);
                    assert_eq!(refusal.is_none(), result.is_ok(), "{what}: {result:?}");
                    if let (Some((name, why)), Err(error)) = (refusal, result) {
                        let text = anabranch_hip::with_causes(error);
                        assert!(text.contains(name) && text.contains("unsupported over rdma"), "{text}");
                        assert!(reason.contains(why), "{reason}");
                    }
                }
                // SAFETY: as above.
                unsafe { team.put(&stream, &data, 1024, data.address(), 512, peer) }?;
                team.barrier(&stream)?;
                world.synchronize(&stream)?;
                let mut seen = vec![0; 512];
                data.read(1024, &mut seen)?;
                assert_eq!(seen, [round + peer.get() as u8; 512]);
                if got.is_ok() {
                    data.read(2048, &mut seen)?;
                    assert_eq!(seen, [round + peer.get() as u8; 512], "get, round {round}");
                }
                team.barrier(&stream)?;
                world.synchronize(&stream)?;
            }
            Ok::<_, Error>(())
        },
    ));
}

/// The first read of each peer's memory is to memory of the host then, in which completions lie.
#[test]
fn worlds_are_joined_where_nothing_orders_reads_and_refuse_them() {
    let refused = &[("get_nbi", "no gets nor fetches, as nothing orders")];
    read_by_streams(SoftNicConfig { read_order: ReadOrder::Unordered, ..soft(None) }, refused);
}

#[test]
fn reads_are_seen_where_dumps_order_them() {
    for seed in [None, Some(3)] {
        read_by_streams(SoftNicConfig { read_order: ReadOrder::Dumped, ..soft(seed) }, &[]);
    }
}

#[test]
fn without_atomics_streams_set_signals_and_refuse_to_add() {
    let refused = &[("signal", "no atomic operations nor signals that add")];
    read_by_streams(SoftNicConfig { atomics: false, ..soft(None) }, refused);
}

#[test]
fn copies_go_to_the_same_place_of_other_heaps() {
    let machines = machines(&[2, 2], 4, Some(6));
    all(spawn_threads(
        4,
        |rank| machines.setup(rank),
        |world: &World| {
            let team = world.team(world.group())?;
            let bytes = 3001;
            let data = world.allocate(world.group(), 4 * bytes, DEFAULT_ALIGNMENT, "data")?;
            let mut source = world.allocate(world.group(), bytes, DEFAULT_ALIGNMENT, "source")?;
            let stream = world.device().create_stream()?;
            let me = team.rank().get();
            let place = |peer: GroupRank| match data.peer_address(peer) {
                Some(mapped) => mapped,
                None => data.address(),
            };
            let copy = |peer: GroupRank| {
                let target = place(peer).offset(u64::from(me) * bytes);
                PeerCopy { peer, target, source: source.address(), bytes }
            };
            let copies: Vec<PeerCopy> = team.group().ranks().map(copy).collect();
            for round in 0..4u8 {
                source.write(0, &vec![me as u8 * 16 + round; bytes as usize])?;
                // SAFETY: each member has a part for each other; barriers before and behind keep rounds apart.
                unsafe { team.copy_to_peers(&stream, &copies, &[data.usage(), source.usage()]) }?;
                team.barrier(&stream)?;
                world.synchronize(&stream)?;
                let mut seen = vec![0; bytes as usize];
                for from in 0..4u8 {
                    data.read(u64::from(from) * bytes, &mut seen)?;
                    assert!(seen.iter().all(|byte| *byte == from * 16 + round), "from {from}");
                }
                team.barrier(&stream)?;
                world.synchronize(&stream)?;
            }
            let far = GroupRank::new((me + 2) % 4);
            let elsewhere = world.device().allocate(64)?;
            let copy =
                PeerCopy { peer: far, target: elsewhere.address(), source: source.address(), bytes: 64 };
            // SAFETY: refused before anything moves.
            let refused = unsafe { team.copy_to_peers(&stream, &[copy], &[]) };
            assert!(
                matches!(&refused, Err(Error::Invalid { given, .. }) if given.contains("64 bytes")),
                "{refused:?}"
            );
            assert!(!team.is_mapped() && team.is_by_nic(far));
            let meeting = team.stream_barrier().unwrap_err().to_string();
            assert!(meeting.contains("not mapped here"), "{meeting}");
            Ok::<_, Error>(())
        },
    ));
}

#[test]
fn memory_that_is_not_registered_fails_the_world_with_its_address() {
    let machines = machines(&[1, 1], 4, None);
    let results = spawn_threads(
        2,
        |rank| machines.setup(rank),
        |world: &World| {
            let team = world.team(world.group())?;
            let data = world.allocate(world.group(), 64, DEFAULT_ALIGNMENT, "data")?;
            let stream = world.device().create_stream()?;
            let source = world.device().allocate(64)?;
            let peer = GroupRank::new(1 - team.rank().get());
            // SAFETY: nothing moves.
            unsafe { team.put(&stream, &data, 0, source.address(), 64, peer) }?;
            world.synchronize(&stream)
        },
    );
    for result in results {
        let Err(RankError::Work { error, .. }) = result else { panic!("{result:?}") };
        let text = error.to_string();
        assert!(
            text.contains("64 bytes at 0x") && text.contains("neither in the heap nor registered"),
            "{text}"
        );
        assert!(text.contains("copy by NIC (memory not registered with the NIC)"), "{text}");
    }
}

#[test]
fn without_a_nic_other_nodes_are_unreachable_with_the_reason() {
    let mut machines = machines(&[1, 1], 1, None);
    machines.bench.config.nic = NicSource::default();
    for text in error_texts(spawn_threads(2, |rank| machines.setup(rank), |_: &World| Ok::<_, Error>(()))) {
        assert!(text.contains("rdma: no NIC can be used"), "{text}");
        assert!(text.contains("p2p: the peer is on another host"), "{text}");
    }
    // On one machine it is not needed.
    let mut one = Machines::new(&[2], 1, SoftNics::in_process(soft(None)));
    one.bench.config.nic = NicSource::default();
    all(spawn_threads(2, |rank| one.setup(rank), |world: &World| exchange(world, 2)));
}

#[test]
fn ranks_with_different_drivers_hear_of_it_before_a_nic_is_opened() {
    let machines = machines(&[1, 1], 1, None);
    let setup = |rank: GlobalRank| {
        let mut setup = machines.setup(rank)?;
        if rank.get() == 1 {
            setup.config.nic = NicSource::default();
        }
        Ok::<_, Error>(setup)
    };
    for text in error_texts(spawn_threads(2, setup, |_: &World| Ok::<_, Error>(()))) {
        assert!(text.contains("transport.rdma.driver"), "{text}");
        assert!(text.contains("verbs") && text.contains("brought"), "{text}");
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Change {
    Provider,
    NoQueues,
}

/// A NIC that is another than it seems.
#[derive(Debug)]
struct Other(Arc<dyn NicDriver>, Change);

impl NicDriver for Other {
    fn provider(&self) -> Provider {
        if self.1 == Change::Provider { Provider::Bnxt } else { self.0.provider() }
    }

    fn describe(&self) -> String {
        self.0.describe()
    }

    fn limits(&self) -> NicLimits {
        self.0.limits()
    }

    fn register(&self, region: Region) -> Result<Arc<dyn Registered>, NicError> {
        self.0.register(region)
    }

    fn create_queue(&self, spec: QueueSpec) -> Result<Arc<dyn NicQueue>, NicError> {
        if self.1 == Change::NoQueues {
            return Err(NicError::NoNic { reasons: "it has no queue pair left".to_owned() });
        }
        self.0.create_queue(spec)
    }
}

/// NICs of which rank 1's is another than it seems.
fn mixed(change: Change) -> NicSource {
    let nics = SoftNics::in_process(soft(None));
    NicSource::new(Arc::new(ChangedNic {
        nics,
        rank: 1,
        change: move |nic| Arc::new(Other(nic, change)) as _,
    }))
}

#[test]
fn a_rank_without_queue_pairs_reports_the_reason_as_do_its_peers() {
    let mut machines = machines(&[1, 1], 1, None);
    machines.bench.config.nic = mixed(Change::NoQueues);
    for text in error_texts(spawn_threads(2, |rank| machines.setup(rank), |_: &World| Ok::<_, Error>(()))) {
        assert!(text.contains("it has no queue pair left"), "{text}");
    }
}

#[test]
fn nics_of_different_providers_are_refused_with_both_names() {
    let mut machines = machines(&[1, 1], 1, None);
    machines.bench.config.nic = mixed(Change::Provider);
    for text in error_texts(spawn_threads(2, |rank| machines.setup(rank), |_: &World| Ok::<_, Error>(()))) {
        assert!(text.contains("bnxt_re") && text.contains("mlx5"), "{text}");
    }
}

#[test]
fn as_many_ranges_as_there_are_places_and_again_when_they_are_free() {
    let machines = machines(&[1, 1], 1, None);
    all(spawn_threads(
        2,
        |rank| machines.setup(rank),
        |world: &World| {
            let buffer = world.device().allocate(64)?;
            // SAFETY: the buffer is dropped behind the registrations.
            let register = || unsafe { world.register_local(buffer.address(), 64) };
            for _ in 0..2 {
                let places = anabranch_transport_rdma::MOST_RANGES - 1;
                let known = (0..places).map(|_| register()).collect::<Result<Vec<_>, _>>()?;
                let one_more = register().unwrap_err();
                let text = anabranch_hip::with_causes(&one_more);
                assert!(text.contains("64 bytes at 0x") && text.contains("up to 32 allowed"), "{text}");
                drop(known);
            }
            Ok::<_, Error>(())
        },
    ));
}

#[test]
fn memory_is_registered_only_where_a_peer_is_reached_by_nic() {
    for (sizes, needed) in [(&[1, 1][..], true), (&[2], false), (&[2, 1], true)] {
        let machines = machines(sizes, 1, None);
        all(spawn_threads(
            machines.ranks(),
            |rank| machines.setup(rank),
            |world: &World| {
                let buffer = world.device().allocate(64)?;
                // SAFETY: the buffer is dropped behind the registration.
                let registered = unsafe { world.register_local(buffer.address(), 64) }?;
                assert_eq!(registered.is_needed(), needed, "{sizes:?}");
                Ok::<_, Error>(())
            },
        ));
    }
}

/// A barrier by NIC that begins when its world is gone finds the queue pairs where they were, and ends by the abort.
#[test]
fn queue_pairs_outlive_a_world_whose_work_does_not_end() {
    let mut machines = machines(&[1, 1], 1, None);
    machines.bench.config.operation_deadline = Duration::from_millis(200);
    std::thread::scope(|scope| {
        for rendezvous in anabranch_bootstrap::threads(2) {
            let machines = &machines;
            scope.spawn(move || {
                let rank = anabranch_bootstrap::Rendezvous::rank(&rendezvous);
                let setup = machines.setup(rank).unwrap();
                let world = World::join(setup.config, setup.device, setup.jit, Arc::new(rendezvous)).unwrap();
                let team = world.team(world.group()).unwrap();
                let gate = (rank.get() == 1).then(|| {
                    let mut word = world.device().allocate(8).unwrap();
                    word.fill(0).unwrap();
                    let stream = world.device().create_stream().unwrap();
                    // SAFETY: the word lives until the stream has passed.
                    unsafe { stream.wait_value64_at_least(word.address(), 1) }.unwrap();
                    team.barrier(&stream).unwrap();
                    (stream, word)
                });
                world.leave().unwrap_err();
                drop((team, world));
                if let Some((stream, mut word)) = gate {
                    word.copy_from_host(0, &1u64.to_le_bytes()).unwrap();
                    stream.synchronize().unwrap();
                }
            });
        }
    });
}
