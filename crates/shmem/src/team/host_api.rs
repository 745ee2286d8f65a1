//! The heap from the host, in the order of a stream: the counterpart of the device functions.
//!
//! Every operation is put on a stream and returns at once; all are of the kind that the device API calls `nbi`. *Quiet is
//! the order of the stream*: what follows a put or a get on its stream, or waits for an event recorded after it, finds it complete at
//! both ends. A signal is ordered after everything before it on its stream; what follows a signal wait sees what came before
//! the signal on the signaller's stream.
//!
//! Allocations that are used so are not given away again before the operations on them are over, also when they are dropped
//! meanwhile. All may be captured into a graph; the caller then keeps the order of its replays.

use anabranch_hip::{DeviceAddress, Stream};
use anabranch_hip_jit::{DevicePointer, LoadedKernel};
use anabranch_ranks::GroupRank;
use anabranch_transport::{Operation, Scope};

use super::Team;
use crate::error::{Error, Result};
use crate::fault::names::OperationCode;
use crate::memory::SymmetricMemory;
use crate::route::{EngineCopy, NicCopy, TeamSignalArgs};

/// What a signal does to its word. Over one word either is in flight, never both.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SignalOp {
    /// Sets it to the value.
    Set,
    /// Adds the value, and wraps.
    Add,
}

/// A 64-bit word of an allocation, and what a signal does to it.
#[derive(Clone, Copy, Debug)]
pub struct Signal<'a> {
    /// Where the word is. Words are zero when they are allocated, and are written by signals (or 64-bit atomics) only.
    pub memory: &'a SymmetricMemory,
    /// Its offset in the allocation, a multiple of 8.
    pub offset: u64,
    /// The value.
    pub value: u64,
    /// What is done with it.
    pub op: SignalOp,
}

/// Where a part of a peer's heap is for this rank.
#[derive(Clone, Copy, Debug)]
enum Place {
    /// Mapped here.
    Mapped(DeviceAddress),
    /// At this offset in the heap of a peer that is reached by NIC.
    Remote(u64),
}

const WORD: usize = size_of::<u64>();

const ENGINE_COPY: &[OperationCode] = &[OperationCode::ENGINE_COPY];
const NIC_COPY: &[OperationCode] = &[OperationCode::NIC_COPY];
const NIC_SIGNAL: &[OperationCode] = &[OperationCode::NIC_SIGNAL];
const SIGNAL_WAIT: &[OperationCode] = &[OperationCode::SIGNAL_WAIT];

impl Team {
    /// Copies `bytes` bytes at `source`, which this rank's device or pinned host memory holds, to `peer`'s part of
    /// `target` at `offset`. To a peer that is reached by NIC, the source lies in the heap or was given to
    /// [`World::register_local`](crate::World::register_local); otherwise the world fails, and nothing is copied.
    ///
    /// # Errors
    /// Before anything moves: [`Error::Invalid`] for the bytes, the peer or the allocation; [`Error::Unreachable`]; what made the
    /// world fail. The runtime's.
    ///
    /// # Safety
    /// The source must stay valid and unchanged until the stream has passed the copy.
    pub unsafe fn put(
        &self,
        stream: &Stream,
        target: &SymmetricMemory,
        offset: u64,
        source: DeviceAddress,
        bytes: usize,
        peer: GroupRank,
    ) -> Result<()> {
        let _call = self.record("put", Some(bytes));
        let there = self.part("put", target, offset, bytes, peer)?;
        let copy = if matches!(there, Place::Mapped(_)) { ENGINE_COPY } else { NIC_COPY };
        self.work_on(stream, target, ("put", copy), || match there {
            // SAFETY: the target is in range of an allocation of the peer; the source is the caller's promise.
            Place::Mapped(there) => unsafe { self.copy(stream, there, source, bytes, peer) },
            Place::Remote(there) => {
                let copy = NicCopy::put(peer, there, source, bytes as u64);
                // SAFETY: as above.
                unsafe { self.copy_by_nic(stream, &[copy]) }
            }
        })
    }

    /// Copies `bytes` bytes of `peer`'s part of `source` at `offset` to `target` in this rank's device or pinned host memory; by NIC
    /// as with [`Team::put`].
    ///
    /// # Errors
    /// As [`Team::put`]; [`anabranch_transport::Error::Unsupported`] where the peer's NIC brings no values.
    ///
    /// # Safety
    /// The target must stay valid, and have no other user, until the stream has passed the copy.
    pub unsafe fn get(
        &self,
        stream: &Stream,
        target: DeviceAddress,
        source: &SymmetricMemory,
        offset: u64,
        bytes: usize,
        peer: GroupRank,
    ) -> Result<()> {
        let _call = self.record("get", Some(bytes));
        let there = self.part("get", source, offset, bytes, peer)?;
        self.require(Operation::GetNbi, peer)?;
        let copy = if matches!(there, Place::Mapped(_)) { ENGINE_COPY } else { NIC_COPY };
        self.work_on(stream, source, ("get", copy), || match there {
            // SAFETY: the source is in range of an allocation of the peer; the target is the caller's promise.
            Place::Mapped(there) => unsafe { self.copy(stream, target, there, bytes, peer) },
            Place::Remote(there) => {
                let copy = NicCopy::get(peer, there, target, bytes as u64);
                // SAFETY: as above.
                unsafe { self.copy_by_nic(stream, &[copy]) }
            }
        })
    }

    /// A copy by the peer's route: by the queues of copy engines where it has them, else by the runtime.
    ///
    /// # Safety
    /// Both ranges are memory that this rank's device reaches, until the stream has passed the copy.
    unsafe fn copy(
        &self,
        stream: &Stream,
        target: DeviceAddress,
        source: DeviceAddress,
        bytes: usize,
        peer: GroupRank,
    ) -> Result<()> {
        if self.copies_by_queues(peer) {
            // SAFETY: the caller's promise.
            return unsafe {
                self.post_copies(stream, &[EngineCopy::new(peer, target, source, bytes as u64)])
            };
        }
        // SAFETY: the caller's promise.
        Ok(unsafe { stream.copy_async(target, source, bytes) }?)
    }

    /// [`Team::put`], and then a signal to the same peer: a thread that sees the signal sees the data. Zero bytes still signal.
    ///
    /// # Errors
    /// As [`Team::put`] and [`Team::signal`]; nothing moves when either is refused.
    ///
    /// # Safety
    /// As [`Team::put`].
    pub unsafe fn put_signal(
        &self,
        stream: &Stream,
        target: &SymmetricMemory,
        offset: u64,
        source: DeviceAddress,
        bytes: usize,
        signal: Signal<'_>,
        peer: GroupRank,
    ) -> Result<()> {
        let _call = self.record("put_signal", Some(bytes));
        self.word("put_signal", signal.memory, signal.offset, peer)?;
        if signal.op == SignalOp::Add {
            self.require(Operation::PutSignalNbi, peer)?;
        }
        // SAFETY: the caller's promise is the same.
        unsafe { self.put(stream, target, offset, source, bytes, peer) }?;
        self.signal(stream, signal, peer)
    }

    /// Sets `peer`'s word, or adds to it, after everything before it on the stream.
    ///
    /// # Errors
    /// As [`Team::put`]; [`anabranch_transport::Error::Unsupported`] for one that adds at a peer whose NIC
    /// has no atomic operations.
    pub fn signal(&self, stream: &Stream, signal: Signal<'_>, peer: GroupRank) -> Result<()> {
        let _call = self.record("signal", None);
        let word = self.word("signal", signal.memory, signal.offset, peer)?;
        if signal.op == SignalOp::Add {
            self.require(Operation::Signal, peer)?;
        }
        let how = match signal.op {
            SignalOp::Set => 0,
            SignalOp::Add => 1,
        };
        match word {
            Place::Mapped(word) => {
                let arguments = self.signal_args(word, signal.value, how);
                self.launch(stream, signal.memory, "signal", &self.kernels().signal, &arguments)
            }
            Place::Remote(word) => self.work_on(stream, signal.memory, ("signal", NIC_SIGNAL), || {
                self.signal_by_nic(stream, word, signal.value, how != 0, peer)
            }),
        }
    }

    /// Makes what follows on the stream wait until this rank's word is at least `value` (by signed difference). `from` is
    /// who signals it. A kernel of one block waits, within the operation deadline; that it expired shows at the next
    /// [`crate::World::check`] or [`crate::World::synchronize`], which names `from`.
    ///
    /// # Errors
    /// As [`Team::signal`].
    pub fn signal_wait(
        &self,
        stream: &Stream,
        memory: &SymmetricMemory,
        offset: u64,
        value: u64,
        from: GroupRank,
    ) -> Result<()> {
        let _call = self.record("signal_wait", None);
        if self.group().global(from).is_none() {
            return Err(Error::no_part("signal_wait", from));
        }
        let word = match self.word("signal_wait", memory, offset, self.rank())? {
            Place::Mapped(word) => word,
            // No rank reaches itself by NIC.
            Place::Remote(_) => return Err(Error::no_part("signal_wait", self.rank())),
        };
        let arguments = self.signal_args(word, value, from.get());
        self.launch(stream, memory, "signal wait", &self.kernels().signal_wait, &arguments)
    }

    fn signal_args(&self, word: DeviceAddress, value: u64, how: u32) -> TeamSignalArgs {
        let operation = OperationCode::SIGNAL_WAIT.0;
        TeamSignalArgs { team: self.view(), word: DevicePointer::new(word), value, how, operation }
    }

    fn launch(
        &self,
        stream: &Stream,
        memory: &SymmetricMemory,
        what: &'static str,
        kernel: &LoadedKernel<TeamSignalArgs>,
        arguments: &TeamSignalArgs,
    ) -> Result<()> {
        let wave = self.world().one_wave();
        self.work_on(stream, memory, (what, SIGNAL_WAIT), || {
            // SAFETY: the struct is the kernel's; the word is in range of an allocation that is kept, as the mapping and the
            // control words are, until the event after this launch has passed.
            unsafe { kernel.launch(wave, stream, arguments) }?;
            Ok(())
        })
    }

    /// Puts work that uses the allocation on the stream, and notes it by its name and the operation that it reports.
    fn work_on(
        &self,
        stream: &Stream,
        memory: &SymmetricMemory,
        (what, operations): (&'static str, &'static [OperationCode]),
        work: impl FnOnce() -> Result<()>,
    ) -> Result<()> {
        let _mapped = self.world().stay()?;
        work()?;
        self.note_operation(stream, what, operations);
        memory.in_flight().note(stream).map(drop)
    }

    /// Whether the peer's route has an operation in the order of a stream, in all of its forms.
    fn require(&self, operation: Operation, peer: GroupRank) -> Result<()> {
        let rank = self.group().global(peer).ok_or_else(|| Error::no_part(operation.word(), peer))?;
        let world = self.world();
        let Some(route) = world.routes().get(rank.index()) else { return Ok(()) };
        Ok(world.support(rank, operation, Scope::Stream).require(operation, Scope::Stream, route.kind)?)
    }

    fn word(
        &self,
        call: &'static str,
        memory: &SymmetricMemory,
        offset: u64,
        peer: GroupRank,
    ) -> Result<Place> {
        if !offset.is_multiple_of(WORD as u64) {
            let allowed = format!("multiples of {WORD}");
            return Err(Error::Invalid { call, given: format!("a word at offset {offset}"), allowed });
        }
        self.part(call, memory, offset, WORD, peer)
    }

    /// Where `bytes` bytes of the peer's part are.
    fn part(
        &self,
        call: &'static str,
        memory: &SymmetricMemory,
        offset: u64,
        bytes: usize,
        peer: GroupRank,
    ) -> Result<Place> {
        let world = self.world();
        world.check()?;
        if !std::sync::Arc::ptr_eq(&world.inner, &memory.world().inner) {
            let given = "an allocation of another world".to_owned();
            return Err(Error::Invalid {
                call,
                given,
                allowed: "allocations of the team's world".to_owned(),
            });
        }
        memory.range_check(call, offset, bytes)?;
        let rank = self.group().global(peer).filter(|rank| memory.group().contains(*rank));
        let rank = rank.ok_or_else(|| Error::no_part(call, peer))?;
        let offset = memory.offset() + offset;
        match world.peer_base(rank) {
            Some(base) => Ok(Place::Mapped(base.offset(offset))),
            None if world.is_by_nic(rank) => Ok(Place::Remote(offset)),
            None => Err(Error::Unreachable { peer: rank, considered: Vec::new() }),
        }
    }
}
