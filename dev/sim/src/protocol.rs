//! The protocols that can be searched.

use core::fmt;
use core::str::FromStr;
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
    /// The same as `Ep` with expert-major rows between: count and expand on rank 1, a dispatch that expands on others; experts, contract.
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
    /// ... those that go in two hops: broadcasts, and reductions to a root.
    CclHops,
    /// Sums over ranks with a norm of their rows.
    CclNorm,
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
    /// Those of calls of collectives, but for [`Self::Ccl`], which has several of them in a run.
    pub const COLLECTIVES: [Self; 6] =
        [Self::CclMove, Self::CclPackets, Self::CclBulk, Self::CclHops, Self::CclNorm, Self::CclEngine];

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
        Self::CclNorm,
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
            Self::CclNorm => "ccl-norm",
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
    type Err = UnknownProtocol;

    fn from_str(text: &str) -> Result<Self, UnknownProtocol> {
        let found = Self::ALL.iter().copied().find(|protocol| protocol.name() == text);
        found.ok_or_else(|| UnknownProtocol { given: text.to_owned() })
    }
}

/// A word that names no protocol.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{given:?} is no protocol; allowed are {}", names())]
pub struct UnknownProtocol {
    pub given: String,
}

fn names() -> String {
    let names: Vec<_> = Protocol::ALL.iter().map(|protocol| protocol.name()).collect();
    names.join(", ")
}
