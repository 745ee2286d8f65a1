//! An error that was printed already.

use std::fmt;

/// The error of a command that has already reported it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reported(pub i32);

impl fmt::Display for Reported {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "exit code {}", self.0)
    }
}

impl std::error::Error for Reported {}
