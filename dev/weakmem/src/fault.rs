//! Faults that a run is given: plain data, so that a failure can be written down and replayed.

use anabranch_hip::HipError;

/// One fault of a run. Ranks are the numbers of their devices. Counts begin at 0.
///
/// A rank's *primitives* are what its lanes ask of the machine, what its streams begin, and the HIP calls and waits of its
/// threads, in one count: [`MachineRun::primitives`](crate::MachineRun::primitives) of a run without faults says how
/// many there are, so that a fault can be injected at every point of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Fault {
    /// A rank dies before its `at`-th primitive. Its lanes and streams do no more, each of its stores that is under way
    /// arrives or vanishes by chance, and HIP calls of its threads return `hipErrorDeinitialized` without effect: what
    /// they free stays. Work that such a thread puts on another rank's stream, with that rank's device current, is done: ranks
    /// that are threads tell each other of losses so.
    Kill {
        /// Who.
        rank: u32,
        /// When.
        at: u64,
    },
    /// From its `at`-th primitive on, nothing of a rank runs for a time of the virtual clock.
    Stall {
        /// Who.
        rank: u32,
        /// When.
        at: u64,
        /// How long.
        ns: u64,
    },
    /// A store of `from`'s kernels to memory of `to`'s device is lost on the way.
    LoseStore {
        /// The sender.
        from: u32,
        /// Whose memory.
        to: u32,
        /// Which store.
        which: Loss,
        /// Whether the sender's device is lost with an error, as with a link that notices; else no error is reported.
        told: bool,
    },
    /// The `nth` flag store of a rank's kernels arrives a second time, later, behind what its word got meanwhile.
    RepeatFlag {
        /// The sender.
        from: u32,
        /// Which flag store.
        nth: u64,
    },
    /// The `nth` HIP call of a rank's threads fails without effect. A launch that fails with `hipErrorLaunchFailure` loses
    /// the device.
    FailCall {
        /// Who.
        rank: u32,
        /// Which call; see [`MachineRun::calls`](crate::MachineRun::calls).
        nth: u64,
        /// What it returns.
        code: HipError,
    },
}

/// Which stores are lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Loss {
    /// The nth that goes that way, and no other.
    Nth(u64),
    /// Each by chance, parts of 256.
    Chance(u32),
}
