//! NICs in software, and what their queue pairs do.

use crate::common;

use std::net::{IpAddr, Ipv4Addr};
use std::os::unix::fs::PermissionsExt;
use std::time::Duration;

use anabranch_ranks::GlobalRank;
use anabranch_softnic::{Adversary, Listen, NicFaults, Placement, SoftNicConfig, Syndrome, Traffic};
use anabranch_transport_rdma::{NicDriver, NicError, Provider, QueueSpec};

use crate::common::encode::{self, halves};
use crate::common::{Way, World, pattern};

/// Every opcode, once in each direction, and what it leaves.
fn every_request(world: &mut World, from: usize, to: usize) {
    let (bytes, words) = (40_000u32, 4096u64);
    let payload = pattern(from as u64, bytes as usize);
    let old = |world: &World, slot: u64| world.ranks[from].local(200_000 + slot * 8, 8);
    world.ranks[from].store(0, &payload);
    world.ranks[to].store(100_000, &7u64.to_ne_bytes());
    world.ranks[to].store(100_008, &[0xff; 4]);
    world.ranks[to].store(100_012, &5u32.to_ne_bytes());

    let (source, place) = (world.ranks[from].local(0, bytes), world.ranks[to].remote(300_000));
    world.poster(from, to).post(|control| encode::write(control, place, &[source]));
    let pieces = [world.ranks[from].local(words, 8), world.ranks[from].local(10, 3)];
    let place = world.ranks[to].remote(400_001);
    world.poster(from, to).post(|control| encode::write_immediate(control, place, &pieces, 0x0102_0304));
    let place = world.ranks[to].remote(500_000);
    world.poster(from, to).post(|control| encode::write_inline(control, place, b"in the entry itself"));
    let (source, place) = (world.ranks[to].remote(300_000), world.ranks[from].local(600_000, bytes));
    world.poster(from, to).post(|control| encode::read(control, source, &[place]));
    let (word, half) = (world.ranks[to].remote(100_000), world.ranks[to].remote(100_012));
    let olds: Vec<_> = (0..6).map(|slot| old(world, slot)).collect();
    let short = |slot: usize| (olds[slot].0, 4, olds[slot].2);
    let poster = world.poster(from, to);
    // 7 + 5 = 12; then 12 -> 100; then fields of 32 bits: 100 + 1 below, 0xffff_ffff + 1 above with nothing carried.
    poster.post(|control| encode::atomic(control, encode::FETCH_ADD, word, &[5, 0xdead], olds[0]));
    poster.post(|control| encode::atomic(control, encode::COMPARE_SWAP, word, &[100, 12], olds[1]));
    let (add, boundary) = (halves(0, 1), halves(0x8000_0000, 0x8000_0000));
    poster
        .post(|control| encode::atomic(control, encode::MASKED_FETCH_ADD_8, word, &[add, boundary], olds[2]));
    let operands = [halves(9, 0), 0];
    poster.post(|control| encode::atomic(control, encode::MASKED_FETCH_ADD_4, half, &operands, short(3)));
    // swap, compare, swap mask, compare mask
    let operands = [halves(0xaa, 0xe), halves(0xff, 0xf)];
    poster.post(|control| encode::atomic(control, encode::MASKED_COMPARE_SWAP_4, half, &operands, short(4)));
    let operands = [u64::MAX, 101, 0xff00, 0xff];
    poster.post(|control| encode::atomic(control, encode::MASKED_COMPARE_SWAP_8, word, &operands, olds[5]));
    poster.post(encode::nop);
    poster.quiet().unwrap();

    let (here, there) = (&world.ranks[from], &world.ranks[to]);
    assert_eq!(there.load(300_000, bytes as usize), payload);
    let mut joined = payload[4096..4104].to_vec();
    joined.extend(&payload[10..13]);
    assert_eq!(there.load(400_001, 11), joined);
    assert_eq!(there.load(500_000, 19), b"in the entry itself");
    assert_eq!(here.load(600_000, bytes as usize), payload);
    let found: Vec<_> = (0..3).map(|slot| here.load_64(200_000 + slot * 8)).collect();
    assert_eq!(found, [7, 12, 100]);
    assert_eq!(here.load(200_024, 4), 5u32.to_be_bytes(), "old values of 32 bits come as the wire has them");
    assert_eq!(here.load(200_032, 4), 14u32.to_be_bytes());
    assert_eq!(here.load_64(200_040), 101);
    assert_eq!(there.load_64(100_000), 0xff65, "the masked bytes of 101 are swapped");
    assert_eq!(there.load(100_012, 4), 0xaau32.to_ne_bytes());
    let immediates = there.nic.take_immediates();
    assert_eq!(immediates.len(), 1);
    assert_eq!((immediates[0].peer, immediates[0].value), (GlobalRank::new(from as u32), 0x0102_0304));
    let traffic = here.nic.traffic()[&GlobalRank::new(to as u32)];
    let expected = Traffic {
        writes: 3,
        written_bytes: u64::from(bytes) + 11 + 19,
        reads: 1,
        read_bytes: bytes.into(),
        atomics: 6,
    };
    assert_eq!(traffic, expected);
}

fn small_frames() -> SoftNicConfig {
    SoftNicConfig { frame_bytes: 1024, window: 3, ..SoftNicConfig::default() }
}

#[test]
fn every_request_between_two_and_three_nics() {
    let folder = std::env::temp_dir().join(format!("anabranch-softnic-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    std::fs::set_permissions(&folder, std::fs::Permissions::from_mode(0o700)).unwrap();
    let ways = [
        Way::in_process(),
        Way::Sockets(Listen::Abstract),
        Way::Sockets(Listen::Folder(folder.clone())),
        Way::Sockets(Listen::Tcp(IpAddr::V4(Ipv4Addr::LOCALHOST))),
    ];
    for way in ways {
        for (size, config) in [(2, SoftNicConfig::default()), (3, small_frames())] {
            let way = if matches!(way, Way::InProcess(_)) { Way::in_process() } else { way.clone() };
            let mut world = World::new(size, &way, 16, &config);
            for from in 0..size as usize {
                for to in (0..size as usize).filter(|to| *to != from) {
                    every_request(&mut world, from, to);
                }
            }
        }
    }
    assert_eq!(std::fs::read_dir(&folder).unwrap().count(), 0, "sockets stay behind");
    std::fs::remove_dir(&folder).unwrap();
}

#[test]
fn every_request_with_adversaries() {
    for seed in 0..40 {
        let config = SoftNicConfig { adversary: Some(Adversary::new(seed)), ..small_frames() };
        let mut world = World::new(2, &Way::in_process(), 16, &config);
        every_request(&mut world, 0, 1);
        every_request(&mut world, 1, 0);
    }
}

#[test]
fn every_request_by_a_thread_that_copies() {
    let placement = Placement::OwnThread;
    for (adversary, way) in
        [(None, Way::in_process()), (Some(Adversary::new(4)), Way::Sockets(Listen::Abstract))]
    {
        let config = SoftNicConfig { placement, adversary, ..small_frames() };
        let mut world = World::new(2, &way, 16, &config);
        every_request(&mut world, 0, 1);
        every_request(&mut world, 1, 0);
    }
}

#[test]
fn a_small_ring_goes_round_many_times() {
    for adversary in [None, Some(Adversary::new(5))] {
        let config = SoftNicConfig { adversary, ..SoftNicConfig::default() };
        let mut world = World::new(2, &Way::in_process(), 16, &config);
        let (to, old) = (world.ranks[1].remote(64), world.ranks[0].local(0, 8));
        // More than 16 bits count.
        let rounds = if adversary.is_none() { 70_000 } else { 3_000 };
        for round in 0..rounds {
            world
                .poster(0, 1)
                .post(|control| encode::atomic(control, encode::FETCH_ADD, to, &[round, 0], old));
        }
        world.poster(0, 1).quiet().unwrap();
        assert_eq!(world.ranks[1].load_64(64), rounds * (rounds - 1) / 2);
    }
}

#[test]
fn a_flag_is_never_visible_before_its_payload() {
    for seed in 0..10 {
        let config = SoftNicConfig { adversary: Some(Adversary::new(seed)), ..small_frames() };
        let mut world = World::new(2, &Way::in_process(), 16, &config);
        for round in 1..20u64 {
            let payload = pattern(round, 5000);
            world.ranks[0].store(0, &payload);
            let (source, place) = (world.ranks[0].local(0, 5000), world.ranks[1].remote(8));
            let flag = world.ranks[1].remote(8192);
            let poster = world.poster(0, 1);
            poster.post(|control| encode::write(control, place, &[source]));
            poster.post(|control| encode::write_inline(control, flag, &round.to_ne_bytes()));
            while world.ranks[1].load_64(8192) != round {
                std::hint::spin_loop();
            }
            assert!(
                world.ranks[1].load(8, 5000) == payload,
                "seed {seed} round {round}: the flag came first"
            );
            world.poster(0, 1).quiet().unwrap();
        }
    }
}

#[test]
fn what_is_not_registered_is_refused() {
    type Make = fn(&World) -> Box<dyn FnOnce(&encode::Control) -> Vec<u8>>;
    let cases: [(Make, Syndrome); 9] = [
        // An unknown local key, a remote key as a local one, a range beyond the end.
        (
            |world| {
                let (to, (at, bytes, key)) = (world.ranks[1].remote(0), world.ranks[0].local(0, 8));
                Box::new(move |control| encode::write(control, to, &[(at, bytes, key ^ 0x100)]))
            },
            Syndrome::LocalProtection,
        ),
        (
            |world| {
                let (to, (at, bytes, _)) = (world.ranks[1].remote(0), world.ranks[0].local(0, 8));
                let key = world.ranks[0].keys.remote_key();
                Box::new(move |control| encode::write(control, to, &[(at, bytes, key)]))
            },
            Syndrome::LocalProtection,
        ),
        (
            |world| {
                let (to, from) = (world.ranks[1].remote(0), world.ranks[0].local(common::HEAP as u64 - 7, 8));
                Box::new(move |control| encode::write(control, to, &[from]))
            },
            Syndrome::LocalProtection,
        ),
        // The same at the peer: an unknown key, a local key, a range beyond the end of which a part would fit.
        (
            |world| {
                let ((at, key), from) = (world.ranks[1].remote(0), world.ranks[0].local(0, 8));
                Box::new(move |control| encode::write(control, (at, key ^ 0x100), &[from]))
            },
            Syndrome::RemoteAccess,
        ),
        (
            |world| {
                let ((at, _), from) = (world.ranks[1].remote(0), world.ranks[0].local(0, 8));
                let key = world.ranks[1].keys.local_key();
                Box::new(move |control| encode::write(control, (at, key), &[from]))
            },
            Syndrome::RemoteAccess,
        ),
        (
            |world| {
                let (to, from) =
                    (world.ranks[1].remote(common::HEAP as u64 - 3000), world.ranks[0].local(0, 4000));
                Box::new(move |control| encode::write(control, to, &[from]))
            },
            Syndrome::RemoteAccess,
        ),
        (
            |world| {
                let (from, to) =
                    (world.ranks[1].remote(common::HEAP as u64 - 3000), world.ranks[0].local(0, 4000));
                Box::new(move |control| encode::read(control, from, &[to]))
            },
            Syndrome::RemoteAccess,
        ),
        (
            |world| {
                let (to, old) = (world.ranks[1].remote(common::HEAP as u64), world.ranks[0].local(0, 8));
                Box::new(move |control| encode::atomic(control, encode::FETCH_ADD, to, &[1, 0], old))
            },
            Syndrome::RemoteAccess,
        ),
        // More than a message may have.
        (
            |world| {
                let (to, from) = (world.ranks[1].remote(0), world.ranks[0].local(0, 100_001));
                Box::new(move |control| encode::write(control, to, &[from]))
            },
            Syndrome::LocalLength,
        ),
    ];
    for (number, (make, syndrome)) in cases.into_iter().enumerate() {
        for adversary in [None, Some(Adversary::new(number as u64))] {
            let config = SoftNicConfig { adversary, most_message_bytes: 100_000, ..small_frames() };
            let mut world = World::new(2, &Way::in_process(), 16, &config);
            let before = world.ranks[1].load(0, common::HEAP);
            world.ranks[0].store(0, &pattern(3, 100_001));
            let entry = make(&world);
            let poster = world.poster(0, 1);
            poster.post(encode::nop);
            poster.post(entry);
            let why = poster.stopped();
            assert!(why.contains(syndrome.words()) && why.contains("position 1"), "case {number}: {why}");
            assert_eq!(world.ranks[1].load(0, common::HEAP), before, "case {number} has written");
        }
    }
}

#[test]
fn memory_that_is_gone_is_an_error_of_its_side() {
    for (side, syndrome) in [(0, Syndrome::LocalProtection), (1, Syndrome::RemoteOperation)] {
        for reads in [false, true] {
            let mut world = World::new(2, &Way::in_process(), 16, &small_frames());
            let (mine, theirs) = (world.ranks[0].local(0, 64), world.ranks[1].remote(0));
            // Registered still, and freed.
            let rank = &mut world.ranks[side];
            let other = rank.device.allocate(64).unwrap();
            drop(std::mem::replace(&mut rank.heap, other));
            world.poster(0, 1).post(|control| {
                if reads {
                    encode::read(control, theirs, &[mine])
                } else {
                    encode::write(control, theirs, &[mine])
                }
            });
            let why = world.poster(0, 1).stopped();
            assert!(why.contains(syndrome.words()), "side {side}, reads {reads}: {why}");
        }
    }
}

#[test]
fn a_failure_is_reported_after_completed_requests_and_the_rest_is_flushed() {
    let config = small_frames();
    let mut world = World::new(2, &Way::in_process(), 16, &config);
    let (to, (at, key)) = (world.ranks[1].remote(0), world.ranks[1].remote(64));
    let poster = world.poster(0, 1);
    poster.post(|control| encode::write_inline(control, to, &[1; 8]));
    poster.quiet().unwrap();
    poster.post(|control| encode::write_inline(control, (at, key + 1), &[1; 8]));
    poster.stopped();
    assert_eq!(poster.completion(), Err(Syndrome::RemoteAccess));
    // What is posted now is flushed.
    let entry = encode::write_inline(&poster.control(), to, &[2; 8]);
    poster.put(&entry);
    poster.ring();
    let until = anabranch_clock::Moment::now().after(common::LIMIT);
    while poster.completion() != Err(Syndrome::Flushed) {
        assert!(!until.remaining().is_zero(), "nothing is flushed");
    }
    assert_eq!(world.ranks[1].load(0, 8), [1; 8]);
    // The peer's end has stopped too.
    assert!(world.poster(1, 0).stopped().contains("of the peer was refused: remote access error"));
}

#[test]
fn a_receive_queue_that_is_empty_refuses() {
    let config = SoftNicConfig { receives: 1, ..SoftNicConfig::default() };
    let mut world = World::new(2, &Way::in_process(), 16, &config);
    let to = world.ranks[1].remote(0);
    let poster = world.poster(0, 1);
    poster.post(|control| encode::write_immediate(control, to, &[], 1));
    poster.quiet().unwrap();
    poster.post(|control| encode::write_immediate(control, to, &[], 2));
    assert!(poster.stopped().contains("receiver-not-ready"));
    assert_eq!(poster.completion(), Err(Syndrome::ReceiverNotReady));
    assert_eq!(world.ranks[1].nic.take_immediates().len(), 1);
}

#[test]
fn injected_failures_happen() {
    for syndrome in [Syndrome::RetryExceeded, Syndrome::ReceiverNotReady, Syndrome::RemoteAccess] {
        for adversary in [None, Some(Adversary::new(9))] {
            let faults = NicFaults { fails: Some((3, syndrome)), ..NicFaults::default() };
            let config = SoftNicConfig { faults, adversary, ..SoftNicConfig::default() };
            let mut world = World::new(2, &Way::in_process(), 16, &config);
            let to = world.ranks[1].remote(0);
            let poster = world.poster(0, 1);
            for value in 1..=4u64 {
                let entry = encode::write_inline(&poster.control(), to, &value.to_ne_bytes());
                poster.put(&entry);
            }
            poster.ring();
            assert!(poster.stopped().contains(&format!("position 2: {syndrome}")), "{}", poster.stopped());
            assert_eq!(world.ranks[1].load_64(0), 2);
        }
    }
}

#[test]
fn a_peer_that_dies_or_falls_silent_is_noticed() {
    let sockets = Way::Sockets(Listen::Abstract);
    for (way, dies) in [(Way::in_process(), true), (Way::in_process(), false), (sockets, true)] {
        let config = SoftNicConfig { patience: Duration::from_millis(1500), ..SoftNicConfig::default() };
        let (after, never) = (Some(1), None);
        let faults = NicFaults {
            fails: None,
            dies_after: if dies { after } else { never },
            falls_silent_after: if dies { never } else { after },
        };
        let broken = SoftNicConfig { faults, ..config.clone() };
        let mut world = World::with(2, &way, 16, &[config, broken]);
        let (there, here) = (world.ranks[1].remote(0), world.ranks[0].remote(0));
        world.poster(0, 1).post(|control| encode::write_inline(control, there, &[1; 8]));
        world.poster(0, 1).quiet().unwrap();
        // Its first request is its last.
        world.poster(1, 0).post(|control| encode::write_inline(control, here, &[1; 8]));
        while world.ranks[0].load_64(0) == 0 && world.poster(1, 0).queue.stopped().is_none() {
            std::hint::spin_loop();
            if !dies {
                break;
            }
        }
        anabranch_clock::sleep(Duration::from_millis(50));
        world.poster(0, 1).post(|control| encode::write_inline(control, there, &[2; 8]));
        let why = world.poster(0, 1).stopped();
        assert!(why.contains("transport retry counter exceeded"), "{way:?}: {why}");
        assert_eq!(world.poster(0, 1).completion(), Err(Syndrome::RetryExceeded));
    }
}

#[test]
fn nics_that_end_answer_first() {
    for seed in 0..10 {
        let adversary = Adversary { late_answers: 250, ..Adversary::new(seed) };
        let config = SoftNicConfig { adversary: Some(adversary), ..SoftNicConfig::default() };
        let mut world = World::new(2, &Way::Sockets(Listen::Abstract), 16, &config);
        let to = world.ranks[1].remote(0);
        world.poster(0, 1).post(|control| encode::write_inline(control, to, &[1; 8]));
        while world.ranks[1].load_64(0) == 0 {
            std::hint::spin_loop();
        }
        // The peer has what it waited for, and goes.
        world.posters.pop();
        let peer = world.ranks.pop();
        drop(peer);
        world.poster(0, 1).quiet().unwrap();
    }
}

#[test]
fn what_a_nic_cannot_do_is_refused() {
    let machine = common::machine(1);
    let way = Way::in_process();
    let rank = common::Rank::new(&machine, 0, &way, SoftNicConfig::default());
    let spec = QueueSpec { peer: GlobalRank::new(1), channel: 0, entries: 17 };
    for entries in [0, 8, 17, 65536] {
        let refused = rank.nic.create_queue(QueueSpec { entries, ..spec });
        assert!(matches!(refused, Err(NicError::Limit { what: "entries of a queue", .. })));
    }
    for region in [(0, 8), (rank.at(0), 0), (u64::MAX, 8), (rank.at(0), 1 << 40)] {
        let region = anabranch_transport::Region { address: region.0, bytes: region.1 };
        assert!(rank.nic.register(region).is_err(), "{region:?}");
    }
    let config = SoftNicConfig { window: 0, ..SoftNicConfig::default() };
    let refused = anabranch_softnic::SoftNic::open(&rank.device, way.port(), config);
    assert!(matches!(refused, Err(NicError::Limit { what: "frames of a window", .. })));
    let config = SoftNicConfig { provider: Provider::Posted, ..SoftNicConfig::default() };
    assert!(matches!(
        anabranch_softnic::SoftNic::open(&rank.device, way.port(), config),
        Err(NicError::NoNic { .. })
    ));
}

/// More doorbells than a register has places cannot be on their way: no more entries share one.
#[test]
fn a_shared_register_has_a_place_for_every_entry() {
    let (machine, way) = (common::machine(1), Way::in_process());
    let places = SoftNicConfig::REGISTER_PLACES;
    let spec = QueueSpec { peer: GlobalRank::new(1), channel: 0, entries: places / 2 };
    let config = SoftNicConfig { shared_doorbell: true, ..SoftNicConfig::default() };
    let rank = common::Rank::new(&machine, 0, &way, config);
    let first = rank.nic.create_queue(spec).unwrap();
    let second = rank.nic.create_queue(spec).unwrap();
    let more = rank.nic.create_queue(QueueSpec { entries: 16, ..spec }).unwrap_err();
    let expected = "entries of all queues that share a doorbell register";
    assert!(
        matches!(more, NicError::Limit { what, given, .. } if what == expected && given == u64::from(places) + 16),
        "{more}"
    );
    // A queue that goes leaves its places to others.
    drop(second);
    let third = rank.nic.create_queue(spec).unwrap();
    // Queues with doorbells of their own need none.
    let rank = common::Rank::new(&machine, 0, &way, SoftNicConfig::default());
    let alone = [0, 1, 2].map(|channel| rank.nic.create_queue(QueueSpec { channel, ..spec }).unwrap());
    drop((first, third, alone));
}

#[test]
fn ends_that_do_not_fit_are_not_connected() {
    let machine = common::machine(2);
    let way = Way::in_process();
    let ranks = [0, 1].map(|rank| common::Rank::new(&machine, rank, &way, SoftNicConfig::default()));
    let (left, right) = (ranks[0].queue(1, 0, 16), ranks[1].queue(0, 0, 16));
    let peer = GlobalRank::new(1);
    let refused = |endpoint: &[u8], text: &str| {
        let error = left.connect(peer, endpoint).unwrap_err();
        assert!(error.to_string().contains(text), "{error}");
    };
    refused(b"nonsense", "cannot be read");
    refused(&ranks[1].queue(0, 1, 16).endpoint(), "channel");
    let elsewhere = common::Rank::new(&machine, 1, &Way::Sockets(Listen::Abstract), SoftNicConfig::default());
    refused(&elsewhere.queue(0, 0, 16).endpoint(), "fabric");
    let other = common::Rank::new(&machine, 1, &Way::in_process(), SoftNicConfig::default());
    assert!(matches!(left.connect(peer, &other.queue(0, 0, 16).endpoint()), Err(NicError::System { .. })));
    assert!(matches!(left.connect(GlobalRank::new(2), &right.endpoint()), Err(NicError::Endpoint { .. })));
    left.connect(peer, &right.endpoint()).unwrap();
    refused(&right.endpoint(), "connected");
}
