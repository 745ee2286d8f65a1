//! What can go wrong with a collective.

use anabranch_ranks::GroupRank;

use crate::call::Collective;
use crate::fingerprint::Mismatch;
use crate::plan::Algorithm;
use crate::{DataType, ReduceOp};

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
    /// A tensor has another number of elements than the call needs.
    #[error("{collective}: {what} has {given} elements; it must have {rule}")]
    Count {
        /// The collective.
        collective: Collective,
        /// The tensor.
        what: &'static str,
        /// Elements given.
        given: u64,
        /// What is needed, in words.
        rule: String,
    },
    /// Output and input are of different types.
    #[error("{collective}: the output is {output}, the input {input}; both must have one type")]
    Types {
        /// The collective.
        collective: Collective,
        /// The output's type.
        output: DataType,
        /// The input's.
        input: DataType,
    },
    /// A table of choices that cannot be used.
    #[error("the table of choices {}: {problem}", path.display())]
    Table {
        /// The file.
        path: std::path::PathBuf,
        /// What is wrong.
        problem: String,
    },
    /// A count does not divide over the members.
    #[error("{collective}: {count} elements do not divide over {members} members; give splits instead")]
    Divisible {
        /// The collective.
        collective: Collective,
        /// Elements given.
        count: u64,
        /// Members of the group.
        members: u32,
    },
    /// Another number of splits than members.
    #[error("{collective}: {given} {what} were given for {members} members")]
    Splits {
        /// The collective.
        collective: Collective,
        /// The list.
        what: &'static str,
        /// Its length.
        given: usize,
        /// Members of the group.
        members: u32,
    },
    /// The root is no member.
    #[error("{collective}: the root is {given}, but the group has {members} members")]
    Root {
        /// The collective.
        collective: Collective,
        /// The root given.
        given: GroupRank,
        /// Members of the group.
        members: u32,
    },
    /// A message to or from somebody who is no member.
    #[error("a message's peer is {given}, but the group has {members} members")]
    Peer {
        /// The peer given.
        given: GroupRank,
        /// Members of the group.
        members: u32,
    },
    /// A receive that names nobody.
    #[error("a receive has to name the member that sends: receiving from any source is not possible")]
    AnySource,
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
    /// The root gave no tensor where it needs one.
    #[error("{collective}: the root needs {what}, and none was given")]
    Missing {
        /// The collective.
        collective: Collective,
        /// The tensor.
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
    /// The world, the heap or the launch.
    #[error(transparent)]
    Shmem(#[from] anabranch_shmem::Error),
    /// Compiling or loading kernels.
    #[error(transparent)]
    Jit(#[from] anabranch_hip_jit::Error),
    /// The runtime.
    #[error(transparent)]
    Hip(#[from] anabranch_hip::Error),
}

/// Results of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;
