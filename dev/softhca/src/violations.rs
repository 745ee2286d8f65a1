//! What the program does that a NIC does not allow, and that no error of the NIC reports: counted, printed, and listed in a file that
//! makes run.sh fail.

use std::fmt;
use std::fs::OpenOptions;
use std::io::Write as _;
use std::path::PathBuf;
use std::sync::Mutex;

/// The file in the NICs' folder; run.sh has the same name.
const FILE: &str = "violations";
/// No more than these are printed and listed by a process.
const LISTED: usize = 20;

/// The violations of a process.
#[derive(Debug)]
pub(crate) struct Violations {
    file: PathBuf,
    found: Mutex<Vec<String>>,
}

impl Violations {
    pub(crate) fn new(folder: &std::path::Path) -> Self {
        Self { file: folder.join(FILE), found: Mutex::default() }
    }

    /// Counts one.
    pub(crate) fn add(&self, text: impl fmt::Display) {
        let text = text.to_string();
        let Ok(mut found) = self.found.lock() else { return };
        if found.len() < LISTED {
            crate::report(format_args!("violation: {text}"));
            let file = OpenOptions::new().create(true).append(true).open(&self.file);
            let line = format!("process {}: {text}\n", std::process::id());
            if let Err(error) = file.and_then(|mut file| file.write_all(line.as_bytes())) {
                // The run must not pass.
                crate::report(format_args!("{} cannot be written: {error}", self.file.display()));
                std::process::abort();
            }
        }
        found.push(text);
    }

    /// All of them so far.
    #[cfg(test)]
    pub(crate) fn list(&self) -> Vec<String> {
        self.found.lock().unwrap().clone()
    }
}
