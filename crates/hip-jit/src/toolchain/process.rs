//! Runs a program with a deadline and a clean environment.
#![expect(
    clippy::disallowed_methods,
    reason = "other processes and compilers live on the machine's time: no simulation drives them"
)]

use std::ffi::OsString;
use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;
use std::{env, fs, io, thread};

use rustix::io::Errno;
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process_group, waitid};

use super::{CompileFailure, CompileJob, CompileOutput, OBJECT_FILE, why_failed};
use crate::deadline::Deadline;
use crate::error::FailureReason;

/// The environment of compilers. Nothing of the caller's reaches them: `CPATH`, `HIPCC_COMPILE_FLAGS_APPEND` and
/// their like change code without changing the key.
#[derive(Clone, Debug)]
pub(super) struct CleanEnvironment {
    pub(super) path: Vec<PathBuf>,
    pub(super) library_path: Vec<PathBuf>,
    /// How long a question may take.
    pub(super) patience: Duration,
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
        let (finished, bytes) = run_collecting(command, self.patience).map_err(|error| error.to_string())?;
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
            Finished::TimedOut => {
                Err(format!("`{}` takes more than {:?}", arguments.join(" "), self.patience))
            }
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
        let file_failed = |operation: &str, path: &Path, error: &io::Error| {
            let problem = format!("cannot {operation} {}: {error}", path.display());
            failed(FailureReason::WorkFolder { problem }, String::new())
        };
        // A file takes both outputs in order and cannot fill up like a pipe.
        let log_path = job.work.join("output");
        let no_log = |error: io::Error| file_failed("create", &log_path, &error);
        let log_file = job.disk.create_file(&log_path).map_err(no_log)?;
        let mut command = Command::new(program);
        command.args(arguments).current_dir(job.work).stdin(Stdio::null());
        command.stdout(log_file.try_clone().map_err(no_log)?).stderr(log_file);
        self.apply(&mut command);
        command.env("TMPDIR", job.work);
        let finished = run(command, job.deadline).map_err(|error| {
            // The system does not say which of the two it misses.
            let problem = format!("cannot start {} in {}: {error}", program.display(), job.work.display());
            failed(FailureReason::NotRun { problem }, String::new())
        })?;
        let log = job.disk.read(&log_path).map_err(|error| file_failed("read", &log_path, &error))?;
        let log = String::from_utf8_lossy(&log).into_owned();
        job.disk.remove_file(&log_path).map_err(|error| file_failed("remove", &log_path, &error))?;
        match finished {
            Finished::Exited(0) => {}
            Finished::Exited(code) => return Err(failed(why_failed(code, &log), log)),
            Finished::Signalled(signal) => return Err(failed(FailureReason::Crashed { signal }, log)),
            Finished::TimedOut => return Err(failed(FailureReason::TimedOut { after: job.deadline }, log)),
        }
        let object_path = job.work.join(OBJECT_FILE);
        match job.disk.read(&object_path) {
            Ok(object) => Ok(CompileOutput { object, log, command: shown }),
            Err(error) if error.kind() == io::ErrorKind::NotFound && job.work.is_dir() => {
                let problem = format!("there is no {OBJECT_FILE} though it says it succeeded");
                Err(failed(FailureReason::BadObject { problem }, log))
            }
            Err(error) => Err(file_failed("read", &object_path, &error)),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Finished {
    Exited(i32),
    Signalled(i32),
    TimedOut,
}

/// Runs the command and returns what it wrote.
///
/// Into a file in memory and not through a pipe: a process that the command leaves behind may hold a pipe open for
/// as long as it likes, and a file ends where it ends.
fn run_collecting(mut command: Command, deadline: Duration) -> io::Result<(Finished, Vec<u8>)> {
    let output = File::from(rustix::fs::memfd_create("output", rustix::fs::MemfdFlags::CLOEXEC)?);
    command.stdin(Stdio::null()).stdout(output.try_clone()?).stderr(output.try_clone()?);
    let finished = run(command, deadline)?;
    let mut bytes = vec![0; output.metadata()?.len() as usize];
    // At an offset: the file's own position belongs to a process that may still write.
    output.read_exact_at(&mut bytes, 0)?;
    Ok((finished, bytes))
}

/// Runs the command as a process group of its own, which ends with it however it ends: no helper of a compiler is
/// left behind.
fn run(mut command: Command, longest: Duration) -> io::Result<Finished> {
    let deadline = Deadline::after(longest);
    let mut child = command.process_group(0).spawn()?;
    let group = Pid::from_child(&child);
    let mut pause = Duration::from_millis(1);
    // The leader is looked at without being reaped: until it is, its number cannot become another group's.
    let ended = loop {
        match waitid(
            WaitId::Pid(group),
            WaitIdOptions::EXITED | WaitIdOptions::NOWAIT | WaitIdOptions::NOHANG,
        ) {
            Ok(Some(_)) => break true,
            Ok(None) | Err(Errno::INTR) => {}
            // Another thread reaps this process's children, so the end of this one cannot be observed.
            Err(_) => break child.try_wait()?.is_some(),
        }
        if deadline.passed() {
            break false;
        }
        thread::sleep(pause);
        pause = (pause * 2).min(Duration::from_millis(10));
    };
    if let Err(error) = kill_process_group(group, Signal::KILL)
        && error != Errno::SRCH
    {
        tracing::warn!(%error, "the helpers of a compiler cannot be ended");
    }
    let status = child.wait()?;
    Ok(match (ended, status.code(), status.signal()) {
        (false, ..) => Finished::TimedOut,
        (true, Some(code), _) => Finished::Exited(code),
        (true, None, Some(signal)) => Finished::Signalled(signal),
        (true, None, None) => unreachable!("a process that was waited for has an exit code or a signal"),
    })
}

/// Why a path is no program that can be run.
pub(super) fn check_program(path: &Path) -> Result<(), String> {
    use std::os::unix::fs::PermissionsExt as _;
    let data = check_file(path)?;
    if data.permissions().mode() & 0o111 == 0 {
        return Err("is not executable".to_owned());
    }
    Ok(())
}

/// Why a path is no file.
pub(super) fn check_file(path: &Path) -> Result<fs::Metadata, String> {
    match fs::metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Err("no such file".to_owned()),
        Err(error) => Err(error.to_string()),
        Ok(data) if !data.is_file() => Err("is no file".to_owned()),
        Ok(data) => Ok(data),
    }
}

/// The first executable file of this name; a name with a `/` is taken as a path.
pub(super) fn find_program(name: &str, folders: &[PathBuf]) -> Option<PathBuf> {
    let executable = |path: &PathBuf| check_program(path).is_ok();
    if name.contains('/') {
        return Some(PathBuf::from(name)).filter(executable);
    }
    folders.iter().map(|folder| folder.join(name)).find(executable)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Instant;

    #[test]
    fn a_program_that_takes_too_long_is_killed_with_its_children() {
        let mut command = Command::new("/bin/sh");
        command.args(["-c", "sleep 30 & echo started; sleep 30"]);
        let begun = Instant::now();
        let (finished, bytes) = run_collecting(command, Duration::from_millis(200)).unwrap();
        assert_eq!((finished, bytes.as_slice()), (Finished::TimedOut, b"started\n".as_slice()));
        assert!(begun.elapsed() < Duration::from_secs(10));
    }

    #[test]
    fn an_orphaned_child_delays_nothing_and_ends() {
        let mut command = Command::new("/bin/sh");
        command.args(["-c", "sleep 30 & echo $!"]);
        let begun = Instant::now();
        let (finished, bytes) = run_collecting(command, Duration::from_secs(20)).unwrap();
        assert_eq!(finished, Finished::Exited(0));
        assert!(begun.elapsed() < Duration::from_secs(10), "its output is still open: {:?}", begun.elapsed());
        let child = String::from_utf8(bytes).unwrap();
        let gone = || {
            // A zombie that is not reaped yet has ended too.
            let status = fs::read_to_string(format!("/proc/{}/stat", child.trim())).unwrap_or_default();
            status.is_empty() || status.contains(") Z ")
        };
        let until = Instant::now() + Duration::from_secs(10);
        while !gone() {
            assert!(Instant::now() < until, "process {child} is still there");
            thread::sleep(Duration::from_millis(5));
        }
        // One that left the group is not ended, and delays nothing either.
        let mut command = Command::new("/bin/sh");
        command.args(["-c", "setsid sleep 2 & echo done"]);
        let begun = Instant::now();
        assert_eq!(run_collecting(command, Duration::from_secs(20)).unwrap().1, b"done\n");
        assert!(begun.elapsed() < Duration::from_secs(2));
    }

    #[test]
    fn outcomes_are_distinguished() {
        let sh = |script: &str| {
            let mut command = Command::new("/bin/sh");
            command.args(["-c", script]);
            run_collecting(command, Duration::from_secs(10)).unwrap()
        };
        assert_eq!(sh("echo a; echo b >&2"), (Finished::Exited(0), b"a\nb\n".to_vec()));
        assert_eq!(sh("exit 3").0, Finished::Exited(3));
        assert_eq!(sh("kill -SEGV $$").0, Finished::Signalled(11));
    }

    #[test]
    fn the_callers_environment_stays_out() {
        let clean = CleanEnvironment {
            path: vec!["/bin".into()],
            library_path: vec![],
            patience: Duration::from_secs(20),
        };
        let text = clean.ask(Path::new("/bin/sh"), &["-c", "echo ${HOME-none} ${CARGO-none} $PATH"]).unwrap();
        assert_eq!(text, "none none /bin\n");
    }
}
