//! Running the built command.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// What a run of the command came to.
#[derive(Debug)]
pub(crate) struct Run {
    /// Its exit code; -1 when a signal ended it.
    pub(crate) code: i32,
    /// Standard output.
    pub(crate) stdout: String,
    /// Standard error.
    pub(crate) stderr: String,
}

impl From<Output> for Run {
    fn from(output: Output) -> Self {
        let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
        Self {
            code: output.status.code().unwrap_or(-1),
            stdout: text(output.stdout),
            stderr: text(output.stderr),
        }
    }
}

/// The command with these arguments, an own kernel cache, and nothing set that a launcher or user may have set.
pub(crate) fn command(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_anabranch"));
    let cache = Path::new(env!("CARGO_TARGET_TMPDIR")).join("cache");
    command.args(arguments).env("XDG_CACHE_HOME", cache);
    for (name, _) in std::env::vars_os() {
        if name.to_str().is_some_and(|name| name.starts_with("ANABRANCH") || name == "RANK") {
            command.env_remove(name);
        }
    }
    command
}

/// Runs it to its end.
#[allow(dead_code, reason = "each test file uses what it needs")]
pub(crate) fn run(arguments: &[&str]) -> Run {
    finish(&mut command(arguments))
}

/// Runs a prepared command to its end.
#[allow(dead_code, reason = "each test file uses what it needs")]
pub(crate) fn finish(command: &mut Command) -> Run {
    match command.output() {
        Ok(output) => output.into(),
        Err(error) => Run { code: -1, stdout: String::new(), stderr: error.to_string() },
    }
}

/// A file of this test with this text.
#[allow(dead_code, reason = "each test file uses what it needs")]
pub(crate) fn file(name: &str, text: &str) -> PathBuf {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{}-{name}", std::process::id()));
    assert!(std::fs::write(&path, text).is_ok(), "{} can be written", path.display());
    path
}
