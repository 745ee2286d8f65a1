//! Two ranks of one process by libfabric's TCP, which every machine has.

use crate::common;

use std::time::Duration;

use anabranch_hip::DeviceOrdinal;
use anabranch_hip_host::{HostConfig, HostMachine};
use anabranch_ranks::GlobalRank;
use anabranch_transport_ofi::{OfiDriver, Reach};
use anabranch_transport_rdma::posting::status;
use anabranch_transport_rdma::{Atomics, NicDriver as _, PostedRequest, Provider, RdmaConfig};
use proptest::prelude::*;

use crate::common::{Between, Poster, Rank, config, pattern, wait_for};

const HEAP: usize = 1 << 20;
/// Writes in front of a flag.
const PIECES: u64 = 24;
/// More than one where more can have both ranks in a process: `shm` cannot.
const PROVIDERS: [&str; 1] = ["tcp"];

/// Two ranks and their queues to each other.
struct Pair {
    here: Poster,
    there: Poster,
    ranks: [Rank; 2],
}

impl Pair {
    fn new(provider: &str, entries: u32) -> Self {
        Self::of([Rank::new(provider, HEAP), Rank::new(provider, HEAP)], entries)
    }

    fn of(ranks: [Rank; 2], entries: u32) -> Self {
        let (here, there) = (ranks[0].poster(1, 0, entries), ranks[1].poster(0, 0, entries));
        here.queue.connect(GlobalRank::new(1), &there.queue.endpoint()).unwrap();
        there.queue.connect(GlobalRank::new(0), &here.queue.endpoint()).unwrap();
        Self { here, there, ranks }
    }

    fn between(&self) -> Between {
        Between { local: self.ranks[0].heap(), remote: self.ranks[1].heap() }
    }
}

#[test]
fn every_operation_moves_its_bytes() {
    if !common::is_installed() {
        return;
    }
    for provider in PROVIDERS {
        let mut pair = Pair::new(provider, 16);
        let between = pair.between();
        let [own, peer] = &pair.ranks;
        for (seed, bytes) in [(1, 1), (2, 7), (3, 8), (4, 9), (5, 4096), (6, 300_001)] {
            let sent = pattern(seed, bytes as usize);
            own.store(16, &sent);
            pair.here.post(between.write(16, 500_000, bytes));
            pair.here.quiet();
            assert_eq!(peer.load(500_000, bytes as usize), sent, "{provider}: {bytes} bytes");
            own.store(600_000, &vec![0; bytes as usize]);
            pair.here.post(between.read(600_000, 500_000, bytes));
            pair.here.quiet();
            assert_eq!(own.load(600_000, bytes as usize), sent, "{provider}: {bytes} bytes");
        }
        for (bytes, expected) in [
            (1u32, 0x8877_6655_4433_22aa_u64),
            (2, 0x8877_6655_4433_bbaa),
            (4, 0x8877_6655_ddcc_bbaa),
            (8, 0x1111_2222_ddcc_bbaa),
        ] {
            if bytes == 1 {
                peer.store(64, &0x8877_6655_4433_2211_u64.to_le_bytes());
            }
            pair.here.post(between.value(0x1111_2222_ddcc_bbaa, 64, bytes));
            pair.here.quiet();
            assert_eq!(peer.load(64, 8), expected.to_le_bytes(), "{provider}: a value of {bytes}");
        }
        peer.store(128, &40u64.to_ne_bytes());
        for (request, old, new) in [
            (between.add(2, 8, 128), 40, 42),
            (between.add(u64::MAX, 8, 128), 42, 41),
            (between.swap(41, 7, 8, 128), 41, 7),
            (between.swap(41, 9, 8, 128), 7, 7),
        ] {
            pair.here.post(request);
            pair.here.quiet();
            assert_eq!((own.load_64(8), peer.load_64(128)), (old, new), "{provider}");
        }
        pair.here.post(between.write(0, 0, 0));
        pair.here.quiet();
        assert_eq!(pair.there.queue.stopped(), None);
    }
}

#[test]
fn a_flag_arrives_after_earlier_writes() {
    if !common::is_installed() {
        return;
    }
    for provider in PROVIDERS {
        let mut pair = Pair::new(provider, 64);
        let between = pair.between();
        let [own, peer] = &pair.ranks;
        for round in 1..=20u64 {
            let sent = pattern(round, 20_000 * PIECES as usize);
            own.store(4096, &sent);
            for piece in 0..PIECES {
                pair.here.post(between.write(4096 + piece * 20_000, 500_000 + piece * 20_000, 20_000));
            }
            pair.here.post(between.value(round, 64, 8));
            wait_for("the flag", || peer.load_64(64) >= round);
            assert_eq!(peer.load(500_000, sent.len()), sent, "{provider}: round {round}");
            pair.here.quiet();
        }
    }
}

#[test]
fn both_ends_add_to_one_counter_and_nothing_is_lost() {
    if !common::is_installed() {
        return;
    }
    for provider in PROVIDERS {
        let mut pair = Pair::new(provider, 32);
        let forth = pair.between();
        // Both add to the first's counter; the first through the second would need a queue to itself, so each has its own.
        let back = Between { local: forth.remote, remote: forth.local };
        for _ in 0..500 {
            pair.here.post(forth.add(3, 8, 256));
            pair.there.post(back.add(5, 8, 256));
        }
        pair.here.quiet();
        pair.there.quiet();
        assert_eq!((pair.ranks[0].load_64(256), pair.ranks[1].load_64(256)), (2500, 1500), "{provider}");
        assert_eq!((pair.ranks[0].load_64(8), pair.ranks[1].load_64(8)), (1497, 2495), "{provider}");
    }
}

/// An operation of the test below: kind, local and remote offset, bytes, value.
type Drawn = (u8, u32, u32, u32, u64);

/// Does an operation with vectors in the place of heaps.
fn model(own: &mut [u8], peer: &mut [u8], (kind, local, remote, bytes, value): Drawn) {
    let (local, remote, bytes) = (local as usize, remote as usize, bytes as usize);
    let (words, at) = (local / 8 * 8, remote / 8 * 8);
    let old = u64::from_ne_bytes(peer[at..at + 8].try_into().unwrap());
    match kind {
        0..=3 => peer[remote..remote + bytes].copy_from_slice(&own[local..local + bytes]),
        4 => own[local..local + bytes].copy_from_slice(&peer[remote..remote + bytes]),
        5 => peer[at..at + 8].copy_from_slice(&value.to_le_bytes()),
        6 => {
            own[words..words + 8].copy_from_slice(&old.to_ne_bytes());
            peer[at..at + 8].copy_from_slice(&old.wrapping_add(value).to_ne_bytes());
        }
        _ => {
            own[words..words + 8].copy_from_slice(&old.to_ne_bytes());
            if old == 0 {
                peer[at..at + 8].copy_from_slice(&value.to_ne_bytes());
            }
        }
    }
}

fn request(between: &Between, (kind, local, remote, bytes, value): Drawn) -> PostedRequest {
    let (local, remote) = (u64::from(local), u64::from(remote));
    match kind {
        0..=3 => between.write(local, remote, bytes),
        4 => between.read(local, remote, bytes),
        5 => between.value(value, remote / 8 * 8, 8),
        6 => between.add(value, local / 8 * 8, remote / 8 * 8),
        _ => between.swap(0, value, local / 8 * 8, remote / 8 * 8),
    }
}

#[test]
fn many_at_once_leave_what_one_after_the_other_would() {
    if !common::is_installed() {
        return;
    }
    for provider in PROVIDERS {
        // What is read and what is written by operations of one run are kept apart, as kernels have to: the first half of the own heap is
        // sent, the second is where results come to.
        let half = HEAP as u32 / 2;
        let operation = (0..8u8, 0..half - 70_000, 0..HEAP as u32 - 70_000, 0..70_000u32, any::<u64>())
            .prop_map(move |(kind, local, remote, bytes, value)| {
                let bytes = if value % 3 == 0 { bytes % 64 } else { bytes };
                let results = if matches!(kind, 0..=3 | 5) { 0 } else { half };
                (kind, local + results, remote, bytes, value)
            });
        let pair = std::cell::RefCell::new(Pair::new(provider, 64));
        let runs = prop::collection::vec(operation, 1..120);
        let cases = ProptestConfig { cases: 40, failure_persistence: None, ..ProptestConfig::default() };
        let mut runner = proptest::test_runner::TestRunner::new(cases);
        let judged = runner.run(&runs, |run| {
            let mut pair = pair.borrow_mut();
            let between = pair.between();
            let (mut own, mut peer) = (pattern(run.len() as u64, HEAP), vec![0; HEAP]);
            pair.ranks[0].store(0, &own);
            pair.ranks[1].store(0, &peer);
            for operation in &run {
                pair.here.post(request(&between, *operation));
                model(&mut own, &mut peer, *operation);
            }
            pair.here.quiet();
            prop_assert!(pair.ranks[0].load(0, HEAP) == own, "{}: this rank's bytes", provider);
            prop_assert!(pair.ranks[1].load(0, HEAP) == peer, "{}: the peer's bytes", provider);
            Ok(())
        });
        judged.unwrap();
    }
}

#[test]
fn unregistered_memory_is_refused_by_name() {
    if !common::is_installed() {
        return;
    }
    for provider in PROVIDERS {
        let check = |change: fn(&mut PostedRequest), expected: u32, words: &[&str]| {
            let mut pair = Pair::new(provider, 16);
            let mut request = pair.between().write(0, 0, 64);
            change(&mut request);
            pair.here.post(pair.between().value(1, 64, 8));
            pair.here.post(request);
            let stopped = pair.here.stopped();
            assert!(words.iter().all(|word| stopped.contains(word)), "{stopped}");
            assert!(stopped.contains("to rank 1"), "{stopped}");
            assert_eq!(pair.here.failure(), Some((1, u64::from(expected))));
            assert_eq!(pair.here.complete(), 1);
            assert!(!pair.here.queue.is_consequence());
        };
        check(|request| request.remote_key = 99, status::REMOTE_ACCESS, &["no range of key 0x63"]);
        check(|request| request.local_key = 98, status::LOCAL_PROTECTION, &["no range of key 0x62"]);
        check(
            |request| request.remote += HEAP as u64 - 63,
            status::REMOTE_ACCESS,
            &["64 bytes at", "not in the peer's range"],
        );
        check(|request| request.local -= 1, status::LOCAL_PROTECTION, &["not in this rank's range"]);
    }
}

#[test]
fn a_range_that_is_registered_no_more_is_not_written() {
    if !common::is_installed() {
        return;
    }
    // The peer said that there is such a range, and takes it back: its provider is who refuses.
    let [own, peer] = [Rank::new("tcp", HEAP), Rank::new("tcp", HEAP)];
    let mut pair = Pair::of([own, peer], 16);
    let between = pair.between();
    pair.here.post(between.write(0, 0, 64));
    pair.here.quiet();
    let other = Rank::new("tcp", 4096);
    pair.ranks[0].store(0, &[7; 64]);
    pair.ranks[1].registered = std::sync::Arc::clone(&other.registered);
    pair.here.post(between.write(0, 0, 64));
    let stopped = pair.here.stopped();
    assert!(stopped.contains("to rank 1") && stopped.contains("entry 1"), "{stopped}");
    assert_eq!(pair.ranks[1].load(0, 64), [0; 64]);
}

#[test]
fn a_peer_that_is_gone_is_named_within_the_patience() {
    if !common::is_installed() {
        return;
    }
    for provider in PROVIDERS {
        // A first write has to connect within it too.
        let quick = RdmaConfig { patience: Duration::from_secs(5), ..config(provider) };
        let open = || Rank::open(provider, HEAP, &quick).unwrap();
        let Pair { mut here, there, ranks: [own, peer] } = Pair::of([open(), open()], 16);
        let between = Between { local: own.heap(), remote: peer.heap() };
        here.post(between.write(0, 0, 64));
        here.quiet();
        drop(there);
        drop(peer);
        here.post(between.write(0, 0, 64));
        let stopped = here.stopped();
        assert!(stopped.contains("to rank 1 (channel 0)"), "{stopped}");
    }
}

#[test]
fn a_stopped_queue_reports_the_reason_and_moves_nothing() {
    if !common::is_installed() {
        return;
    }
    let mut pair = Pair::new("tcp", 16);
    pair.here.queue.stop("the world has ended");
    pair.here.post(pair.between().write(0, 0, 64));
    let stopped = pair.here.stopped();
    assert!(stopped.contains("the world has ended"), "{stopped}");
    assert_eq!(pair.here.complete(), 0);
}

#[test]
fn endpoints_of_other_queues_are_refused() {
    if !common::is_installed() {
        return;
    }
    let tcp = Rank::new("tcp", 4096);
    let (one, two) = (tcp.poster(1, 0, 16), tcp.poster(0, 0, 16));
    let by_shm = String::from_utf8(two.queue.endpoint())
        .unwrap()
        .replace("tcp;ofi_rxm", "shm")
        .replace("\"tcp\"", "\"shm\"");
    let refused = one.queue.connect(GlobalRank::new(1), by_shm.as_bytes()).unwrap_err().to_string();
    assert!(refused.contains("provider is \"shm\"") && refused.contains("rank 1"), "{refused}");
    let wrong = one.queue.connect(GlobalRank::new(2), &one.queue.endpoint()).unwrap_err().to_string();
    assert!(wrong.contains("this queue is for rank 1"), "{wrong}");
    let other = tcp.poster(0, 0, 16);
    one.queue.connect(GlobalRank::new(1), &other.queue.endpoint()).unwrap();
    let again = one.queue.connect(GlobalRank::new(1), &other.queue.endpoint()).unwrap_err().to_string();
    assert!(again.contains("connected already"), "{again}");
}

#[test]
fn a_chosen_provider_is_described_with_the_reason() {
    if !common::is_installed() {
        return;
    }
    let rank = Rank::new("tcp", 4096);
    let described = rank.driver.describe();
    assert!(described.contains("libfabric's tcp"), "{described}");
    assert!(described.contains(" on lo (127.0.0.1/32)"), "{described}");
    assert_eq!((rank.driver.provider(), rank.driver.limits().atomics), (Provider::Posted, Atomics::Standard));
    assert!(rank.driver.limits().most_message_bytes >= 1 << 20);
}

#[test]
fn a_refused_provider_is_reported_with_the_reason() {
    if !common::is_installed() {
        return;
    }
    let refused = |provider: &str, nics: &[&str]| {
        let nics = nics.iter().map(|nic| (*nic).to_owned()).collect();
        let config = RdmaConfig { nics, ..RdmaConfig::default() };
        Rank::open(provider, 4096, &config).err().expect("it is refused").to_string()
    };
    let unknown = refused("carrier-pigeon", &[]);
    assert!(unknown.contains("finds nothing for provider \"carrier-pigeon\""), "{unknown}");
    let nobody = refused("tcp", &["=eth99"]);
    assert!(nobody.contains("on lo (127.0.0.1/32): not named in transport.rdma.nics"), "{nobody}");
    let machine = HostMachine::new(HostConfig::default()).unwrap();
    let device = machine.runtime().device(DeviceOrdinal(0)).unwrap();
    let far = OfiDriver::open(&device, Some("tcp"), &config("tcp"), Reach::OtherMachines);
    let far = far.expect_err("no peer of another machine is on this one's loopback").to_string();
    assert!(far.contains("on lo (127.0.0.1/32): it reaches this machine alone"), "{far}");
}
