//! Why a seeded machine refused something or stopped a run.

use anabranch_hip_host::Fault;

/// An error of a [`SeededMachine`](super::SeededMachine).
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SeededError {
    /// The machine cannot be made.
    #[error("the machine cannot be made")]
    Machine(#[source] anabranch_hip_host::Error),
    /// A shared object or a kernel of it was refused; the reason is logged. Kernels must be compiled with
    /// `HOST_INSTRUMENTED`, for the machine's wave width, and with `HOST_CUMULATIVE` if that is its memory profile.
    #[error(
        "kernel {name:?} was refused: {code}; it must be instrumented and compiled for the machine's wave width and memory profile"
    )]
    Kernel {
        /// The kernel, or `""` for the whole object.
        name: String,
        /// What HIP would say.
        code: anabranch_hip::HipError,
    },
    /// A launch does not fit its kernel or the machine.
    #[error("kernel {kernel}: {what} is {given}; allowed is {allowed}")]
    Launch {
        /// The kernel.
        kernel: String,
        /// Which number.
        what: &'static str,
        /// What it is.
        given: u64,
        /// What it may be.
        allowed: String,
    },
    /// Memory was asked for, or named, that the machine does not have.
    #[error("{name}: bytes {offset}..{end} of {bytes}")]
    Range {
        /// The allocation.
        name: String,
        /// First byte.
        offset: u64,
        /// Behind the last byte.
        end: u64,
        /// What there is.
        bytes: u64,
    },
    /// A kernel diverged, overflowed a stack, or cannot go on.
    #[error("{0}")]
    Fault(Fault),
    /// A kernel touched memory that it must not touch, or not with this primitive.
    #[error(
        "device {device}, kernel {kernel}, block {block}, thread {thread}: {operation} of {bytes} bytes: {problem}"
    )]
    Access {
        /// The device.
        device: u32,
        /// The kernel.
        kernel: String,
        /// The block.
        block: u32,
        /// The thread of the block.
        thread: u32,
        /// The primitive.
        operation: &'static str,
        /// Its bytes.
        bytes: u32,
        /// What is wrong.
        problem: String,
    },
    /// Two accesses conflict and nothing orders them ([`SeededConfig::find_races`](super::SeededConfig::find_races)).
    #[error("{0}")]
    Race(Box<super::Race>),
    /// All that runs waits, and did so until the virtual clock's end.
    #[error("every lane waits, for {virtual_ns} virtual nanoseconds; {lanes} lanes have not ended")]
    Hang {
        /// The clock.
        virtual_ns: u64,
        /// Lanes left.
        lanes: usize,
    },
    /// The machine itself panicked, which is a mistake of its own; nothing of it goes on.
    #[error("the seeded machine itself panicked while {doing}: {cause}")]
    Panicked {
        /// What it was doing.
        doing: String,
        /// What the panic said.
        cause: String,
    },
    /// The run took more primitives than it may.
    #[error("the run did not end within {steps} primitives")]
    Steps {
        /// The limit.
        steps: u64,
    },
}
