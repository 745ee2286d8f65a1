//! Origins of values.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;

/// Where a setting's value came from. Later layers win: default, file, environment, command line.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Origin {
    /// Not set.
    #[default]
    Default,
    /// A line of a file; line 0 stands for the file as a whole.
    File {
        /// The file.
        path: PathBuf,
        /// The line, counted from 1.
        line: usize,
    },
    /// An environment variable.
    Environment {
        /// Its name.
        variable: String,
    },
    /// A `--set` on the command line.
    Set {
        /// The argument.
        argument: String,
    },
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Default => f.write_str("default"),
            Self::File { path, line: 0 } => write!(f, "{}", path.display()),
            Self::File { path, line } => write!(f, "{} line {line}", path.display()),
            Self::Environment { variable } => write!(f, "environment {variable}"),
            Self::Set { argument } => write!(f, "--set {argument}"),
        }
    }
}

/// Origins by dotted key, of the keys that are set.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Origins {
    by_key: BTreeMap<String, Origin>,
}

impl Origins {
    /// The origin of a key's value.
    pub fn of(&self, key: &str) -> Origin {
        self.by_key.get(key).cloned().unwrap_or_default()
    }

    /// The keys that are set, in alphabetical order.
    pub fn set_keys(&self) -> impl Iterator<Item = (&str, &Origin)> {
        self.by_key.iter().map(|(key, origin)| (key.as_str(), origin))
    }

    pub(crate) fn insert(&mut self, key: String, origin: Origin) {
        self.by_key.insert(key, origin);
    }
}
