//! The matrix of operation, scope and transport.

use std::fmt;
use std::fmt::Write as _;

use crate::{Error, Transport, TransportKind};

macro_rules! words {
    ($(#[$meta:meta])* $name:ident { $($(#[$variant_meta:meta])* $variant:ident = $word:literal,)* }) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[non_exhaustive]
        pub enum $name { $($(#[$variant_meta])* $variant,)* }

        impl $name {
            /// Every value, in the order in which documents list them.
            pub const ALL: &'static [Self] = &[$(Self::$variant),*];

            /// The word that documents and errors use.
            pub const fn word(self) -> &'static str {
                match self { $(Self::$variant => $word,)* }
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(self.word())
            }
        }
    };
}

words! {
    /// Who calls an operation together, with equal arguments.
    Scope {
        /// One thread.
        Thread = "thread",
        /// All lanes of a wave.
        Wave = "wave",
        /// All threads of a block.
        Block = "block",
        /// The host, in the order of a stream.
        Stream = "stream",
    }
}

words! {
    /// What can be done to a peer's part of the heap.
    Operation {
        /// Copy to the peer; the source may be reused on return.
        Put = "put",
        /// Copy to the peer; the source may be reused after quiet.
        PutNbi = "put_nbi",
        /// Copy from the peer; the destination is valid on return.
        Get = "get",
        /// Copy from the peer; the destination is valid after quiet.
        GetNbi = "get_nbi",
        /// Store one value of 1, 2, 4 or 8 bytes.
        PutValue = "p",
        /// Load one value of 1, 2, 4 or 8 bytes.
        GetValue = "g",
        /// Put, then a signal that becomes visible after its data.
        PutSignal = "put_signal",
        /// The same; the source may be reused after quiet.
        PutSignalNbi = "put_signal_nbi",
        /// Set or add to a signal word.
        Signal = "signal",
        /// Wait for a signal word, with a budget.
        SignalWait = "signal_wait",
        /// Look at a signal word once.
        SignalTest = "signal_test",
        /// Atomic add, 32 and 64 bit.
        AtomicAdd = "atomic_add",
        /// Atomic and, 32 and 64 bit.
        AtomicAnd = "atomic_and",
        /// Atomic or, 32 and 64 bit.
        AtomicOr = "atomic_or",
        /// Atomic exclusive or, 32 and 64 bit.
        AtomicXor = "atomic_xor",
        /// Atomic add that returns the old value.
        AtomicFetchAdd = "atomic_fetch_add",
        /// Atomic and that returns the old value.
        AtomicFetchAnd = "atomic_fetch_and",
        /// Atomic or that returns the old value.
        AtomicFetchOr = "atomic_fetch_or",
        /// Atomic exclusive or that returns the old value.
        AtomicFetchXor = "atomic_fetch_xor",
        /// Atomic swap, 32 and 64 bit.
        AtomicSwap = "atomic_swap",
        /// Atomic compare and swap, 32 and 64 bit.
        AtomicCompareSwap = "atomic_compare_swap",
        /// Order of what was sent to one peer.
        Fence = "fence",
        /// Completion of everything that was sent.
        Quiet = "quiet",
        /// Arrival of all members of a team.
        TeamSync = "team_sync",
        /// Quiet, then arrival of all members of a team.
        TeamBarrier = "team_barrier",
    }
}

impl Operation {
    /// Whether it is one of those on words of 32 and 64 bits.
    pub const fn is_atomic(self) -> bool {
        matches!(
            self,
            Self::AtomicAdd
                | Self::AtomicAnd
                | Self::AtomicOr
                | Self::AtomicXor
                | Self::AtomicFetchAdd
                | Self::AtomicFetchAnd
                | Self::AtomicFetchOr
                | Self::AtomicFetchXor
                | Self::AtomicSwap
                | Self::AtomicCompareSwap
        )
    }
}

/// One cell of the matrix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Support {
    /// It works.
    Implemented,
    /// It works for words of 64 bits; a plan with narrower ones is an error.
    Words64,
    /// Signals that set a word work; a plan with signals that add is an error.
    SetOnly,
    /// A plan that needs it is an error.
    Unsupported,
}

impl Support {
    /// Turns an empty cell into the error that names it. Of atomic operations this asks for all words that they have;
    /// [`Self::require_words`] asks for one kind.
    ///
    /// # Errors
    /// [`Error::Unsupported`], also where the cell has only words of 64 bits, or only signals that set.
    pub fn require(self, operation: Operation, scope: Scope, kind: TransportKind) -> Result<(), Error> {
        self.require_words(operation, scope, kind, 4)
    }

    /// [`Self::require`] for words of `bytes` bytes.
    ///
    /// # Errors
    /// The errors of [`Self::require`].
    pub fn require_words(
        self,
        operation: Operation,
        scope: Scope,
        kind: TransportKind,
        bytes: u32,
    ) -> Result<(), Error> {
        let form = match self {
            Self::Implemented => return Ok(()),
            Self::Words64 if bytes == 8 => return Ok(()),
            Self::Words64 => format!(" for words of {} bits; those of 64 are supported", bytes * 8),
            Self::SetOnly => " with a signal that adds; one that sets is supported".to_owned(),
            Self::Unsupported => String::new(),
        };
        Err(Error::Unsupported { operation, scope, kind, form })
    }
}

/// The matrix of these transports as a table in Markdown: one row an operation, one column a transport and scope.
pub fn operation_table(transports: &[&dyn Transport]) -> String {
    let mut text = String::from("| operation |");
    let columns = || transports.iter().flat_map(|one| Scope::ALL.iter().map(move |scope| (*one, *scope)));
    for (transport, scope) in columns() {
        let _ = write!(text, " {} {scope} |", transport.kind());
    }
    text.push_str("\n|---|");
    text.push_str(&"---|".repeat(columns().count()));
    for operation in Operation::ALL {
        let _ = write!(text, "\n| `{operation}` |");
        for (transport, scope) in columns() {
            text.push_str(match transport.support(*operation, scope) {
                Support::Implemented => " implemented |",
                Support::Words64 => " 64-bit words |",
                Support::SetOnly => " set only |",
                Support::Unsupported => " Unsupported |",
            });
        }
    }
    text.push('\n');
    text
}
