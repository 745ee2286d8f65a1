//! Admission: connections that are not authenticated yet.

#![expect(
    clippy::disallowed_methods,
    reason = "threads that do socket work live on the machine's time: no simulation drives them"
)]

use super::{Peer, Server, Stage};
use crate::Refusal;
use crate::frame::{FrameError, Kind};
use crate::message::Reply;
use crate::secret::{self, Bytes32};
use crate::tcp::connection::Connection;
use crate::tcp::handshake::{self, Answer, HelloMsg, Verdict};
use crate::tcp::noise::Responder;
use anabranch_ranks::GlobalRank;
use std::net::{SocketAddr, TcpStream};

/// The most connections that have not shown that they know the secret, besides one for each rank.
pub(super) const STRANGERS: usize = 64;

impl Server {
    /// Begins with a new connection.
    pub(super) fn challenge(&mut self, stream: TcpStream, address: SocketAddr) -> std::io::Result<()> {
        let challenge: Bytes32 = secret::random()?;
        let mut connection = Connection::new(stream, 0, handshake::MAX_BYTES)?;
        connection.queue(Kind::Challenge, 0, &challenge);
        self.push_out_oldest_stranger();
        let stage = Stage::Challenged { challenge, since: std::time::Instant::now() };
        self.peers.insert(self.next_peer, Peer { connection, address: address.to_string(), stage });
        self.next_peer += 1;
        Ok(())
    }

    /// Makes room for one more connection. The oldest goes: a rank has long shown who it is by then, and tries again if not. What
    /// ranks are still owed, a goodbye above all, has a time of its own and never makes room.
    fn push_out_oldest_stranger(&mut self) {
        let strangers: Vec<u64> = self
            .peers
            .iter()
            .filter(|(_, peer)| {
                matches!(peer.stage, Stage::Challenged { .. } | Stage::Draining { stranger: true, .. })
            })
            .map(|(id, _)| *id)
            .collect();
        if strangers.len() < STRANGERS + self.config.size as usize {
            return;
        }
        let Some(gone) = strangers.first().and_then(|id| self.peers.remove(id)) else { return };
        self.pushed_out += 1;
        // The cause of this must not also fill the log.
        if self.pushed_out.is_power_of_two() {
            tracing::warn!(
                address = %gone.address,
                count = self.pushed_out,
                "too many connections at the rendezvous that do not say who they are; the oldest are closed"
            );
        }
    }

    /// Takes a newcomer in or refuses it.
    pub(super) fn hello(&mut self, id: u64, message: &[u8], challenge: &Bytes32) -> Result<(), FrameError> {
        let Some((responder, payload)) = Responder::begin(&self.config.secret, challenge, message) else {
            let address = self.peers.get(&id).map(|peer| peer.address.as_str());
            tracing::warn!(address, "refused at the rendezvous: it does not know the secret");
            self.refuse(id, Refusal::Secret);
            return Ok(());
        };
        let hello = HelloMsg::decode(&payload)?;
        let judged = self.judge(&hello);
        let (heartbeat, limit) = (self.config.heartbeat, self.config.max_message_bytes);
        let answer = match (judged, self.verdict) {
            (_, Some(verdict)) => Answer::Ended(verdict),
            (Ok(_), None) => Answer::Welcome { heartbeat, limit },
            (Err(refusal), None) => Answer::Refused(refusal),
        };
        let Some(peer) = self.peers.get_mut(&id) else { return Ok(()) };
        match responder.finish(&answer.encode()) {
            Ok((message, cipher)) => {
                peer.connection.queue(Kind::Answer, 0, &message);
                peer.connection.encrypt(cipher);
            }
            Err(error) => {
                tracing::warn!(address = %peer.address, %error, "a connection to the rendezvous root was dropped");
                self.peers.remove(&id);
                return Ok(());
            }
        }
        // Without a secret, a refused connection is not a rank.
        let stranger = self.config.secret.is_none();
        match (answer, judged) {
            (Answer::Welcome { .. }, Ok(rank)) => self.take_in(id, rank),
            (Answer::Refused(refusal), _) => {
                tracing::warn!(rank = hello.rank, address = %peer.address, %refusal, "refused at the rendezvous");
                self.drain(id, stranger);
                self.weigh(&hello, refusal);
            }
            _ => {
                self.told += 1;
                self.drain(id, stranger);
            }
        }
        Ok(())
    }

    fn judge(&self, hello: &HelloMsg) -> Result<GlobalRank, Refusal> {
        let rank = hello.judge(self.config.size, &self.config.session)?;
        if self.finishing.is_some() {
            Err(Refusal::Ending)
        } else if self.joined.contains_key(&rank) {
            Err(Refusal::Duplicate)
        } else if self.hub.is_lost(rank) {
            Err(Refusal::Lost)
        } else {
            Ok(rank)
        }
    }

    fn take_in(&mut self, id: u64, rank: GlobalRank) {
        let Some(peer) = self.peers.get_mut(&id) else { return };
        peer.connection.set_limit(self.config.max_message_bytes);
        for loss in self.hub.losses() {
            let (kind, payload) = Reply::Lost(loss.clone()).encode();
            peer.connection.queue(kind, 0, &payload);
        }
        tracing::debug!(rank = rank.get(), address = %peer.address, "joined the rendezvous");
        peer.stage = Stage::Joined(rank);
        self.joined.insert(rank, id);
        self.formed |= self.joined.len() == self.config.size as usize;
    }

    /// Ends the rendezvous for all when a rank of this very start was given another size, or two were given one rank: waiting
    /// for the deadline would make nothing better. Without a secret, anybody could say so, and nothing follows.
    fn weigh(&mut self, hello: &HelloMsg, refusal: Refusal) {
        let hopeless = matches!(refusal, Refusal::Size { .. } | Refusal::Duplicate);
        if !hopeless || self.formed || self.finishing.is_some() || self.config.secret.is_none() {
            return;
        }
        let verdict = Verdict { rank: GlobalRank::new(hello.rank), refusal };
        tracing::warn!(rank = hello.rank, %refusal, "the world cannot form");
        self.verdict = Some(verdict);
        // Counted by processes: of two with one rank, another rank has none.
        self.told = 1 + self.joined.len() as u32;
        for id in self.joined.values().copied().collect::<Vec<_>>() {
            if let Some(peer) = self.peers.get_mut(&id) {
                peer.connection.queue(Kind::Verdict, 0, &handshake::encode_verdict(verdict));
            }
            self.drain(id, false);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tcp::waker::Waker;
    use crate::{Deadline, Secret, TcpConfig};
    use std::net::TcpListener;
    use std::sync::Arc;
    use std::time::Duration;

    #[test]
    fn a_flood_at_the_end_pushes_out_strangers_and_no_rank_that_is_owed_its_goodbye() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let config = TcpConfig {
            secret: Secret::new("a secret of sixteen bytes"),
            ..TcpConfig::new(
                address.to_string(),
                GlobalRank::new(0),
                2,
                Deadline::after(Duration::from_secs(5)),
            )
        };
        let mut server = Server::new(Vec::new(), Waker::new().unwrap(), Arc::default(), &config).unwrap();
        let mut clients = Vec::new();
        let mut come = |server: &mut Server| {
            clients.push(TcpStream::connect(address).unwrap());
            let (stream, from) = listener.accept().unwrap();
            server.challenge(stream, from).unwrap();
        };
        for rank in 0..2 {
            come(&mut server);
            server.take_in(rank, GlobalRank::new(rank as u32));
            server.drain(rank, false);
        }
        // One that was refused is a stranger like those that say nothing.
        come(&mut server);
        server.refuse(2, Refusal::Secret);
        let most = STRANGERS + 2;
        for _ in 0..most {
            come(&mut server);
        }
        let ids: Vec<u64> = server.peers.keys().copied().collect();
        assert_eq!(ids[..3], [0, 1, 3], "the refused one went first, and no rank");
        assert_eq!((ids.len(), server.pushed_out), (2 + most, 1));
    }
}
