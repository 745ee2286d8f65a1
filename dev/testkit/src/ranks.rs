//! Ranks as processes.
#![expect(clippy::disallowed_methods, reason = "processes are waited for in the machine's time")]

use std::io::{BufRead as _, BufReader, Read};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::Error;

const RANK: &str = "ANABRANCH_TESTKIT_RANK";
const SIZE: &str = "ANABRANCH_TESTKIT_SIZE";
const ARGUMENT: &str = "ANABRANCH_TESTKIT_ARGUMENT";
const PAUSE: Duration = Duration::from_millis(5);

/// The part that this process plays.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Role {
    /// Its number.
    pub rank: u32,
    /// How many there are.
    pub size: u32,
    /// What the test handed over.
    pub argument: String,
}

/// The role of this process when [`Ranks`] started it; `None` in the test itself.
pub fn role() -> Option<Role> {
    let number = |name| variable(name)?.parse().ok();
    Some(Role { rank: number(RANK)?, size: number(SIZE)?, argument: variable(ARGUMENT).unwrap_or_default() })
}

#[expect(clippy::disallowed_methods, reason = "how the runner talks to the processes that it starts")]
fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok()
}

/// The processes of one test.
#[derive(Debug)]
pub struct Ranks {
    processes: Vec<RankProcess>,
}

/// One of them. Killed when dropped.
#[derive(Debug)]
pub struct RankProcess {
    rank: u32,
    child: Child,
    output: Arc<Mutex<String>>,
    readers: Vec<JoinHandle<()>>,
}

/// How a rank ended.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// Its number.
    pub rank: u32,
    /// Its exit status; a signal when it was killed.
    pub status: ExitStatus,
    /// What it printed on both streams.
    pub output: String,
}

impl Ranks {
    /// Starts `size` processes of this binary, each of which runs the test of this name with its role.
    ///
    /// # Errors
    /// [`Error::Start`]; those that were started are killed.
    pub fn start(test: &str, size: u32, argument: &str) -> Result<Self, Error> {
        let processes = (0..size).map(|rank| RankProcess::start(test, rank, size, argument));
        Ok(Self { processes: processes.collect::<Result<_, _>>()? })
    }

    /// The processes, in rank order.
    pub fn processes(&mut self) -> &mut [RankProcess] {
        &mut self.processes
    }

    /// Waits for all of them and returns how each ended, in rank order.
    ///
    /// # Errors
    /// [`Error::Late`] for the first that did not end in time.
    pub fn wait(self, limit: Duration) -> Result<Vec<Outcome>, Error> {
        let end = Instant::now() + limit;
        self.processes.into_iter().map(|process| process.wait_until(end, limit)).collect()
    }

    /// Waits for all of them; every one must succeed.
    ///
    /// # Errors
    /// [`Error::Late`], or [`Error::Failed`] with the output of the first that failed.
    pub fn succeed(self, limit: Duration) -> Result<Vec<Outcome>, Error> {
        let outcomes = self.wait(limit)?;
        match outcomes.iter().find(|outcome| !outcome.status.success()) {
            None => Ok(outcomes),
            Some(failed) => {
                Err(Error::Failed { rank: failed.rank, status: failed.status, output: failed.output.clone() })
            }
        }
    }
}

impl RankProcess {
    fn start(test: &str, rank: u32, size: u32, argument: &str) -> Result<Self, Error> {
        let failed = |source| Error::Start { rank, source };
        let binary = std::env::current_exe().map_err(failed)?;
        let mut child = Command::new(binary)
            // The test may be an extended one, which is ignored unless asked for.
            .args([test, "--exact", "--include-ignored", "--nocapture", "--test-threads=1"])
            .env(RANK, rank.to_string())
            .env(SIZE, size.to_string())
            .env(ARGUMENT, argument)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(failed)?;
        let output = Arc::new(Mutex::new(String::new()));
        let mut readers = Vec::new();
        if let Some(stream) = child.stdout.take() {
            readers.push(collect(stream, Arc::clone(&output)));
        }
        if let Some(stream) = child.stderr.take() {
            readers.push(collect(stream, Arc::clone(&output)));
        }
        Ok(Self { rank, child, output, readers })
    }

    /// Ends it as the system would: with SIGKILL, without a goodbye.
    ///
    /// # Errors
    /// [`Error::Wait`].
    pub fn kill(&mut self) -> Result<(), Error> {
        self.child.kill().map_err(|source| Error::Wait { rank: self.rank, source })
    }

    /// Waits until it has printed a line with `word` in it.
    ///
    /// # Errors
    /// [`Error::Silent`], also at once when it ended without the word.
    pub fn wait_for(&mut self, word: &str, limit: Duration) -> Result<(), Error> {
        let end = Instant::now() + limit;
        loop {
            let ended = !matches!(self.child.try_wait(), Ok(None));
            // What it printed last may still be in the pipes.
            let ended = ended && self.readers.iter().all(JoinHandle::is_finished);
            if self.output().contains(word) {
                return Ok(());
            }
            if ended || Instant::now() > end {
                return Err(Error::Silent {
                    rank: self.rank,
                    word: word.to_owned(),
                    waited: limit,
                    output: self.output(),
                });
            }
            std::thread::sleep(PAUSE);
        }
    }

    /// What it has printed so far.
    pub fn output(&self) -> String {
        self.output.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn wait_until(mut self, end: Instant, limit: Duration) -> Result<Outcome, Error> {
        let rank = self.rank;
        let status = loop {
            match self.child.try_wait().map_err(|source| Error::Wait { rank, source })? {
                Some(status) => break status,
                None if Instant::now() > end => {
                    return Err(Error::Late { rank, waited: limit, output: self.output() });
                }
                None => std::thread::sleep(PAUSE),
            }
        };
        for reader in self.readers.drain(..) {
            // A reader ends with the stream and does not panic.
            let _ = reader.join();
        }
        Ok(Outcome { rank, status, output: self.output() })
    }
}

impl Drop for RankProcess {
    fn drop(&mut self) {
        // Both fail only when the process has ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn collect(stream: impl Read + Send + 'static, output: Arc<Mutex<String>>) -> JoinHandle<()> {
    std::thread::spawn(move || {
        let mut lines = BufReader::new(stream);
        let mut line = String::new();
        while matches!(lines.read_line(&mut line), Ok(count) if count > 0) {
            output.lock().unwrap_or_else(PoisonError::into_inner).push_str(&line);
            line.clear();
        }
    })
}
