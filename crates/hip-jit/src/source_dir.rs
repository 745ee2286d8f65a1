//! A folder whose sources replace the embedded ones, for development ([`crate::JitConfig::source_dir`]).

use std::path::{Path, PathBuf};

use crate::error::{Error, Result};

/// Folders of a checkout in which headers and units are looked up by name.
pub(crate) struct SourceDir {
    folders: Vec<PathBuf>,
}

impl SourceDir {
    pub(crate) fn open(root: &Path) -> Result<Self> {
        let failed =
            |source: std::io::Error| Error::SourceDir { path: root.to_owned(), source: source.into() };
        let mut folders = vec![root.to_owned(), root.join("device"), root.join("kernels")];
        std::fs::read_dir(root).map_err(failed)?;
        if let Ok(crates) = std::fs::read_dir(root.join("crates")) {
            let mut crates: Vec<_> =
                crates.filter_map(|entry| entry.ok().map(|entry| entry.path())).collect();
            crates.sort();
            folders.extend(crates.iter().flat_map(|path| [path.join("device"), path.join("kernels")]));
        }
        Ok(Self { folders })
    }

    /// The source of a unit: a file of its name, or, of the unit `ccl_move`, the file `move.hip` of the crate `ccl`.
    pub(crate) fn read_unit(&self, unit: &str) -> Result<Option<String>> {
        if let Some(text) = self.read(&format!("{unit}.hip"))? {
            return Ok(Some(text));
        }
        for (folder, owner) in self.of_crates() {
            let prefix = format!("{}_", owner.replace('-', "_"));
            let Some(rest) = unit.strip_prefix(&prefix) else { continue };
            if let Some(text) = read_in(folder, &format!("{rest}.hip"))? {
                return Ok(Some(text));
            }
        }
        tracing::warn!(unit, "no file of the source folder is this unit; the embedded one is compiled");
        Ok(None)
    }

    /// A header: a file of its name, or, of `ep/routing.h`, the file `routing.h` beside the kernels of the crate `ep`.
    pub(crate) fn read_header(&self, name: &str) -> Result<Option<String>> {
        if let Some(text) = self.read(name)? {
            return Ok(Some(text));
        }
        let Some((first, rest)) = name.split_once('/') else { return Ok(None) };
        let beside = self.of_crates().find(|(_, owner)| *owner == first);
        beside.map(|(folder, _)| read_in(folder, rest)).transpose().map(Option::flatten)
    }

    /// Folders of kernels, with the names of the crates that they belong to.
    fn of_crates(&self) -> impl Iterator<Item = (&Path, &str)> {
        let kernels = self.folders.iter().filter(|folder| folder.ends_with("kernels"));
        kernels.filter_map(|folder| Some((folder.as_path(), folder.parent()?.file_name()?.to_str()?)))
    }

    fn read(&self, name: &str) -> Result<Option<String>> {
        for folder in &self.folders {
            if let Some(text) = read_in(folder, name)? {
                return Ok(Some(text));
            }
        }
        Ok(None)
    }
}

fn read_in(folder: &Path, name: &str) -> Result<Option<String>> {
    let path = folder.join(name);
    let missing = [std::io::ErrorKind::NotFound, std::io::ErrorKind::NotADirectory];
    match std::fs::read_to_string(&path) {
        Ok(text) => Ok(Some(text)),
        Err(error) if missing.contains(&error.kind()) => Ok(None),
        Err(source) => Err(Error::SourceDir { path, source: source.into() }),
    }
}
