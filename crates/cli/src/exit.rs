//! Exit codes, for scripts.
//!
//! 0 success; 1 a finding of the command (a failed check or seed, a wrong call); 2 configuration or usage; 3
//! environment; 4 a kernel does not compile; 5 a peer; 6 a device. `run` exits with the code of the rank that is the
//! cause, and with 128 plus the number of a signal.

use std::fmt;

use anabranch::config::ConfigError;
use anabranch_bench::reported::Reported;
use anabranch_sim::{CaseError, UnknownProtocol};

/// An invalid request, refused before anything was started. Its text is its cause's.
#[derive(Debug)]
struct Usage(anyhow::Error);

impl fmt::Display for Usage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl std::error::Error for Usage {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        // The text is the outermost cause's, but that cause may have a code.
        Some(self.0.as_ref())
    }
}

/// An error of usage, unless a cause has another code, for example a missing library.
pub(crate) fn usage(error: anyhow::Error) -> anyhow::Error {
    Usage(error).into()
}

/// The exit code of an error: that of the first cause that has one.
pub(crate) fn code_of(error: &anyhow::Error) -> i32 {
    if let Some(Usage(cause)) = error.downcast_ref() {
        let code = code_of(cause);
        return if code == 1 { i32::from(anabranch::ErrorKind::Config.exit_code()) } else { code };
    }
    for cause in error.chain() {
        if let Some(Reported(code)) = cause.downcast_ref() {
            return *code;
        }
        if let Some(error) = cause.downcast_ref::<anabranch::Error>() {
            return i32::from(error.kind().exit_code());
        }
        if let Some(kind) = anabranch_bench::nccl_error_kind(cause) {
            return i32::from(kind.exit_code());
        }
        if cause.is::<ConfigError>() || cause.is::<CaseError>() || cause.is::<UnknownProtocol>() {
            return i32::from(anabranch::ErrorKind::Config.exit_code());
        }
    }
    1
}

/// The message and its causes in one line, a cause that the message repeats left out.
pub(crate) fn text_of(error: &anyhow::Error) -> String {
    let mut text = String::new();
    for cause in error.chain() {
        let words = cause.to_string();
        if text.is_empty() {
            text = words;
        } else if !text.contains(&words) {
            text = format!("{text}: {words}");
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use anyhow::Context;

    #[test]
    fn codes_are_found_below_contexts() {
        let config = anabranch::Config::from_toml("x", "[heap]\nbyte = 1\n").unwrap_err();
        let wrapped = Err::<(), _>(config).context("loading").unwrap_err();
        assert_eq!(code_of(&wrapped), 2);
        assert!(text_of(&wrapped).starts_with("loading: x line 2: unknown key"));
        let case = "nothing".parse::<anabranch_sim::Protocol>().unwrap_err();
        assert_eq!(code_of(&anyhow::Error::from(case).context("searching")), 2);
        let device = Err::<(), _>(anabranch::Error::NoCacheDirectory).context("opening").unwrap_err();
        assert_eq!(code_of(&device), 3);
        assert_eq!(code_of(&anyhow::anyhow!("anything")), 1);
        assert_eq!(code_of(&Reported(77).into()), 77);
        let cannot = anyhow::anyhow!("--ranks 0").context("bench");
        assert_eq!((code_of(&cannot), text_of(&cannot).as_str()), (1, "bench: --ranks 0"));
        let cannot = usage(cannot);
        assert_eq!((code_of(&cannot), text_of(&cannot).as_str()), (2, "bench: --ranks 0"));
        let environment = usage(anabranch::Error::NoCacheDirectory.into());
        assert_eq!(code_of(&environment), 3);
    }
}
