//! Kinds of errors, for the whole workspace.

use std::fmt;

/// Who can do something about an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The user, by changing a setting.
    Config,
    /// The operator: a runtime, compiler, device or limit is missing. `anabranch doctor` lists them.
    Environment,
    /// A kernel's developer: it does not compile.
    Compile,
    /// Another rank: unreachable, lost, late. Try again, or without it.
    Peer,
    /// The device failed. Tear the world down.
    Device,
    /// The caller: a call with wrong arguments. Nothing has happened.
    Usage,
}

impl ErrorKind {
    /// The exit code of the `anabranch` command for it.
    pub fn exit_code(self) -> u8 {
        match self {
            Self::Usage => 1,
            Self::Config => 2,
            Self::Environment => 3,
            Self::Compile => 4,
            Self::Peer => 5,
            Self::Device => 6,
        }
    }
}

impl fmt::Display for ErrorKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Config => "configuration",
            Self::Environment => "environment",
            Self::Compile => "compile",
            Self::Peer => "peer",
            Self::Device => "device",
            Self::Usage => "usage",
        })
    }
}
