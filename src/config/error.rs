//! What can be wrong with a configuration.

use std::path::PathBuf;

use super::origin::Origin;

/// Why a configuration is refused. Nothing has happened yet when it is returned.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// The file cannot be read.
    #[error("the configuration file {path} cannot be read", path = path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The system's error.
        #[source]
        source: std::io::Error,
    },
    /// The text is no TOML.
    #[error("{origin}: {problem}")]
    Syntax {
        /// File and line, variable, or argument.
        origin: Origin,
        /// The parser's message.
        problem: String,
    },
    /// A key that no setting has.
    #[error("{origin}: unknown {what} `{key}`{}", suggest(suggestion.as_deref()))]
    UnknownKey {
        /// The layer that sets it.
        origin: Origin,
        /// "key", "table" or "variable".
        what: &'static str,
        /// The key as written.
        key: String,
        /// The nearest existing name.
        suggestion: Option<String>,
    },
    /// A value that its setting does not take.
    #[error("{origin}: {key}: {problem}")]
    Value {
        /// The layer that sets it.
        origin: Origin,
        /// The dotted key.
        key: String,
        /// What is wrong with it.
        problem: String,
    },
}

fn suggest(suggestion: Option<&str>) -> String {
    suggestion.map(|name| format!("; did you mean `{name}`?")).unwrap_or_default()
}
