//! The structs of the prelude's bounded wait, shared with every kernel (`anabranch/wait.h`).

use crate::device_struct;
use crate::layout::{DevicePointer, DeviceStruct as _};

device_struct! {
    /// What a kernel writes when a wait fails: who waited for whom, where, and what it saw. Lies in pinned host memory.
    pub struct FaultRecord {
        /// 0: empty; 2: every other field is written. Stored last, at system scope.
        pub state: u64,
        /// The epoch of the operation.
        pub epoch: u64,
        /// The group's number within the world.
        pub group: u64,
        /// The word waited for.
        pub expected: u64,
        /// The word last read.
        pub seen: u64,
        /// How long the kernel had been running, nanoseconds.
        pub waited_ns: u64,
        /// The operation's number.
        pub operation: u32,
        /// The phase within the operation.
        pub phase: u32,
        /// The peer waited for, as a rank of the group.
        pub peer: u32,
        /// The rank that waited, of the group.
        pub rank: u32,
    }
}

/// The parameter ([`JitConfig::parameters`](crate::JitConfig::parameters)) of kernels that note their waits.
pub const NOTE_WAITS: &str = "NOTE_WAITS";

/// Notes in the ring of [`WaitControl::notes`].
pub const WAIT_NOTES: u64 = 1 << 16;

device_struct! {
    /// A wait of a kernel's first block that lasted. Lies in pinned host memory.
    pub struct WaitNote {
        /// 0 while the rest is written, then the note's number, from 1. Stored last, at system scope.
        pub number: u64,
        /// The group's number within the world.
        pub group: u64,
        /// The epoch of the operation.
        pub epoch: u64,
        /// When it had lasted for eight polls, by the kernel's clock.
        pub begin_ns: u64,
        /// When it was over, by the kernel's clock.
        pub end_ns: u64,
        /// The operation's number.
        pub operation: u32,
        /// The phase within the operation.
        pub phase: u32,
        /// The peer waited for, of several the last one that was seen missing, as a rank of the group.
        pub peer: u32,
        /// Zero.
        pub reserved: u32,
    }
}

device_struct! {
    /// What every wait looks at. Lies in device memory.
    pub struct WaitControl {
        /// Not 0: the world is poisoned; waits end at once.
        pub abort: u64,
        /// How long a kernel may run before its waits fail, nanoseconds.
        pub budget_ns: u64,
        /// Where the first fault is written.
        pub fault: DevicePointer<FaultRecord>,
        /// How many faults wanted the record; the first has it.
        pub claimed: u32,
        /// Zero.
        pub reserved: u32,
        /// Address of the ring of [`WAIT_NOTES`] notes ([`WaitNote`]); 0 while no trace runs.
        pub notes: u64,
        /// Notes that were begun.
        pub noted: u64,
    }
}

/// The prelude's own part of `anabranch/layouts.h`.
pub(crate) const LAYOUTS: &[fn() -> String] =
    &[FaultRecord::c_declaration, WaitNote::c_declaration, WaitControl::c_declaration];
