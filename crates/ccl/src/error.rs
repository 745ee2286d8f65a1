//! What can go wrong with a collective.

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
    /// The world, the heap, the kernels or the launch.
    #[error(transparent)]
    Shmem(#[from] anabranch_shmem::Error),
}

/// Results of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;
