//! Building an entry: a temporary folder that its owner holds locked, then a rename, or a failure that is kept.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, SystemTime};

use crate::deadline::Deadline;
use crate::disk::Disk;
use crate::error::{Error, Result};
use crate::key::CacheKey;
use crate::source::Rendered;
use crate::toolchain::{INCLUDE_FOLDER, OBJECT_FILE, SOURCE_FILE};

use super::entry::{MANIFEST_FILE, Manifest};
use super::{Cache, Expected, FAILED, TEMPORARY, TRASH, read_entry, sub_folders, unique_name};

/// A folder in which one compilation works. Its name cannot match an entry. A lock file beside it shows cleaners that
/// the owner lives; both are removed when this is dropped.
#[derive(Debug)]
pub(crate) struct Workspace {
    disk: Disk,
    folder: PathBuf,
    owner: PathBuf,
    held: File,
}

const OWNER_SUFFIX: &str = ".owner";
/// A folder without its lock file counts as new until it is this old.
const ORPHAN_AGE: Duration = Duration::from_secs(600);
/// Longer than a cleaner holds a lock file.
const CLEANER_MOMENT: Duration = Duration::from_secs(10);

impl Workspace {
    /// Makes a folder with the source in it, below `parent`, which exists.
    pub(crate) fn create(disk: &Disk, parent: &Path, unit: &str, rendered: &Rendered) -> Result<Self> {
        let name = unique_name(unit);
        let owner = parent.join(format!("{name}{OWNER_SUFFIX}"));
        let held = disk.create_new_file(&owner).map_err(Error::cache("create", &owner))?;
        let workspace = Self { disk: disk.clone(), folder: parent.join(name), owner, held };
        workspace.hold().map_err(Error::cache("lock", &workspace.owner))?;
        let folder = &workspace.folder;
        disk.create_folder(folder).map_err(Error::cache("create folder", folder))?;
        write(disk, &folder.join(SOURCE_FILE), rendered.text.as_bytes())?;
        for (name, text) in rendered.headers.iter() {
            let path = folder.join(INCLUDE_FOLDER).join(name);
            if let Some(parent) = path.parent() {
                disk.create_folders(parent).map_err(Error::cache("create folder", parent))?;
            }
            write(disk, &path, text.as_bytes())?;
        }
        Ok(workspace)
    }

    /// Locks the lock file. A cleaner that finds the new file holds it for the moment that it takes to leave it alone.
    #[expect(clippy::disallowed_methods, reason = "a cleaner is another process, in the machine's time")]
    fn hold(&self) -> io::Result<()> {
        let deadline = Deadline::after(CLEANER_MOMENT);
        loop {
            match self.disk.try_lock(&self.held, &self.owner) {
                // Where there are no locks, cleaners cannot lock either, and leave it alone.
                Ok(()) | Err(TryLockError::Error(_)) => break,
                Err(TryLockError::WouldBlock) if !deadline.passed() => {
                    thread::sleep(Duration::from_millis(1));
                }
                Err(TryLockError::WouldBlock) => return Err(io::ErrorKind::ResourceBusy.into()),
            }
        }
        // From now on, unlocked means dead.
        let _ = self.held.set_len(1);
        Ok(())
    }

    pub(crate) fn folder(&self) -> &Path {
        &self.folder
    }

    /// Makes the folder the entry `directory`, or discards it when a whole entry is already there. Headers stay in it for debuggers
    /// only.
    pub(crate) fn publish(
        &self,
        cache: &Cache,
        directory: &Path,
        object: &[u8],
        manifest: &Manifest,
        debug_info: bool,
    ) -> Result<()> {
        let object_path = self.folder.join(OBJECT_FILE);
        let disk = &self.disk;
        write(disk, &object_path, object)?;
        sync(disk, &object_path)?;
        sync(disk, &self.folder.join(SOURCE_FILE))?;
        let manifest_path = self.folder.join(MANIFEST_FILE);
        let text = serde_json::to_vec_pretty(manifest)
            .map_err(|error| Error::cache("write", &manifest_path)(io::Error::other(error)))?;
        write(disk, &manifest_path, &text)?;
        sync(disk, &manifest_path)?;
        if !debug_info {
            let _ = disk.remove_all(&self.folder.join(INCLUDE_FOLDER)); // an entry that has headers is valid too
        }
        sync(disk, &self.folder)?;
        let mut repaired = false;
        loop {
            match disk.rename(&self.folder, directory) {
                Ok(()) => break,
                Err(error) if is_taken(&error) => {
                    match read_entry(disk, directory, Expected::Key(&manifest.key)) {
                        Ok(Some(_)) => return Ok(()),
                        _ if repaired => return Err(Error::cache("replace", directory)(error)),
                        _ => cache.move_aside(directory)?,
                    }
                    repaired = true;
                }
                Err(error) => return Err(Error::cache("publish", directory)(error)),
            }
        }
        // The entry is there and whole. Without this it may be gone after a loss of power, and is then built again.
        if let Some(error) = directory.parent().and_then(|parent| sync(disk, parent).err()) {
            tracing::warn!(%error, "a new cache entry may not outlive a loss of power");
        }
        Ok(())
    }

    /// Keeps the folder of a failed compilation, and the newest `keep` of all.
    pub(crate) fn keep_failed(
        &self,
        cache: &Cache,
        key: CacheKey,
        log: &str,
        refused: bool,
        keep: usize,
    ) -> Option<PathBuf> {
        if keep == 0 {
            return None;
        }
        let folder = cache.service_folder(FAILED);
        let kept = folder.join(unique_name(&key.to_string()));
        let disk = &self.disk;
        let outcome = write(disk, &self.folder.join(LOG_FILE), log.as_bytes())
            .and_then(|()| if refused { write(disk, &self.folder.join(REFUSED_FILE), b"") } else { Ok(()) })
            .and_then(|()| disk.rename(&self.folder, &kept).map_err(Error::cache("keep", &self.folder)));
        if let Err(error) = outcome {
            tracing::warn!(%error, "a failed compilation is not kept");
            return None;
        }
        let mut all: Vec<_> =
            sub_folders(disk, &folder).into_iter().map(|path| (modified(&path), path)).collect();
        all.sort();
        for (_, path) in all.iter().rev().skip(keep) {
            let _ = disk.remove_all(path);
        }
        Some(kept)
    }
}

impl Drop for Workspace {
    fn drop(&mut self) {
        let gone = |outcome: io::Result<()>| match outcome {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        };
        // The lock file goes last: a folder without one is left alone until it is old.
        let outcome =
            gone(self.disk.remove_all(&self.folder)).and_then(|()| gone(self.disk.remove_file(&self.owner)));
        if let Err(error) = outcome {
            tracing::debug!(%error, folder = %self.folder.display(), "a work folder stays until the next cleaning");
        }
    }
}

pub(super) const LOG_FILE: &str = "compile.log";
const REFUSED_FILE: &str = "refused";

impl Cache {
    /// The folder and log of a compilation of `key` that another process failed since `since`, because the
    /// compiler refused the source.
    pub(crate) fn failure_since(&self, key: CacheKey, since: SystemTime) -> Option<(PathBuf, String)> {
        let prefix = key.to_string();
        sub_folders(&self.disk, &self.service_folder(FAILED)).into_iter().find_map(|path| {
            let name = path.file_name()?.to_str()?;
            if !name.starts_with(&prefix) || modified(&path) < since || !path.join(REFUSED_FILE).exists() {
                return None;
            }
            let log = self.disk.read(&path.join(LOG_FILE)).ok()?;
            Some((path, String::from_utf8_lossy(&log).into_owned()))
        })
    }

    /// Removes the leftovers of dead processes.
    pub(crate) fn clean_leftovers(&self) {
        for trash in self.disk.list(&self.service_folder(TRASH)).unwrap_or_default() {
            let _ = self.disk.remove_all(&trash);
        }
        clean_work_folders(&self.disk, &self.service_folder(TEMPORARY));
    }
}

/// Removes the work folders below `parent` whose owners are dead.
fn clean_work_folders(disk: &Disk, parent: &Path) {
    let old = |path: &Path| modified(path).elapsed().is_ok_and(|age| age > ORPHAN_AGE);
    for path in disk.list(parent).unwrap_or_default() {
        let text = path.to_string_lossy();
        if let Some(folder) = text.strip_suffix(OWNER_SUFFIX) {
            // Held until the folder is gone: an owner that has made its lock file and not locked it yet waits meanwhile,
            // and has no folder.
            let Ok(owner) = OpenOptions::new().write(true).open(&path) else { continue };
            if disk.try_lock(&owner, &path).is_err() {
                continue;
            }
            let was_held = owner.metadata().is_ok_and(|data| data.len() > 0);
            if was_held || Path::new(folder).exists() || old(&path) {
                tracing::debug!(folder, "removing a dead process's work folder");
                let _ = owner.set_len(1); // should only the folder go
                match disk.remove_all(Path::new(folder)) {
                    Err(error) if error.kind() != io::ErrorKind::NotFound => {}
                    _ => drop(disk.remove_file(&path)),
                }
            }
        } else if !Path::new(&format!("{text}{OWNER_SUFFIX}")).exists() && old(&path) {
            let _ = disk.remove_all(&path);
        }
    }
}

fn modified(path: &Path) -> SystemTime {
    fs::metadata(path).and_then(|data| data.modified()).unwrap_or(SystemTime::UNIX_EPOCH)
}

fn is_taken(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::AlreadyExists | io::ErrorKind::DirectoryNotEmpty | io::ErrorKind::NotADirectory
    )
}

fn write(disk: &Disk, path: &Path, bytes: &[u8]) -> Result<()> {
    disk.write(path, bytes).map_err(Error::cache("write", path))
}

fn sync(disk: &Disk, path: &Path) -> Result<()> {
    disk.flush(path).map_err(Error::cache("flush", path))
}
