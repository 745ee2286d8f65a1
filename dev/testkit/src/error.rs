//! What can go wrong with a runner.

use std::path::PathBuf;
use std::process::ExitStatus;
use std::time::Duration;

/// An error of a runner. The output of the rank is part of the text.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Rank 0 did not say where it listens, or could not.
    #[error("the ranks cannot use the rendezvous at {path}")]
    Meeting {
        path: PathBuf,
        #[source]
        source: std::io::Error,
    },
    /// The ranks met, and did not join.
    #[error(transparent)]
    Rendezvous(#[from] anabranch_bootstrap::Error),
    #[error("rank {rank} could not be started")]
    Start {
        rank: u32,
        #[source]
        source: std::io::Error,
    },
    /// A rank did not end in time; it was killed.
    #[error("rank {rank} did not end within {waited:?}; its output:\n{output}")]
    Late { rank: u32, waited: Duration, output: String },
    #[error("rank {rank} did not print {word:?} within {waited:?}; its output:\n{output}")]
    Silent { rank: u32, word: String, waited: Duration, output: String },
    #[error("rank {rank} ended with {status}; its output:\n{output}")]
    Failed { rank: u32, status: ExitStatus, output: String },
    #[error("rank {rank} could not be waited for")]
    Wait {
        rank: u32,
        #[source]
        source: std::io::Error,
    },
    #[error("cannot read {path}")]
    Resources {
        path: &'static str,
        #[source]
        source: std::io::Error,
    },
}
