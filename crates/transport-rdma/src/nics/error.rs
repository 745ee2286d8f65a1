//! What can go wrong when NICs are looked for, as values.

use std::io;
use std::path::PathBuf;

/// An error of the search for NICs.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NicTreeError {
    /// A file or folder could not be read.
    #[error("{path}: cannot be read", path = path.display())]
    Read {
        /// The file or folder.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// A file does not say what it should.
    #[error("{path}: {text:?}, expected {expected}", path = path.display())]
    Content {
        /// The file.
        path: PathBuf,
        /// What stands there.
        text: String,
        /// What should.
        expected: &'static str,
    },
    /// An entry of the list of NICs that is none.
    #[error(
        "{given:?} in transport.rdma.nics: {problem}; an entry is NAME, NAME:PORT, =NAME or =NAME:PORT, with ^ before it to leave \
         NICs out"
    )]
    Entry {
        /// The entry.
        given: String,
        /// What is wrong with it.
        problem: &'static str,
    },
    /// An entry that asks for a NIC that is not there.
    #[error("{given:?} in transport.rdma.nics means none of the NICs here: {present}")]
    NoSuchNic {
        /// The entry.
        given: String,
        /// The ports that are here, or that there are none.
        present: String,
    },
}

/// The result of a search for NICs.
pub type NicTreeResult<T> = Result<T, NicTreeError>;
