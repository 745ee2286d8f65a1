//! A queue pair: its states, and the order in which its parts work.

use std::collections::VecDeque;
use std::time::Duration;

use anabranch_ranks::GlobalRank;
use anabranch_transport_rdma::QueueSpec;

use super::requester::Requester;
use super::responder::{Answer, Responder};
use super::{Context, Immediate};
use crate::decode::Request;
use crate::fabric::{Body, Frame, NicNumber};
use crate::ring::{Fetched, Ring};
use crate::stopped::Stopped;
use crate::syndrome::Syndrome;

/// The other end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PeerQueue {
    pub(crate) rank: GlobalRank,
    pub(crate) nic: NicNumber,
    pub(crate) number: u32,
}

/// A reliably connected queue pair. Unconnected (INIT) until it has a peer, then ready to receive and send (RTR and RTS at once), until
/// something stops it (ERR).
#[derive(Debug)]
pub(crate) struct QueuePair {
    number: u32,
    spec: QueueSpec,
    ring: Box<dyn Ring>,
    pub(crate) peer: Option<PeerQueue>,
    /// What came before this end was connected.
    early: Vec<(NicNumber, Frame)>,
    requester: Requester,
    responder: Responder,
    pub(crate) stopped: Option<Stopped>,
    /// What cannot be fetched; told when everything before it is done.
    broken: Option<Stopped>,
    /// Entries that are done and not told.
    untold: VecDeque<Fetched>,
    /// Steps until a doorbell that was heard is looked after, and until completions are told.
    delay: u32,
    late: u32,
    /// The format's free bit of completions.
    bit: bool,
    /// Answers that stay behind.
    answers: VecDeque<(u64, Body)>,
    /// Positions of entries that are to be flushed.
    flushed: VecDeque<u64>,
    /// Since when the doorbell record is ahead.
    ahead_since: Option<Duration>,
}

/// Whether an entry asks for an atomic operation of a NIC that has none.
fn asks_in_vain(fetched: &Fetched, context: &Context<'_>) -> bool {
    !context.config.atomics && matches!(fetched.entry.request, Request::Atomic { .. })
}

impl QueuePair {
    pub(crate) fn new(number: u32, spec: QueueSpec, ring: Box<dyn Ring>) -> Self {
        Self {
            number,
            spec,
            ring,
            peer: None,
            early: Vec::new(),
            requester: Requester::default(),
            responder: Responder::default(),
            stopped: None,
            broken: None,
            untold: VecDeque::new(),
            delay: 0,
            late: 0,
            bit: false,
            answers: VecDeque::new(),
            flushed: VecDeque::new(),
            ahead_since: None,
        }
    }

    pub(crate) fn connect(&mut self, peer: PeerQueue) {
        self.peer = Some(peer);
        let early = core::mem::take(&mut self.early);
        // They were counted when they came.
        let most = early.len() as u32;
        for (from, frame) in early {
            self.take(from, frame, most);
        }
    }

    pub(crate) fn has_answered(&self) -> bool {
        self.responder.is_idle() && self.answers.is_empty()
    }

    /// A frame came. A peer that keeps to its `window` has no more than that many requests here; what is beyond is lost, and the
    /// patience of its sender ends.
    pub(crate) fn take(&mut self, from: NicNumber, frame: Frame, window: u32) {
        let Some(peer) = self.peer else {
            if self.early.len() < window as usize {
                self.early.push((from, frame));
            } else {
                tracing::debug!(%from, queue = self.number, "more frames than a window before the connection");
            }
            return;
        };
        if (peer.nic, peer.number) != (from, frame.source) {
            tracing::debug!(%from, source = frame.source, queue = self.number, "a frame of somebody else");
        } else if frame.body.is_answer() {
            self.requester.take(frame.sequence, frame.body);
        } else {
            self.responder.take(frame, window);
        }
    }

    /// Does one piece of work; false where there is none.
    pub(crate) fn step(&mut self, context: &mut Context<'_>) -> bool {
        if self.stopped.is_some() {
            return self.answer(context) || self.flush(context);
        }
        match self.work(context) {
            Ok(did) => did,
            Err(stopped) => {
                self.stop(stopped, context);
                true
            }
        }
    }

    fn work(&mut self, context: &mut Context<'_>) -> Result<bool, Stopped> {
        let mut did = self.respond(context)?;
        did |= self.requester.hear(context);
        did |= self.listen(context)?;
        did |= self.ask(context);
        did |= self.complete(context)?;
        if !did {
            did = self.watch(context)?;
        }
        Ok(self.requester.wait_behind(context) || did)
    }

    /// Looks at the doorbell, and fetches an entry.
    fn listen(&mut self, context: &mut Context<'_>) -> Result<bool, Stopped> {
        if self.broken.is_some() {
            return Ok(false);
        }
        if self.delay > 0 {
            self.delay -= 1;
            return Ok(true);
        }
        let adversary = context.config.adversary;
        let beyond = adversary.is_some_and(|adversary| {
            context.random.chance(adversary.record_looks)
                || context.random.chance(adversary.doubled_doorbells)
        });
        match self.ring.look(context.memory, beyond) {
            Ok(true) => {
                if self.peer.is_none() {
                    return Err(Stopped::NotConnected);
                }
                let most = adversary.map_or(0, |adversary| adversary.most_delay);
                self.delay = context.random.below(u64::from(most) + 1) as u32;
                if self.delay > 0 {
                    return Ok(true);
                }
            }
            Ok(false) => {}
            Err(stopped) => {
                self.broken = Some(stopped);
                return Ok(true);
            }
        }
        match self.ring.fetch(context.memory) {
            Ok(None) => Ok(false),
            Ok(Some(fetched)) if asks_in_vain(&fetched, context) => {
                self.broken = Some(Stopped::NoAtomics { position: fetched.position });
                Ok(true)
            }
            Ok(Some(fetched)) => {
                *context.requests += 1;
                let fails = context.config.faults.fails;
                let fault = fails.filter(|(at, _)| at == context.requests).map(|(_, syndrome)| syndrome);
                self.requester.begin(fetched, fault, context);
                Ok(true)
            }
            Err(stopped) => {
                self.broken = Some(stopped);
                Ok(true)
            }
        }
    }

    fn send(&self, sequence: u64, body: Body, context: &mut Context<'_>) {
        if let Some(peer) = self.peer {
            let frame = Frame { source: self.number, target: peer.number, sequence, body };
            context.fabric.send(peer.nic, frame);
        }
    }

    fn ask(&mut self, context: &mut Context<'_>) -> bool {
        let Some(peer) = self.peer else { return false };
        if context.fabric.is_full(peer.nic) {
            return false;
        }
        match self.requester.ask(context) {
            Some((sequence, body)) => {
                self.send(sequence, body, context);
                true
            }
            None => false,
        }
    }

    fn respond(&mut self, context: &mut Context<'_>) -> Result<bool, Stopped> {
        let answer = self.responder.step(context);
        if let (Some(value), Some(peer)) = (self.responder.immediate.take(), self.peer) {
            context.immediates.push_back(Immediate { peer: peer.rank, channel: self.spec.channel, value });
        }
        let did = answer != Answer::Idle;
        if let Answer::Says(sequence, body) = answer {
            let refused = if let Body::Refused(syndrome) = &body { Some(*syndrome) } else { None };
            self.answers.push_back((sequence, body));
            // The peer's side may try again when its receive queue has room: only the peer stops then.
            if let Some(syndrome) = refused.filter(|syndrome| *syndrome != Syndrome::ReceiverNotReady) {
                return Err(Stopped::OfPeer { syndrome });
            }
        }
        Ok(self.answer(context) || did)
    }

    /// Sends answers, but those that stay behind.
    fn answer(&mut self, context: &mut Context<'_>) -> bool {
        let late = context.config.adversary.map_or(0, |adversary| adversary.late_answers);
        if self.answers.is_empty() || context.random.chance(late) {
            return !self.answers.is_empty();
        }
        while let Some((sequence, body)) = self.answers.pop_front() {
            self.send(sequence, body, context);
        }
        true
    }

    /// Tells of entries that are done, in order.
    fn complete(&mut self, context: &mut Context<'_>) -> Result<bool, Stopped> {
        let mut did = false;
        if let Some(done) = self.requester.pop_done() {
            self.count(&done, context);
            if done.entry.completes && self.late == 0 {
                let most = context.config.adversary.map_or(0, |adversary| adversary.most_late);
                self.late = context.random.below(u64::from(most) + 1) as u32;
            }
            self.untold.push_back(done);
            did = true;
        }
        if self.late > 0 {
            self.late -= 1;
            return Ok(true);
        }
        did |= self.tell(context)?;
        if let Some((position, syndrome)) = self.requester.failed() {
            return Err(Stopped::Request { position, syndrome });
        }
        if self.requester.pending.is_empty()
            && let Some(broken) = self.broken.take()
        {
            return Err(broken);
        }
        Ok(did)
    }

    /// Tells of all that is done up to the last that asks for it: one by one, or, by an adversary, at once.
    fn tell(&mut self, context: &mut Context<'_>) -> Result<bool, Stopped> {
        let Some(last) = self.untold.iter().rposition(|done| done.entry.completes) else { return Ok(false) };
        let told: Vec<_> = self.untold.drain(..=last).collect();
        for (index, done) in told.iter().enumerate() {
            self.ring.release(context.memory, done)?;
            let alone = context.config.adversary.is_none() && done.entry.completes;
            if alone || index == last {
                self.bit = match context.config.adversary {
                    None => !self.bit,
                    Some(_) => context.random.chance(128),
                };
                self.ring.tell(context.memory, done, self.bit)?;
            }
        }
        Ok(true)
    }

    fn count(&self, done: &Fetched, context: &mut Context<'_>) {
        let Some(peer) = self.peer else { return };
        let traffic = context.traffic.entry(peer.rank).or_default();
        match &done.entry.request {
            Request::Nop | Request::Dump { .. } => {}
            Request::Write { source, .. } => {
                traffic.writes += 1;
                traffic.written_bytes += source.bytes();
            }
            Request::Read { targets, .. } => {
                traffic.reads += 1;
                traffic.read_bytes += targets.iter().map(|target| u64::from(target.bytes)).sum::<u64>();
            }
            Request::Atomic { .. } => traffic.atomics += 1,
        }
    }

    /// What is wrong although nothing happens; true where that was noticed just now.
    fn watch(&mut self, context: &mut Context<'_>) -> Result<bool, Stopped> {
        if let Some(peer) = self.peer
            && (context.gone.contains(&peer.nic) || self.requester.is_out_of_patience(context))
        {
            return Ok(self.requester.give_up());
        }
        if !self.requester.pending.is_empty() || self.broken.is_some() {
            self.ahead_since = None;
            return Ok(false);
        }
        let Err(ahead) = self.ring.is_settled(context.memory) else {
            self.ahead_since = None;
            return Ok(false);
        };
        let since = *self.ahead_since.get_or_insert(context.now);
        if context.now.saturating_sub(since) > context.config.doorbell_patience {
            Err(ahead)
        } else {
            Ok(false)
        }
    }

    /// The queue pair does nothing more; what was posted is flushed.
    fn stop(&mut self, stopped: Stopped, context: &mut Context<'_>) {
        tracing::warn!(queue = self.number, peer = %self.spec.peer, why = %stopped, "a queue pair of a NIC in software has stopped");
        self.flushed = self.requester.flush();
        self.untold.clear();
        let position = self.flushed.pop_front().unwrap_or_else(|| self.ring.next());
        let (syndrome, vendor) = (stopped.syndrome(), stopped.vendor());
        let posted = !matches!(stopped, Stopped::OfPeer { .. }) || position != self.ring.next();
        if posted && self.ring.tell_failure(context.memory, position, syndrome, vendor).is_err() {
            tracing::warn!(queue = self.number, "its completion queue is gone");
        }
        self.stopped = Some(stopped);
    }

    /// Tells that entries are flushed: those that were fetched, and what is posted later.
    fn flush(&mut self, context: &mut Context<'_>) -> bool {
        // The entries are not read any more, whatever the doorbell holds.
        let fetched = self.flushed.pop_front();
        let Some(position) = fetched.or_else(|| self.ring.rung_anew(context.memory)) else { return false };
        let told = self.ring.tell_failure(context.memory, position, Syndrome::Flushed, 0);
        told.is_ok()
    }
}
