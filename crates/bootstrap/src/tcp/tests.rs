//! Peers that do not keep to the protocol, frame by frame against a live root.
#![expect(clippy::disallowed_methods, reason = "sockets live on the machine's time")]

use super::*;
use crate::frame::{FrameError, HEADER, Header, Kind};
use crate::{Loss, LossKind, Refusal, Rendezvous};
use connection::{Connection, Frame};
use handshake::Answer;
use noise::Initiator;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::mpsc::channel;
use std::thread;

const SOON: Duration = Duration::from_secs(5);

fn config(rank: u32, size: u32, address: &str) -> TcpConfig {
    TcpConfig {
        secret: Secret::new("secret"),
        linger: SOON,
        ..TcpConfig::new(address, GlobalRank::new(rank), size, Deadline::after(SOON))
    }
}

/// A root of two ranks whose rank 0 waits to be joined, and its address.
fn root_of_two() -> (thread::JoinHandle<Result<TcpRendezvous, Error>>, String) {
    let root = TcpRoot::bind("127.0.0.1:0").unwrap();
    let address = root.address().to_string();
    let config = config(0, 2, &address);
    (thread::spawn(move || TcpRendezvous::join_with_root(config, root)), address)
}

fn connect(address: &str) -> Connection {
    Connection::new(TcpStream::connect(address).unwrap(), 1, 1 << 20).unwrap()
}

fn next(connection: &mut Connection) -> Frame {
    connection.exchange(Deadline::after(SOON)).unwrap()
}

/// Makes the handshake by hand as rank 1 of `size`; after an answer the connection is encrypted.
fn handshake_by_hand(address: &str, secret: &str, size: u32) -> (Connection, Result<Answer, Kind>) {
    let mut connection = connect(address);
    let challenge: [u8; 32] = next(&mut connection).payload.try_into().unwrap();
    let hello = handshake::HelloMsg { rank: 1, size, session: Session::default() };
    let (initiator, message) = Initiator::begin(&Secret::new(secret), &challenge, &hello.encode()).unwrap();
    connection.queue(Kind::Hello, 0, &message);
    let frame = next(&mut connection);
    if frame.header.kind != Kind::Answer {
        return (connection, Err(frame.header.kind));
    }
    let (payload, cipher) = initiator.finish(&frame.payload).unwrap();
    connection.encrypt(cipher);
    (connection, Ok(Answer::decode(&payload).unwrap()))
}

/// Joins as rank 1, so that rank 0's thread gets its world, and both leave.
fn finish(joining: thread::JoinHandle<Result<TcpRendezvous, Error>>, address: &str) {
    let other = TcpRendezvous::join(config(1, 2, address)).unwrap();
    other.leave().unwrap();
    joining.join().unwrap().unwrap().leave().unwrap();
}

#[test]
fn a_stranger_is_refused_and_the_root_goes_on() {
    let (joining, address) = root_of_two();
    // Not this protocol at all: the root says one thing in its own words and closes.
    let mut stranger = TcpStream::connect(&address).unwrap();
    stranger.write_all(b"GET / HTTP/1.1\r\nHost: here, and more so that a header is there\r\n\r\n").unwrap();
    stranger.set_read_timeout(Some(SOON)).unwrap();
    let mut said = Vec::new();
    stranger.read_to_end(&mut said).unwrap();
    assert_eq!(said.len(), HEADER + 32 + HEADER + 9, "a challenge and a refusal");
    // A frame that is too long before the secret is proven.
    let mut long = connect(&address);
    next(&mut long);
    long.queue(Kind::Hello, 0, &[0; 5000]);
    assert_eq!(next(&mut long).header.kind, Kind::Refuse);
    // A request instead of a hello.
    let mut rude = connect(&address);
    next(&mut rude);
    rude.queue(Kind::Goodbye, 0, &[]);
    assert_eq!(next(&mut rude).header.kind, Kind::Refuse);
    // A proof made with another token.
    assert_eq!(handshake_by_hand(&address, "guess", 2).1, Err(Kind::Refuse));
    finish(joining, &address);
}

#[test]
fn a_newcomer_of_another_version_learns_of_it() {
    let (joining, address) = root_of_two();
    let mut newcomer = TcpStream::connect(&address).unwrap();
    let mut frame = Header::of(Kind::Hello, 1, 0, &[]).encode();
    frame[8] = 9;
    newcomer.write_all(&frame).unwrap();
    newcomer.set_read_timeout(Some(SOON)).unwrap();
    let mut said = Vec::new();
    newcomer.read_to_end(&mut said).unwrap();
    // What such a newcomer sees first is a frame with the root's version in it.
    assert_eq!(u16::from_le_bytes([said[8], said[9]]), crate::frame::VERSION);
    finish(joining, &address);
}

/// A root that sends these bytes to every connection.
fn root_that_sends(bytes: Vec<u8>) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        stream.write_all(&bytes).unwrap();
        // Held open until the newcomer has had its say.
        let _ = stream.read_to_end(&mut Vec::new());
    });
    address
}

fn frame_error(bytes: Vec<u8>) -> FrameError {
    match TcpRendezvous::join(config(1, 2, &root_that_sends(bytes))).unwrap_err() {
        Error::Frame { source, .. } => source,
        other => panic!("{other}"),
    }
}

#[test]
fn a_false_root_is_named_at_once() {
    let challenge = Header::of(Kind::Challenge, 0, 0, &[1; 32]);
    let mut other_version = challenge.encode();
    other_version[8] = 7;
    assert_eq!(
        frame_error(other_version.to_vec()),
        FrameError::Version { ours: crate::frame::VERSION, theirs: 7 }
    );
    let http = b"HTTP/1.1 400 Bad Request and what else a server says".to_vec();
    assert!(matches!(frame_error(http), FrameError::Magic { .. }));
    let long = Header { length: 1 << 40, ..challenge };
    assert_eq!(frame_error(long.encode().to_vec()), FrameError::TooLong { length: 1 << 40, limit: 4096 });
    let damaged = [&challenge.encode()[..], &[2; 32]].concat();
    assert!(matches!(frame_error(damaged), FrameError::PayloadChecksum { .. }));
}

#[test]
fn a_root_that_cannot_prove_the_token_is_not_trusted() {
    // What it says looks like an answer and is noise.
    let answer = [9; 60];
    let said = [
        &Header::of(Kind::Challenge, 0, 0, &[1; 32]).encode()[..],
        &[1; 32],
        &Header::of(Kind::Answer, 0, 0, &answer).encode(),
        &answer,
    ]
    .concat();
    let error = TcpRendezvous::join(config(1, 2, &root_that_sends(said))).unwrap_err();
    assert!(matches!(error, Error::RootUnproven { .. }), "{error}");
}

/// Makes a world of two whose rank 1 is a bare connection, and returns rank 0 and that.
fn half_real(heartbeat: Heartbeat) -> (TcpRendezvous, Connection, String) {
    let root = TcpRoot::bind("127.0.0.1:0").unwrap();
    let address = root.address().to_string();
    let config = TcpConfig { heartbeat, linger: Duration::from_millis(100), ..config(0, 2, &address) };
    let joining = thread::spawn(move || TcpRendezvous::join_with_root(config, root));
    let (mut connection, answer) = handshake_by_hand(&address, "secret", 2);
    assert!(matches!(answer, Ok(Answer::Welcome { .. })));
    let world = Group::world(2).unwrap();
    let key = crate::message::OperationKey { group: world, tag: JOIN.into(), sequence: 0 };
    let (kind, payload) = crate::message::Request::Contribute { key, bytes: Vec::new() }.encode();
    connection.queue(kind, 5, &payload);
    while next(&mut connection).header.kind != Kind::Gathered {}
    (joining.join().unwrap().unwrap(), connection, address)
}

/// Waits until the rank has noticed a loss.
fn loss_seen(rendezvous: &TcpRendezvous) -> Loss {
    let (sender, receiver) = channel();
    rendezvous.observe(Arc::new(move |loss: &Loss| sender.send(loss.clone()).unwrap()));
    receiver.recv_timeout(SOON).unwrap()
}

#[test]
fn a_silent_peer_counts_as_dead_and_is_informed() {
    let heartbeat = Heartbeat { interval: Duration::from_millis(50), limit: Duration::from_millis(600) };
    let (rank_0, mut silent, _) = half_real(heartbeat);
    let loss = loss_seen(&rank_0);
    assert_eq!((loss.rank.get(), loss.kind), (1, LossKind::Died));
    assert!(loss.detail.contains("silent"), "{loss}");
    loop {
        let frame = next(&mut silent);
        match frame.header.kind {
            Kind::Lost => break,
            kind => assert_eq!(kind, Kind::Heartbeat),
        }
    }
    rank_0.leave().unwrap();
}

#[test]
fn a_peer_that_sends_nonsense_is_given_up_and_named() {
    let (rank_0, mut peer, _) = half_real(Heartbeat::default());
    peer.queue(Kind::Contribute, 6, b"nonsense");
    peer.flush().unwrap();
    let loss = loss_seen(&rank_0);
    assert!(loss.detail.contains("its payload is not that of a contribution"), "{loss}");
    rank_0.leave().unwrap();
}

#[test]
fn a_dropped_connection_is_a_death_that_ends_waiting_calls() {
    let (rank_0, peer, _) = half_real(Heartbeat::default());
    let dropper = thread::spawn(move || {
        thread::sleep(Duration::from_millis(50));
        drop(peer);
    });
    let started = std::time::Instant::now();
    let world = Group::world(2).unwrap();
    let error = rank_0.all_gather(&world, "rows", &[], Deadline::after(SOON)).unwrap_err();
    assert!(started.elapsed() < Duration::from_secs(1), "it failed at once, not at the deadline");
    let Error::PeerLost { phase, loss } = error else { panic!("{error}") };
    assert_eq!((phase.as_str(), loss.rank.get(), loss.kind), ("all_gather 'rows'", 1, LossKind::Died));
    dropper.join().unwrap();
    // It cannot come back as the same rank.
    rank_0.leave().unwrap();
}

#[test]
fn a_root_that_leaves_first_serves_until_its_linger_ends() {
    let (rank_0, mut peer, _) = half_real(Heartbeat::default());
    let error = rank_0.leave().unwrap_err();
    assert!(matches!(&error, Error::StillJoined { ranks, .. } if ranks == &[GlobalRank::new(1)]), "{error}");
    let mut kinds = Vec::new();
    while let Ok(frame) = peer.exchange(Deadline::after(SOON)) {
        kinds.push(frame.header.kind);
    }
    kinds.retain(|kind| *kind != Kind::Heartbeat);
    assert_eq!(kinds, [Kind::Lost, Kind::Goodbye]);
}

#[test]
fn a_rank_that_died_may_not_come_back_and_one_that_is_there_not_come_twice() {
    let (rank_0, peer, address) = half_real(Heartbeat::default());
    let refusal = || match TcpRendezvous::join(config(1, 2, &address)).unwrap_err() {
        Error::Refused { refusal, .. } => refusal,
        other => panic!("{other}"),
    };
    assert_eq!(refusal(), Refusal::Duplicate);
    drop(peer);
    loss_seen(&rank_0);
    assert_eq!(refusal(), Refusal::Lost);
    rank_0.leave().unwrap();
}

#[test]
fn a_silent_candidate_does_not_delay_finding_the_root() {
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let (joining, address) = root_of_two();
    finish(joining, &format!("{},{address}", silent.local_addr().unwrap()));
}

#[test]
fn the_answer_of_the_root_is_final() {
    let (joining, address) = root_of_two();
    let nobody = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let started = std::time::Instant::now();
    // One on each side, so that neither order hides it.
    let config = config(1, 3, &format!("{nobody},{address},{nobody}"));
    let error = TcpRendezvous::join(config).unwrap_err();
    let expected = Refusal::Size { given: 3, expected: 2 };
    assert!(matches!(&error, Error::Refused { refusal, .. } if *refusal == expected), "{error}");
    assert!(started.elapsed() < SOON / 2, "long before the deadline");
    assert!(joining.join().unwrap().is_err());
}
