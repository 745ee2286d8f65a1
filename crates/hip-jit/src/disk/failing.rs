//! A disk that fails at one place.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use super::{DiskFaults, DiskOperation};
use crate::sync::{Mutex, lock};

/// How long a [`FailingDisk`] fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outage {
    /// One operation.
    Once,
    /// That and all that follow, also removals.
    ForGood,
    /// That and all that follow and need space or write access; reading, locking and removing work: a full disk.
    Full,
}

/// An operation that was made to fail.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failed {
    /// Which.
    pub operation: DiskOperation,
    /// On what.
    pub path: PathBuf,
}

/// Fails the n-th operation. To try every place, count `at` up from 0 until [`FailingDisk::failed`] stays `None`.
#[derive(Debug)]
pub struct FailingDisk {
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
    pub fn new(at: u64, outage: Outage, errno: i32) -> Self {
        Self { at, outage, below: PathBuf::new(), errno, asked: AtomicU64::new(0), failed: Mutex::default() }
    }

    /// Counts and fails only operations on this folder and what is in it: one disk of several.
    #[must_use]
    pub fn below(mut self, folder: impl Into<PathBuf>) -> Self {
        self.below = folder.into();
        self
    }

    /// The first operation that was made to fail; `None` when there were too few.
    pub fn failed(&self) -> Option<Failed> {
        lock(&self.failed).clone()
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
        lock(&self.failed).get_or_insert_with(|| Failed { operation, path: path.to_owned() });
        Err(io::Error::from_raw_os_error(self.errno))
    }
}

fn needs_space(operation: DiskOperation) -> bool {
    use DiskOperation::{CreateFile, CreateFolder, Flush, OpenLock, Rename, Write};
    matches!(operation, CreateFolder | CreateFile | Write | Flush | Rename | OpenLock)
}

#[cfg(test)]
mod tests {
    use super::super::Disk;
    use super::*;
    use std::sync::Arc;

    #[test]
    fn each_outage_fails_what_it_says() {
        let folder = crate::scratch::folder("failing-disk");
        let file = folder.join("file");
        for (outage, expected) in [
            (Outage::Once, [true, false, true, true, true]),
            (Outage::Full, [true, false, true, false, true]),
            (Outage::ForGood, [true, false, false, false, false]),
        ] {
            let faults = Arc::new(FailingDisk::new(1, outage, 28));
            let disk = Disk::with_faults(faults.clone());
            let outcomes = [
                disk.write(&file, b"old words").is_ok(),
                disk.write(&file, b"12345678").is_ok(),
                disk.read(&file).is_ok(),
                disk.flush(&file).is_ok(),
                disk.remove_file(&file).is_ok(),
            ];
            assert_eq!(outcomes, expected, "{outage:?}");
            assert_eq!(faults.failed(), Some(Failed { operation: DiskOperation::Write, path: file.clone() }));
        }
        let disk = Disk::with_faults(Arc::new(FailingDisk::new(0, Outage::Once, 28)));
        assert_eq!(disk.write(&file, b"12345678").unwrap_err().kind(), io::ErrorKind::StorageFull);
        assert_eq!(std::fs::read(&file).unwrap(), b"1234", "a full disk takes a part");
        std::fs::remove_dir_all(folder).unwrap();
    }
}
