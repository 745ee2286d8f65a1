//! What can go wrong with a collective.

use anabranch_ranks::{ErrorKind, GroupRank};

use crate::types::{Algorithm, Collective, DataType, Mismatch, ReduceOp};

/// Everything that this crate's calls fail with.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The operator means nothing for the type.
    #[error("{} is not defined for {data_type}; allowed are {}", op.name(), allowed.join(", "))]
    Unsupported {
        /// The operator given.
        op: ReduceOp,
        /// The tensor's type.
        data_type: DataType,
        /// Names of the operators that are defined for it.
        allowed: Vec<&'static str>,
    },
    /// A tensor or a list has another number of elements than the call needs.
    #[error("{collective}: {what} has {given} elements; it must have {rule}")]
    Count {
        /// The collective.
        collective: Collective,
        /// The tensor or the list.
        what: &'static str,
        /// Elements given.
        given: u64,
        /// What is needed, in words.
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
    /// A table of choices that cannot be used.
    #[error("the table of choices {}: {problem}", path.display())]
    Table {
        /// The file.
        path: std::path::PathBuf,
        /// What is wrong.
        problem: String,
    },
    /// The root, or a message's peer, is no member.
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
    /// What a rank sends to itself in a call is not what it receives from itself in the same call.
    #[error(
        "{rank} sends messages of {sent:?} bytes to itself and receives messages of {received:?} bytes from itself; \
         in one call both must be the same"
    )]
    SelfMessages {
        /// The rank.
        rank: GroupRank,
        /// Bytes of what it sends to itself.
        sent: Vec<u64>,
        /// Bytes of what it receives from itself.
        received: Vec<u64>,
    },
    /// The root gave no tensor where it needs one, or a receive has no sender.
    #[error("{collective}: {what}, and none was given")]
    Missing {
        /// The collective.
        collective: Collective,
        /// What is needed, in words.
        what: &'static str,
    },
    /// Output and input overlap in a way that is not in place.
    #[error("{collective}: output {output:#x} and input {input:#x} overlap; {allowed}")]
    Overlap {
        /// The collective.
        collective: Collective,
        /// Where the output starts.
        output: u64,
        /// Where the input starts.
        input: u64,
        /// What is allowed.
        allowed: &'static str,
    },
    /// A tensor leaves its allocation.
    #[error("{count} {data_type} elements from byte {byte_offset} on do not fit into {length} bytes")]
    Bounds {
        /// Where it was to start.
        byte_offset: u64,
        /// Its type.
        data_type: DataType,
        /// Its elements.
        count: u64,
        /// Bytes of the allocation or registration.
        length: u64,
    },
    /// A tensor starts between two elements.
    #[error("a tensor of {data_type} starts at {address:#x}, which is no multiple of the element's size")]
    Alignment {
        /// The address, or the offset in its allocation.
        address: u64,
        /// Its type.
        data_type: DataType,
    },
    /// A tensor or prepared call belongs to another group or communicator.
    #[error("{what} belongs to another group or communicator")]
    Foreign {
        /// What was given.
        what: &'static str,
    },
    /// The algorithm asked for cannot do the call.
    #[error("{collective} cannot be done by {algorithm}: {reason}")]
    Algorithm {
        /// The collective.
        collective: Collective,
        /// The algorithm.
        algorithm: Algorithm,
        /// Why not.
        reason: &'static str,
    },
    /// A number in the configuration cannot be used.
    #[error("{field} is {given}; allowed is {allowed}")]
    Config {
        /// The field.
        field: &'static str,
        /// What it was.
        given: u64,
        /// What is allowed.
        allowed: &'static str,
    },
    /// Members made different calls, found by [`Check::Fingerprint`](crate::Check::Fingerprint): the same error on all members.
    /// The world cannot be used any more.
    #[error("members made different calls: {0}")]
    Mismatch(Box<Mismatch>),
    /// What goes through mapped memory alone was asked for, and members are on several machines.
    #[error(
        "{what} goes through memory that all members map, and they are on {machines} machines: {instead}"
    )]
    Unmapped {
        /// What was asked for.
        what: &'static str,
        /// The machines of the group.
        machines: u32,
        /// What to do.
        instead: &'static str,
    },
    /// The world, the heap, the launch, kernels or the runtime.
    #[error(transparent)]
    Shmem(#[from] anabranch_shmem::Error),
    /// A speed of `[links]` that no link can have.
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
    /// Who can do something about it.
    pub fn kind(&self) -> ErrorKind {
        match self {
            // Only a setting asks for an algorithm.
            Self::Config { .. } | Self::Algorithm { .. } | Self::Table { .. } | Self::Links(_) => {
                ErrorKind::Config
            }
            Self::Unmapped { .. } => ErrorKind::Environment,
            Self::Shmem(error) => error.kind(),
            _ => ErrorKind::Usage,
        }
    }
}

/// Results of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;
