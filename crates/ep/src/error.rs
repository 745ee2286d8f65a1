//! What can go wrong in dispatch and combine, as values.

use std::path::PathBuf;

use anabranch_ranks::{ErrorKind, GlobalRank, GroupRank};

/// An error of expert-parallel dispatch or combine.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A setting of the configuration cannot be used.
    #[error("{field} is {given}; {allowed}")]
    Config {
        /// The field.
        field: &'static str,
        /// Its value.
        given: String,
        /// What is allowed.
        allowed: String,
    },
    /// Two settings do not go together.
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
        /// Why nothing else is.
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
    /// An argument of a call that the plan was not made for.
    #[error("{what} is {given}, but the plan was made for {planned}")]
    Argument {
        /// The argument.
        what: &'static str,
        /// Its value.
        given: String,
        /// What the plan takes.
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
    /// A buffer lies where the kernels cannot use it.
    #[error("{what} at {address:#x} {problem}")]
    Address {
        /// The tensor.
        what: &'static str,
        /// Its address.
        address: u64,
        /// What is wrong with the address.
        problem: String,
    },
    /// Every slot has an operation in flight.
    #[error(
        "all {slots} slots have a dispatch in flight; combine or release one first, or plan more slots (ep.slots)"
    )]
    SlotsBusy {
        /// Slots of the plan.
        slots: u32,
    },
    /// A handle of another plan was given.
    #[error("the handle belongs to another plan")]
    ForeignHandle,
    /// A call that needs another call before it, or that a capture does not allow.
    #[error("{call}: {problem}")]
    CallOrder {
        /// The call.
        call: &'static str,
        /// What has to come first, or instead.
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
    /// An expert id named no expert. It counted as masked.
    #[error(
        "{rank} gave {count} invalid expert id(s), the first at token {token}: {id} (allowed are -1 and 0..{experts})"
    )]
    InvalidExpert {
        /// The rank that gave it.
        rank: GroupRank,
        /// How many there were.
        count: u32,
        /// Token of the first.
        token: u32,
        /// The first id.
        id: i32,
        /// Experts of the plan.
        experts: u32,
    },
    /// A number of tokens in device memory was above the bound that came with it. The bound was used.
    #[error(
        "{rank} gave {count} dispatch(es) a device token count above the tokens it has, the first of them {given} where \
         at most {allowed} are there; those were dispatched"
    )]
    ExcessTokens {
        /// The rank that gave it.
        rank: GroupRank,
        /// How many dispatches had such a number.
        count: u32,
        /// The first one's number.
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
    /// A peer cannot be reached as dispatch and combine need it.
    #[error("{peer} cannot be reached by {needed}: {route}")]
    Unreachable {
        /// The peer.
        peer: GlobalRank,
        /// What the plan needs of the route, and where.
        needed: &'static str,
        /// Which route there is to it, and why that one.
        route: String,
    },
    /// The layer below.
    #[error(transparent)]
    Shmem(#[from] anabranch_shmem::Error),
    /// Compiling or loading kernels.
    #[error(transparent)]
    Jit(#[from] anabranch_hip_jit::Error),
    /// The runtime.
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

    /// The experts' output lies where the plan does not look for it.
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

    /// Who can do something about it.
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
