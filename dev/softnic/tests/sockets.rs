//! Sockets between NICs: who does not know the token, and what is no frame, is let go; frames keep their order and their bytes.

use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, Ipv4Addr, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::time::Duration;

use anabranch_clock::{Moment, sleep};
use anabranch_softnic::fabric::{Body, Event, Frame};
use anabranch_softnic::{Fabric, Listen, StreamPort};

const LOOPBACK: Listen = Listen::Tcp(IpAddr::V4(Ipv4Addr::LOCALHOST));
const LIMIT: Duration = Duration::from_secs(20);

/// The next event of a port, while others are looked after too.
fn next(ports: &mut [&mut StreamPort]) -> Event {
    let until = Moment::now().after(LIMIT);
    loop {
        if let Some(event) = ports[0].poll() {
            return event;
        }
        for other in &mut ports[1..] {
            assert_eq!(other.poll(), None);
        }
        assert!(!until.remaining().is_zero(), "nothing comes");
    }
}

fn frame(sequence: u64, bytes: usize) -> Frame {
    let body = Body::Write {
        address: 1,
        total: bytes as u64,
        offset: 0,
        key: 7,
        immediate: None,
        bytes: vec![sequence as u8; bytes],
    };
    Frame { source: 1, target: 2, sequence, body }
}

/// A connection to a port of TCP, and the token that its address has.
fn stranger(port: &StreamPort) -> (TcpStream, Vec<u8>) {
    let address = port.address();
    let (token, place) = address.split_once('/').unwrap();
    let token = (0..token.len()).step_by(2).map(|at| u8::from_str_radix(&token[at..at + 2], 16).unwrap());
    let socket = TcpStream::connect(place.strip_prefix("tcp:").unwrap()).unwrap();
    socket.set_read_timeout(Some(Duration::from_millis(1))).unwrap();
    (socket, token.collect())
}

/// Whether the port closes the connection, before it says anything.
fn is_let_go(port: &mut StreamPort, socket: &mut TcpStream) -> bool {
    let until = Moment::now().after(Duration::from_secs(2));
    while !until.remaining().is_zero() {
        assert_eq!(port.poll(), None);
        match socket.read(&mut [0; 8]) {
            Ok(0) => return true,
            Ok(_) => panic!("it answers strangers"),
            Err(cause) if matches!(cause.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {}
            Err(_) => return true,
        }
    }
    false
}

#[test]
fn frames_arrive_in_order_and_whole() {
    for listen in [LOOPBACK, Listen::Abstract] {
        let (mut left, mut right) = (StreamPort::open(&listen).unwrap(), StreamPort::open(&listen).unwrap());
        left.open(right.number(), &right.address()).unwrap();
        for sequence in 0..200 {
            left.send(right.number(), frame(sequence, 10_000));
        }
        for sequence in 0..200 {
            let expected = Event::Came { from: left.number(), frame: frame(sequence, 10_000) };
            assert_eq!(next(&mut [&mut right, &mut left]), expected);
        }
        // Frames that were sent before the end arrive before the news of it.
        left.send(right.number(), frame(9, 100));
        let number = left.number();
        drop(left);
        assert_eq!(next(&mut [&mut right]), Event::Came { from: number, frame: frame(9, 100) });
        assert!(matches!(next(&mut [&mut right]), Event::Gone { peer, .. } if peer == number));
        assert_eq!(right.poll(), None);
    }
}

#[test]
fn more_waits_than_a_socket_takes() {
    let (mut left, mut right) = (StreamPort::open(&LOOPBACK).unwrap(), StreamPort::open(&LOOPBACK).unwrap());
    left.open(right.number(), &right.address()).unwrap();
    let mut sent = 0;
    while !left.is_full(right.number()) {
        left.send(right.number(), frame(sent, 1 << 20));
        sent += 1;
        assert!(sent < 1000, "it takes everything");
    }
    for sequence in 0..sent {
        let Event::Came { frame: came, .. } = next(&mut [&mut right, &mut left]) else { panic!("gone") };
        assert_eq!(came, frame(sequence, 1 << 20));
    }
    assert!(!left.is_full(right.number()));
}

#[test]
fn strangers_are_let_go() {
    let mut port = StreamPort::open(&LOOPBACK).unwrap();
    let hello = |token: &[u8]| [b"softnic1".as_slice(), token, &[9, 0, 0, 0, 0, 0, 0, 0]].concat();
    let (mut socket, token) = stranger(&port);
    let mut wrong = token.clone();
    wrong[15] ^= 1;
    socket.write_all(&hello(&wrong)).unwrap();
    assert!(is_let_go(&mut port, &mut socket), "a wrong token");
    let (mut socket, _) = stranger(&port);
    socket.write_all(&hello(&token).split_off(1)).unwrap();
    socket.write_all(&[0]).unwrap();
    assert!(is_let_go(&mut port, &mut socket), "a greeting of something else");
    // What comes behind the greeting must be frames.
    for nonsense in [vec![0xff; 64], vec![17, 0, 0, 0, 1, 0, 0, 0, 2, 0, 0, 0, 3, 0, 0, 0, 0, 0, 0, 0, 99]] {
        let mut port = StreamPort::open(&LOOPBACK).unwrap();
        let (mut socket, token) = stranger(&port);
        socket.write_all(&hello(&token)).unwrap();
        socket.write_all(&nonsense).unwrap();
        let Event::Gone { why, .. } = next(&mut [&mut port]) else { panic!("that is a frame?") };
        assert!(why.contains("frame"), "{why}");
    }
}

#[test]
fn a_crowd_of_strangers_does_not_shut_others_out() {
    let (mut left, mut right) = (StreamPort::open(&LOOPBACK).unwrap(), StreamPort::open(&LOOPBACK).unwrap());
    let crowd: Vec<_> = (0..100).map(|_| stranger(&right).0).collect();
    for _ in 0..200 {
        assert_eq!(right.poll(), None);
    }
    drop(crowd);
    for _ in 0..200 {
        assert_eq!(right.poll(), None);
    }
    left.open(right.number(), &right.address()).unwrap();
    left.send(right.number(), frame(1, 1));
    assert!(matches!(next(&mut [&mut right, &mut left]), Event::Came { .. }));
}

#[test]
fn folders_of_others_are_refused() {
    let folder = std::env::temp_dir().join(format!("anabranch-softnic-open-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    for (mode, fine) in [(0o755, false), (0o770, false), (0o700, true)] {
        std::fs::set_permissions(&folder, std::fs::Permissions::from_mode(mode)).unwrap();
        assert_eq!(StreamPort::open(&Listen::Folder(folder.clone())).is_ok(), fine, "mode {mode:o}");
    }
    std::fs::remove_dir(&folder).unwrap();
    assert!(StreamPort::open(&Listen::Folder(folder)).is_err());
}

#[test]
fn addresses_that_lead_nowhere() {
    let mut port = StreamPort::open(&LOOPBACK).unwrap();
    let number = port.number();
    for address in ["", "00/tcp:127.0.0.1:1", "zz/tcp:127.0.0.1:1", "/", "no slash"] {
        assert!(port.open(number, address).is_err(), "{address:?}");
    }
    let token = "00".repeat(16);
    for place in ["tcp:nowhere", "unix-abstract:name", "ipx:1", "tcp"] {
        assert!(port.open(number, &format!("{token}/{place}")).is_err(), "{place:?}");
    }
    // No socket listens there any more: noticed at once, or at a poll.
    let gone = StreamPort::open(&LOOPBACK).unwrap();
    let (peer, address) = (gone.number(), gone.address());
    drop(gone);
    if port.open(peer, &address).is_ok() {
        sleep(Duration::from_millis(1));
        assert!(matches!(next(&mut [&mut port]), Event::Gone { .. }));
    }
}

#[test]
fn a_number_is_one_nics_with_one_address() {
    let mut port = StreamPort::open(&LOOPBACK).unwrap();
    let mut other = StreamPort::open(&LOOPBACK).unwrap();
    other.open(port.number(), &port.address()).unwrap();
    other.send(port.number(), frame(1, 8));
    assert!(matches!(next(&mut [&mut port, &mut other]), Event::Came { .. }));
    // A peer that knows the token calls itself by the other's number.
    let (mut socket, token) = stranger(&port);
    let hello = [b"softnic1".as_slice(), &token, &other.number().0.to_le_bytes()].concat();
    socket.write_all(&hello).unwrap();
    assert!(is_let_go(&mut port, &mut socket), "a second connection under one number");
    other.send(port.number(), frame(2, 8));
    assert_eq!(next(&mut [&mut port, &mut other]), Event::Came { from: other.number(), frame: frame(2, 8) });
    // Nor does an endpoint lead the number elsewhere.
    let third = StreamPort::open(&LOOPBACK).unwrap();
    assert!(other.open(port.number(), &port.address()).is_ok(), "the same again");
    let error = other.open(port.number(), &third.address()).unwrap_err();
    let address = port.address();
    let (token, _) = address.split_once('/').unwrap();
    let text = format!("{error} {error:?} {other:?} {port:?}");
    assert!(text.contains("127.0.0.1") && !text.contains(token), "{text}");
}

#[test]
fn an_address_that_leads_nowhere_is_refused() {
    for every in ["0.0.0.0", "::"] {
        let error = StreamPort::open(&Listen::Tcp(every.parse().unwrap())).unwrap_err();
        assert!(format!("{error:?}").contains("leads nowhere"), "{error:?}");
    }
}
