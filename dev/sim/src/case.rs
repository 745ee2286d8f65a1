//! A run: a protocol, its size, and what goes wrong in it.

use anabranch_hip_jit::SourceEdit;

use crate::mutants::{By, Search, caught_in, mutant};
use crate::{Fault, Protocol};

/// A protocol and its size. Smaller numbers are simpler cases: shrinking makes them smaller one by one.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Case {
    /// Which.
    pub protocol: Protocol,
    /// Ranks, at least 1.
    pub ranks: u32,
    /// How often the operation is done, at least 1: epochs of dispatch and combine, rounds of a barrier, messages, calls.
    pub rounds: u32,
    /// Tokens of each rank, or 8-byte words of a message, or steps of a lane in the largest collective (epochs: half as many); at least 1.
    pub tokens: u32,
    /// Blocks of each kernel, at least 1, where the kernel takes several.
    pub blocks: u32,
    /// Waves of each block, at least 1.
    pub waves: u32,
    /// Another form of the protocol: `ep`, `ep-compact`, `ep-split` and `ep-mask` combine from a caller's buffer instead of the window, and so does `ep-replay`, which is slotted then, `put-signal` and
    /// `put-quiet` send to the next rank only, `device-barrier` calls `team_barrier` instead of `team_sync`,
    /// in `sdma` something goes wrong that the seed draws,
    /// collectives have epochs of two bits, and of `ccl-fingerprint` one rank makes another call in the end; and
    /// `ccl-pipes` launches each message alone.
    pub staged: bool,
    /// NVIDIA's form of the kernels, on a machine whose fences are cumulative; else AMD's, where each wave releases.
    pub cumulative: bool,
    /// Judges by what a run leaves and not by races: two accesses that nothing orders are no failure then.
    pub values_only: bool,
    /// Which mutant of the device sources is run, by its name; none runs them as they are.
    pub mutant: Option<&'static str>,
    /// What goes wrong in every run, in a world.
    pub faults: Vec<Fault>,
}

impl Case {
    /// A case of a good size for finding mistakes: every kernel has several blocks of several waves, and every buffer is
    /// used more than once. But a world is as small as can be: its runs have most to do before the first kernel.
    pub const fn new(protocol: Protocol, ranks: u32) -> Self {
        let small = matches!(protocol, Protocol::World);
        // Slots of messages are two a pair.
        let rounds = match protocol {
            // The halves of the check's staging are used again; of hops each form comes once.
            Protocol::PutSignal
            | Protocol::PutQuiet
            | Protocol::CclFingerprint
            | Protocol::CclHops
            | Protocol::CclPackets => 4,
            // Each form once.
            Protocol::CclNorm => 5,
            // Each form once.
            Protocol::Ccl => 19,
            Protocol::CclMove | Protocol::CclEngine => 7,
            Protocol::CclGatherMany | Protocol::CclBulk => 6,
            // Who is missed in one epoch is late in the next.
            // Of routings one that is kept, another, and the first again.
            Protocol::EpMask | Protocol::EpReplay => 3,
            Protocol::World => 1,
            _ => 2,
        };
        Self {
            protocol,
            ranks,
            rounds,
            // Of messages by copy engines or NICs every wave of a block has a part.
            tokens: if small {
                2
            } else if matches!(protocol, Protocol::Sdma | Protocol::Rdma) {
                6
            } else {
                3
            },
            blocks: if small { 1 } else { 2 },
            waves: if small { 1 } else { 2 },
            staged: false,
            cumulative: false,
            values_only: false,
            mutant: None,
            faults: Vec::new(),
        }
    }

    /// The case of a search, with a mutant or without, judged by values unless those show nothing. Small: one line is searched for, and
    /// each line runs.
    pub fn of_search(search: Search, mutant: Option<&'static str>) -> Case {
        let ranks = match search.protocol {
            _ if search.alone => 1,
            // Of hops, there is a member between two others.
            Protocol::Barrier
            | Protocol::DeviceBarrier
            | Protocol::Gather
            | Protocol::CclHops
            | Protocol::CclEngine
            // Two on a machine, and one on another.
            | Protocol::CclNetwork
            | Protocol::EpCompact
            | Protocol::EpReplay
            | Protocol::EpNodes
            | Protocol::EpRelay => 3,
            _ => 2,
        };
        let mut case = Case::new(search.protocol, ranks);
        if matches!(
            search.protocol,
            Protocol::Ep
                | Protocol::EpCompact
                | Protocol::EpSplit
                | Protocol::EpExperts
                | Protocol::EpReplay
                | Protocol::EpNodes
                | Protocol::EpRelay
                | Protocol::Ping
        ) {
            // More than one tile a block; payload from every wave.
            case.tokens = 10;
        }
        if search.one_block {
            case.blocks = 1;
        }
        (case.staged, case.cumulative, case.mutant) = (search.staged, search.cumulative, mutant);
        case.values_only = search.by != By::Races;
        case
    }

    /// Sets the mutant of that name.
    ///
    /// # Errors
    /// [`CaseError::Mutant`] where there is none.
    pub fn set_mutant(&mut self, name: &str) -> Result<(), CaseError> {
        let found = mutant(name).ok_or_else(|| CaseError::no_mutant(self.protocol, name))?;
        self.mutant = Some(&found.name);
        Ok(())
    }

    /// The changes of the device sources that the mutant makes.
    pub(crate) fn edits(&self) -> &'static [SourceEdit] {
        self.mutant.and_then(mutant).map_or(&[], |mutant| &mutant.edits)
    }
}

/// Why a case cannot be run.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CaseError {
    #[error("{protocol}: {what} is {given}; allowed is {least} to {most}")]
    Range { protocol: Protocol, what: &'static str, given: u32, least: u32, most: u32 },
    #[error("{protocol} has no {what}")]
    Lacks { protocol: Protocol, what: &'static str },
    /// No mutant, or one that changes none of the kernels of the case, so that a search could not find it.
    #[error(
        "{protocol} contains no mutant {given}{}; `anabranch sim --list` says what each is",
        known_mutants(known)
    )]
    Mutant { protocol: Protocol, given: String, known: Vec<&'static str> },
    #[error("the fault {fault} names a rank that is none of {ranks}")]
    FaultRank { fault: Fault, ranks: u32 },
}

impl CaseError {
    /// The protocol has no mutant of that name, or not in the form that was asked for.
    pub(crate) fn no_mutant(protocol: Protocol, given: &str) -> Self {
        // One that other forms of the protocol contain (staged, cumulative) may be the one that was asked for.
        let known = caught_in(protocol).filter(|name| *name != given).collect();
        Self::Mutant { protocol, given: given.to_owned(), known }
    }
}

fn known_mutants(known: &[&str]) -> String {
    if known.is_empty() {
        return " in this form".to_owned();
    }
    format!(" in this form; searches of it catch {}", known.join(", "))
}
