//! Looking after a cache: list, verify, clean. Safe while others use it.

use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use crate::error::{Error, Result};

use super::entry::Manifest;
use super::{Cache, Expected, FAILED, LOCKS, is_key, read_entry, sub_folders};

/// One entry, as [`Cache::list`] finds it.
#[derive(Clone, Debug)]
pub struct CacheEntry {
    /// Its folder.
    pub directory: PathBuf,
    /// Its key.
    pub key: String,
    /// Its manifest, or what is wrong with it.
    pub manifest: Result<Manifest, String>,
}

/// Which entries to remove.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CleanRule {
    /// All of them, failed compilations, and lock files.
    All,
    /// Those made longer ago than this, and broken ones.
    OlderThan(Duration),
    /// The one with this key, or whose key starts with this (at least 8 digits).
    Key(String),
    /// Only those that do not verify.
    Broken,
}

/// What [`Cache::clean`] did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CleanReport {
    /// Entries removed.
    pub removed: usize,
    /// Entries left.
    pub kept: usize,
}

impl Cache {
    /// All entries of this schema, each verified: its manifest, length and digest.
    ///
    /// # Errors
    /// The folder exists and cannot be read.
    pub fn list(&self) -> Result<Vec<CacheEntry>> {
        match self.disk.list(&self.base) {
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(Error::cache("read folder", &self.base)(error)),
        }
        Ok(sub_folders(&self.disk, &self.base)
            .iter()
            .flat_map(|folder| sub_folders(&self.disk, folder))
            .filter_map(|directory| {
                let key = key_of(&directory)?;
                let manifest = match read_entry(&self.disk, &directory, Expected::Name) {
                    Ok(Some(stored)) => Ok(stored.manifest),
                    Ok(None) => return None, // removed meanwhile
                    Err(problem) => Err(problem),
                };
                Some(CacheEntry { directory, key, manifest })
            })
            .collect())
    }

    /// Removes entries, and leftovers of dead processes. An entry that a process is just reading is rebuilt by it
    /// or was read whole.
    ///
    /// # Errors
    /// A folder that cannot be read or moved.
    pub fn clean(&self, rule: &CleanRule) -> Result<CleanReport> {
        self.clean_leftovers();
        let mut report = CleanReport::default();
        for entry in self.list()? {
            let old = |age: Duration| {
                entry.manifest.as_ref().map_or(true, |manifest| {
                    let made = SystemTime::UNIX_EPOCH + Duration::from_secs(manifest.created);
                    made.elapsed().is_ok_and(|elapsed| elapsed >= age)
                })
            };
            let remove = match rule {
                CleanRule::All => true,
                CleanRule::OlderThan(age) => old(*age),
                CleanRule::Key(key) => key.len() >= 8 && entry.key.starts_with(key.as_str()),
                CleanRule::Broken => entry.manifest.is_err(),
            };
            if remove {
                self.move_aside(&entry.directory)?;
                report.removed += 1;
            } else {
                report.kept += 1;
            }
        }
        if *rule == CleanRule::All {
            for folder in sub_folders(&self.disk, &self.service_folder(FAILED)) {
                let _ = self.disk.remove_all(&folder);
            }
            // A process that holds one of these loses only the saving of work.
            for lock in self.disk.list(&self.service_folder(LOCKS)).unwrap_or_default() {
                let _ = self.disk.remove_file(&lock);
            }
        }
        Ok(report)
    }
}

fn key_of(directory: &Path) -> Option<String> {
    let (_, key) = directory.file_name()?.to_str()?.rsplit_once('-')?;
    is_key(key).then(|| key.to_owned())
}
