//! Where kernels note their waits, and notes in words.

use std::collections::HashMap;
use std::sync::atomic::AtomicU64;

use anabranch_hip::HostBuffer;
use anabranch_hip_jit::control::WaitNote;
use anabranch_ranks::{GlobalRank, Group, GroupRank};

use super::names::{OperationCode, OperationNames};

pub(crate) const NOTE_BYTES: usize = size_of::<WaitNote>();

/// Memory that kernels write, which lives as long as the world's control words.
#[derive(Debug)]
pub(crate) struct Notes {
    /// Of [`WAIT_NOTES`](anabranch_hip_jit::control::WAIT_NOTES) notes.
    pub(crate) ring: HostBuffer,
    /// The clock of kernels, and the number of the launch that has stored it.
    pub(crate) clock: HostBuffer,
    /// Launches that store it.
    pub(crate) looks: AtomicU64,
}

/// A wait of a kernel's first block that lasted some microseconds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TracedWait {
    /// The operation, as errors name it.
    pub operation: String,
    /// What in it was waited for.
    pub phase: String,
    /// The number of the operation's call among its kernels.
    pub epoch: u64,
    /// The rank that was waited for; of several, the last one that was seen missing.
    pub peer: GlobalRank,
    /// By the clock of kernels, after eight polls.
    pub begin_ns: u64,
    /// By the clock of kernels.
    pub end_ns: u64,
}

impl TracedWait {
    /// A note in words; `None` for a group that is not known.
    pub(crate) fn of(note: &WaitNote, names: &OperationNames, groups: &HashMap<u64, Group>) -> Option<Self> {
        let (operation, phase) = names.look_up(OperationCode(note.operation), note.phase);
        let peer = groups.get(&note.group)?.global(GroupRank::new(note.peer))?;
        let WaitNote { epoch, begin_ns, end_ns, .. } = *note;
        Some(Self { operation, phase, epoch, peer, begin_ns, end_ns })
    }
}
