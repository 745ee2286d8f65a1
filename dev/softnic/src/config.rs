//! What a NIC in software is made with.

use std::time::Duration;

use anabranch_transport_rdma::{NicError, Provider, ReadOrder};

use crate::syndrome::Syndrome;

/// How a NIC in software works. Equal on all ranks, but for what goes wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SoftNicConfig {
    /// Whose entries it reads.
    pub provider: Provider,
    /// How long a peer may be silent before a request to it fails with [`Syndrome::RetryExceeded`].
    pub patience: Duration,
    /// How long the doorbell record of a queue without requests under way may tell of entries that no doorbell told of.
    pub doorbell_patience: Duration,
    /// The most payload of one frame between NICs, bytes, at least 64.
    pub frame_bytes: u32,
    /// The most frames of a queue pair that are not answered yet, at least 1.
    pub window: u32,
    /// Pieces of work of each queue pair in a turn, at least 1.
    pub steps: u32,
    /// The most bytes of one write or read.
    pub most_message_bytes: u32,
    /// The most bytes that an entry may carry itself, 8 to 28.
    pub inline_bytes: u32,
    /// How many immediate values each receive queue takes before the peer's requests fail with [`Syndrome::ReceiverNotReady`].
    pub receives: u32,
    /// All queue pairs have one doorbell register, as those of a real NIC have it, and the value says which is meant. Kernels are
    /// compiled with `RDMA_REGISTER` = [`Self::REGISTER_PLACES`], which no world does.
    pub shared_doorbell: bool,
    /// Whether it has atomic operations; entries that ask for one, and peers that do, are refused otherwise.
    pub atomics: bool,
    /// What orders what reads and atomic operations bring before their completion. Other than [`ReadOrder::Ordered`], it is as if
    /// completions lay in memory of the host: what comes to memory of the device stays behind, until the NIC reads that memory for an
    /// entry that waited for it (mlx5: DUMP), or for long.
    pub read_order: ReadOrder,
    /// Where it runs.
    pub placement: Placement,
    /// What is done in another order than the plain one, where that is allowed.
    pub adversary: Option<Adversary>,
    /// What goes wrong.
    pub faults: NicFaults,
}

impl Default for SoftNicConfig {
    fn default() -> Self {
        Self {
            provider: Provider::Mlx5,
            patience: Duration::from_secs(10),
            doorbell_patience: Duration::from_secs(10),
            frame_bytes: 64 << 10,
            window: 64,
            steps: 16,
            most_message_bytes: 1 << 30,
            inline_bytes: 28,
            receives: u32::MAX,
            shared_doorbell: false,
            atomics: true,
            read_order: ReadOrder::Ordered,
            placement: Placement::default(),
            adversary: None,
            faults: NicFaults::default(),
        }
    }
}

impl SoftNicConfig {
    /// Places of a shared doorbell register, and the most entries of all queue pairs that share it: a doorbell that the NIC has not heard
    /// is of an entry that it has not done. (But for what [`Adversary::record_looks`] lets it take from doorbell records: that many
    /// doorbells more may be on their way while a lane stands between taking its place and storing there.)
    pub const REGISTER_PLACES: u32 = 4096;

    /// Checks every field.
    ///
    /// # Errors
    /// [`NicError::Limit`].
    pub fn check(&self) -> Result<(), NicError> {
        let range = |what, given: u64, least: u64, most: u64| {
            if (least..=most).contains(&given) {
                return Ok(());
            }
            let allowed = format!("{least} to {most}");
            Err(NicError::Limit { what, given, allowed, nic: crate::NIC.to_owned() })
        };
        range("bytes of a frame", self.frame_bytes.into(), 64, 16 << 20)?;
        range("frames of a window", self.window.into(), 1, 1 << 16)?;
        range("steps of a turn", self.steps.into(), 1, 1 << 20)?;
        range("bytes of a message", self.most_message_bytes.into(), 64, 1 << 31)?;
        range("bytes of inline data", self.inline_bytes.into(), 8, 28)?;
        range("patience (nanoseconds)", self.patience.as_nanos() as u64, 1, u64::MAX)?;
        range("doorbell patience (nanoseconds)", self.doorbell_patience.as_nanos() as u64, 1, u64::MAX)
    }
}

/// Where a NIC in software runs, and how it reaches memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Placement {
    /// As the runtime allows: under the scheduler of the one that is made of CPU threads, else as [`Self::OwnThread`].
    #[default]
    Fitting,
    /// On a thread of its own. Queues are pinned memory of the host, mapped to the device; memory of the device is read and written by
    /// copies on a stream of its own.
    OwnThread,
}

/// What an adversary does within what the specification allows, decided by a seed. Chances are out of 256.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Adversary {
    /// The same seed and the same steps give the same run.
    pub seed: u64,
    /// The most steps between a doorbell and the look at what it tells of.
    pub most_delay: u32,
    /// How often a NIC takes what it may fetch from the doorbell record, which may tell of more than the doorbell did.
    pub record_looks: u32,
    /// The most bytes of a piece in which payload is written, a multiple of 8; pieces of a frame land in any order. 0: whole frames.
    pub piece_bytes: u32,
    /// How often a read or an atomic operation is done behind writes that were sent after it.
    pub overtaken: u32,
    /// The most steps by which a completion is late; what completes meanwhile is told with it.
    pub most_late: u32,
    /// How often an answer to the peer stays behind for a step.
    pub late_answers: u32,
    /// How often a doorbell is heard a second time.
    pub doubled_doorbells: u32,
}

impl Adversary {
    /// Does a bit of everything.
    pub fn new(seed: u64) -> Self {
        Self {
            seed,
            most_delay: 6,
            record_looks: 64,
            piece_bytes: 8,
            overtaken: 96,
            most_late: 6,
            late_answers: 64,
            doubled_doorbells: 32,
        }
    }
}

/// What goes wrong, for tests.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NicFaults {
    /// The request (counted from 1 over all queue pairs of the NIC) that fails, and how.
    pub fails: Option<(u64, Syndrome)>,
    /// After so many requests the NIC does nothing more and its peers find it gone.
    pub dies_after: Option<u64>,
    /// After so many requests the NIC does nothing more and says nothing: peers lose patience.
    pub falls_silent_after: Option<u64>,
}
