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
        /// The file in which it says so.
        path: PathBuf,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// The ranks met, and did not join.
    #[error(transparent)]
    Rendezvous(#[from] anabranch_bootstrap::Error),
    /// A rank's process could not be started.
    #[error("rank {rank} could not be started")]
    Start {
        /// The rank.
        rank: u32,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// A rank did not end in time; it was killed.
    #[error("rank {rank} did not end within {waited:?}; its output:\n{output}")]
    Late {
        /// The rank.
        rank: u32,
        /// The deadline.
        waited: Duration,
        /// What it had printed.
        output: String,
    },
    /// A rank did not print an expected word in time.
    #[error("rank {rank} did not print {word:?} within {waited:?}; its output:\n{output}")]
    Silent {
        /// The rank.
        rank: u32,
        /// The word.
        word: String,
        /// The deadline.
        waited: Duration,
        /// What it had printed.
        output: String,
    },
    /// A rank ended with a failure.
    #[error("rank {rank} ended with {status}; its output:\n{output}")]
    Failed {
        /// The rank.
        rank: u32,
        /// How.
        status: ExitStatus,
        /// What it had printed.
        output: String,
    },
    /// The state of a process could not be read.
    #[error("rank {rank} could not be waited for")]
    Wait {
        /// The rank.
        rank: u32,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// A figure about this process could not be read.
    #[error("cannot read {path}")]
    Resources {
        /// The file.
        path: &'static str,
        /// Why.
        #[source]
        source: std::io::Error,
    },
}
