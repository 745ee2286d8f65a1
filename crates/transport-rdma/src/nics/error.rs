//! What can go wrong when NICs are looked for, as values.

use std::io;
use std::path::PathBuf;

/// An error of the search for NICs.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NicTreeError {
    #[error("{path}: cannot be read", path = path.display())]
    Read {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("{path}: {text:?}, expected {expected}", path = path.display())]
    Content { path: PathBuf, text: String, expected: &'static str },
    #[error(
        "{given:?} in transport.rdma.nics: {problem}; an entry is NAME, NAME:PORT, =NAME or =NAME:PORT, with ^ before it to leave \
         NICs out"
    )]
    Entry { given: String, problem: &'static str },
    #[error("{given:?} in transport.rdma.nics means none of the NICs here: {present}")]
    NoSuchNic {
        given: String,
        /// The ports that are here, or that there are none.
        present: String,
    },
}

/// The result of a search for NICs.
pub type NicTreeResult<T> = Result<T, NicTreeError>;
