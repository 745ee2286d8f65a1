//! What is particular to processes that meet over TCP.
#![expect(
    clippy::disallowed_methods,
    reason = "tests of real threads and processes run on the machine's time"
)]

use crate::common::{Barrier, Form, config, run, short, soon};
use anabranch_bootstrap::{
    Deadline, Error, Heartbeat, LossKind, Refusal, Rendezvous, Secret, Session, TcpConfig, TcpRendezvous,
    TcpRoot, UniqueId,
};
use anabranch_ranks::{GlobalRank, Group};
use std::thread;
use std::time::{Duration, Instant};

fn rank(number: u32) -> GlobalRank {
    GlobalRank::new(number)
}

fn root() -> (TcpRoot, String) {
    let root = TcpRoot::bind("127.0.0.1:0").unwrap();
    let address = root.address().to_string();
    (root, address)
}

#[test]
fn ranks_that_do_not_join_are_listed() {
    let (root, address) = root();
    let config_0 = TcpConfig { deadline: short(), ..config(0, 4, &address) };
    let config_2 = TcpConfig { deadline: soon(), ..config(2, 4, &address) };
    let other = thread::spawn(move || TcpRendezvous::join(config_2).unwrap_err());
    let error = TcpRendezvous::join_with_root(config_0, root).unwrap_err();
    let Error::Expired { phase, missing, .. } = &error else { panic!("{error}") };
    assert_eq!(phase, "all_gather 'join'");
    assert_eq!(missing, &[rank(1), rank(3)]);
    // The other learns the same, long before its own deadline.
    let error = other.join().unwrap();
    assert!(
        matches!(&error, Error::Expired { by, waited: None, missing, .. } if *by == rank(0) && missing.len() == 2),
        "{error}"
    );
}

#[test]
fn a_root_that_is_not_there_is_named_at_the_deadline() {
    let (root, address) = root();
    drop(root);
    let started = Instant::now();
    let error = TcpRendezvous::join(TcpConfig { deadline: short(), ..config(1, 2, &address) }).unwrap_err();
    assert!(started.elapsed() < Duration::from_secs(1));
    assert!(
        matches!(&error, Error::Connect { address: named, attempts: 2.., .. } if *named == address),
        "{error}"
    );
}

#[test]
fn ranks_may_start_before_the_root() {
    // The port is free again once this is dropped; no other process takes it in so short a time.
    let (early, address) = root();
    drop(early);
    let first = {
        let address = address.clone();
        thread::spawn(move || TcpRendezvous::join(config(1, 2, &address)).unwrap().leave().unwrap())
    };
    thread::sleep(Duration::from_millis(100));
    TcpRendezvous::join(config(0, 2, &address)).unwrap().leave().unwrap();
    first.join().unwrap();
}

#[test]
fn wrong_connections_are_refused_without_harm() {
    let (root, address) = root();
    let config_0 = config(0, 3, &address);
    let rank_0 = thread::spawn(move || TcpRendezvous::join_with_root(config_0, root).unwrap());
    let rank_1 = {
        let address = address.clone();
        thread::spawn(move || TcpRendezvous::join(config(1, 3, &address)).unwrap())
    };
    let refusal = |config: TcpConfig| match TcpRendezvous::join(config).unwrap_err() {
        Error::Refused { refusal, rank, .. } => (refusal, rank.get()),
        other => panic!("{other}"),
    };
    let wrong = TcpConfig { secret: Secret::new("another"), ..config(2, 3, &address) };
    assert_eq!(refusal(wrong), (Refusal::Secret, 2));
    let open = TcpConfig { secret: Secret::none(), ..config(2, 3, &address) };
    assert_eq!(refusal(open), (Refusal::Secret, 2));
    let session = |run: &str, generation| Session { run: run.into(), generation };
    let other_run = TcpConfig { session: session("yesterday", 0), ..config(2, 3, &address) };
    assert_eq!(refusal(other_run), (Refusal::Run, 2));
    let rank_2 = {
        let address = address.clone();
        thread::spawn(move || TcpRendezvous::join(config(2, 3, &address)).unwrap())
    };
    let joined = [rank_0, rank_1, rank_2].map(|rank| rank.join().unwrap());
    // Now that the world has formed, these are unknown connections too, without effect.
    assert_eq!(refusal(config(1, 3, &address)), (Refusal::Duplicate, 1));
    assert_eq!(refusal(config(2, 5, &address)), (Refusal::Size { given: 5, expected: 3 }, 2));
    let world = Group::world(3).unwrap();
    let leaving = joined.map(|rendezvous| {
        let world = world.clone();
        thread::spawn(move || {
            rendezvous.barrier(&world, "still well", soon()).unwrap();
            rendezvous.leave().unwrap();
        })
    });
    for rank in leaving {
        rank.join().unwrap();
    }
}

/// What every rank of a world of four hears, of which rank 3 comes last and `wrong`.
fn verdict_on(wrong: impl Fn(TcpConfig) -> TcpConfig) -> Vec<Error> {
    let (root, address) = root();
    let mut root = Some(root);
    let ranks: Vec<_> = (0..4)
        .map(|rank| {
            let (config, root) = (config(rank, 4, &address), root.take());
            let config = if rank == 3 { wrong(config) } else { config };
            thread::spawn(move || {
                // Rank 2 comes when all is over.
                thread::sleep(Duration::from_millis([0, 0, 400, 200][rank as usize]));
                let started = Instant::now();
                let error = match root {
                    Some(root) => TcpRendezvous::join_with_root(config, root).unwrap_err(),
                    None => TcpRendezvous::join(config).unwrap_err(),
                };
                assert!(started.elapsed() < Duration::from_secs(5), "long before the deadline");
                error
            })
        })
        .collect();
    ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
}

#[test]
fn a_rank_with_another_size_ends_the_rendezvous_for_all_with_one_verdict() {
    let errors = verdict_on(|config| TcpConfig { size: 5, ..config });
    let expected = Refusal::Size { given: 5, expected: 4 };
    assert!(matches!(&errors[3], Error::Refused { refusal, .. } if *refusal == expected), "{}", errors[3]);
    for (number, error) in errors[..3].iter().enumerate() {
        let text = format!(
            "rank {number}: the world cannot form: rank 3 was refused: \
             it was started for a world of 5 ranks, the root for 4"
        );
        assert_eq!(error.to_string(), text);
    }
}

#[test]
fn two_processes_with_one_rank_end_the_rendezvous_for_all() {
    let errors = verdict_on(|config| TcpConfig { rank: rank(1), ..config });
    assert!(matches!(&errors[3], Error::Refused { refusal: Refusal::Duplicate, .. }), "{}", errors[3]);
    for error in &errors[..3] {
        let Error::CannotForm { by, refusal, .. } = error else { panic!("{error}") };
        assert_eq!((*by, *refusal), (rank(1), Refusal::Duplicate));
    }
}

#[test]
fn a_late_process_of_an_earlier_start_is_refused_and_an_early_one_of_a_later_start_waits() {
    let (old_root, address) = root();
    let start = |generation, rank, address: &str| TcpConfig {
        session: Session { run: "job".into(), generation },
        ..config(rank, 2, address)
    };
    let old = {
        let config = TcpConfig { deadline: short(), ..start(1, 0, &address) };
        thread::spawn(move || TcpRendezvous::join_with_root(config, old_root).unwrap_err())
    };
    // The next start's rank 1 meets the root of the one before, which ends soon.
    let early = {
        let config = start(2, 1, &address);
        thread::spawn(move || TcpRendezvous::join(config).unwrap().leave().unwrap())
    };
    assert!(matches!(old.join().unwrap(), Error::Expired { .. }));
    let config_0 = start(2, 0, &address);
    let joining = thread::spawn(move || TcpRendezvous::join(config_0).unwrap());
    early.join().unwrap();
    let rank_0 = joining.join().unwrap();
    let error = TcpRendezvous::join(start(1, 1, &address)).unwrap_err();
    let expected = Refusal::Generation { given: 1, expected: 2 };
    assert!(matches!(&error, Error::Refused { refusal, .. } if *refusal == expected), "{error}");
    rank_0.leave().unwrap();
}

#[test]
fn without_a_secret_ranks_join_on_loopback_only_by_default() {
    let open = |rank, address: &str| TcpConfig { secret: Secret::none(), ..config(rank, 2, address) };
    let unprotected = |config, root: Option<TcpRoot>| {
        let error = match root {
            Some(root) => TcpRendezvous::join_with_root(config, root).unwrap_err(),
            None => TcpRendezvous::join(config).unwrap_err(),
        };
        assert!(matches!(error, Error::Unprotected { .. }), "{error}");
        assert!(error.to_string().contains("ANABRANCH_SECRET_FILE=FILE"), "{error}");
    };
    let all = TcpRoot::bind("0.0.0.0:0").unwrap();
    let port = all.address().port();
    // An address of the documentation's range (RFC 5737), which nothing is ever sent to.
    unprotected(open(1, "192.0.2.1:9"), None);
    unprotected(open(0, "127.0.0.1:9"), Some(all));
    let meet = |root: &str, address: &str, insecure: bool| {
        let root = TcpRoot::bind(root).unwrap();
        let address = format!("{address}:{}", root.address().port());
        let of = |rank| TcpConfig { insecure, ..open(rank, &address) };
        let (config_0, config_1) = (of(0), of(1));
        let other = thread::spawn(move || TcpRendezvous::join(config_1).unwrap().leave().unwrap());
        TcpRendezvous::join_with_root(config_0, root).unwrap().leave().unwrap();
        other.join().unwrap();
    };
    meet("127.0.0.1:0", "127.0.0.1", false);
    meet(&format!("0.0.0.0:{port}"), "127.0.0.1", true);
}

#[test]
fn a_unique_id_is_all_that_ranks_need() {
    for root in [TcpRoot::bind("127.0.0.1:0").unwrap(), TcpRoot::bind_interface("lo").unwrap()] {
        let id = root.unique_id().unwrap();
        // It travels as bytes or as text.
        let (bytes, text) = (id.to_bytes(), id.to_text());
        let other = thread::spawn(move || {
            let id = UniqueId::from_bytes(&bytes).unwrap();
            TcpRendezvous::join(TcpConfig::with_unique_id(&id, rank(1), 3, soon())).unwrap().leave().unwrap();
        });
        let third = thread::spawn(move || {
            let id: UniqueId = text.parse().unwrap();
            TcpRendezvous::join(TcpConfig::with_unique_id(&id, rank(2), 3, soon())).unwrap().leave().unwrap();
        });
        let config = TcpConfig::with_unique_id(&id, rank(0), 3, soon());
        TcpRendezvous::join_with_root(config, root).unwrap().leave().unwrap();
        other.join().unwrap();
        third.join().unwrap();
    }
}

#[test]
fn several_addresses_are_tried_and_what_is_not_the_root_is_passed_over() {
    let (root, address) = root();
    // One without a listener, one with another job's root.
    let free = TcpRoot::bind("127.0.0.1:0").unwrap().address();
    let (other_root, other_address) = self::root();
    let other = {
        let config = TcpConfig { secret: Secret::new("another"), ..config(0, 2, &other_address) };
        thread::spawn(move || TcpRendezvous::join_with_root(config, other_root).unwrap())
    };
    let all = format!("{free}, {other_address}, {address}");
    let config_0 = config(0, 2, &address);
    let rank_0 = thread::spawn(move || TcpRendezvous::join_with_root(config_0, root).unwrap());
    TcpRendezvous::join(config(1, 2, &all)).unwrap().leave().unwrap();
    rank_0.join().unwrap().leave().unwrap();
    let config = TcpConfig { secret: Secret::new("another"), ..config(1, 2, &other_address) };
    TcpRendezvous::join(config).unwrap().leave().unwrap();
    other.join().unwrap().leave().unwrap();
}

#[test]
fn an_interface_that_is_not_there_is_named_where_one_is_needed() {
    let on = |address: &str| TcpConfig {
        interface: Some("no-such0".into()),
        deadline: short(),
        ..config(0, 1, address)
    };
    // An address of the documentation's range (RFC 5737).
    let error = TcpRendezvous::join(on("192.0.2.1:9")).unwrap_err();
    assert!(error.to_string().contains("the network interface no-such0 has no address here"), "{error}");
    let (probe, address) = root();
    drop(probe);
    TcpRendezvous::join(on(&address)).unwrap().leave().unwrap();
}

#[test]
fn configurations_that_make_no_sense_are_refused() {
    for (config, name) in [
        (config(3, 3, "localhost:1"), "rank"),
        (config(0, 0, "localhost:1"), "size"),
        (config(0, 1, "nowhere"), "address"),
        (TcpConfig { handshake_limit: Duration::ZERO, ..config(0, 1, "localhost:1") }, "handshake_limit"),
        (
            TcpConfig {
                session: Session { run: "x".repeat(513), generation: 0 },
                ..config(0, 1, "localhost:1")
            },
            "session.run",
        ),
        (TcpConfig { max_message_bytes: 10, ..config(0, 1, "localhost:1") }, "max_message_bytes"),
        (
            TcpConfig {
                heartbeat: Heartbeat { interval: Duration::from_secs(2), limit: Duration::from_secs(1) },
                ..config(0, 1, "localhost:1")
            },
            "heartbeat.interval",
        ),
    ] {
        let error = TcpRendezvous::join(config).unwrap_err();
        assert!(matches!(error, Error::Config { name: named, .. } if named == name), "{error}");
    }
    let (taken, address) = root();
    let error = TcpRendezvous::join(config(0, 1, &address)).unwrap_err();
    assert!(error.to_string().contains(&format!("listening on {address}")), "{error}");
    drop(taken);
}

#[test]
fn messages_over_the_maximum_are_refused_and_large_ones_pass() {
    let (root, address) = root();
    let limit = 8 << 20;
    let with_limit = move |rank| TcpConfig { max_message_bytes: limit, ..config(rank, 2, &address) };
    let (config_0, config_1) = (with_limit(0), with_limit(1));
    let body = move |rendezvous: TcpRendezvous| {
        let world = Group::world(2).unwrap();
        let error = rendezvous.all_gather(&world, "big", &vec![1; limit as usize], soon()).unwrap_err();
        assert!(error.to_string().contains(&format!("max_message_bytes allows {limit}")), "{error}");
        // The parts fit, what comes back would not: all members learn it.
        let error = rendezvous.all_gather(&world, "big", &vec![1; 5 << 20], soon()).unwrap_err();
        assert!(error.to_string().contains("a message has 10485784 bytes"), "{error}");
        let mine = vec![rendezvous.rank().get() as u8; 3 << 20];
        let all = rendezvous.all_gather(&world, "big", &mine, soon()).unwrap();
        assert!(all[0].iter().all(|byte| *byte == 0) && all[1].iter().all(|byte| *byte == 1));
        assert_eq!((all[0].len(), all[1].len()), (3 << 20, 3 << 20));
        rendezvous.leave().unwrap();
    };
    let other = thread::spawn(move || body(TcpRendezvous::join(config_1).unwrap()));
    body(TcpRendezvous::join_with_root(config_0, root).unwrap());
    other.join().unwrap();
}

#[test]
fn the_death_of_the_root_is_reported_to_every_rank() {
    run(Form::Tcp, 3, |rendezvous| {
        let world = Group::world(3).unwrap();
        rendezvous.barrier(&world, "start", soon()).unwrap();
        if rendezvous.rank() == rank(0) {
            // Dropped without leaving, with the others waiting.
            thread::sleep(Duration::from_millis(50));
            return;
        }
        let started = Instant::now();
        let error = rendezvous.barrier(&world, "rows", soon()).unwrap_err();
        assert!(started.elapsed() < Duration::from_secs(2));
        let Error::PeerLost { loss, .. } = &error else { panic!("{error}") };
        assert_eq!((loss.rank, loss.kind), (rank(0), LossKind::Died));
        assert_eq!(rendezvous.losses(), std::slice::from_ref(loss));
        // Nothing works any more, and says why, at once.
        let error = rendezvous.wait("key", soon()).unwrap_err();
        assert!(matches!(error, Error::PeerLost { .. }), "{error}");
        assert!(rendezvous.set("key", b"").is_err());
        rendezvous.leave().unwrap();
    });
}

#[test]
fn a_root_that_leaves_first_serves_the_others_until_they_have_left() {
    run(Form::Tcp, 3, |rendezvous| {
        let world = Group::world(3).unwrap();
        let rest = world.excluding(&[world.rank_of(rank(0)).unwrap()]).unwrap();
        rendezvous.barrier(&world, "start", soon()).unwrap();
        if rendezvous.rank() == rank(0) {
            return rendezvous.leave().unwrap();
        }
        thread::sleep(Duration::from_millis(100));
        rendezvous.barrier(&rest, "without the root", soon()).unwrap();
        let losses = rendezvous.losses();
        assert_eq!((losses[0].rank, losses[0].kind), (rank(0), LossKind::Left));
        rendezvous.leave().unwrap();
    });
}

#[test]
fn names_and_other_addresses_work() {
    for address in ["localhost", "[::1]"] {
        // Machines without IPv6 have nothing to test here.
        let Ok(probe) = TcpRoot::bind(&format!("{address}:0")) else { continue };
        let port = probe.address().port();
        drop(probe);
        let address = format!("{address}:{port}");
        let other = {
            let address = address.clone();
            thread::spawn(move || TcpRendezvous::join(config(1, 2, &address)).unwrap().leave().unwrap())
        };
        TcpRendezvous::join(config(0, 2, &address)).unwrap().leave().unwrap();
        other.join().unwrap();
    }
    let unknown = TcpConfig {
        deadline: Deadline::after(Duration::from_millis(50)),
        ..config(1, 2, "no-such-host.invalid:4000")
    };
    let error = TcpRendezvous::join(unknown).unwrap_err();
    assert!(error.to_string().contains("resolving the root's address no-such-host.invalid:4000"), "{error}");
}
