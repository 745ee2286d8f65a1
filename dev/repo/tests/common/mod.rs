//! The sources of this repository, for tests that read them.

use std::fs;
use std::path::{Path, PathBuf};

/// The root of the repository.
pub(crate) fn root() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."))
}

/// Folders of the workspace's packages: the root, the product's crates, and the tools of development.
pub(crate) fn packages() -> Vec<PathBuf> {
    let folders = ["crates", "dev"].into_iter().flat_map(|folder| fs::read_dir(root().join(folder)).unwrap());
    let mut found: Vec<_> = folders.map(|entry| entry.unwrap().path()).collect();
    found.push(root().to_owned());
    found.retain(|folder| folder.join("Cargo.toml").exists());
    found.sort();
    found
}

/// Files with Rust in a folder and those below, but what is left out by its name: files, or whole folders.
pub(crate) fn rust_files(folder: &Path, is_left_out: &impl Fn(&str) -> bool, found: &mut Vec<PathBuf>) {
    for path in fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path()) {
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        if is_left_out(name) {
            continue;
        }
        if path.is_dir() {
            rust_files(&path, is_left_out, found);
        } else if path.extension().is_some_and(|ending| ending == "rs") {
            found.push(path);
        }
    }
}

/// Sources of the package at the root and of the crates, but these crates and what is left out by its name; sorted.
pub(crate) fn sources_but(crates: &[&str], is_left_out: impl Fn(&str) -> bool) -> Vec<PathBuf> {
    let root = root();
    let mut found = Vec::new();
    rust_files(&root.join("src"), &is_left_out, &mut found);
    for library in fs::read_dir(root.join("crates")).into_iter().flatten().flatten() {
        if !crates.iter().any(|name| library.file_name() == *name) {
            rust_files(&library.path().join("src"), &is_left_out, &mut found);
        }
    }
    found.sort();
    found
}
