//! The file operations of the cache and of compilations, in one place, so that tests can make each of them fail.
//!
//! Ordinary runs pay a test of an empty option for each operation. A test hands
//! [`JitConfig::disk`](crate::JitConfig::disk) or [`Cache::with_disk`](crate::Cache::with_disk) a [`Disk`] with
//! [`DiskFaults`]: [`DiskFaults::before`] is called before every operation and may fail it, or change the files meanwhile as
//! another process might. Checks whether a file exists and how old it is bypass this seam, and compilers that are programs use the
//! real disk.

use std::fmt;
use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// What is asked of a disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum DiskOperation {
    /// A folder is made, with those above it where the caller wants that.
    CreateFolder,
    /// A file is made, or emptied, for writing.
    CreateFile,
    /// A file is written as a whole.
    Write,
    /// A file or folder is brought to stable storage.
    Flush,
    /// A file or folder gets another name.
    Rename,
    /// A file or a folder with all that is in it goes.
    Remove,
    /// A file is read as a whole.
    Read,
    /// A folder's entries are listed.
    List,
    /// A lock file is opened.
    OpenLock,
    /// A lock is tried.
    Lock,
}

/// Hears of operations before they happen, on the thread that does them.
pub trait DiskFaults: Send + Sync + fmt::Debug {
    /// Whether the operation takes place. One that fails changes nothing, but for [`DiskOperation::Write`]: it leaves
    /// the first half of the bytes, as a full disk does.
    ///
    /// # Errors
    /// What the operation is to fail with.
    fn before(&self, operation: DiskOperation, path: &Path) -> io::Result<()>;
}

/// The disk, with faults if a test asks for them. The default is without.
#[derive(Clone, Debug, Default)]
pub struct Disk {
    faults: Option<Arc<dyn DiskFaults>>,
}

impl Disk {
    /// A disk whose operations `faults` decides about.
    pub fn with_faults(faults: Arc<dyn DiskFaults>) -> Self {
        Self { faults: Some(faults) }
    }

    fn ask(&self, operation: DiskOperation, path: &Path) -> io::Result<()> {
        self.faults.as_ref().map_or(Ok(()), |faults| faults.before(operation, path))
    }

    pub(crate) fn create_folder(&self, path: &Path) -> io::Result<()> {
        self.ask(DiskOperation::CreateFolder, path)?;
        fs::create_dir(path)
    }

    pub(crate) fn create_folders(&self, path: &Path) -> io::Result<()> {
        self.ask(DiskOperation::CreateFolder, path)?;
        fs::create_dir_all(path)
    }

    pub(crate) fn create_file(&self, path: &Path) -> io::Result<File> {
        self.ask(DiskOperation::CreateFile, path)?;
        File::create(path)
    }

    pub(crate) fn create_new_file(&self, path: &Path) -> io::Result<File> {
        self.ask(DiskOperation::CreateFile, path)?;
        OpenOptions::new().write(true).create_new(true).open(path)
    }

    pub(crate) fn write(&self, path: &Path, bytes: &[u8]) -> io::Result<()> {
        if let Err(error) = self.ask(DiskOperation::Write, path) {
            File::create(path)?.write_all(&bytes[..bytes.len() / 2])?;
            return Err(error);
        }
        fs::write(path, bytes)
    }

    /// Waits for the file system to have what was written.
    pub(crate) fn flush(&self, path: &Path) -> io::Result<()> {
        self.ask(DiskOperation::Flush, path)?;
        File::open(path)?.sync_all()
    }

    pub(crate) fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.ask(DiskOperation::Rename, from)?;
        fs::rename(from, to)
    }

    pub(crate) fn remove_file(&self, path: &Path) -> io::Result<()> {
        self.ask(DiskOperation::Remove, path)?;
        fs::remove_file(path)
    }

    /// Also what is no folder.
    pub(crate) fn remove_all(&self, path: &Path) -> io::Result<()> {
        self.ask(DiskOperation::Remove, path)?;
        if fs::symlink_metadata(path)?.is_dir() { fs::remove_dir_all(path) } else { fs::remove_file(path) }
    }

    pub(crate) fn read(&self, path: &Path) -> io::Result<Vec<u8>> {
        self.ask(DiskOperation::Read, path)?;
        fs::read(path)
    }

    /// What lies directly in a folder, sorted. What goes meanwhile is left out.
    pub(crate) fn list(&self, folder: &Path) -> io::Result<Vec<PathBuf>> {
        self.ask(DiskOperation::List, folder)?;
        let mut found: Vec<_> =
            fs::read_dir(folder)?.filter_map(|entry| entry.ok().map(|entry| entry.path())).collect();
        found.sort();
        Ok(found)
    }

    pub(crate) fn open_lock(&self, path: &Path) -> io::Result<File> {
        self.ask(DiskOperation::OpenLock, path)?;
        OpenOptions::new().create(true).truncate(false).write(true).open(path)
    }

    pub(crate) fn try_lock(&self, file: &File, path: &Path) -> Result<(), TryLockError> {
        self.ask(DiskOperation::Lock, path).map_err(TryLockError::Error)?;
        file.try_lock()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug)]
    struct NoSpace;

    impl DiskFaults for NoSpace {
        fn before(&self, operation: DiskOperation, _: &Path) -> io::Result<()> {
            let fails = operation == DiskOperation::Write;
            if fails { Err(io::ErrorKind::StorageFull.into()) } else { Ok(()) }
        }
    }

    #[test]
    fn failed_write_leaves_half_of_the_bytes() {
        let folder = crate::scratch::folder("failing-disk");
        let file = folder.join("file");
        let disk = Disk::with_faults(Arc::new(NoSpace));
        assert_eq!(disk.write(&file, b"12345678").unwrap_err().kind(), io::ErrorKind::StorageFull);
        assert_eq!(disk.read(&file).unwrap(), b"1234");
        fs::remove_dir_all(folder).unwrap();
    }
}
