//! Who may join: connections that have not said who they are, and what becomes of them.

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
use crate::tcp::greeting::{self, Answer, Hello, Verdict};
use crate::tcp::noise::Responder;
use anabranch_ranks::GlobalRank;
use std::net::{SocketAddr, TcpStream};

/// The most connections that have not shown that they know the secret, besides one for each rank.
pub(super) const STRANGERS: usize = 64;

impl Server {
    /// Begins with a new connection.
    pub(super) fn challenge(&mut self, stream: TcpStream, address: SocketAddr) -> std::io::Result<()> {
        let challenge: Bytes32 = secret::random()?;
        let mut connection = Connection::new(stream, 0, greeting::MAX_BYTES)?;
        connection.queue(Kind::Challenge, 0, &challenge);
        self.push_out_oldest_stranger();
        let stage = Stage::Greeted { challenge, since: std::time::Instant::now() };
        self.peers.insert(self.next_peer, Peer { connection, address: address.to_string(), stage });
        self.next_peer += 1;
        Ok(())
    }

    /// Makes room for one more connection. The oldest goes: a rank has long shown who it is by then, and tries again if not.
    fn push_out_oldest_stranger(&mut self) {
        let strangers: Vec<u64> = self
            .peers
            .iter()
            .filter(|(_, peer)| !matches!(peer.stage, Stage::Joined(_)))
            .map(|(id, _)| *id)
            .collect();
        if strangers.len() < STRANGERS + self.config.size as usize {
            return;
        }
        let Some(gone) = strangers.first().and_then(|id| self.peers.remove(id)) else { return };
        self.pushed_out += 1;
        // Whoever causes this must not fill the log too.
        if self.pushed_out.is_power_of_two() {
            tracing::warn!(
                address = %gone.address,
                count = self.pushed_out,
                "too many connections at the rendezvous that do not say who they are; the oldest are closed"
            );
        }
    }

    /// Takes a newcomer in or refuses it.
    pub(super) fn greeted(&mut self, id: u64, message: &[u8], challenge: &Bytes32) -> Result<(), FrameError> {
        let Some((responder, payload)) = Responder::begin(&self.config.secret, challenge, message) else {
            let address = self.peers.get(&id).map(|peer| peer.address.as_str());
            tracing::warn!(address, "refused at the rendezvous: it does not know the secret");
            self.refuse(id, Refusal::Secret);
            return Ok(());
        };
        let hello = Hello::decode(&payload)?;
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
        match (answer, judged) {
            (Answer::Welcome { .. }, Ok(rank)) => self.take_in(id, rank),
            (Answer::Refused(refusal), _) => {
                tracing::warn!(rank = hello.rank, address = %peer.address, %refusal, "refused at the rendezvous");
                self.drain(id);
                self.weigh(&hello, refusal);
            }
            _ => {
                self.told += 1;
                self.drain(id);
            }
        }
        Ok(())
    }

    fn judge(&self, hello: &Hello) -> Result<GlobalRank, Refusal> {
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
    fn weigh(&mut self, hello: &Hello, refusal: Refusal) {
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
                peer.connection.queue(Kind::Verdict, 0, &greeting::encode_verdict(verdict));
            }
            self.drain(id);
        }
    }
}
