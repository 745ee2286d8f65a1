//! Strangers, attackers and damage at the rendezvous: refused and logged, without effect on ranks. What hostile clients send is made
//! here, by a second implementation of the wire format, and not by the crate's own.
#![expect(
    clippy::disallowed_methods,
    reason = "tests of real threads and processes run on the machine's time"
)]

use crate::common::{Barrier, config, soon};
use anabranch_bootstrap::{Error, LossKind, Refusal, Rendezvous, Secret, TcpConfig, TcpRendezvous, TcpRoot};
use anabranch_ranks::{GlobalRank, Group};
use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex, OnceLock};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};
use tracing_subscriber::fmt::MakeWriter;

const HELLO: u16 = 2;
const ANSWER: u16 = 3;
const REFUSE: u16 = 4;
const HEADER: usize = 40;

/// What this process has logged.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl Write for Log {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().write(bytes)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl<'a> MakeWriter<'a> for Log {
    type Writer = Self;

    fn make_writer(&'a self) -> Self {
        self.clone()
    }
}

fn log() -> &'static Log {
    static LOG: OnceLock<Log> = OnceLock::new();
    LOG.get_or_init(|| {
        let log = Log::default();
        let subscriber = tracing_subscriber::fmt().with_ansi(false).with_writer(log.clone()).finish();
        tracing::subscriber::set_global_default(subscriber).unwrap();
        log
    })
}

/// Waits until a line of the log has all of these.
fn logged(words: &[&str]) {
    let end = Instant::now() + Duration::from_secs(5);
    loop {
        let text = String::from_utf8(log().0.lock().unwrap().clone()).unwrap();
        if text.lines().any(|line| words.iter().all(|word| line.contains(word))) {
            return;
        }
        assert!(Instant::now() < end, "no line with {words:?} in:\n{text}");
        thread::sleep(Duration::from_millis(10));
    }
}

/// CRC-32 of IEEE 802.3, bit by bit.
fn crc32(bytes: &[u8]) -> u32 {
    !bytes.iter().fold(!0, |crc, byte| {
        (0..8).fold(crc ^ u32::from(*byte), |crc, _| (crc >> 1) ^ (0xEDB8_8320 & (crc & 1).wrapping_neg()))
    })
}

fn header(kind: u16, sender: u32, length: u64, payload: &[u8]) -> Vec<u8> {
    let mut bytes = b"anabrnch".to_vec();
    bytes.extend(3_u16.to_le_bytes());
    bytes.extend(kind.to_le_bytes());
    bytes.extend(sender.to_le_bytes());
    bytes.extend(0_u64.to_le_bytes());
    bytes.extend(length.to_le_bytes());
    bytes.extend(crc32(payload).to_le_bytes());
    let checksum = crc32(&bytes);
    bytes.extend(checksum.to_le_bytes());
    bytes
}

fn frame(kind: u16, sender: u32, payload: &[u8]) -> Vec<u8> {
    [header(kind, sender, payload.len() as u64, payload), payload.to_vec()].concat()
}

/// A world of two whose rank 0 waits for rank 1.
struct Waiting {
    rank_0: JoinHandle<TcpRendezvous>,
    address: String,
}

fn waiting(change: impl FnOnce(TcpConfig) -> TcpConfig) -> Waiting {
    log();
    let root = TcpRoot::bind("127.0.0.1:0").unwrap();
    let address = root.address().to_string();
    let config = change(config(0, 2, &address));
    Waiting { rank_0: thread::spawn(move || TcpRendezvous::join_with_root(config, root).unwrap()), address }
}

impl Waiting {
    fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(&self.address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
        stream
    }

    /// The challenge of a new connection.
    fn challenged(&self) -> (TcpStream, [u8; 32]) {
        let mut stream = self.connect();
        let mut said = [0; HEADER + 32];
        stream.read_exact(&mut said).unwrap();
        (stream, said[HEADER..].try_into().unwrap())
    }

    /// Rank 1 comes, and the two do what ranks do.
    fn finish(self) {
        let world = Group::world(2).unwrap();
        let all = |rendezvous: &TcpRendezvous| {
            let mine = [rendezvous.rank().get() as u8];
            assert_eq!(rendezvous.all_gather(&world, "well", &mine, soon()).unwrap(), [[0], [1]]);
            rendezvous.leave().unwrap();
        };
        let rank_1 = TcpRendezvous::join(config(1, 2, &self.address)).unwrap();
        thread::scope(|scope| {
            scope.spawn(|| all(&rank_1));
            all(&self.rank_0.join().unwrap());
        });
    }
}

/// The type and payload of the next frame in the clear.
fn next(stream: &mut TcpStream) -> (u16, Vec<u8>) {
    let mut head = [0; HEADER];
    stream.read_exact(&mut head).unwrap();
    let length = u64::from_le_bytes(head[24..32].try_into().unwrap());
    let mut payload = vec![0; length as usize];
    stream.read_exact(&mut payload).unwrap();
    (u16::from_le_bytes(head[10..12].try_into().unwrap()), payload)
}

/// Whether the root closes the connection, whatever it says before.
fn closed(stream: &mut TcpStream) -> bool {
    match stream.read_to_end(&mut Vec::new()) {
        Ok(_) => true,
        Err(error) => error.kind() == ErrorKind::ConnectionReset,
    }
}

/// The handshake by hand, with any hello; gives what the root says in it.
fn handshake(waiting: &Waiting, secret: &[u8], hello: &[u8]) -> (u16, Vec<u8>) {
    use sha2::{Digest, Sha256};
    let (mut stream, challenge) = waiting.challenged();
    let key: [u8; 32] = Sha256::digest([b"anabranch rendezvous secret 1\0", secret].concat()).into();
    let prologue = [b"anabranch rendezvous 2\0", &challenge[..]].concat();
    let mut state = snow::Builder::new("Noise_NNpsk0_25519_ChaChaPoly_SHA256".parse().unwrap())
        .psk(0, &key)
        .unwrap()
        .prologue(&prologue)
        .unwrap()
        .build_initiator()
        .unwrap();
    let mut message = vec![0; hello.len() + 48];
    let length = state.write_message(hello, &mut message).unwrap();
    stream.write_all(&frame(HELLO, 1, &message[..length])).unwrap();
    let (kind, payload) = next(&mut stream);
    if kind != ANSWER {
        return (kind, payload);
    }
    let mut answer = vec![0; payload.len()];
    let length = state.read_message(&payload, &mut answer).unwrap();
    (kind, answer[..length].to_vec())
}

fn hello(rank: u32, size: u32, run: &[u8]) -> Vec<u8> {
    let mut bytes = [rank.to_le_bytes(), size.to_le_bytes(), 0_u32.to_le_bytes()].concat();
    bytes.extend((run.len() as u64).to_le_bytes());
    bytes.extend(run);
    bytes
}

#[test]
fn a_wrong_secret_is_refused_and_logged() {
    let waiting = waiting(|config| config);
    let wrong = TcpConfig { secret: Secret::new("a guess"), ..config(1, 2, &waiting.address) };
    let error = TcpRendezvous::join(wrong).unwrap_err();
    assert!(matches!(&error, Error::Refused { refusal: Refusal::Secret, .. }), "{error}");
    assert_eq!(handshake(&waiting, b"another guess", &hello(1, 2, b"")).0, REFUSE);
    logged(&["WARN", "it does not know the secret", "127.0.0.1:"]);
    waiting.finish();
}

#[test]
fn ranks_out_of_range_are_refused_even_with_the_secret() {
    let waiting = waiting(|config| config);
    for rank in [2_u32, 3, 1 << 31, u32::MAX] {
        let (kind, answer) = handshake(&waiting, b"the secret", &hello(rank, 2, b""));
        // Refused: such a rank does not exist in a world of two.
        assert_eq!((kind, &answer[..6]), (ANSWER, &[1, 1, 2, 0, 0, 0][..]), "{rank}");
    }
    logged(&["WARN", "refused", "rank=2147483648", "the world has ranks 0 to 1"]);
    // A run's name that is too long, and hellos cut short, are no valid hello.
    let whole = hello(1, 2, b"");
    for bad in
        [hello(1, 2, &[b'x'; 600]), hello(1, 2, &[0xff]), Vec::new(), whole[..whole.len() - 1].to_vec()]
    {
        let (kind, refusal) = handshake(&waiting, b"the secret", &bad);
        assert_eq!((kind, refusal[0]), (REFUSE, 6), "{bad:?}");
    }
    waiting.finish();
}

#[test]
fn short_and_huge_frames_are_refused() {
    let waiting = waiting(|config| config);
    // Cut off anywhere, and then closed.
    let whole = frame(HELLO, 1, &[7; 100]);
    for length in [0, 1, 8, HEADER - 1, HEADER, HEADER + 50] {
        let (mut stream, _) = waiting.challenged();
        stream.write_all(&whole[..length]).unwrap();
        stream.shutdown(Shutdown::Write).unwrap();
        assert!(closed(&mut stream), "{length}");
    }
    // Announcing more than a hello may have; nothing of it is waited for or stored.
    for length in [4097, 1 << 32, u64::MAX] {
        let (mut stream, _) = waiting.challenged();
        stream.write_all(&header(HELLO, 1, length, &[])).unwrap();
        let (kind, refusal) = next(&mut stream);
        assert_eq!((kind, refusal[0]), (REFUSE, 6));
        assert!(closed(&mut stream));
    }
    logged(&["WARN", "it announces 18446744073709551615 bytes, and at most 4096 are allowed here"]);
    // A hello of the right length with random bytes.
    for length in [0, 1, 32, 48, 4096] {
        let (mut stream, _) = waiting.challenged();
        stream.write_all(&frame(HELLO, 1, &vec![5; length])).unwrap();
        assert_eq!(next(&mut stream).0, REFUSE, "{length}");
    }
    waiting.finish();
}

#[test]
fn garbage_is_refused() {
    let waiting = waiting(|config| config);
    let mut state = 1_u64;
    for length in [1_usize, 39, 40, 41, 100, 5000, 100_000] {
        let garbage: Vec<u8> = (0..length)
            .map(|_| {
                // Knuth's linear congruential generator: any bytes will do.
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                (state >> 56) as u8
            })
            .collect();
        let mut stream = waiting.connect();
        // The root may close before all is sent.
        let _ = stream.write_all(&garbage);
        let _ = stream.shutdown(Shutdown::Write);
        assert!(closed(&mut stream), "{length}");
    }
    logged(&["WARN", "a bad frame at the rendezvous", "the peer speaks another protocol"]);
    waiting.finish();
}

#[test]
fn a_slow_writer_is_limited_and_delays_no_rank() {
    let limit = Duration::from_millis(600);
    let waiting = waiting(|config| TcpConfig { handshake_limit: limit, ..config });
    let (mut slow, _) = waiting.challenged();
    let (mut silent, _) = waiting.challenged();
    let started = Instant::now();
    let dripping = thread::spawn(move || {
        let whole = frame(HELLO, 1, &[0; 4000]);
        // One byte at a time would take hours; the root closes first.
        let sent = whole.iter().take_while(|byte| {
            thread::sleep(Duration::from_millis(10));
            slow.write_all(&[**byte]).is_ok()
        });
        (sent.count(), started.elapsed())
    });
    assert!(closed(&mut silent));
    let (sent, took) = dripping.join().unwrap();
    assert!(sent < 1000 && took >= limit && took < Duration::from_secs(5), "{sent} bytes in {took:?}");
    logged(&["WARN", "did not say who it is"]);
    waiting.finish();
}

#[test]
fn a_flood_of_connections_keeps_no_rank_out() {
    let waiting = waiting(|config| TcpConfig { handshake_limit: Duration::from_secs(60), ..config });
    let flood: Vec<TcpStream> = (0..300).map(|_| waiting.connect()).collect();
    logged(&["WARN", "too many connections at the rendezvous"]);
    let started = Instant::now();
    waiting.finish();
    assert!(started.elapsed() < Duration::from_secs(5));
    drop(flood);
}

/// What went through a proxy, by direction.
#[derive(Clone, Default)]
struct Tape {
    to_root: Arc<Mutex<Vec<u8>>>,
    from_root: Arc<Mutex<Vec<u8>>>,
}

/// Copies until the end, remembering; changes the byte at this place.
fn copy(mut from: TcpStream, mut to: TcpStream, tape: &Mutex<Vec<u8>>, damage: Option<usize>) {
    let mut chunk = [0; 4096];
    while let Ok(count @ 1..) = from.read(&mut chunk) {
        let mut kept = tape.lock().unwrap();
        if let Some(at) = damage.and_then(|at| at.checked_sub(kept.len())).filter(|at| *at < count) {
            chunk[at] ^= 1;
        }
        kept.extend(&chunk[..count]);
        drop(kept);
        if to.write_all(&chunk[..count]).is_err() {
            break;
        }
    }
    let _ = to.shutdown(Shutdown::Write);
}

/// A man in the middle, for one connection.
fn proxy(root: &str, damage: Option<usize>) -> (SocketAddr, Tape) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let (tape, root) = (Tape::default(), root.to_owned());
    let kept = tape.clone();
    thread::spawn(move || {
        let (newcomer, _) = listener.accept().unwrap();
        let root = TcpStream::connect(root).unwrap();
        let back = (root.try_clone().unwrap(), newcomer.try_clone().unwrap());
        thread::scope(|scope| {
            scope.spawn(|| copy(newcomer, root, &kept.to_root, damage));
            scope.spawn(|| copy(back.0, back.1, &kept.from_root, None));
        });
    });
    (address, tape)
}

#[test]
fn a_recorded_handshake_opens_nothing_and_a_recording_shows_nothing() {
    let waiting = waiting(|config| config);
    let (address, tape) = proxy(&waiting.address, None);
    let root = waiting.address.clone();
    let rank_1 = TcpRendezvous::join(config(1, 2, &address.to_string())).unwrap();
    let rank_0 = waiting.rank_0.join().unwrap();
    let words = b"a remote key, which must not be seen";
    rank_1.set("key", words).unwrap();
    assert_eq!(rank_0.wait("key", soon()).unwrap(), words);
    for way in [&tape.to_root, &tape.from_root] {
        let seen = way.lock().unwrap();
        assert!(seen.len() > HEADER && !seen.windows(6).any(|part| part == &words[..6]));
    }
    rank_1.leave().unwrap();
    rank_0.leave().unwrap();

    // Against another root with the same secret, session, rank and size: all that differs is its challenge.
    let next_root: SocketAddr = root.parse().unwrap();
    let again = TcpRoot::bind(&next_root.to_string()).unwrap();
    let config_0 = config(0, 2, &root);
    let rank_0 = thread::spawn(move || TcpRendezvous::join_with_root(config_0, again).unwrap());
    let waiting = Waiting { rank_0, address: root };
    let mut replay = waiting.connect();
    let recorded = tape.to_root.lock().unwrap().clone();
    let _ = replay.write_all(&recorded);
    let challenge = next(&mut replay).1;
    assert_ne!(challenge, tape.from_root.lock().unwrap()[HEADER..HEADER + 32], "each is new");
    let (kind, refusal) = next(&mut replay);
    assert_eq!((kind, refusal[0]), (REFUSE, 0), "it does not know the secret");
    waiting.finish();
}

#[test]
fn a_false_root_that_replays_a_recorded_one_is_found_out() {
    let waiting = waiting(|config| config);
    let (address, tape) = proxy(&waiting.address, None);
    let rank_1 = TcpRendezvous::join(config(1, 2, &address.to_string())).unwrap();
    let rank_0 = waiting.rank_0.join().unwrap();
    rank_1.leave().unwrap();
    rank_0.leave().unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let recorded = tape.from_root.lock().unwrap().clone();
    let speaking = thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let _ = stream.write_all(&recorded);
        let _ = stream.read_to_end(&mut Vec::new());
    });
    let error = TcpRendezvous::join(config(1, 2, &address)).unwrap_err();
    assert!(matches!(error, Error::RootUnproven { .. }), "{error}");
    speaking.join().unwrap();
}

#[test]
fn one_changed_bit_on_the_way_ends_the_connection_and_not_the_world() {
    log();
    let root = TcpRoot::bind("127.0.0.1:0").unwrap();
    let address = root.address().to_string();
    // Behind the hello and the record of the call that joining ends with.
    let (through, _) = proxy(&address, Some(400));
    let (config_0, config_2) = (config(0, 3, &address), config(2, 3, &address));
    let rank_0 = thread::spawn(move || TcpRendezvous::join_with_root(config_0, root).unwrap());
    let rank_2 = thread::spawn(move || TcpRendezvous::join(config_2).unwrap());
    let rank_1 = TcpRendezvous::join(config(1, 3, &through.to_string())).unwrap();
    let (rank_0, rank_2) = (rank_0.join().unwrap(), rank_2.join().unwrap());
    rank_1.set("key", &[7; 1000]).unwrap();
    let world = Group::world(3).unwrap();
    let error = rank_0.barrier(&world, "end", soon()).unwrap_err();
    let Error::PeerLost { loss, .. } = &error else { panic!("{error}") };
    assert_eq!((loss.rank, loss.kind), (GlobalRank::new(1), LossKind::Died));
    assert!(loss.detail.contains("its encryption is damaged"), "{loss}");
    // The others go on.
    let rest = world.excluding(&[world.rank_of(GlobalRank::new(1)).unwrap()]).unwrap();
    let other = thread::spawn({
        let rest = rest.clone();
        move || {
            rank_2.barrier(&rest, "rest", soon()).unwrap();
            rank_2.leave().unwrap();
        }
    });
    rank_0.barrier(&rest, "rest", soon()).unwrap();
    rank_0.leave().unwrap();
    other.join().unwrap();
}
