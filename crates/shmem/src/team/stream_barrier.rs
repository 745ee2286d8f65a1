//! Barriers of a team in the order of a stream, without a kernel: the device's front end writes and waits for words of memory. They
//! take no compute unit, so that they proceed while a kernel occupies all of them.
//!
//! Each member has a word for each member in its heap, which that member writes. In barrier e a member writes e to its word at all
//! others, and waits until its own words are at least e. What came before on its stream is done, and released, before the writes: they
//! fence (CUDA's `CU_STREAM_WRITE_VALUE_DEFAULT`); what follows comes after the waits. Copies and the word that signals them come from
//! one device over one path, in that order, so that a member that sees the word needs no flush of remote writes.
//!
//! Why a word may be overwritten. It only grows: member r writes e + 1 to it when its stream has passed barrier e, perhaps before this
//! rank has waited for e. The wait is for "at least e", which e + 1 satisfies; and r cannot pass e + 1 before this rank comes there.
//! Epochs are the host's, so that such a barrier cannot be captured: replays would bring old epochs.
//!
//! Such a wait is the driver's and has no deadline. A thread of the host watches: streams write into two words of host memory which
//! barrier they have come to and which they have passed. When one is not passed within the operation deadline, or the world has
//! failed for another reason, the thread reports the missing member, as a kernel's fault record would, and writes the words that are
//! waited for, so that the stream drains.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::thread::JoinHandle;
use std::time::Duration;

use anabranch_clock::{Moment, Signal};
use anabranch_hip::{DeviceAddress, HostBuffer, Stream};
use anabranch_hip_jit::control::FaultRecord;
use anabranch_ranks::{Group, GroupRank};
use bytemuck::Zeroable as _;

use super::Team;
use crate::error::{Error, Result};
use crate::fault::names::OperationCode;
use crate::heap::DEFAULT_ALIGNMENT;
use crate::memory::SymmetricMemory;
use crate::world::{DRAIN, Inner, World};

/// Between two polls of a barrier that was not yet passed.
const LOOK: Duration = Duration::from_millis(2);
const WORD: u64 = 8;
/// In host memory: which barrier the stream has come to, which it has passed, and what the watch copies from and to.
const CAME: usize = 0;
const PASSED: usize = 64;
const RELEASE: usize = 128;
const SEEN: usize = 192;

/// A sequence of barriers of a team. Barriers of one sequence have one order on all members, on any streams. Keep
/// it until the streams have passed ([`Team::hold`]): dropping it ends the waits of its streams, also where members are missing.
#[derive(Debug)]
pub struct StreamBarrier {
    flags: SymmetricMemory,
    watch: Arc<Watch>,
    thread: Option<JoinHandle<()>>,
}

/// What the watching thread shares with the callers that put barriers on streams.
#[derive(Debug)]
struct Watch {
    world: Weak<Inner>,
    group: Group,
    group_number: u64,
    rank: GroupRank,
    flags: DeviceAddress,
    words: HostBuffer,
    stream: Stream,
    state: Mutex<State>,
    changed: Signal,
}

#[derive(Debug, Default)]
struct State {
    /// The last barrier that was put on a stream.
    enqueued: u64,
    ended: bool,
}

impl World {
    /// Whether streams of this rank's device write words and wait for them.
    pub fn has_stream_barriers(&self) -> bool {
        let api = self.device().runtime().api();
        api.hipStreamWriteValue64.is_some() && api.hipStreamWaitValue64.is_some()
    }
}

impl Team {
    /// Makes a sequence of stream barriers. Collective over the group. A thread of the host watches them from the first on.
    ///
    /// # Errors
    /// The errors of [`World::allocate`]; [`Error::Config`] where [`World::has_stream_barriers`] is false. The runtime's.
    #[expect(
        clippy::expect_used,
        clippy::missing_panics_doc,
        reason = "the allocation in between fails in this case"
    )]
    pub fn stream_barrier(&self) -> Result<StreamBarrier> {
        let (world, size) = (self.world(), u64::from(self.size()));
        let made = (|| {
            if !world.has_stream_barriers() {
                let given = world.device().runtime().kind().to_string();
                let expected = "a runtime whose streams write and wait for words".into();
                return Err(Error::Config { field: "stream barriers", given, expected });
            }
            if let Some(peer) =
                self.group().members().iter().find(|member| world.peer_base(**member).is_none())
            {
                let given = format!("{peer}, whose memory is not mapped here");
                let expected = "members that are mapped".into();
                return Err(Error::Config { field: "stream barriers", given, expected });
            }
            let words = world.device().allocate_host(SEEN + (size * WORD) as usize)?;
            words.write(0, &vec![0; words.len()])?;
            Ok((words, world.device().create_priority_stream()?))
        })();
        let (made, status) = match made {
            Ok(made) => (Some(made), Ok(())),
            Err(error) => (None, Err(error)),
        };
        let flags =
            world.allocate_after(self.group(), size * WORD, DEFAULT_ALIGNMENT, "stream barriers", status)?;
        let (words, stream) = made.expect("the allocation would have failed with it");
        let watch = Arc::new(Watch {
            world: Arc::downgrade(&world.inner),
            group: self.group().clone(),
            group_number: self.view().group,
            rank: self.rank(),
            flags: flags.address(),
            words,
            stream,
            state: Mutex::default(),
            changed: Signal::new(),
        });
        Ok(StreamBarrier { flags, watch, thread: None })
    }
}

impl StreamBarrier {
    /// Puts a barrier on the stream: what follows there runs after what came before the barrier on the streams of all members, and sees
    /// what it wrote. Returns at once. In the closure of [`Team::launch_in_order`], of the team that made this, on its stream. All members call, in the same
    /// order. Not in a capture.
    ///
    /// # Errors
    /// [`Error::InvalidState`] in a capture; [`Error::Unreachable`] for a member that is not mapped; the runtime's. Some members' words may be written
    /// then: the world is to be given up.
    pub fn enqueue(&mut self, team: &Team, stream: &Stream) -> Result<()> {
        if stream.is_capturing()? {
            let problem = "a stream barrier cannot be captured into a graph".to_owned();
            return Err(Error::InvalidState { call: "enqueue", problem });
        }
        let (me, size) = (self.watch.rank.get(), self.watch.group.size());
        let others = || (1..size).map(move |by| GroupRank::new((me + by) % size));
        let mut words = Vec::with_capacity(size as usize);
        for peer in others() {
            let base = team.peer_base(peer).ok_or_else(|| Error::Unreachable {
                peer: self.watch.group.members()[peer.index()],
                considered: Vec::new(),
            })?;
            words.push(base.offset(self.flags.offset() + u64::from(me) * WORD));
        }
        self.start_watching()?;
        let epoch = {
            let mut state = self.watch.state.lock().unwrap_or_else(PoisonError::into_inner);
            state.enqueued += 1;
            state.enqueued
        };
        let host = |offset: usize| self.watch.words.device_address().offset(offset as u64);
        // SAFETY: the words are in allocations of the peers and of this rank, and in host memory of the watch; the launch is tracked
        // with the memory that holds them, and the owner keeps this until it is over.
        unsafe {
            stream.write_value64(host(CAME), epoch)?;
            for word in words {
                stream.write_value64(word, epoch)?;
            }
            for peer in others() {
                let own = self.watch.flags.offset(u64::from(peer.get()) * WORD);
                stream.wait_value64_at_least(own, epoch)?;
            }
            stream.write_value64(host(PASSED), epoch)?;
        }
        self.watch.changed.notify_all();
        Ok(())
    }

    fn start_watching(&mut self) -> Result<()> {
        if self.thread.is_none() {
            let watch = Arc::clone(&self.watch);
            let named = std::thread::Builder::new().name(format!("barriers of rank {}", watch.rank.get()));
            let started = named.spawn(move || watch.run());
            self.thread = Some(started.map_err(Error::thread("stream barriers"))?);
        }
        Ok(())
    }

    /// The memory of the members' words, for [`Team::launch_in_order`].
    pub fn usage(&self) -> crate::inflight::MemoryUse {
        self.flags.usage()
    }
}

impl Drop for StreamBarrier {
    fn drop(&mut self) {
        self.watch.state.lock().unwrap_or_else(PoisonError::into_inner).ended = true;
        self.watch.changed.notify_all();
        if let Some(thread) = self.thread.take()
            // The last handle of a world may go on it, and this with it.
            && thread.thread().id() != std::thread::current().id()
            && thread.join().is_err()
        {
            tracing::warn!("the thread that watches stream barriers panicked");
        }
    }
}

impl Watch {
    fn word(&self, offset: usize) -> u64 {
        self.words.atomic_u64(offset).map_or(0, |word| word.load(Ordering::Acquire))
    }

    fn run(self: Arc<Self>) {
        self.look();
        // Nothing watches from here on: waiting streams are released, and the memory that they write stays until they have written.
        if self.word(PASSED) < self.enqueued() {
            self.release();
            let end = Moment::now().after(DRAIN);
            while self.word(PASSED) < self.enqueued() && !end.remaining().is_zero() {
                anabranch_clock::sleep(LOOK);
            }
            if self.word(PASSED) < self.enqueued() {
                tracing::warn!("a stream waits in a barrier whose owner is gone; its words are never freed");
                Box::leak(Box::new(Arc::clone(&self)));
            }
        }
    }

    fn enqueued(&self) -> u64 {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).enqueued
    }

    fn look(&self) {
        // The barrier that is waited in, and since when that is known.
        let mut waits: Option<(u64, Moment)> = None;
        let mut guard = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        while !guard.ended {
            let enqueued = guard.enqueued;
            // A stream comes to a barrier after it has passed the one before.
            let (passed, came) = (self.word(PASSED), self.word(CAME));
            if passed >= enqueued {
                waits = None;
                guard = self.changed.wait(&self.state, guard, None);
                continue;
            }
            drop(guard);
            match waits {
                _ if came <= passed => waits = None,
                Some((epoch, since)) if epoch == came => self.judge(epoch, since),
                _ => waits = Some((came, Moment::now())),
            }
            guard = self.state.lock().unwrap_or_else(PoisonError::into_inner);
            if !guard.ended {
                guard = self.changed.wait(&self.state, guard, Some(Moment::now().after(LOOK)));
            }
        }
    }

    /// Ends a wait that has lasted too long, or has become pointless.
    fn judge(&self, epoch: u64, since: Moment) {
        let Some(inner) = self.world.upgrade() else { return self.release() };
        let world = World { inner };
        if world.inner.state.is_raised().unwrap_or(true) {
            return self.release();
        }
        let waited = since.elapsed();
        if waited <= world.operation_deadline() {
            return;
        }
        let missing = match self.missing(epoch) {
            Ok(missing) => missing,
            Err(error) => {
                let why = format!("a stream barrier did not end, and its words cannot be read: {error}");
                world.poison(&why);
                return self.release();
            }
        };
        if let Some((peer, seen)) = missing {
            world.judge(&FaultRecord {
                operation: OperationCode::STREAM_BARRIER.0,
                epoch,
                peer: peer.get(),
                rank: self.rank.get(),
                group: self.group_number,
                expected: epoch,
                seen,
                waited_ns: u64::try_from(waited.as_nanos()).unwrap_or(u64::MAX),
                ..FaultRecord::zeroed()
            });
            self.release();
        }
    }

    /// The first member that has not come, and its word.
    fn missing(&self, epoch: u64) -> Result<Option<(GroupRank, u64)>> {
        let bytes = self.group.size() as usize * WORD as usize;
        let target = self.words.device_address().offset(SEEN as u64);
        // SAFETY: both lie in memory of this value and of its owner's, who joins this thread before either goes.
        unsafe { self.stream.copy_async(target, self.flags, bytes) }?;
        self.settle()?;
        let word = |member: &GroupRank| self.word(SEEN + member.index() * WORD as usize);
        let late = |member: &GroupRank| *member != self.rank && (word(member).wrapping_sub(epoch) as i64) < 0;
        Ok(self.group.ranks().find(late).map(|member| (member, word(&member))))
    }

    /// Waits for the watch's own copies, but not for ever: a device that shares a queue between its stream and the waiting one never
    /// does them.
    fn settle(&self) -> Result<()> {
        let start = Moment::now();
        while !self.stream.is_idle()? {
            if start.elapsed() > DRAIN {
                return Err(Error::StreamBusy { waited: start.elapsed() });
            }
            anabranch_clock::sleep(Duration::from_micros(100));
        }
        Ok(())
    }

    /// Lets every barrier pass that was put on a stream so far.
    fn release(&self) {
        let enqueued = self.state.lock().unwrap_or_else(PoisonError::into_inner).enqueued;
        if let Ok(word) = self.words.atomic_u64(RELEASE) {
            word.store(enqueued, Ordering::Release);
        }
        let source = self.words.device_address().offset(RELEASE as u64);
        for member in self.group.ranks().filter(|member| *member != self.rank) {
            let target = self.flags.offset(u64::from(member.get()) * WORD);
            // SAFETY: as in `missing`; waits for the word compare by "at least".
            if let Err(error) = unsafe { self.stream.copy_async(target, source, WORD as usize) } {
                tracing::warn!(%error, "a stream that waits for a member could not be released");
            }
        }
        if let Err(error) = self.settle() {
            tracing::warn!(%error, "a stream that waits for a member could not be released");
        }
    }
}
