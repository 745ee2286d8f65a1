//! Why a seeded machine refused something or stopped a run.

use anabranch_hip_host::Fault;

/// An error of a [`SeededMachine`](super::SeededMachine).
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SeededError {
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
        code: anabranch_hip::HipError,
    },
    #[error("kernel {kernel}: {what} is {given}; allowed is {allowed}")]
    Launch { kernel: String, what: &'static str, given: u64, allowed: String },
    /// Memory was asked for, or named, that the machine does not have.
    #[error("{name}: bytes {offset}..{end} of {bytes}")]
    Range {
        name: String,
        offset: u64,
        /// Behind the last byte.
        end: u64,
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
        device: u32,
        kernel: String,
        block: u32,
        thread: u32,
        operation: &'static str,
        bytes: u32,
        problem: String,
    },
    /// Two accesses conflict and nothing orders them ([`SeededConfig::find_races`](super::SeededConfig::find_races)).
    #[error("{0}")]
    Race(Box<super::Race>),
    /// All that runs waits, and did so until the virtual clock's end.
    #[error("every lane waits, for {virtual_ns} virtual nanoseconds; {lanes} lanes have not ended")]
    Hang { virtual_ns: u64, lanes: usize },
    /// The machine itself panicked, which is a mistake of its own; nothing of it goes on.
    #[error("the seeded machine itself panicked while {doing}: {cause}")]
    Panicked { doing: String, cause: String },
    #[error("the run did not end within {steps} primitives")]
    Steps { steps: u64 },
}
