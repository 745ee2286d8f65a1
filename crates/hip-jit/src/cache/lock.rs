//! One advisory lock per key, held by the process that compiles it. The system releases a dead owner's lock.
#![expect(
    clippy::disallowed_methods,
    reason = "other processes and compilers live on the machine's time: no simulation drives them"
)]

use std::fs::{self, File, TryLockError};
use std::io::Write as _;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use crate::deadline::Deadline;
use crate::error::{Error, Result};
use crate::key::CacheKey;

use super::{Cache, LOCKS};

/// A held lock; released on drop.
#[derive(Debug)]
pub(crate) struct KeyLock {
    _file: File,
    /// Another process held it before.
    pub(crate) waited: bool,
}

impl KeyLock {
    /// Takes the lock of a key. `None` when another process held it for the whole time; the caller then works without it. While it
    /// waits, it calls `report` once per `every`, with the owner and the time waited so far.
    pub(crate) fn acquire(
        cache: &Cache,
        key: CacheKey,
        longest: Duration,
        every: Duration,
        report: impl Fn(&str, Duration),
    ) -> Result<Option<Self>> {
        let path = cache.service_folder(LOCKS).join(key.to_string());
        let file = cache.disk.open_lock(&path).map_err(Error::cache("open lock", &path))?;
        let deadline = Deadline::after(longest);
        let begun = Instant::now();
        let mut next = every;
        let mut waited = false;
        let mut pause = Duration::from_millis(1);
        loop {
            match cache.disk.try_lock(&file, &path) {
                Ok(()) => {
                    note_owner(&file, &path);
                    return Ok(Some(Self { _file: file, waited }));
                }
                Err(TryLockError::WouldBlock) if deadline.passed() => return Ok(None),
                Err(TryLockError::WouldBlock) => {
                    waited = true;
                    let so_far = begun.elapsed();
                    if so_far >= next {
                        report(&owner(&path), so_far);
                        next = so_far.saturating_add(every);
                    }
                    thread::sleep(pause);
                    pause = (pause * 2).min(Duration::from_millis(50));
                }
                // Some network file systems have no locks. They only save work.
                Err(TryLockError::Error(error)) => {
                    tracing::debug!(%error, path = %path.display(), "no lock; compiling without");
                    return Ok(None);
                }
            }
        }
    }
}

/// Who has the lock, as [`note_owner`] noted it.
fn owner(path: &Path) -> String {
    let text = fs::read_to_string(path).unwrap_or_default();
    let words: Vec<_> = text.split_whitespace().collect();
    match words[..] {
        ["host", host, "process", process, ..] => format!("process {process} on {host}"),
        // Just taken, or not noted.
        _ => "another process".to_owned(),
    }
}

/// The file's content, for operators: which process compiles, since when.
fn note_owner(mut file: &File, path: &Path) {
    let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    let text = format!("host {host} process {} since {}\n", std::process::id(), now.as_secs());
    if let Err(error) = file.set_len(0).and_then(|()| file.write_all(text.as_bytes())) {
        tracing::debug!(%error, path = %path.display(), "the lock's owner is not noted");
    }
}
