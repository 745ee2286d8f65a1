//! The first frames of a connection: both sides prove that they know the secret, and the root takes the rank in or
//! says why not.
//!
//! `Challenge{nonce}` from the root; `Hello`, the first message of the handshake (`noise.rs`), with rank, size and
//! session inside; then `Answer`, the second message, with what holds for all or why not. Who has not shown that
//! it knows the secret gets `Refuse{reason}` in the clear, and nothing else.

use super::connection::{Connection, Frame, ReceiveError};
use super::noise::{Cipher, Initiator};
use super::stop::Wait;
use super::{Heartbeat, TcpConfig};
use crate::frame::{FrameError, Kind};
use crate::secret::{self, Bytes32};
use crate::wire::{Reader, Writer};
use crate::{Deadline, Error, Refusal, Session};
use anabranch_ranks::GlobalRank;
use std::io::ErrorKind;
use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::time::Duration;

/// The most payload bytes of a frame before the secret is proven.
pub(super) const MAX_BYTES: u64 = 4096;

/// Waits between attempts to connect: from the first to the last, doubling; each is shortened by up to half at random.
const RETRY: (Duration, Duration) = (Duration::from_millis(10), Duration::from_millis(250));

/// The longest wait for one of several addresses to take a connection, and to say a challenge, which a root does at once.
const PATIENCE: Duration = Duration::from_secs(3);

/// The first message of a connecting rank.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct HelloMsg {
    pub(super) rank: u32,
    pub(super) size: u32,
    pub(super) session: Session,
}

impl HelloMsg {
    pub(super) fn encode(&self) -> Vec<u8> {
        let Session { run, generation } = &self.session;
        Writer::default().u32(self.rank).u32(self.size).u32(*generation).bytes(run.as_bytes()).finish()
    }

    pub(super) fn decode(payload: &[u8]) -> Result<Self, FrameError> {
        let mut reader = Reader::new(payload, Kind::Hello.words());
        let (rank, size, generation) = (reader.u32()?, reader.u32()?, reader.u32()?);
        let run = reader.text()?;
        if run.len() > Session::MAX_RUN_BYTES {
            return Err(reader.malformed());
        }
        reader.finish()?;
        Ok(Self { rank, size, session: Session { run, generation } })
    }

    /// What a root of this size and session decides, apart from who is there already.
    pub(super) fn judge(&self, size: u32, session: &Session) -> Result<GlobalRank, Refusal> {
        let (given, expected) = (self.session.generation, session.generation);
        if self.session.run != session.run {
            Err(Refusal::Run)
        } else if given != expected {
            Err(Refusal::Generation { given, expected })
        } else if self.size != size {
            Err(Refusal::Size { given: self.size, expected: size })
        } else if self.rank >= size {
            Err(Refusal::Rank { size })
        } else {
            Ok(GlobalRank::new(self.rank))
        }
    }
}

/// Which rank's refusal means that the world cannot form.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Verdict {
    pub(crate) rank: GlobalRank,
    pub(crate) refusal: Refusal,
}

/// The root's answer to a process that knows the secret.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Answer {
    /// The rank is taken in, and these values hold.
    Welcome { heartbeat: Heartbeat, limit: u64 },
    /// It is not.
    Refused(Refusal),
    /// It would be, but another one's refusal has ended the rendezvous.
    Ended(Verdict),
}

impl Answer {
    pub(super) fn encode(&self) -> Vec<u8> {
        match self {
            Self::Welcome { heartbeat, limit } => Writer::default()
                .u8(0)
                .u64(heartbeat.interval.as_micros() as u64)
                .u64(heartbeat.limit.as_micros() as u64)
                .u64(*limit)
                .finish(),
            Self::Refused(refusal) => put_refusal(Writer::default().u8(1), *refusal).finish(),
            Self::Ended(verdict) => Writer::default().u8(2).fixed(&encode_verdict(*verdict)).finish(),
        }
    }

    pub(super) fn decode(payload: &[u8]) -> Result<Self, FrameError> {
        let mut reader = Reader::new(payload, Kind::Answer.words());
        let answer = match reader.u8()? {
            0 => Self::Welcome {
                heartbeat: Heartbeat {
                    interval: Duration::from_micros(reader.u64()?),
                    limit: Duration::from_micros(reader.u64()?),
                },
                limit: reader.u64()?,
            },
            1 => Self::Refused(take_refusal(&mut reader)?),
            2 => Self::Ended(take_verdict(&mut reader)?),
            _ => return Err(reader.malformed()),
        };
        reader.finish()?;
        Ok(answer)
    }
}

fn put_refusal(writer: Writer, refusal: Refusal) -> Writer {
    let (code, a, b) = match refusal {
        Refusal::Secret => (0, 0, 0),
        Refusal::Rank { size } => (1, size, 0),
        Refusal::Size { given, expected } => (2, given, expected),
        Refusal::Duplicate => (3, 0, 0),
        Refusal::Lost => (4, 0, 0),
        Refusal::Ending => (5, 0, 0),
        Refusal::Protocol => (6, 0, 0),
        Refusal::Run => (7, 0, 0),
        Refusal::Generation { given, expected } => (8, given, expected),
    };
    writer.u8(code).u32(a).u32(b)
}

fn take_refusal(reader: &mut Reader<'_>) -> Result<Refusal, FrameError> {
    match (reader.u8()?, reader.u32()?, reader.u32()?) {
        (0, 0, 0) => Ok(Refusal::Secret),
        (1, size, 0) => Ok(Refusal::Rank { size }),
        (2, given, expected) => Ok(Refusal::Size { given, expected }),
        (3, 0, 0) => Ok(Refusal::Duplicate),
        (4, 0, 0) => Ok(Refusal::Lost),
        (5, 0, 0) => Ok(Refusal::Ending),
        (6, 0, 0) => Ok(Refusal::Protocol),
        (7, 0, 0) => Ok(Refusal::Run),
        (8, given, expected) => Ok(Refusal::Generation { given, expected }),
        _ => Err(reader.malformed()),
    }
}

pub(super) fn encode_refusal(refusal: Refusal) -> Vec<u8> {
    put_refusal(Writer::default(), refusal).finish()
}

/// A refusal in the clear. Anyone can send it, so only the refusals of unauthenticated processes are accepted.
fn decode_refusal(payload: &[u8]) -> Result<Refusal, FrameError> {
    let mut reader = Reader::new(payload, Kind::Refuse.words());
    let refusal = take_refusal(&mut reader)?;
    if !matches!(refusal, Refusal::Secret | Refusal::Protocol) {
        return Err(reader.malformed());
    }
    reader.finish()?;
    Ok(refusal)
}

pub(super) fn encode_verdict(verdict: Verdict) -> Vec<u8> {
    put_refusal(Writer::default().u32(verdict.rank.get()), verdict.refusal).finish()
}

fn take_verdict(reader: &mut Reader<'_>) -> Result<Verdict, FrameError> {
    Ok(Verdict { rank: GlobalRank::new(reader.u32()?), refusal: take_refusal(reader)? })
}

pub(super) fn decode_verdict(payload: &[u8]) -> Result<Verdict, FrameError> {
    let mut reader = Reader::new(payload, Kind::Verdict.words());
    let verdict = take_verdict(&mut reader)?;
    reader.finish()?;
    Ok(verdict)
}

/// Connects to the root, trying until the deadline, and introduces this rank. Gives the connection, encrypted from here
/// on, and the root's heartbeat values.
pub(super) fn connect_to_root(config: &TcpConfig) -> Result<(Connection, Heartbeat), Error> {
    let mut pause = RETRY.0;
    let mut attempts = 0;
    loop {
        attempts += 1;
        let attempted = attempt(config);
        if config.stop.is_stopped() {
            return Err(Error::Left { phase: "join".to_owned() });
        }
        let failed = match attempted {
            Ok(done) => return Ok(done),
            Err(Attempt::Final(error) | Attempt::Decided(error)) => return Err(error),
            Err(failed) => failed,
        };
        if config.deadline.expired() {
            let address = config.address.clone();
            return Err(match failed {
                Attempt::Unresolved(source) => {
                    Error::system(format!("{}: resolving the root's address {address}", config.rank))(source)
                }
                Attempt::Again(source) => {
                    let (rank, waited) = (config.rank, config.deadline.waited());
                    Error::Connect { rank, address, waited, attempts, source }
                }
                Attempt::Earlier(error) | Attempt::Final(error) | Attempt::Decided(error) => error,
            });
        }
        tracing::debug!(rank = config.rank.get(), address = %config.address, reason = ?failed, "the root is not there yet");
        // Nothing would wake it sooner: the root cannot reach ranks that have not connected.
        anabranch_clock::sleep(shortened(pause).min(config.deadline.remaining()));
        pause = (pause * 2).min(RETRY.1);
    }
}

/// By up to half, at random, so that ranks that started together do not come back together.
fn shortened(pause: Duration) -> Duration {
    let [random] = secret::random().unwrap_or([0]);
    pause.mul_f64(1.0 - f64::from(random) / 512.0)
}

/// How an attempt failed.
#[derive(Debug)]
enum Attempt {
    /// The root may not be there yet.
    Again(std::io::Error),
    /// The host's name may not be known yet.
    Unresolved(std::io::Error),
    /// The root of an earlier start of this run is still there.
    Earlier(Error),
    /// Trying again there would not help.
    Final(Error),
    /// The root has proven itself and said why not: nothing else would help either.
    Decided(Error),
}

/// Tries the candidates in turn. What is not this world's root at one of them keeps it from no other; what the root itself says, with
/// its proof, is final.
fn attempt(config: &TcpConfig) -> Result<(Connection, Heartbeat), Attempt> {
    let resolve = |candidate: &str| candidate.to_socket_addrs().map(Iterator::collect);
    let candidates: Vec<std::io::Result<Vec<SocketAddr>>> = config.candidates().map(resolve).collect();
    let count = candidates.iter().flatten().map(Vec::len).sum();
    let mut worst = None;
    for candidate in candidates {
        let failed = match candidate {
            Ok(addresses) => match try_addresses(&addresses, count, config) {
                Err(failed) => failed,
                done => return done,
            },
            Err(error) => Attempt::Unresolved(error),
        };
        if matches!(failed, Attempt::Decided(_)) {
            return Err(failed);
        }
        // As long as one may still come, that is what is waited for.
        if matches!(worst, None | Some(Attempt::Final(_))) {
            worst = Some(failed);
        }
    }
    Err(worst.unwrap_or_else(no_address))
}

/// Tries the addresses of one candidate in turn: what answered at one of them says more than what did not at another. `count` is that
/// of all candidates.
fn try_addresses(
    addresses: &[SocketAddr],
    count: usize,
    config: &TcpConfig,
) -> Result<(Connection, Heartbeat), Attempt> {
    let (mut worst, mut unprotected) = (None, None);
    for address in addresses.iter().copied() {
        if !config.may_meet_at(address) {
            let error = Error::Unprotected { rank: config.rank, address };
            unprotected.get_or_insert(Attempt::Final(error));
            continue;
        }
        let turn = Turn::of(count, config);
        let failed = match connect(address, turn.connecting) {
            Ok(stream) => match introduce(stream, address, turn, config) {
                Err(failed @ Attempt::Decided(_)) => return Err(failed),
                Err(failed) => {
                    if count > 1 {
                        tracing::warn!(rank = config.rank.get(), %address, reason = ?failed, "this candidate is not the root");
                    }
                    failed
                }
                done => return done,
            },
            Err(error) => Attempt::Again(error),
        };
        if matches!(worst, None | Some(Attempt::Again(_))) || matches!(failed, Attempt::Earlier(_)) {
            worst = Some(failed);
        }
    }
    Err(worst.or(unprotected).unwrap_or_else(no_address))
}

fn no_address() -> Attempt {
    Attempt::Again(std::io::Error::new(ErrorKind::NotFound, "the name has no address"))
}

/// How long one address may take, so that one which says nothing does not keep the root from this rank.
#[derive(Clone, Copy, Debug)]
struct Turn {
    connecting: Duration,
    /// Until it has challenged.
    challenge: Duration,
    /// From there until it has answered. A root that has taken this rank in would lose it if it went away sooner than the root
    /// could count as dead.
    answer: Duration,
}

impl Turn {
    /// Of one of so many addresses: an equal share of the time that is left; all of it for the only one.
    fn of(count: usize, config: &TcpConfig) -> Self {
        let left = config.deadline.remaining();
        // A single packet that is lost should not use up the whole deadline. Zero is not a valid timeout.
        let connecting = |most: Duration| most.clamp(Duration::from_millis(1), PATIENCE);
        if count <= 1 {
            return Self { connecting: connecting(left), challenge: left, answer: left };
        }
        let share = left / u32::try_from(count).unwrap_or(u32::MAX);
        Self {
            connecting: connecting(share),
            challenge: share.min(PATIENCE),
            answer: share.min(config.heartbeat.limit),
        }
    }
}

fn connect(address: SocketAddr, at_most: Duration) -> std::io::Result<TcpStream> {
    let stream = TcpStream::connect_timeout(&address, at_most)?;
    // While no socket listens on a local port in the ephemeral range, the system may give a connecting socket
    // that very port, which connects it to itself and keeps the root from it.
    if stream.local_addr()? == stream.peer_addr()? {
        return Err(ErrorKind::ConnectionRefused.into());
    }
    Ok(stream)
}

fn introduce(
    stream: TcpStream,
    address: SocketAddr,
    turn: Turn,
    config: &TcpConfig,
) -> Result<(Connection, Heartbeat), Attempt> {
    let system = |what: &'static str| move |source| Attempt::Final(Error::system(what)(source));
    let bad_frame = |source| Attempt::Final(Error::Frame { address: address.to_string(), source });
    let unexpected = |kind: Kind| bad_frame(FrameError::Unexpected { kind: kind.words() });
    config.stop.waits_for(Wait::Root(stream.try_clone().map_err(system("setting up a socket"))?));
    let mut connection =
        Connection::new(stream, config.rank.get(), MAX_BYTES).map_err(system("setting up a socket"))?;
    let challenge = receive(&mut connection, address, Deadline::after(turn.challenge))?;
    if challenge.header.kind != Kind::Challenge {
        return Err(unexpected(challenge.header.kind));
    }
    let mut reader = Reader::new(&challenge.payload, Kind::Challenge.words());
    let challenge: Bytes32 = reader.array().map_err(bad_frame)?;
    reader.finish().map_err(bad_frame)?;
    let hello =
        HelloMsg { rank: config.rank.get(), size: config.size, session: config.session.clone() }.encode();
    let (initiator, message) =
        Initiator::begin(&config.secret, &challenge, &hello).map_err(system("making a handshake"))?;
    connection.queue(Kind::Hello, 0, &message);
    let frame = receive(&mut connection, address, Deadline::after(turn.answer))?;
    let refused = |refusal| Error::Refused { address: address.to_string(), rank: config.rank, refusal };
    match frame.header.kind {
        Kind::Answer => {
            let unproven = || Attempt::Final(Error::RootUnproven { address: address.to_string() });
            let (payload, cipher): (_, Cipher) = initiator.finish(&frame.payload).ok_or_else(unproven)?;
            match Answer::decode(&payload).map_err(bad_frame)? {
                Answer::Welcome { heartbeat, limit } => {
                    connection.set_limit(limit);
                    connection.encrypt(cipher);
                    Ok((connection, heartbeat))
                }
                Answer::Refused(refusal @ Refusal::Generation { given, expected }) if given > expected => {
                    Err(Attempt::Earlier(refused(refusal)))
                }
                Answer::Refused(refusal) => Err(Attempt::Decided(refused(refusal))),
                Answer::Ended(Verdict { rank: by, refusal }) => {
                    Err(Attempt::Decided(Error::CannotForm { rank: config.rank, by, refusal }))
                }
            }
        }
        Kind::Refuse => {
            let refusal = decode_refusal(&frame.payload).map_err(bad_frame)?;
            Err(Attempt::Final(refused(refusal)))
        }
        kind => Err(unexpected(kind)),
    }
}

/// The next frame. A connection that ends is tried again: its root may be about to end, have too many strangers at its door, or
/// not be one.
fn receive(connection: &mut Connection, address: SocketAddr, deadline: Deadline) -> Result<Frame, Attempt> {
    connection.exchange(deadline).map_err(|error| match error {
        ReceiveError::Frame(source) => Attempt::Final(Error::Frame { address: address.to_string(), source }),
        ReceiveError::Io(source) => Attempt::Again(source),
        ReceiveError::Ended => Attempt::Again(ErrorKind::ConnectionReset.into()),
        ReceiveError::Expired => Attempt::Again(ErrorKind::TimedOut.into()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_name_whose_first_address_is_another_programs_leads_to_the_root_at_its_second() {
        let said = b"HTTP/1.1 400 Bad Request and what else a server says";
        let other = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let first = other.local_addr().unwrap();
        let speaker = std::thread::spawn(move || {
            let (mut stream, _) = other.accept().unwrap();
            std::io::Write::write_all(&mut stream, said).unwrap();
            // Until the rank has gone.
            let _ = std::io::Read::read_to_end(&mut stream, &mut Vec::new());
        });
        let root = crate::TcpRoot::bind("127.0.0.1:0").unwrap();
        let config = TcpConfig {
            secret: crate::Secret::new("a secret of sixteen bytes"),
            ..TcpConfig::new("", GlobalRank::new(0), 1, Deadline::after(Duration::from_secs(5)))
        };
        let addresses = [first, root.address()];
        let serving = super::super::root::serve(root, &config).unwrap();
        let joined = try_addresses(&addresses, 2, &config);
        assert!(joined.is_ok(), "{:?}", joined.err());
        drop((joined, serving));
        speaker.join().unwrap();
    }

    fn refusal() -> impl Strategy<Value = Refusal> {
        prop_oneof![
            Just(Refusal::Secret),
            any::<u32>().prop_map(|size| Refusal::Rank { size }),
            any::<(u32, u32)>().prop_map(|(given, expected)| Refusal::Size { given, expected }),
            Just(Refusal::Duplicate),
            Just(Refusal::Lost),
            Just(Refusal::Ending),
            Just(Refusal::Protocol),
            Just(Refusal::Run),
            any::<(u32, u32)>().prop_map(|(given, expected)| Refusal::Generation { given, expected }),
        ]
    }

    proptest! {
        #[test]
        fn handshake_messages_decode_to_what_was_encoded(rank: u32, size: u32, generation: u32, run in ".{0,100}", refusal in refusal(), limit: u64) {
            let hello = HelloMsg { rank, size, session: Session { run, generation } };
            prop_assert_eq!(HelloMsg::decode(&hello.encode()), Ok(hello));
            let heartbeat = Heartbeat::default();
            let verdict = Verdict { rank: GlobalRank::new(rank), refusal };
            for answer in [Answer::Welcome { heartbeat, limit }, Answer::Refused(refusal), Answer::Ended(verdict)] {
                prop_assert_eq!(Answer::decode(&answer.encode()), Ok(answer));
            }
            prop_assert_eq!(decode_verdict(&encode_verdict(verdict)), Ok(verdict));
            let to_strangers = matches!(refusal, Refusal::Secret | Refusal::Protocol);
            prop_assert_eq!(decode_refusal(&encode_refusal(refusal)).is_ok(), to_strangers);
        }

        #[test]
        fn noise_never_panics(noise in prop::collection::vec(any::<u8>(), 0..80)) {
            // Only reaching the end matters: random bytes may be a valid message.
            drop((HelloMsg::decode(&noise), Answer::decode(&noise), decode_refusal(&noise), decode_verdict(&noise)));
        }

        /// Out of bounds in any way, a rank is refused.
        #[test]
        fn only_ranks_of_the_world_are_taken_in(rank: u32, size in 1_u32..100, given in 1_u32..100) {
            let session = Session::default();
            let judged = HelloMsg { rank, size: given, session: session.clone() }.judge(size, &session);
            prop_assert_eq!(judged.is_ok(), given == size && rank < size);
        }
    }

    #[test]
    fn pauses_stay_within_half_and_whole() {
        let pause = Duration::from_millis(100);
        let pauses: Vec<_> = (0..200).map(|_| shortened(pause)).collect();
        assert!(pauses.iter().all(|p| (pause / 2..=pause).contains(p)), "{pauses:?}");
        assert!(pauses.iter().any(|p| *p != pauses[0]), "they differ");
    }
}
