//! The first frames of a connection: both sides prove that they know the token, and the root takes the rank
//! in or says why not.
//!
//! `Challenge{nonce}` from the root, `Hello{rank, size, nonce, proof}` from the newcomer, then
//! `Welcome{proof, values}` or `Refuse{reason}` from the root. A proof is over both nonces, the rank and the
//! size, and differs by direction, so that it can neither be replayed nor reflected.

use super::connection::{Connection, ReceiveError};
use super::{Heartbeat, TcpConfig};
use crate::frame::{FrameError, Kind};
use crate::token::{self, Bytes32, Token};
use crate::wire::{Reader, Writer};
use crate::{Deadline, Error, Refusal};
use anabranch_ranks::GlobalRank;
use std::io::ErrorKind;
use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::time::Duration;

/// The most payload bytes of a frame before the token is proven.
pub(super) const MAX_BYTES: u64 = 4096;

/// Waits between attempts to connect: from the first to the last, doubling.
const RETRY: (Duration, Duration) = (Duration::from_millis(10), Duration::from_millis(250));

/// What a newcomer says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Hello {
    pub(super) rank: u32,
    pub(super) size: u32,
    pub(super) nonce: Bytes32,
    pub(super) proof: Bytes32,
}

impl Hello {
    pub(super) fn new(token: &Token, challenge: &Bytes32, nonce: Bytes32, rank: u32, size: u32) -> Self {
        let proof = prove(token, b"newcomer", challenge, &nonce, rank, size);
        Self { rank, size, nonce, proof }
    }

    /// Whether the newcomer knows the token.
    pub(super) fn proves(&self, token: &Token, challenge: &Bytes32) -> bool {
        let expected = prove(token, b"newcomer", challenge, &self.nonce, self.rank, self.size);
        token::equal_proofs(&expected, &self.proof)
    }

    /// The root's proof in answer to this.
    pub(super) fn answer(&self, token: &Token, challenge: &Bytes32) -> Bytes32 {
        prove(token, b"the root", challenge, &self.nonce, self.rank, self.size)
    }

    pub(super) fn encode(&self) -> Vec<u8> {
        Writer::default().u32(self.rank).u32(self.size).fixed(&self.nonce).fixed(&self.proof).finish()
    }

    pub(super) fn decode(payload: &[u8]) -> Result<Self, FrameError> {
        let mut reader = Reader::new(payload, Kind::Hello.words());
        let hello =
            Self { rank: reader.u32()?, size: reader.u32()?, nonce: reader.array()?, proof: reader.array()? };
        reader.finish()?;
        Ok(hello)
    }
}

fn prove(
    token: &Token,
    direction: &[u8],
    challenge: &Bytes32,
    nonce: &Bytes32,
    rank: u32,
    size: u32,
) -> Bytes32 {
    token.prove(&[direction, challenge, nonce, &rank.to_le_bytes(), &size.to_le_bytes()])
}

/// What the root says to a rank that it takes in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Welcome {
    pub(super) proof: Bytes32,
    pub(super) heartbeat: Heartbeat,
    pub(super) limit: u64,
}

impl Welcome {
    pub(super) fn encode(&self) -> Vec<u8> {
        Writer::default()
            .fixed(&self.proof)
            .u64(self.heartbeat.interval.as_micros() as u64)
            .u64(self.heartbeat.limit.as_micros() as u64)
            .u64(self.limit)
            .finish()
    }

    fn decode(payload: &[u8]) -> Result<Self, FrameError> {
        let mut reader = Reader::new(payload, Kind::Welcome.words());
        let welcome = Self {
            proof: reader.array()?,
            heartbeat: Heartbeat {
                interval: Duration::from_micros(reader.u64()?),
                limit: Duration::from_micros(reader.u64()?),
            },
            limit: reader.u64()?,
        };
        reader.finish()?;
        Ok(welcome)
    }
}

pub(super) fn encode_refusal(refusal: Refusal) -> Vec<u8> {
    let (code, a, b) = match refusal {
        Refusal::Token => (0, 0, 0),
        Refusal::Rank { size } => (1, size, 0),
        Refusal::Size { given, expected } => (2, given, expected),
        Refusal::Duplicate => (3, 0, 0),
        Refusal::Lost => (4, 0, 0),
        Refusal::Ending => (5, 0, 0),
        Refusal::Protocol => (6, 0, 0),
    };
    Writer::default().u8(code).u32(a).u32(b).finish()
}

fn decode_refusal(payload: &[u8]) -> Result<Refusal, FrameError> {
    let mut reader = Reader::new(payload, Kind::Refuse.words());
    let refusal = match (reader.u8()?, reader.u32()?, reader.u32()?) {
        (0, _, _) => Refusal::Token,
        (1, size, _) => Refusal::Rank { size },
        (2, given, expected) => Refusal::Size { given, expected },
        (3, _, _) => Refusal::Duplicate,
        (4, _, _) => Refusal::Lost,
        (5, _, _) => Refusal::Ending,
        (6, _, _) => Refusal::Protocol,
        _ => return Err(reader.malformed()),
    };
    reader.finish()?;
    Ok(refusal)
}

/// Connects to the root, trying until the deadline, and introduces this rank. Gives the connection and the
/// root's heartbeat values.
pub(super) fn greet(config: &TcpConfig) -> Result<(Connection, Heartbeat), Error> {
    let mut pause = RETRY.0;
    let mut attempts = 0;
    loop {
        attempts += 1;
        let error = match attempt(config) {
            Ok(done) => return Ok(done),
            Err(Attempt::Final(error)) => return Err(error),
            Err(Attempt::Unresolved(source)) if config.deadline.expired() => {
                return Err(Error::Resolve { rank: config.rank, address: config.address.clone(), source });
            }
            Err(Attempt::Again(source) | Attempt::Unresolved(source)) => source,
        };
        if config.deadline.expired() {
            return Err(Error::Connect {
                rank: config.rank,
                address: config.address.clone(),
                waited: config.deadline.waited(),
                attempts,
                source: error,
            });
        }
        tracing::debug!(rank = config.rank.get(), address = %config.address, %error, "the root is not there yet");
        // Nothing would wake it sooner: the root cannot tell ranks that have not connected.
        anabranch_clock::sleep(pause.min(config.deadline.remaining()));
        pause = (pause * 2).min(RETRY.1);
    }
}

/// How an attempt failed.
enum Attempt {
    /// The root may not be there yet.
    Again(std::io::Error),
    /// The host's name may not be known yet.
    Unresolved(std::io::Error),
    /// Trying again would not help.
    Final(Error),
}

fn attempt(config: &TcpConfig) -> Result<(Connection, Heartbeat), Attempt> {
    let addresses = config.address.to_socket_addrs().map_err(Attempt::Unresolved)?;
    let mut last = std::io::Error::new(ErrorKind::NotFound, "the name has no address");
    for address in addresses {
        match connect(address, config.deadline) {
            Ok(stream) => return introduce(stream, config),
            Err(error) => last = error,
        }
    }
    Err(Attempt::Again(last))
}

fn connect(address: SocketAddr, deadline: Deadline) -> std::io::Result<TcpStream> {
    // A single packet that is lost should not use up the whole deadline. Zero is not a valid timeout.
    let at_most = deadline.remaining().clamp(Duration::from_millis(1), Duration::from_secs(3));
    let stream = TcpStream::connect_timeout(&address, at_most)?;
    // While nobody listens on a local port in the ephemeral range, the system may give a connecting socket
    // that very port, which connects it to itself and keeps the root from it.
    if stream.local_addr()? == stream.peer_addr()? {
        return Err(ErrorKind::ConnectionRefused.into());
    }
    Ok(stream)
}

fn introduce(stream: TcpStream, config: &TcpConfig) -> Result<(Connection, Heartbeat), Attempt> {
    let system = |call| move |source| Attempt::Final(Error::System { call, source });
    let mut connection =
        Connection::new(stream, config.rank.get(), MAX_BYTES).map_err(system("setting up a socket"))?;
    let challenge = receive(&mut connection, config, true)?;
    if challenge.header.kind != Kind::Challenge {
        return Err(unexpected(config, challenge.header.kind));
    }
    let mut reader = Reader::new(&challenge.payload, Kind::Challenge.words());
    let challenge: Bytes32 = reader.array().map_err(|source| bad_frame(config, source))?;
    let nonce = token::nonce().map_err(system("getrandom"))?;
    let hello = Hello::new(&config.token, &challenge, nonce, config.rank.get(), config.size);
    connection.queue(Kind::Hello, 0, &hello.encode());
    let answer = receive(&mut connection, config, false)?;
    match answer.header.kind {
        Kind::Welcome => {
            let welcome = Welcome::decode(&answer.payload).map_err(|source| bad_frame(config, source))?;
            if !token::equal_proofs(&hello.answer(&config.token, &challenge), &welcome.proof) {
                return Err(Attempt::Final(Error::RootUnproven { address: config.address.clone() }));
            }
            connection.set_limit(welcome.limit);
            Ok((connection, welcome.heartbeat))
        }
        Kind::Refuse => {
            let refusal = decode_refusal(&answer.payload).map_err(|source| bad_frame(config, source))?;
            Err(Attempt::Final(Error::Refused {
                address: config.address.clone(),
                rank: config.rank,
                refusal,
            }))
        }
        kind => Err(unexpected(config, kind)),
    }
}

fn receive(
    connection: &mut Connection,
    config: &TcpConfig,
    first: bool,
) -> Result<super::connection::Frame, Attempt> {
    connection.exchange(config.deadline).map_err(|error| match error {
        ReceiveError::Frame(source) => bad_frame(config, source),
        // Until the root has spoken, this may be one that is about to end or a port that another program had.
        ReceiveError::Io(source) if first => Attempt::Again(source),
        ReceiveError::Ended if first => Attempt::Again(ErrorKind::ConnectionReset.into()),
        ReceiveError::Expired => Attempt::Again(ErrorKind::TimedOut.into()),
        ReceiveError::Io(source) => Attempt::Final(Error::System { call: "talking to the root", source }),
        ReceiveError::Ended => Attempt::Final(Error::System {
            call: "talking to the root",
            source: ErrorKind::UnexpectedEof.into(),
        }),
    })
}

fn bad_frame(config: &TcpConfig, source: FrameError) -> Attempt {
    Attempt::Final(Error::Frame { address: config.address.clone(), source })
}

fn unexpected(config: &TcpConfig, kind: Kind) -> Attempt {
    bad_frame(config, FrameError::Unexpected { kind: kind.words() })
}

/// What a root decides about a greeting, apart from who is there already.
pub(super) fn judge(
    hello: &Hello,
    token: &Token,
    challenge: &Bytes32,
    size: u32,
) -> Result<GlobalRank, Refusal> {
    if !hello.proves(token, challenge) {
        Err(Refusal::Token)
    } else if hello.size != size {
        Err(Refusal::Size { given: hello.size, expected: size })
    } else if hello.rank >= size {
        Err(Refusal::Rank { size })
    } else {
        Ok(GlobalRank::new(hello.rank))
    }
}
