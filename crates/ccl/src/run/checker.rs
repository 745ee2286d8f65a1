//! The comparison of the calls of all members on the devices, and the report of a difference from the heap.

use std::sync::{Arc, OnceLock};

use anabranch_hip::{LaunchShape, Stream};
use anabranch_hip_jit::bytemuck::{self, Zeroable as _};
use anabranch_hip_jit::control::FaultRecord;
use anabranch_hip_jit::{LoadedKernel, LoadedUnit};
use anabranch_ranks::{Group, GroupRank};
use anabranch_shmem::{
    ExpiredWait, ExplainFault, Fault, MemoryUse, OperationCode, OperationName, SymmetricMemory, Team,
    TeamView, World,
};

use crate::call::Call;
use crate::device::args::{ChannelState, CommView, FingerprintArgs, ROW_WORDS};
use crate::device::channel::{ALIGNMENT, ChannelLayout, MEET_STRIDE};
use crate::device::kernels::FINGERPRINT;
use crate::plan::Plan;
use crate::run::communicator::{OPERATION, PHASES, agree};
use crate::run::fingerprint::{CallRecord, WORDS};
use crate::types::{Error, Mismatch, Result, Shape};

/// Operation code of the comparison of calls in fault records.
pub const CHECK_OPERATION: OperationCode = OperationCode(0x280);
const NAME: OperationName = OperationName { name: "ccl check", phases: PHASES };

// In `ccl/channel.h`.
const PHASE_FINGERPRINT: u32 = 3;
const PHASE_OVERLAP: u32 = 4;

/// Memory of the check. The communicator and its works keep it, because both report mismatches.
#[derive(Debug)]
pub(crate) struct Checker {
    group: Group,
    memory: SymmetricMemory,
    layout: ChannelLayout,
    mismatch: OnceLock<Mismatch>,
}

/// What a communicator needs to launch the check.
#[derive(Debug)]
pub(crate) struct Checking {
    pub(crate) checker: Arc<Checker>,
    comm: CommView,
    kernel: LoadedKernel<FingerprintArgs>,
    threads: u32,
    local_bytes: u32,
    calls: u64,
}

impl Checking {
    /// Allocates the memory of the check. `watch` gets it before the first launch. Collective over the group of the team.
    ///
    /// # Errors
    /// As [`World::allocate`]; an error of `watch` is an error on all members.
    pub(crate) fn new(
        world: &World,
        team: &Team,
        unit: &LoadedUnit,
        (threads, local_bytes): (u32, u32),
        watch: impl FnOnce(&mut SymmetricMemory) -> Result<()>,
    ) -> Result<Self> {
        let kernel = unit.get(FINGERPRINT)?;
        let group = team.group().clone();
        let layout = ChannelLayout::of_check(group.size());
        let mut memory = world.allocate(&group, layout.bytes, ALIGNMENT, "ccl check")?;
        let watched = watch(&mut memory);
        agree(world, &group, "ccl check", &watched)?;
        watched?;
        world.name_operation(CHECK_OPERATION, NAME);
        let comm = layout.comm(team.view(), &memory, CHECK_OPERATION.0);
        let checker = Arc::new(Checker { group, memory, layout, mismatch: OnceLock::new() });
        for code in [CHECK_OPERATION, OPERATION] {
            let checker: Arc<dyn ExplainFault> = checker.clone();
            world.explain_faults(code, Arc::downgrade(&checker));
        }
        Ok(Self { checker, comm, kernel, threads, local_bytes, calls: 0 })
    }

    /// The fingerprint and the row of a call.
    pub(crate) fn arguments(&self, call: &Call<'_>, shape: &Shape, plan: &Plan) -> Box<FingerprintArgs> {
        let TeamView { rank, .. } = self.comm.team;
        let record = CallRecord::new(call, shape, plan, GroupRank::new(rank));
        let (row, row_words) = record.row();
        Box::new(FingerprintArgs { comm: self.comm, mine: record.fingerprint, row, row_words })
    }

    /// Enqueues the check of the next call on the stream.
    pub(crate) fn launch(
        &mut self,
        arguments: &FingerprintArgs,
        stream: &Stream,
    ) -> anabranch_shmem::Result<()> {
        let mut arguments = *arguments;
        self.calls += 1;
        arguments.mine.sequence = self.calls;
        let shape =
            LaunchShape { grid_blocks: 1, block_threads: self.threads, local_bytes: self.local_bytes };
        // SAFETY: its memory is tracked as used by the launch (`Prepared::uses`).
        unsafe { self.kernel.launch(shape, stream, &arguments) }?;
        Ok(())
    }
}

/// Sets `is_watched` in the channel counters at `offset`, so that launches detect overlaps. Before the first launch.
///
/// # Errors
/// Errors of the device runtime.
pub(crate) fn watch_channels(memory: &mut SymmetricMemory, offset: u64, channels: u32) -> Result<()> {
    let states = vec![ChannelState { is_watched: 1, ..ChannelState::zeroed() }; channels as usize];
    Ok(memory.write(offset, bytemuck::cast_slice(&states))?)
}

impl Checker {
    /// The memory that launches use.
    pub(crate) fn usage(&self) -> MemoryUse {
        self.memory.usage()
    }

    /// Converts an error of the world: [`Error::Mismatch`] if the check of this communicator found one.
    pub(crate) fn explain(&self, error: anabranch_shmem::Error) -> Error {
        let anabranch_shmem::Error::Fault(Fault::Reported { detail, .. }) = &error else {
            return error.into();
        };
        // Another member may have reported it before the kernel of this rank did. The text is the same on all members.
        let found =
            self.mismatch.get().cloned().or_else(|| self.read()).filter(|own| own.to_string() == *detail);
        found.map_or_else(|| error.into(), |mismatch| Error::Mismatch(Box::new(mismatch)))
    }

    /// The mismatch between the records of the last barrier, if all members have entered it and their records differ. After a mismatch no
    /// member writes records; before, this may read partly overwritten ones.
    fn read(&self) -> Option<Mismatch> {
        let members = self.group.size();
        let number = self.barrier_of(0)?;
        if (1..members).any(|source| self.barrier_of(source) != Some(number)) {
            return None;
        }
        let half = number % 2 * u64::from(members);
        let records: Option<Vec<_>> =
            (0..u64::from(members)).map(|source| self.record(half + source)).collect();
        Mismatch::find(&self.group, &records?)
    }

    /// The number of the last barrier that a member entered.
    fn barrier_of(&self, source: u32) -> Option<u64> {
        let mut word = [0; 8];
        self.copy(self.layout.flags + u64::from(source) * MEET_STRIDE, &mut word)?;
        Some(u64::from_le_bytes(word))
    }

    fn record(&self, index: u64) -> Option<CallRecord> {
        let start = self.layout.staging + index * self.layout.staging_bytes;
        let mut words = [0u64; WORDS];
        self.copy(start, bytemuck::bytes_of_mut(&mut words))?;
        let fingerprint = bytemuck::cast(words);
        let mut row = [0u64; ROW_WORDS];
        let written = row.get_mut(..CallRecord::row_words(&fingerprint, self.group.size()))?;
        self.copy(start + size_of_val(&words) as u64, bytemuck::cast_slice_mut(written))?;
        Some(CallRecord::of(fingerprint, &row, self.group.size()))
    }

    fn copy(&self, offset: u64, target: &mut [u8]) -> Option<()> {
        let copied = self.memory.read(offset, target);
        copied.inspect_err(|error| tracing::warn!(%error, "the calls of the members could not be read")).ok()
    }
}

impl ExplainFault for Checker {
    fn explain(&self, record: &FaultRecord, _wait: &ExpiredWait) -> Option<String> {
        match record.phase {
            PHASE_FINGERPRINT => {
                let mismatch = self.read()?;
                Some(self.mismatch.get_or_init(|| mismatch).to_string())
            }
            PHASE_OVERLAP => Some(format!(
                "a launch began while {} of the same communicator had not ended; launches and replayed graphs of a \
                 communicator have to run one after the other",
                record.seen
            )),
            _ => None,
        }
    }
}
