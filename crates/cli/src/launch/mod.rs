//! Starts N copies of a program as the ranks of one world, and ends them together.
//!
//! Every rank gets what torchrun sets (`RANK`, `WORLD_SIZE`, `LOCAL_RANK`, `LOCAL_WORLD_SIZE`, `MASTER_ADDR`,
//! `MASTER_PORT`) and a secret of its world (`ANABRANCH_SECRET`), is the leader of its own process group, and
//! dies with the launcher. A failing rank decides the outcome; of several, the one that is the cause. The others get `SIGTERM`, and
//! `SIGKILL` if they have not ended after the grace period.

mod blame;
mod child;
mod finish;
mod output;
mod port;
mod supervise;

use std::ffi::OsString;
use std::time::Duration;

use child::Meeting;
pub(crate) use finish::finish;
use port::ReservedPort;
pub(crate) use supervise::is_terminal;
use supervise::{report, supervise};

/// What to start.
#[derive(Clone, Debug)]
pub(crate) struct Launch {
    /// Number of ranks, at least 1.
    pub(crate) ranks: u32,
    /// The program.
    pub(crate) program: OsString,
    /// Its arguments.
    pub(crate) arguments: Vec<OsString>,
    /// Variables that the ranks get beside the launcher's.
    pub(crate) environment: Vec<(&'static str, OsString)>,
    /// What becomes of the ranks' output.
    pub(crate) output: Output,
    /// Time between `SIGTERM` and `SIGKILL`.
    pub(crate) grace: Duration,
}

/// What becomes of the ranks' output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Output {
    /// Every line is passed on, with the rank before it or as it is.
    Forward {
        /// Whether each line begins with its rank.
        prefix: bool,
    },
    /// Rank 0 writes to the launcher's own output; the others' last lines are shown when they fail.
    RootOnly,
}

/// How it ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Ended {
    /// Every rank succeeded.
    Well,
    /// A rank failed; of several, the one that is the cause.
    Failed(Failure),
    /// A signal ended the launcher.
    Interrupted {
        /// The signal's number.
        signal: i32,
    },
}

/// The first rank that failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Failure {
    /// The rank.
    pub(crate) rank: u32,
    /// Its exit code; 128 and the signal's number when a signal killed it.
    pub(crate) code: i32,
    /// "exited with code 3", "was killed by SIGKILL".
    pub(crate) how: String,
    /// The rank that its last lines name as the cause, where that one has not failed itself: its process may be stopped or late.
    pub(crate) named: Option<u32>,
    /// The last lines it wrote, oldest first.
    pub(crate) last_lines: Vec<String>,
}

impl Ended {
    /// The exit code that the launcher passes on.
    pub(crate) fn code(&self) -> i32 {
        match self {
            Self::Well => 0,
            Self::Failed(failure) => failure.code,
            Self::Interrupted { signal } => 128 + signal,
        }
    }
}
