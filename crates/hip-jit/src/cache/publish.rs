//! Building an entry: a temporary folder that its owner holds locked, a rename, or a kept failure.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use crate::error::{Error, Result};
use crate::key::CacheKey;
use crate::source::Rendered;
use crate::toolchain::{INCLUDE_FOLDER, OBJECT_FILE, SOURCE_FILE};

use super::entry::{MANIFEST_FILE, Manifest};
use super::{Cache, Expected, FAILED, TEMPORARY, TRASH, read_entry, sub_folders, sync, unique_name};

/// A folder in which one compilation works. Its name cannot match an entry. A lock file beside it tells cleaners that
/// the owner lives; both go when this is dropped.
#[derive(Debug)]
pub(crate) struct Workspace {
    folder: PathBuf,
    owner: PathBuf,
    _held: File,
}

const OWNER_SUFFIX: &str = ".owner";
/// A folder without its lock file is taken for a new one until it is this old.
const ORPHAN_AGE: Duration = Duration::from_secs(600);

impl Workspace {
    /// Makes a folder with the source in it, below `parent`, which exists.
    pub(crate) fn create(parent: &Path, unit: &str, rendered: &Rendered) -> Result<Self> {
        let name = unique_name(unit);
        let owner = parent.join(format!("{name}{OWNER_SUFFIX}"));
        let held = OpenOptions::new()
            .write(true)
            .create_new(true)
            .open(&owner)
            .map_err(Error::cache("create", &owner))?;
        // Where there are no locks, age decides.
        let _ = held.try_lock();
        let workspace = Self { folder: parent.join(name), owner, _held: held };
        let folder = &workspace.folder;
        fs::create_dir(folder).map_err(Error::cache("create folder", folder))?;
        write(&folder.join(SOURCE_FILE), rendered.text.as_bytes())?;
        for (name, text) in &rendered.headers {
            let path = folder.join(INCLUDE_FOLDER).join(name);
            if let Some(parent) = path.parent() {
                fs::create_dir_all(parent).map_err(Error::cache("create folder", parent))?;
            }
            write(&path, text.as_bytes())?;
        }
        Ok(workspace)
    }

    pub(crate) fn folder(&self) -> &Path {
        &self.folder
    }

    /// Makes the folder the entry `directory`, or discards it when a whole entry is already there.
    pub(crate) fn publish(
        &self,
        cache: &Cache,
        directory: &Path,
        object: &[u8],
        manifest: &Manifest,
    ) -> Result<()> {
        let object_path = self.folder.join(OBJECT_FILE);
        write(&object_path, object)?;
        sync(&object_path)?;
        sync(&self.folder.join(SOURCE_FILE))?;
        let manifest_path = self.folder.join(MANIFEST_FILE);
        let text = serde_json::to_vec_pretty(manifest)
            .map_err(|error| Error::cache("write", &manifest_path)(io::Error::other(error)))?;
        write(&manifest_path, &text)?;
        sync(&manifest_path)?;
        sync(&self.folder)?;
        let mut repaired = false;
        loop {
            match fs::rename(&self.folder, directory) {
                Ok(()) => break,
                Err(error) if is_taken(&error) => {
                    match read_entry(directory, Expected::Key(&manifest.key)) {
                        Ok(Some(_)) => return Ok(()),
                        _ if repaired => return Err(Error::cache("replace", directory)(error)),
                        _ => cache.move_aside(directory)?,
                    }
                    repaired = true;
                }
                Err(error) => return Err(Error::cache("publish", directory)(error)),
            }
        }
        directory.parent().map_or(Ok(()), sync)
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
        let outcome = write(&self.folder.join(LOG_FILE), log.as_bytes())
            .and_then(|()| if refused { write(&self.folder.join(REFUSED_FILE), b"") } else { Ok(()) })
            .and_then(|()| fs::rename(&self.folder, &kept).map_err(Error::cache("keep", &self.folder)));
        if let Err(error) = outcome {
            tracing::warn!(%error, "a failed compilation is not kept");
            return None;
        }
        let mut all: Vec<_> = sub_folders(&folder).into_iter().map(|path| (modified(&path), path)).collect();
        all.sort();
        for (_, path) in all.iter().rev().skip(keep) {
            let _ = fs::remove_dir_all(path);
        }
        Some(kept)
    }
}

impl Drop for Workspace {
    fn drop(&mut self) {
        for outcome in [fs::remove_dir_all(&self.folder), fs::remove_file(&self.owner)] {
            if let Err(error) = outcome
                && error.kind() != io::ErrorKind::NotFound
            {
                tracing::debug!(%error, folder = %self.folder.display(), "a work folder stays");
            }
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
        sub_folders(&self.service_folder(FAILED)).into_iter().find_map(|path| {
            let name = path.file_name()?.to_str()?;
            if !name.starts_with(&prefix) || modified(&path) < since || !path.join(REFUSED_FILE).exists() {
                return None;
            }
            let log = fs::read_to_string(path.join(LOG_FILE)).ok()?;
            Some((path, log))
        })
    }

    /// Removes what dead processes left behind.
    pub(crate) fn clean_leftovers(&self) {
        for trash in sub_folders(&self.service_folder(TRASH)) {
            let _ = fs::remove_dir_all(trash);
        }
        clean_work_folders(&self.service_folder(TEMPORARY));
    }
}

/// Removes the work folders below `parent` whose owners are dead.
fn clean_work_folders(parent: &Path) {
    let old = |path: &Path| modified(path).elapsed().is_ok_and(|age| age > ORPHAN_AGE);
    let Ok(entries) = fs::read_dir(parent) else { return };
    for path in entries.filter_map(|entry| entry.ok().map(|entry| entry.path())) {
        let text = path.to_string_lossy();
        if let Some(folder) = text.strip_suffix(OWNER_SUFFIX) {
            let dead = File::open(&path).is_ok_and(|file| file.try_lock().is_ok());
            // A lock file is made before it is locked: a new one without a folder may be just that.
            if dead && (Path::new(folder).exists() || old(&path)) {
                tracing::debug!(folder, "removing a dead process's work folder");
                let _ = fs::remove_dir_all(folder);
                let _ = fs::remove_file(&path);
            }
        } else if !Path::new(&format!("{text}{OWNER_SUFFIX}")).exists() && old(&path) {
            let _ = fs::remove_dir_all(&path);
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

fn write(path: &Path, bytes: &[u8]) -> Result<()> {
    fs::write(path, bytes).map_err(Error::cache("write", path))
}
