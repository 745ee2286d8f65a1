//! Code objects on disk: content-addressed folders, published by rename, verified before use, healed.
//!
//! ```text
//! <root>/v<schema>/<target>/<unit>-<key>/   kernel.hip  kernel.co  manifest.json (written last)  include/ (with debug information)
//! <root>/v<schema>/.tmp  .trash  .locks  .failed
//! ```
//!
//! Correctness comes from the rename and from verification at load, never from a lock: locks only save work.

mod entry;
mod lock;
mod maintain;
mod nearest;
mod publish;

use std::io;
use std::path::{Path, PathBuf};

use crate::disk::Disk;
use crate::error::{Error, Result};
use crate::key::{CacheKey, SCHEMA};
use crate::target::Target;

pub use entry::Manifest;
pub(crate) use entry::{Expected, Stored, read_entry};
pub(crate) use lock::KeyLock;
pub use maintain::{CacheEntry, CleanReport, CleanRule};
pub(crate) use publish::Workspace;

/// A cache folder. Any number of processes may use one at once.
#[derive(Clone, Debug)]
pub struct Cache {
    base: PathBuf,
    disk: Disk,
}

impl Cache {
    /// The cache under `root`; nothing is touched. The root should lie on a local file system: where renames are not
    /// atomic, entries may be found broken and are then built again.
    pub fn new(root: impl AsRef<Path>) -> Self {
        Self::with_disk(root, Disk::default())
    }

    /// A cache on a disk that a test may make fail.
    pub fn with_disk(root: impl AsRef<Path>, disk: Disk) -> Self {
        Self { base: root.as_ref().join(format!("v{SCHEMA}")), disk }
    }

    /// The folder of this schema.
    pub fn folder(&self) -> &Path {
        &self.base
    }

    /// Where the entry of a key is or would be.
    pub(crate) fn entry(&self, target: &Target, unit: &str, key: CacheKey) -> PathBuf {
        self.base.join(target.directory_name()).join(format!("{unit}-{key}"))
    }

    pub(crate) fn service_folder(&self, name: &str) -> PathBuf {
        self.base.join(name)
    }

    /// Makes the folders that a build needs.
    pub(crate) fn make_folders(&self, target: &Target) -> Result<()> {
        let names = [TEMPORARY, TRASH, LOCKS, FAILED, &target.directory_name()];
        for folder in names.map(|name| self.base.join(name)) {
            self.disk.create_folders(&folder).map_err(Error::cache("create folder", &folder))?;
        }
        Ok(())
    }

    /// Moves a broken entry out of the way, so that a good one can take its place, and deletes it.
    pub(crate) fn move_aside(&self, directory: &Path) -> Result<()> {
        let trash = self.service_folder(TRASH);
        self.disk.create_folders(&trash).map_err(Error::cache("create folder", &trash))?;
        let aside = trash.join(unique_name("entry"));
        match self.disk.rename(directory, &aside) {
            Ok(()) => {
                let _ = self.disk.remove_all(&aside); // what stays is removed by the next cleaning
                Ok(())
            }
            // Another process was faster.
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            Err(error) => Err(Error::cache("move aside", directory)(error)),
        }
    }

    /// The entries of a unit for a target, in the order of their names.
    pub(crate) fn entries_of(&self, target: &Target, unit: &str) -> Vec<PathBuf> {
        let mut found: Vec<_> = sub_folders(&self.disk, &self.base.join(target.directory_name()));
        found.retain(|path| entry_key(path, unit).is_some());
        found
    }
}

pub(crate) const TEMPORARY: &str = ".tmp";
pub(crate) const TRASH: &str = ".trash";
pub(crate) const LOCKS: &str = ".locks";
pub(crate) const FAILED: &str = ".failed";

/// The key in the name of an entry of `unit`.
fn entry_key<'a>(path: &'a Path, unit: &str) -> Option<&'a str> {
    let key = path.file_name()?.to_str()?.strip_prefix(unit)?.strip_prefix('-')?;
    is_key(key).then_some(key)
}

fn is_key(word: &str) -> bool {
    word.len() == 64 && word.bytes().all(|byte| byte.is_ascii_hexdigit())
}

/// Folders directly below, sorted; none when the folder does not exist or cannot be read.
fn sub_folders(disk: &Disk, folder: &Path) -> Vec<PathBuf> {
    let mut found = disk.list(folder).unwrap_or_default();
    found.retain(|path| path.is_dir());
    found
}

/// A name that no other process or thread uses: process, thread and time.
fn unique_name(stem: &str) -> String {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    let thread = format!("{:?}", std::thread::current().id());
    let thread: String = thread.chars().filter(char::is_ascii_digit).collect();
    format!("{stem}.{}.{thread}.{}", std::process::id(), now.as_nanos())
}
