//! What is run: a protocol and its size.

use core::fmt;
use core::str::FromStr;

/// A protocol that can be searched.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Protocol {
    /// Slotted dispatch, the stand-in for experts, and pull combine.
    Ep,
    /// The team barrier between kernels that write and read.
    Barrier,
    /// Put with signal and wait of the device API.
    PutSignal,
}

impl Protocol {
    /// All of them.
    pub const ALL: &'static [Self] = &[Self::Ep, Self::Barrier, Self::PutSignal];

    /// The word on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Ep => "ep",
            Self::Barrier => "barrier",
            Self::PutSignal => "put-signal",
        }
    }
}

impl fmt::Display for Protocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Protocol {
    type Err = CaseError;

    fn from_str(text: &str) -> Result<Self, CaseError> {
        let found = Self::ALL.iter().copied().find(|protocol| protocol.name() == text);
        found.ok_or_else(|| CaseError::Protocol { given: text.to_owned() })
    }
}

/// A protocol and its size. Smaller numbers are simpler cases: shrinking makes them smaller one by one.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Case {
    /// Which.
    pub protocol: Protocol,
    /// Ranks, at least 1.
    pub ranks: u32,
    /// How often the operation is done, at least 1: epochs of dispatch and combine, rounds of a barrier, messages.
    pub rounds: u32,
    /// Tokens of each rank, or 8-byte words of a message; at least 1.
    pub tokens: u32,
    /// Blocks of each kernel, at least 1, where the kernel takes several.
    pub blocks: u32,
    /// Waves of each block, at least 1.
    pub waves: u32,
    /// Another form of the protocol: for `ep`, combine from a caller's buffer instead of the window.
    pub staged: bool,
    /// Which mistake to build in (`PRELUDE_MUTANT`); 0 is none.
    pub mutant: u32,
}

impl Case {
    /// A case of a good size for finding mistakes: every kernel has several blocks of several waves, and every buffer is
    /// used more than once.
    pub const fn new(protocol: Protocol, ranks: u32) -> Self {
        Self { protocol, ranks, rounds: 2, tokens: 3, blocks: 2, waves: 2, staged: false, mutant: 0 }
    }
}

/// Why a case cannot be run.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CaseError {
    /// A word that names no protocol.
    #[error("{given:?} is no protocol; allowed are {}", names())]
    Protocol {
        /// The word.
        given: String,
    },
    /// A number that the protocol cannot have.
    #[error("{protocol}: {what} is {given}; allowed is {least} to {most}")]
    Range {
        /// The protocol.
        protocol: Protocol,
        /// Which number.
        what: &'static str,
        /// What it is.
        given: u32,
        /// The least.
        least: u32,
        /// The most.
        most: u32,
    },
}

fn names() -> String {
    let names: Vec<_> = Protocol::ALL.iter().map(|protocol| protocol.name()).collect();
    names.join(", ")
}
