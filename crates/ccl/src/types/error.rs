//! Errors of collectives.

use anabranch_ranks::{ErrorKind, GroupRank};

use crate::types::{Algorithm, Collective, DataType, Mismatch, ReduceOp};

/// An error of a collective. Errors of checks (all but [`Self::Mismatch`], [`Self::Shmem`] and some [`Self::Foreign`]) leave the
/// communicator usable: nothing was launched.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The operator is not defined for the type.
    #[error("{op} is not defined for {data_type}; allowed are {}", allowed.join(", "))]
    Unsupported {
        /// The operator.
        op: ReduceOp,
        /// Type of the tensor.
        data_type: DataType,
        /// Names of the operators that are defined for the type.
        allowed: Vec<&'static str>,
    },
    /// A tensor or a list has the wrong number of elements.
    #[error("{collective}: {what} has {given} elements; it must have {rule}")]
    Count {
        /// The collective.
        collective: Collective,
        /// The tensor or the list.
        what: &'static str,
        /// Elements given.
        given: u64,
        /// The required number, in words.
        rule: String,
    },
    /// A tensor's element type is not allowed.
    #[error("{collective}: {what} is {given}; allowed is {allowed}")]
    Type {
        /// The collective.
        collective: Collective,
        /// The tensor.
        what: &'static str,
        /// Its type.
        given: DataType,
        /// What is allowed, in words.
        allowed: String,
    },
    /// The table of measured algorithms (`ccl.table`) cannot be read or is invalid.
    #[error("the table of choices {}: {problem}", path.display())]
    Table {
        /// The file.
        path: std::path::PathBuf,
        /// The problem.
        problem: String,
    },
    /// The root, or the peer of a message, is not in the group.
    #[error("{collective}: {what} is {given}, but the group has {members} members")]
    Member {
        /// The collective.
        collective: Collective,
        /// The root or the peer.
        what: &'static str,
        /// The rank given.
        given: GroupRank,
        /// Members of the group.
        members: u32,
    },
    /// The messages that a rank sends to itself in a batch differ from those that it receives from itself.
    #[error(
        "{rank} sends messages of {sent:?} bytes to itself and receives messages of {received:?} bytes from itself; \
         in one call both must be the same"
    )]
    SelfMessages {
        /// The rank.
        rank: GroupRank,
        /// Bytes of each message sent to itself, in order.
        sent: Vec<u64>,
        /// Bytes of each message received from itself, in order.
        received: Vec<u64>,
    },
    /// An argument of the RMSNorm after an all_reduce is not allowed.
    #[error("{collective} with rms_norm: {what} is {given}; allowed is {allowed}")]
    Argument {
        /// The collective.
        collective: Collective,
        /// The argument.
        what: &'static str,
        /// Its value.
        given: String,
        /// What is allowed, in words.
        allowed: &'static str,
    },
    /// The root gave no tensor where it needs one, or a receive names no sender.
    #[error("{collective}: {what}, and none was given")]
    Missing {
        /// The collective.
        collective: Collective,
        /// What is missing, in words.
        what: &'static str,
    },
    /// Output and input overlap, but not in place.
    #[error("{collective}: output {output:#x} and input {input:#x} overlap; {allowed}")]
    Overlap {
        /// The collective.
        collective: Collective,
        /// Address of the output.
        output: u64,
        /// Address of the input.
        input: u64,
        /// The allowed overlap.
        allowed: &'static str,
    },
    /// A tensor does not fit into its allocation or registration.
    #[error("{count} {data_type} elements from byte {byte_offset} on do not fit into {length} bytes")]
    Bounds {
        /// Offset of the tensor, bytes.
        byte_offset: u64,
        /// Its type.
        data_type: DataType,
        /// Elements of the tensor.
        count: u64,
        /// Bytes of the allocation or registration.
        length: u64,
    },
    /// The start of a tensor is not a multiple of the element size.
    #[error("a tensor of {data_type} starts at {address:#x}, which is no multiple of the element's size")]
    Alignment {
        /// The address, or the offset in its allocation.
        address: u64,
        /// Its type.
        data_type: DataType,
    },
    /// A tensor or prepared call belongs to another group or communicator, or its memory was dropped.
    #[error("{what} belongs to another group or communicator")]
    Foreign {
        /// The tensor or call.
        what: &'static str,
    },
    /// The requested algorithm cannot run the call.
    #[error("{collective} cannot be done by {algorithm}: {reason}")]
    Algorithm {
        /// The collective.
        collective: Collective,
        /// The algorithm.
        algorithm: Algorithm,
        /// The reason.
        reason: &'static str,
    },
    /// A number in the configuration or a choice is out of range.
    #[error("{field} is {given}; allowed is {allowed}")]
    Config {
        /// The field.
        field: &'static str,
        /// The value.
        given: u64,
        /// The allowed values.
        allowed: &'static str,
    },
    /// Members made different calls, as [`Check::Fingerprint`](crate::Check::Fingerprint) found: the same error on all members. The world
    /// has failed.
    #[error("members made different calls: {0}")]
    Mismatch(Box<Mismatch>),
    /// The feature needs memory that all members map, and members are on several nodes.
    #[error("{what} needs memory that all members map, and they are on {nodes} nodes: {instead}")]
    Unmapped {
        /// The feature.
        what: &'static str,
        /// Number of nodes of the group.
        nodes: u32,
        /// What to do instead.
        instead: &'static str,
    },
    /// An error of the world, the heap, the launch, the kernels or the device runtime.
    #[error(transparent)]
    Shmem(#[from] anabranch_shmem::Error),
    /// A value in `[links]` is no valid link speed.
    #[error(transparent)]
    Links(#[from] anabranch_ranks::UnknownSpeed),
}

impl From<anabranch_hip_jit::Error> for Error {
    fn from(error: anabranch_hip_jit::Error) -> Self {
        Self::Shmem(error.into())
    }
}

impl From<anabranch_hip::Error> for Error {
    fn from(error: anabranch_hip::Error) -> Self {
        Self::Shmem(error.into())
    }
}

impl Error {
    /// The kind of error: configuration, environment or usage.
    pub fn kind(&self) -> ErrorKind {
        match self {
            // Algorithms are requested by settings.
            Self::Config { .. } | Self::Algorithm { .. } | Self::Table { .. } | Self::Links(_) => {
                ErrorKind::Config
            }
            Self::Unmapped { .. } => ErrorKind::Environment,
            Self::Shmem(error) => error.kind(),
            _ => ErrorKind::Usage,
        }
    }
}

/// Result of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;
