//! What is run: a protocol and its size.

use core::fmt;
use core::str::FromStr;

use anabranch_hip_jit::SourceEdit;

use crate::Fault;
use crate::mutants::{caught_in, mutant};

/// A protocol that can be searched.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Protocol {
    /// Slotted dispatch, the stand-in for experts, and combine: that pulls, or pushes.
    Ep,
    /// The same with compact dispatch: counts first; and with windows for half of what could arrive.
    EpCompact,
    /// The same as `Ep` with dispatch and combine in two halves each, by ranks of odd number; the others do all in one.
    EpSplit,
    /// The same as `Ep` in a plan that masks ranks, and is so little patient that some are missed that come.
    EpMask,
    /// The same as `Ep` with expert-major rows between: count, expand, experts, contract.
    EpExperts,
    /// Compact dispatch of which the routing is kept, another dispatch, and one with the routing that was kept; experts and combine
    /// behind each, with combined weights.
    EpReplay,
    /// The same as `Ep` with ranks on two nodes or three, to which rows are put straight; ranks of odd number do it in halves.
    EpNodes,
    /// The same with rows that go once to each node and are forwarded there.
    EpRelay,
    /// The team barrier between kernels that write and read.
    Barrier,
    /// Signals and waits in the order of a stream, between kernels that write and read.
    StreamSignal,
    /// Put with signal and wait of the device API, over slots that are used again.
    PutSignal,
    /// Put, then quiet or fence, then signal, over slots that are used again.
    PutQuiet,
    /// Waits for several signals, looks at signals, and signals that add, with data behind them.
    Gather,
    /// Barriers within a kernel, with puts before and gets after.
    DeviceBarrier,
    /// Atomic operations on words that all ranks work on.
    Atomics,
    /// A payload and a flag to and fro between two ranks.
    Ping,
    /// Collectives of every kind on one channel, between kernels that write and read their buffers.
    Ccl,
    /// Of these, those that move bytes, and the barrier.
    CclMove,
    /// ... those that reduce in packets.
    CclPackets,
    /// ... those that reduce by pulling and pushing.
    CclBulk,
    /// ... those that go in two hops, and those that go round the ring.
    CclHops,
    /// Collectives by copy engine, with such through the staging between them.
    CclEngine,
    /// The comparison of calls before a collective.
    CclFingerprint,
    /// Sends and receives of `ccl` through pipes.
    CclPipes,
    /// Collectives of members on several machines.
    CclNetwork,
    /// Many tensors gathered in one launch of `ccl`, between kernels that write and read them.
    CclGatherMany,
    /// Messages by copy engines in software whose queues kernels write.
    Sdma,
    /// The same by NICs in software, whose queue pairs kernels write.
    Rdma,
    /// A whole world of rank threads: join, dispatch and combine, leave.
    World,
}

impl Protocol {
    /// All of them.
    pub const ALL: &'static [Self] = &[
        Self::Ep,
        Self::EpCompact,
        Self::EpSplit,
        Self::EpMask,
        Self::EpExperts,
        Self::EpReplay,
        Self::EpNodes,
        Self::EpRelay,
        Self::Barrier,
        Self::StreamSignal,
        Self::PutSignal,
        Self::PutQuiet,
        Self::Gather,
        Self::DeviceBarrier,
        Self::Atomics,
        Self::Ping,
        Self::Ccl,
        Self::CclMove,
        Self::CclPackets,
        Self::CclBulk,
        Self::CclHops,
        Self::CclEngine,
        Self::CclFingerprint,
        Self::CclPipes,
        Self::CclNetwork,
        Self::CclGatherMany,
        Self::Sdma,
        Self::Rdma,
        Self::World,
    ];

    /// The word on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Ep => "ep",
            Self::EpCompact => "ep-compact",
            Self::EpSplit => "ep-split",
            Self::EpMask => "ep-mask",
            Self::EpExperts => "ep-experts",
            Self::EpReplay => "ep-replay",
            Self::EpNodes => "ep-nodes",
            Self::EpRelay => "ep-relay",
            Self::Barrier => "barrier",
            Self::StreamSignal => "stream-signal",
            Self::PutSignal => "put-signal",
            Self::PutQuiet => "put-quiet",
            Self::Gather => "gather",
            Self::DeviceBarrier => "device-barrier",
            Self::Atomics => "atomics",
            Self::Ping => "ping",
            Self::Ccl => "ccl",
            Self::CclMove => "ccl-move",
            Self::CclPackets => "ccl-packets",
            Self::CclBulk => "ccl-bulk",
            Self::CclHops => "ccl-hops",
            Self::CclEngine => "ccl-engine",
            Self::CclFingerprint => "ccl-fingerprint",
            Self::CclPipes => "ccl-pipes",
            Self::CclNetwork => "ccl-network",
            Self::CclGatherMany => "ccl-gather-many",
            Self::Sdma => "sdma",
            Self::Rdma => "rdma",
            Self::World => "world",
        }
    }

    /// Whether it runs on a machine with real memory, streams and engines: AMD's fences, no checker for races, and no count of
    /// switches.
    pub const fn is_whole_machine(self) -> bool {
        matches!(self, Self::Sdma | Self::Rdma | Self::World)
    }

    /// Whether the switches of its runs are counted, so that [`RunOptions`](crate::RunOptions) can limit and enumerate them. A
    /// whole machine has turns of streams and threads besides.
    pub const fn counts_switches(self) -> bool {
        !self.is_whole_machine()
    }
}

impl fmt::Display for Protocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Protocol {
    type Err = CaseError;

    fn from_str(text: &str) -> Result<Self, CaseError> {
        let found = Self::ALL.iter().copied().find(|protocol| protocol.name() == text);
        found.ok_or_else(|| CaseError::Protocol { given: text.to_owned() })
    }
}

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
            Protocol::PutSignal | Protocol::PutQuiet | Protocol::CclFingerprint | Protocol::CclHops => 4,
            // Each form once.
            Protocol::Ccl => 19,
            Protocol::CclMove => 7,
            Protocol::CclGatherMany | Protocol::CclEngine => 6,
            // Who is missed in one epoch is late in the next.
            // Of routings one that is kept, another, and the first again.
            Protocol::CclPackets | Protocol::EpMask | Protocol::EpReplay => 3,
            Protocol::CclBulk => 5,
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
    /// A word that names no protocol.
    #[error("{given:?} is no protocol; allowed are {}", names())]
    Protocol {
        /// The word.
        given: String,
    },
    /// A number that the protocol cannot have.
    #[error("{protocol}: {what} is {given}; allowed is {least} to {most}")]
    Range {
        /// The protocol.
        protocol: Protocol,
        /// Which number.
        what: &'static str,
        /// What it is.
        given: u32,
        /// The least.
        least: u32,
        /// The most.
        most: u32,
    },
    /// Something that the protocol does not have.
    #[error("{protocol} has no {what}")]
    Lacks {
        /// The protocol.
        protocol: Protocol,
        /// What was asked for.
        what: &'static str,
    },
    /// No mutant, or one that changes none of the kernels of the case, so that a search could not find it.
    #[error(
        "{protocol} contains no mutant {given}{}; `anabranch sim --list` says what each is",
        known_mutants(known)
    )]
    Mutant {
        /// The protocol.
        protocol: Protocol,
        /// The name.
        given: String,
        /// Mutants that searches of the protocol catch.
        known: Vec<&'static str>,
    },
    /// A fault of a rank that the case does not have.
    #[error("the fault {fault} names a rank that is none of {ranks}")]
    FaultRank {
        /// The fault.
        fault: Fault,
        /// Ranks of the case.
        ranks: u32,
    },
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

fn names() -> String {
    let names: Vec<_> = Protocol::ALL.iter().map(|protocol| protocol.name()).collect();
    names.join(", ")
}
