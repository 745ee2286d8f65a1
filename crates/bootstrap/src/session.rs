//! Which run of a job a process belongs to.

use std::fmt;

/// Which run of a job a process belongs to, and which start of that run. A process of an earlier one that comes late is
/// refused, even though it knows the secret.
///
/// Both parts are the same on all ranks. [`Session::default`] is for jobs whose secret is new with every start.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Session {
    /// The run's name; at most [`Session::MAX_RUN_BYTES`] bytes.
    pub run: String,
    /// How often the run was started again; with the same run, higher is later.
    pub generation: u32,
}

impl Session {
    /// The most bytes of a run's name.
    pub const MAX_RUN_BYTES: usize = 512;
}

impl fmt::Display for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "run '{}', start {}", self.run, self.generation)
    }
}
