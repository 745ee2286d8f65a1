//! The side of a queue pair that asks the peer.

use std::collections::VecDeque;
use std::time::Duration;

use anabranch_transport_rdma::ReadOrder;

use super::Context;
use super::placing::{Piece, Placing};
use crate::decode::{Request, Segment, Source, Width};
use crate::fabric::Body;
use crate::keys::Keys;
use crate::memory::NicMemory;
use crate::ring::Fetched;
use crate::syndrome::Syndrome;

/// An entry that was fetched and is not done.
#[derive(Debug)]
pub(super) struct Pending {
    pub(super) fetched: Fetched,
    /// Bytes that were asked for.
    asked: u64,
    /// Whether all of it was asked for.
    all_asked: bool,
    /// Frames that are not answered, and answers that are not placed.
    open: u32,
    /// How it fails, when everything before it is done.
    pub(super) fails: Option<Syndrome>,
}

/// A frame that is not answered.
#[derive(Debug)]
struct Open {
    sequence: u64,
    position: u64,
    since: Duration,
    asked: Asked,
}

#[derive(Clone, Copy, Debug)]
enum Asked {
    Write,
    Read { offset: u64, bytes: u32 },
    Atomic,
}

/// An answer that goes into this rank's memory.
#[derive(Debug)]
struct Arriving {
    position: u64,
    placing: Placing,
}

/// Entries and frames that are under way.
#[derive(Debug, Default)]
pub(super) struct Requester {
    pub(super) pending: VecDeque<Pending>,
    open: VecDeque<Open>,
    arriving: VecDeque<Arriving>,
    answers: VecDeque<(u64, Body)>,
    sequence: u64,
    /// What has come to memory of the device and is not there, where completions are as if elsewhere, and for how long it stays behind.
    behind: VecDeque<Piece>,
    stays: u32,
}

/// Turns for which a write to the device's memory stays behind, where nothing reads that memory.
const STAYS: u32 = 20_000;

impl Requester {
    pub(super) fn take(&mut self, sequence: u64, body: Body) {
        // More than one for each frame answers nothing.
        if self.answers.len() < self.open.len() {
            self.answers.push_back((sequence, body));
        }
    }

    /// An entry was fetched: it must name registered memory.
    pub(super) fn begin(&mut self, fetched: Fetched, fault: Option<Syndrome>, context: &Context<'_>) {
        let local = |segment: &Segment| {
            context.keys.allows_local(segment.key, segment.address, u64::from(segment.bytes))
        };
        let (allowed, bytes) = match &fetched.entry.request {
            Request::Nop => (true, 0),
            Request::Dump { source } => (local(source), u64::from(source.bytes)),
            Request::Write { source: Source::Inline(bytes), .. } => (true, bytes.len() as u64),
            Request::Write { source: Source::Gather(segments), .. }
            | Request::Read { targets: segments, .. } => {
                let bytes = segments.iter().map(|segment| u64::from(segment.bytes)).sum();
                (segments.iter().all(local), bytes)
            }
            Request::Atomic { target, .. } => (local(target), u64::from(target.bytes)),
        };
        let fails = if bytes > u64::from(context.config.most_message_bytes) {
            Some(Syndrome::LocalLength)
        } else if !allowed {
            Some(Syndrome::LocalProtection)
        } else {
            fault
        };
        self.pending.push_back(Pending { fetched, asked: 0, all_asked: false, open: 0, fails });
    }

    /// The first entry, when it is done: all of it is asked for and answered, and the answers are placed.
    pub(super) fn pop_done(&mut self) -> Option<Fetched> {
        let done = |first: &Pending| first.all_asked && first.open == 0 && first.fails.is_none();
        self.pending.front().is_some_and(done).then(|| self.pending.pop_front())?.map(|first| first.fetched)
    }

    /// The first entry, when it has failed: its position, and how.
    pub(super) fn failed(&self) -> Option<(u64, Syndrome)> {
        let first = self.pending.front()?;
        first.fails.map(|syndrome| (first.fetched.position, syndrome))
    }

    /// Requests to a peer that does not answer any more fail; true where there is one.
    pub(super) fn give_up(&mut self) -> bool {
        let Some(first) = self.pending.front_mut() else { return false };
        first.fails = first.fails.or(Some(Syndrome::RetryExceeded));
        true
    }

    /// Whether the peer was silent for longer than that.
    pub(super) fn is_out_of_patience(&self, context: &Context<'_>) -> bool {
        self.open
            .front()
            .is_some_and(|first| context.now.saturating_sub(first.since) > context.config.patience)
    }

    fn of(&mut self, position: u64) -> Option<&mut Pending> {
        let found = self.pending.binary_search_by_key(&position, |pending| pending.fetched.position);
        found.ok().and_then(|index| self.pending.get_mut(index))
    }

    fn fail(&mut self, position: u64, syndrome: Syndrome) {
        if let Some(pending) = self.of(position) {
            pending.fails = pending.fails.or(Some(syndrome));
        }
    }

    /// Reads and drops bytes. A read of the device's memory passes none of what is on its way there; one of the host's goes elsewhere, and
    /// orders nothing of it.
    fn dump(&mut self, source: Segment, memory: &dyn NicMemory, keys: &Keys) {
        if !keys.is_of_host(source.key) {
            self.catch_up(memory, keys);
        }
    }

    /// Writes what stays behind.
    fn catch_up(&mut self, memory: &dyn NicMemory, keys: &Keys) {
        for Piece { key, address, bytes } in self.behind.drain(..) {
            let write = || memory.write(address, &bytes);
            if !matches!(keys.touch(key, address, bytes.len() as u64, write), Some(Ok(()))) {
                tracing::warn!(address, "what a read brought is for memory that is gone");
            }
        }
    }

    /// Lets what stays behind wait for one turn less; true where there is some.
    pub(super) fn wait_behind(&mut self, context: &Context<'_>) -> bool {
        if self.behind.is_empty() {
            return false;
        }
        self.stays = self.stays.saturating_sub(1);
        if self.stays == 0 {
            self.catch_up(context.memory, context.keys);
        }
        true
    }

    /// Takes an answer, or places some of what came; true where something was done.
    pub(super) fn hear(&mut self, context: &mut Context<'_>) -> bool {
        if let Some(arriving) = self.arriving.front_mut() {
            let position = arriving.position;
            match arriving.placing.step(context.memory, context.keys) {
                Ok(false) => {}
                Ok(true) => {
                    self.arriving.pop_front();
                    self.answered(position);
                }
                Err(_) => {
                    self.arriving.pop_front();
                    self.fail(position, Syndrome::LocalProtection);
                }
            }
            return true;
        }
        let Some((sequence, body)) = self.answers.pop_front() else { return false };
        let found = self.open.iter().position(|open| open.sequence == sequence);
        let Some(open) = found.and_then(|index| self.open.remove(index)) else { return true };
        let position = open.position;
        match (open.asked, body) {
            (Asked::Write, Body::Placed) => self.answered(position),
            (Asked::Read { offset, bytes }, Body::Data(data)) if data.len() == bytes as usize => {
                self.arrive(position, offset, &data, context);
            }
            (Asked::Atomic, Body::Old(old)) => {
                let data = self.of(position).map(|pending| old_bytes(&pending.fetched.entry.request, old));
                self.arrive(position, 0, &data.unwrap_or_default(), context);
            }
            (_, Body::Refused(syndrome)) => self.fail(position, syndrome),
            // A peer that answers something else is none.
            _ => self.fail(position, Syndrome::RemoteOperation),
        }
        true
    }

    fn answered(&mut self, position: u64) {
        if let Some(pending) = self.of(position) {
            pending.open -= 1;
        }
    }

    /// Begins to place what came for an entry.
    fn arrive(&mut self, position: u64, offset: u64, data: &[u8], context: &mut Context<'_>) {
        let Some(pending) = self.of(position) else { return };
        let targets = match &pending.fetched.entry.request {
            Request::Read { targets, .. } => cut(targets, offset, data.len() as u64),
            Request::Atomic { target, .. } => vec![*target],
            Request::Nop | Request::Dump { .. } | Request::Write { .. } => Vec::new(),
        };
        let mut rest = data;
        let mut parts = Vec::with_capacity(targets.len());
        for Segment { key, address, bytes } in targets {
            let (first, behind) = rest.split_at(rest.len().min(bytes as usize));
            parts.push(Piece { key, address, bytes: first.to_vec() });
            rest = behind;
        }
        let is_apart = |part: &Piece| {
            context.config.read_order != ReadOrder::Ordered && !context.keys.is_of_host(part.key)
        };
        let (apart, parts): (Vec<_>, Vec<_>) = parts.into_iter().partition(is_apart);
        if !apart.is_empty() {
            self.behind.extend(apart);
            self.stays = STAYS;
        }
        let placing = Placing::new(parts, context);
        self.arriving.push_back(Arriving { position, placing });
    }

    /// Asks for a part of the first entry of which not all was asked for; what to send, if anything.
    pub(super) fn ask(&mut self, context: &Context<'_>) -> Option<(u64, Body)> {
        if self.open.len() >= context.config.window as usize {
            return None;
        }
        let index = self.pending.iter().position(|pending| !pending.all_asked)?;
        // Nothing behind an entry that fails is done.
        if self.pending.iter().take(index + 1).any(|pending| pending.fails.is_some()) {
            return None;
        }
        if self.pending[index].fetched.entry.waits
            && self.pending.iter().take(index).any(|pending| {
                matches!(pending.fetched.entry.request, Request::Read { .. } | Request::Atomic { .. })
            })
        {
            return None;
        }
        if let Request::Dump { source } = self.pending[index].fetched.entry.request {
            self.dump(source, context.memory, context.keys);
        }
        let sequence = self.sequence;
        let pending = &mut self.pending[index];
        let position = pending.fetched.position;
        let (asked, body) = match part(pending, context) {
            Ok(Some(part)) => part,
            Ok(None) => {
                pending.all_asked = true;
                return None;
            }
            Err(syndrome) => {
                pending.fails = Some(syndrome);
                return None;
            }
        };
        pending.open += 1;
        self.sequence += 1;
        self.open.push_back(Open { sequence, position, since: context.now, asked });
        Some((sequence, body))
    }

    /// Forgets everything: the queue pair has stopped. Gives the positions of entries that were fetched.
    pub(super) fn flush(&mut self) -> VecDeque<u64> {
        self.open.clear();
        self.arriving.clear();
        self.answers.clear();
        self.behind.clear();
        self.pending.drain(..).map(|pending| pending.fetched.position).collect()
    }
}

/// The next part of an entry; none of one that asks for nothing.
fn part(pending: &mut Pending, context: &Context<'_>) -> Result<Option<(Asked, Body)>, Syndrome> {
    let most = u64::from(context.config.frame_bytes);
    let offset = pending.asked;
    let made = match &pending.fetched.entry.request {
        Request::Nop | Request::Dump { .. } => None,
        Request::Write { source, remote, immediate } => {
            let total = source.bytes();
            let here = most.min(total - offset);
            let bytes = match source {
                Source::Inline(bytes) => bytes[offset as usize..][..here as usize].to_vec(),
                Source::Gather(segments) => gather(segments, offset, here, context)?,
            };
            pending.asked += here;
            pending.all_asked = pending.asked == total;
            let immediate = immediate.filter(|_| pending.all_asked);
            let (address, key) = (remote.address, remote.key);
            Some((Asked::Write, Body::Write { address, total, offset, key, immediate, bytes }))
        }
        Request::Read { targets, remote } => {
            let total = targets.iter().map(|target| u64::from(target.bytes)).sum();
            let bytes = most.min(total - offset) as u32;
            pending.asked += u64::from(bytes);
            pending.all_asked = pending.asked == total;
            let (address, key) = (remote.address, remote.key);
            Some((Asked::Read { offset, bytes }, Body::Read { address, total, offset, key, bytes }))
        }
        Request::Atomic { operation, remote, .. } => {
            pending.all_asked = true;
            let (address, key, operation) = (remote.address, remote.key, *operation);
            Some((Asked::Atomic, Body::Atomic { address, key, operation }))
        }
    };
    Ok(made)
}

/// Where a part of what segments hold lies.
fn cut(segments: &[Segment], offset: u64, bytes: u64) -> Vec<Segment> {
    let (mut skip, mut left) = (offset, bytes);
    let mut places = Vec::new();
    for segment in segments {
        let size = u64::from(segment.bytes);
        if skip >= size {
            skip -= size;
            continue;
        }
        let here = left.min(size - skip);
        if here > 0 {
            // No more than the segment has.
            places.push(Segment { address: segment.address + skip, bytes: here as u32, ..*segment });
        }
        left -= here;
        skip = 0;
    }
    places
}

fn gather(segments: &[Segment], offset: u64, bytes: u64, context: &Context<'_>) -> Result<Vec<u8>, Syndrome> {
    let mut all = vec![0; bytes as usize];
    let mut rest = &mut all[..];
    for Segment { key, address, bytes: here } in cut(segments, offset, bytes) {
        let (first, behind) = rest.split_at_mut(here as usize);
        let read = context.keys.touch(key, address, here.into(), || context.memory.read(address, first));
        if !matches!(read, Some(Ok(()))) {
            return Err(Syndrome::LocalProtection);
        }
        rest = behind;
    }
    Ok(all)
}

/// An old value as it lies in memory: 64 bits in host byte order, 32 bits as the wire has them. NICs that swap words of 64 bits for
/// the host (the endianness mode for 8 bytes) do not do so for those of 32 (`ext_atomic_arg_sizes_be` of UCX).
fn old_bytes(request: &Request, old: u64) -> Vec<u8> {
    match request {
        Request::Atomic { operation, .. } if operation.width() == Width::Four => {
            (old as u32).to_be_bytes().to_vec()
        }
        _ => old.to_ne_bytes().to_vec(),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use anabranch_transport::Region;
    use anabranch_transport_rdma::Registered as _;

    use super::*;
    use crate::machine::written::Written;

    #[test]
    fn a_dump_of_host_memory_orders_nothing_that_comes_to_the_device() {
        let keys = Arc::<Keys>::default();
        let region = |address| Region { address, bytes: 4096 };
        let of_device = keys.register(region(0x1000), false);
        let of_host = keys.register(region(0x8000), true);
        let memory = Written::default();
        let mut requester = Requester::default();
        let key = of_device.local_key();
        requester.behind.push_back(Piece { key, address: 0x1010, bytes: vec![1; 8] });
        let mut dump = |address, key| {
            requester.dump(Segment { address, bytes: 1, key }, &memory, &keys);
            memory.0.lock().unwrap().clone()
        };
        assert_eq!(dump(0x8000, of_host.local_key()), [0; 0], "it stays behind");
        assert_eq!(dump(0x1000, key), [0x1010]);
    }

    #[test]
    fn no_more_answers_wait_than_frames_are_open() {
        let mut requester = Requester::default();
        requester.take(0, Body::Placed);
        assert_eq!(requester.answers.len(), 0);
        requester.open.push_back(Open {
            sequence: 7,
            position: 0,
            since: Duration::ZERO,
            asked: Asked::Write,
        });
        for _ in 0..9 {
            requester.take(7, Body::Placed);
        }
        assert_eq!(requester.answers.len(), 1);
    }
}
