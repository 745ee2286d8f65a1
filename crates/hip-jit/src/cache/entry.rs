//! What is in an entry, and reading it without trusting it.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::disk::Disk;
use crate::key::{SCHEMA, digest};
use crate::toolchain::OBJECT_FILE;

/// What `manifest.json` holds.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Manifest {
    /// Version of key and entry.
    pub schema: u32,
    /// The key, as in the folder's name.
    pub key: String,
    /// The key without the compiler.
    pub portable_key: String,
    /// The unit.
    pub unit: String,
    /// Unit and parameters, for people.
    pub label: String,
    /// The target.
    pub target: String,
    /// The kernels.
    pub entries: Vec<String>,
    /// The inputs of the key by name, texts as digests.
    pub inputs: BTreeMap<String, String>,
    /// Kind, version and place of the compiler.
    pub compiler: String,
    /// The command or options.
    pub command: String,
    /// The compiler's log.
    pub log: String,
    /// How long it took, seconds.
    pub seconds: f64,
    /// When it was made, seconds since 1970.
    pub created: u64,
    /// Length of `kernel.co`.
    pub object_bytes: u64,
    /// sha256 of `kernel.co`.
    pub object_sha256: String,
}

pub(crate) const MANIFEST_FILE: &str = "manifest.json";

/// What an entry must be for.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Expected<'a> {
    /// Made from exactly this.
    Key(&'a str),
    /// Made from this by any compiler.
    PortableKey(&'a str),
    /// Independent of its folder's name.
    Name,
}

/// An entry that was read and found whole.
#[derive(Clone, Debug)]
pub(crate) struct Stored {
    pub(crate) manifest: Manifest,
    pub(crate) object: Arc<[u8]>,
}

/// Reads an entry and checks schema, key, length and digest. `Ok(None)`: there is none, or it is for something else.
/// `Err`: it is broken, in these words.
///
/// An entry may be replaced between the reading of its two files, by one that a compiler made anew with other bytes:
/// when the pair does not fit, it is read again, as long as the manifest changes.
pub(crate) fn read_entry(
    disk: &Disk,
    directory: &Path,
    expected: Expected<'_>,
) -> Result<Option<Stored>, String> {
    let mut before = None;
    loop {
        let text = match disk.read(&directory.join(MANIFEST_FILE)) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound && !directory.exists() => return Ok(None),
            Err(error) => return Err(format!("{MANIFEST_FILE}: {error}")),
        };
        let Some(manifest) = check_manifest(&text, directory, expected)? else { return Ok(None) };
        match read_object(disk, directory, &manifest) {
            Ok(object) => return Ok(Some(Stored { manifest, object: object.into() })),
            Err(problem) if before.as_ref() == Some(&text) => return Err(problem),
            Err(_) => before = Some(text),
        }
    }
}

fn check_manifest(text: &[u8], directory: &Path, expected: Expected<'_>) -> Result<Option<Manifest>, String> {
    let manifest: Manifest =
        serde_json::from_slice(text).map_err(|error| format!("{MANIFEST_FILE}: {error}"))?;
    if manifest.schema != SCHEMA {
        return Err(format!("its schema is {} and not {SCHEMA}", manifest.schema));
    }
    let name = directory.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    if name != format!("{}-{}", manifest.unit, manifest.key) {
        return Err(format!("it holds {}-{}, which is another entry", manifest.unit, manifest.key));
    }
    match expected {
        Expected::Key(key) if manifest.key != key => Err(format!("its key is {}", manifest.key)),
        Expected::PortableKey(key) if manifest.portable_key != key => Ok(None),
        _ => Ok(Some(manifest)),
    }
}

fn read_object(disk: &Disk, directory: &Path, manifest: &Manifest) -> Result<Vec<u8>, String> {
    let object =
        disk.read(&directory.join(OBJECT_FILE)).map_err(|error| format!("{OBJECT_FILE}: {error}"))?;
    if object.len() as u64 != manifest.object_bytes {
        return Err(format!("{OBJECT_FILE} has {} bytes and not {}", object.len(), manifest.object_bytes));
    }
    if digest(&object) != manifest.object_sha256 {
        return Err(format!("{OBJECT_FILE} has changed since it was written"));
    }
    Ok(object)
}
