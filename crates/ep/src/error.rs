//! Errors of dispatch and combine.

use std::path::PathBuf;

use anabranch_ranks::{ErrorKind, GlobalRank, GroupRank};

/// An error of expert-parallel dispatch or combine.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A field of the configuration has a value that is not allowed.
    #[error("{field} is {given}; {allowed}")]
    Config {
        /// The field.
        field: &'static str,
        /// Its value.
        given: String,
        /// What is allowed.
        allowed: String,
    },
    /// Two settings exclude each other.
    #[error("{with}, and {field} is {given}; allowed then is {allowed}: {why}")]
    Unsupported {
        /// The setting that limits the other.
        with: String,
        /// The field.
        field: &'static str,
        /// Its value.
        given: String,
        /// What is allowed.
        allowed: &'static str,
        /// Why other values are not allowed.
        why: &'static str,
    },
    /// A file cannot be used: a table of launches, or a placement.
    #[error("the {what} {}: {problem}", path.display())]
    File {
        /// What the file should hold.
        what: &'static str,
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        problem: String,
    },
    /// An argument that does not match the plan.
    #[error("{what} is {given}, but the plan was made for {planned}")]
    Argument {
        /// The argument.
        what: &'static str,
        /// Its value.
        given: String,
        /// What the plan allows.
        planned: String,
    },
    /// A buffer is too small for its shape.
    #[error("{what} has {given} bytes, but {shape} needs {needed}")]
    Shape {
        /// The tensor.
        what: &'static str,
        /// Bytes given.
        given: usize,
        /// Bytes needed.
        needed: usize,
        /// The shape, in words.
        shape: String,
    },
    /// A buffer has an address that the kernels cannot use.
    #[error("{what} at {address:#x} {problem}")]
    Address {
        /// The tensor.
        what: &'static str,
        /// Its address.
        address: u64,
        /// What is wrong with the address.
        problem: String,
    },
    /// All slots have an operation in flight.
    #[error(
        "all {slots} slots have a dispatch in flight; combine or release one first, or plan more slots (ep.slots)"
    )]
    SlotsBusy {
        /// Slots of the plan.
        slots: u32,
    },
    /// A handle or a saved routing of another plan.
    #[error("the handle belongs to another plan")]
    ForeignHandle,
    /// A call before the call that it needs, or one that a capture does not allow.
    #[error("{call}: {problem}")]
    CallOrder {
        /// The call.
        call: &'static str,
        /// What is wrong, and what to call first or instead.
        problem: String,
    },
    /// The plan has no such operation.
    #[error("the plan has no {what}: {why}")]
    NotPlanned {
        /// What the call needs.
        what: &'static str,
        /// Why the plan lacks it.
        why: &'static str,
    },
    /// An expert id out of range. It counted as -1. An id of 64 bits that does not fit into 32 is reported as `i32::MIN`.
    #[error(
        "{rank} gave {count} invalid expert id(s), the first at token {token}: {id} (allowed are -1 and 0..{experts})"
    )]
    InvalidExpert {
        /// The rank that gave it.
        rank: GroupRank,
        /// How many invalid ids there were.
        count: u32,
        /// Token of the first.
        token: u32,
        /// The first id.
        id: i32,
        /// Experts of the plan.
        experts: u32,
    },
    /// A device token count above its bound ([`Tokens::count`](crate::Tokens::count)). The bound was used.
    #[error(
        "{rank} gave {count} dispatch(es) a device token count above the bound, the first {given} with a bound of {allowed}; \
         {allowed} tokens were dispatched"
    )]
    ExcessTokens {
        /// The rank that gave it.
        rank: GroupRank,
        /// How many dispatches had such a count.
        count: u32,
        /// The first such count.
        given: u32,
        /// Its bound.
        allowed: u32,
    },
    /// The mask cannot be changed for a rank.
    #[error("the mask cannot be changed: {rank} {problem}")]
    Mask {
        /// The rank.
        rank: GroupRank,
        /// Why not.
        problem: String,
    },
    /// No route to a peer has the operations that dispatch and combine need.
    #[error("{peer} cannot be reached by {needed}: {route}")]
    Unreachable {
        /// The peer.
        peer: GlobalRank,
        /// The operations that the plan needs.
        needed: &'static str,
        /// The route to the peer, and why it was chosen.
        route: String,
    },
    /// The symmetric heap, the rendezvous or the world.
    #[error(transparent)]
    Shmem(#[from] anabranch_shmem::Error),
    /// Kernels could not be compiled or loaded.
    #[error(transparent)]
    Jit(#[from] anabranch_hip_jit::Error),
    /// A call of the runtime failed.
    #[error(transparent)]
    Hip(#[from] anabranch_hip::Error),
}

impl Error {
    pub(crate) fn config(
        field: &'static str,
        given: impl std::fmt::Display,
        allowed: impl Into<String>,
    ) -> Self {
        Self::Config { field, given: given.to_string(), allowed: allowed.into() }
    }

    pub(crate) fn argument(
        what: &'static str,
        given: impl std::fmt::Display,
        planned: impl std::fmt::Display,
    ) -> Self {
        Self::Argument { what, given: given.to_string(), planned: planned.to_string() }
    }

    /// The experts' output is not where the plan reads it.
    pub(crate) fn source(given: &'static str, planned: crate::CombineSource) -> Self {
        Self::argument("the experts' output", given, format_args!("combine_source {planned}"))
    }

    /// A buffer to push from is part of the slot.
    pub(crate) fn in_windows(what: &'static str, address: u64) -> Self {
        let problem =
            "lies in the operation's own windows, into which peers push; give another buffer".to_owned();
        Self::Address { what, address, problem }
    }

    pub(crate) fn mask(rank: GroupRank, problem: impl Into<String>) -> Self {
        Self::Mask { rank, problem: problem.into() }
    }

    /// The kind, by who can resolve the error.
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::Config { .. } | Self::Unsupported { .. } | Self::File { .. } => ErrorKind::Config,
            Self::Unreachable { .. } => ErrorKind::Environment,
            Self::Shmem(error) => error.kind(),
            Self::Jit(error) => error.kind(),
            Self::Hip(error) => error.kind(),
            _ => ErrorKind::Usage,
        }
    }
}

/// The result of calls in this crate.
pub type Result<T, E = Error> = core::result::Result<T, E>;
