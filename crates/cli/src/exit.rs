//! Exit codes: what went wrong, for scripts.
//!
//! 0 well; 1 the command's own findings (a check or a seed that failed, a wrong call); 2 configuration or usage; 3
//! environment; 4 a kernel does not compile; 5 a peer; 6 a device. `run` passes on the first failing rank's
//! code, and 128 plus the number of a signal.

use std::fmt;

use anabranch::config::ConfigError;

/// The end of a command that has said already what was wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Reported(pub(crate) i32);

impl fmt::Display for Reported {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "exit code {}", self.0)
    }
}

impl std::error::Error for Reported {}

/// The exit code of an error: that of the first cause that has one.
pub(crate) fn code_of(error: &anyhow::Error) -> i32 {
    for cause in error.chain() {
        if let Some(Reported(code)) = cause.downcast_ref() {
            return *code;
        }
        if let Some(error) = cause.downcast_ref::<anabranch::Error>() {
            return i32::from(error.kind().exit_code());
        }
        if let Some(error) = cause.downcast_ref::<crate::bench::NcclError>() {
            return i32::from(error.kind().exit_code());
        }
        if cause.is::<ConfigError>() || cause.is::<anabranch_sim::CaseError>() {
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
    }
}
