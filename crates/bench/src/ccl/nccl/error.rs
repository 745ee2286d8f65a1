//! What can go wrong with NCCL.

use std::path::PathBuf;

use anabranch::{ErrorKind, GroupRank};

/// Why NCCL does not take part.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum NcclError {
    #[error(
        "libnccl.so.2 does not open; name it with --nccl-library, or install it (pip install nvidia-nccl-cu13): tried {}",
        list(tried)
    )]
    NotFound { tried: Vec<(PathBuf, String)> },
    #[error("{} is NCCL {version} and has no {symbol}, which came with {since}", library.display())]
    TooOld { library: PathBuf, version: Version, symbol: &'static str, since: &'static str },
    #[error("{call} of {me} of {ranks} ranks failed: {words} ({code}){detail}")]
    Call {
        call: &'static str,
        me: GroupRank,
        ranks: u32,
        code: i32,
        words: String,
        /// `: ` and the library's last message, or nothing.
        detail: String,
    },
    #[error("NCCL has no {operator} of {data_type}; leave --compare away, or take another type or operator")]
    Unsupported { operator: &'static str, data_type: String },
}

fn list(tried: &[(PathBuf, String)]) -> String {
    let texts: Vec<_> = tried.iter().map(|(path, why)| format!("{} ({why})", path.display())).collect();
    texts.join(", ")
}

impl NcclError {
    /// The kind, by who can resolve the error.
    pub(crate) fn kind(&self) -> ErrorKind {
        match self {
            Self::NotFound { .. } | Self::TooOld { .. } => ErrorKind::Environment,
            Self::Call { .. } => ErrorKind::Device,
            Self::Unsupported { .. } => ErrorKind::Usage,
        }
    }
}

/// NCCL's version number: `NCCL_VERSION_CODE` of nccl.h, which is major x 10000 + minor x 100 + patch, and before
/// 2.9 major x 1000 + minor x 100 + patch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Version(pub(crate) i32);

impl std::fmt::Display for Version {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let code = self.0;
        let major = if code < 10_000 { code / 1000 } else { code / 10_000 };
        let below = if code < 10_000 { code % 1000 } else { code % 10_000 };
        write!(f, "{major}.{}.{}", below / 100, below % 100)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_read_in_both_codings() {
        for (code, text) in [(2809, "2.8.9"), (22_903, "2.29.3"), (21_005, "2.10.5"), (23_203, "2.32.3")] {
            assert_eq!(Version(code).to_string(), text);
        }
    }

    #[test]
    fn missing_library_lists_the_tried_paths() {
        let error = NcclError::NotFound { tried: vec![("/x/libnccl.so.2".into(), "no such file".into())] };
        let text = error.to_string();
        assert!(text.contains("--nccl-library") && text.contains("/x/libnccl.so.2 (no such file)"), "{text}");
        assert_eq!(error.kind(), ErrorKind::Environment);
    }
}
