//! Runs a program with a deadline and a clean environment.

use std::ffi::OsString;
use std::fs::File;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use std::{env, fs, io, thread};

use super::{CompileFailure, CompileJob, CompileOutput, OBJECT_FILE};
use crate::error::FailureReason;

/// The environment of compilers. Nothing of the caller's reaches them: `CPATH`, `HIPCC_COMPILE_FLAGS_APPEND` and
/// their like change code without changing the key.
#[derive(Clone, Debug, Default)]
pub(super) struct CleanEnvironment {
    pub(super) path: Vec<PathBuf>,
    pub(super) library_path: Vec<PathBuf>,
}

impl CleanEnvironment {
    fn apply(&self, command: &mut Command) {
        let joined = |folders: &[PathBuf]| env::join_paths(folders).unwrap_or_else(|_| OsString::new());
        command.env_clear().env("LC_ALL", "C").env("PATH", joined(&self.path));
        if !self.library_path.is_empty() {
            command.env("LD_LIBRARY_PATH", joined(&self.library_path));
        }
    }

    /// Runs a program for its output (stdout, then stderr), which must come with success.
    pub(super) fn ask(&self, program: &Path, arguments: &[&str]) -> Result<String, String> {
        let mut command = Command::new(program);
        command.args(arguments);
        self.apply(&mut command);
        let (finished, bytes) = run_piped(command, ASK_DEADLINE).map_err(|error| error.to_string())?;
        let text = String::from_utf8_lossy(&bytes).into_owned();
        match finished {
            Finished::Exited(0) => Ok(text),
            Finished::Exited(code) => Err(format!(
                "`{}` exits with {code}: {}",
                arguments.join(" "),
                text.lines().next().unwrap_or_default()
            )),
            Finished::Signalled(signal) => {
                Err(format!("`{}` is ended by signal {signal}", arguments.join(" ")))
            }
            Finished::TimedOut => Err(format!("`{}` takes more than {ASK_DEADLINE:?}", arguments.join(" "))),
        }
    }

    /// Runs a compiler in the job's folder; it is to write [`OBJECT_FILE`] there.
    pub(super) fn compile(
        &self,
        program: &Path,
        arguments: &[String],
        job: &CompileJob<'_>,
    ) -> Result<CompileOutput, CompileFailure> {
        let words: Vec<_> = arguments.iter().map(String::as_str).collect();
        let shown = format!("{} {}", program.display(), words.join(" "));
        let failed = |reason, log| CompileFailure { reason, log, command: shown.clone() };
        let not_run =
            |error: io::Error| failed(FailureReason::NotRun { problem: error.to_string() }, String::new());
        // A file takes both outputs in order and cannot fill up like a pipe.
        let log_path = job.work.join("output");
        let log_file = File::create(&log_path).map_err(not_run)?;
        let mut command = Command::new(program);
        command.args(arguments).current_dir(job.work).stdin(Stdio::null());
        command.stdout(log_file.try_clone().map_err(not_run)?).stderr(log_file);
        self.apply(&mut command);
        command.env("TMPDIR", job.work);
        let finished = run(command, job.deadline).map_err(not_run)?;
        let log = String::from_utf8_lossy(&fs::read(&log_path).map_err(not_run)?).into_owned();
        fs::remove_file(&log_path).map_err(not_run)?;
        match finished {
            Finished::Exited(0) => {}
            Finished::Exited(_) => return Err(failed(FailureReason::Refused, log)),
            Finished::Signalled(signal) => return Err(failed(FailureReason::Crashed { signal }, log)),
            Finished::TimedOut => return Err(failed(FailureReason::TimedOut { after: job.deadline }, log)),
        }
        match fs::read(job.work.join(OBJECT_FILE)) {
            Ok(object) => Ok(CompileOutput { object, log, command: shown }),
            Err(error) => {
                Err(failed(FailureReason::BadObject { problem: format!("cannot read it: {error}") }, log))
            }
        }
    }
}

const ASK_DEADLINE: Duration = Duration::from_secs(20);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Finished {
    Exited(i32),
    Signalled(i32),
    TimedOut,
}

fn run_piped(mut command: Command, deadline: Duration) -> io::Result<(Finished, Vec<u8>)> {
    use io::Read as _;
    let (mut reader, writer) = io::pipe()?;
    command.stdin(Stdio::null()).stdout(writer.try_clone()?).stderr(writer);
    // The thread reads until the last writer is gone, which the deadline below guarantees.
    let collector = thread::spawn(move || {
        let mut bytes = Vec::new();
        let _ = reader.read_to_end(&mut bytes);
        bytes
    });
    let finished = run(command, deadline);
    let bytes = collector.join().unwrap_or_default();
    Ok((finished?, bytes))
}

/// Runs the command as a process group of its own, so that the compiler's helpers die with it.
fn run(mut command: Command, deadline: Duration) -> io::Result<Finished> {
    let until = Instant::now() + deadline;
    let mut child = command.process_group(0).spawn()?;
    drop(command); // closes this process's copies of the output's writing end
    let mut pause = Duration::from_millis(1);
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(match (status.code(), status.signal()) {
                (Some(code), _) => Finished::Exited(code),
                (None, signal) => Finished::Signalled(signal.unwrap_or_default()),
            });
        }
        if Instant::now() >= until {
            if let Some(group) = rustix::process::Pid::from_raw(child.id() as i32)
                && let Err(error) = rustix::process::kill_process_group(group, rustix::process::Signal::KILL)
            {
                tracing::warn!(%error, "a compiler that takes too long cannot be killed");
            }
            child.wait()?;
            return Ok(Finished::TimedOut);
        }
        thread::sleep(pause);
        pause = (pause * 2).min(Duration::from_millis(10));
    }
}

/// The first executable file of this name; a name with a `/` is taken as a path.
pub(super) fn find_program(name: &str, folders: &[PathBuf]) -> Option<PathBuf> {
    use std::os::unix::fs::PermissionsExt as _;
    let executable = |path: &PathBuf| {
        fs::metadata(path).is_ok_and(|data| data.is_file() && data.permissions().mode() & 0o111 != 0)
    };
    if name.contains('/') {
        return Some(PathBuf::from(name)).filter(executable);
    }
    folders.iter().map(|folder| folder.join(name)).find(executable)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_that_takes_too_long_is_killed_with_its_children() {
        let mut command = Command::new("/bin/sh");
        command.args(["-c", "sleep 30 & echo started; sleep 30"]);
        let begun = Instant::now();
        let (finished, bytes) = run_piped(command, Duration::from_millis(200)).unwrap();
        assert_eq!((finished, bytes.as_slice()), (Finished::TimedOut, b"started\n".as_slice()));
        assert!(begun.elapsed() < Duration::from_secs(10));
    }

    #[test]
    fn outcomes_are_told_apart() {
        let sh = |script: &str| {
            let mut command = Command::new("/bin/sh");
            command.args(["-c", script]);
            run_piped(command, Duration::from_secs(10)).unwrap()
        };
        assert_eq!(sh("echo a; echo b >&2"), (Finished::Exited(0), b"a\nb\n".to_vec()));
        assert_eq!(sh("exit 3").0, Finished::Exited(3));
        assert_eq!(sh("kill -SEGV $$").0, Finished::Signalled(11));
    }

    #[test]
    fn the_callers_environment_stays_out() {
        let clean = CleanEnvironment { path: vec!["/bin".into()], library_path: vec![] };
        let text = clean.ask(Path::new("/bin/sh"), &["-c", "echo ${HOME-none} ${CARGO-none} $PATH"]).unwrap();
        assert_eq!(text, "none none /bin\n");
    }
}
