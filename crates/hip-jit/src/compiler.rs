//! Compilers: which one was found, and which were looked for.

use std::fmt;

/// Which compiler, exactly. `kind` and `version` are in the cache key, `location` is not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CompilerIdentity {
    /// `c++`, `clang`, `hipcc`, `hiprtc`, `nvrtc`, `nvcc`.
    pub kind: &'static str,
    /// The full version text, without lines that only name folders.
    pub version: String,
    /// The program or library.
    pub location: String,
}

impl fmt::Display for CompilerIdentity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} ({})", self.kind, self.version.lines().next().unwrap_or_default(), self.location)
    }
}

/// A candidate that was looked for, and why it does not serve.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Looked {
    /// The program or library.
    pub what: String,
    /// Why it does not serve.
    pub problem: String,
}

impl Looked {
    pub(crate) fn new(what: impl Into<String>, problem: impl Into<String>) -> Self {
        Self { what: what.into(), problem: problem.into() }
    }
}
