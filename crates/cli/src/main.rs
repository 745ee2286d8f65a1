//! The program `anabranch`.

use std::process::ExitCode;

fn main() -> ExitCode {
    let mut words = std::env::args_os();
    let called = words.next().unwrap_or_else(|| "anabranch".into());
    // Found by its path, whatever it was called as.
    let program = std::env::current_exe().map_or(called, Into::into);
    ExitCode::from(anabranch_cli::run(vec![program], words.collect()))
}
