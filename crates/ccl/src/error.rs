//! What can go wrong with a collective.

/// Everything that this crate's calls fail with.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The world, the heap, the kernels or the launch.
    #[error(transparent)]
    Shmem(#[from] anabranch_shmem::Error),
}

/// Results of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;
