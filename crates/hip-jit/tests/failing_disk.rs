//! A disk that fails at one place.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use anabranch_hip_jit::disk::{DiskFaults, DiskOperation};

/// How long a [`FailingDisk`] fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outage {
    /// One operation.
    Once,
    /// That and all that follow, also removals.
    ForGood,
    /// That and all that follow and need space or write access; reading, locking and removing work: a full disk.
    Full,
}

/// An operation that was made to fail.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Failed {
    /// Which.
    pub(crate) operation: DiskOperation,
    /// On what.
    pub(crate) path: PathBuf,
}

/// Fails the n-th operation. To try every place, count `at` up from 0 until [`FailingDisk::failed`] stays `None`.
#[derive(Debug)]
pub(crate) struct FailingDisk {
    at: u64,
    outage: Outage,
    below: PathBuf,
    /// As the system numbers it.
    errno: i32,
    asked: AtomicU64,
    failed: Mutex<Option<Failed>>,
}

impl FailingDisk {
    /// Fails operation `at`, from 0, with the system's error `errno` (28 on Linux: no space is left).
    pub(crate) fn new(at: u64, outage: Outage, errno: i32) -> Self {
        Self { at, outage, below: PathBuf::new(), errno, asked: AtomicU64::new(0), failed: Mutex::default() }
    }

    /// Counts and fails only operations on this folder and what is in it: one disk of several.
    #[must_use]
    pub(crate) fn below(mut self, folder: impl Into<PathBuf>) -> Self {
        self.below = folder.into();
        self
    }

    /// The first operation that was made to fail; `None` when there were too few.
    pub(crate) fn failed(&self) -> Option<Failed> {
        self.failed.lock().unwrap().clone()
    }
}

impl DiskFaults for FailingDisk {
    fn before(&self, operation: DiskOperation, path: &Path) -> io::Result<()> {
        if !path.starts_with(&self.below) {
            return Ok(());
        }
        let number = self.asked.fetch_add(1, Ordering::Relaxed);
        let fails = match self.outage {
            Outage::Once => number == self.at,
            Outage::ForGood => number >= self.at,
            Outage::Full => number >= self.at && needs_space(operation),
        };
        if !fails {
            return Ok(());
        }
        self.failed.lock().unwrap().get_or_insert_with(|| Failed { operation, path: path.to_owned() });
        Err(io::Error::from_raw_os_error(self.errno))
    }
}

fn needs_space(operation: DiskOperation) -> bool {
    use DiskOperation::{CreateFile, CreateFolder, Flush, OpenLock, Rename, Write};
    matches!(operation, CreateFolder | CreateFile | Write | Flush | Rename | OpenLock)
}
