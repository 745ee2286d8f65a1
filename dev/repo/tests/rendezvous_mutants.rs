//! The seeded tests of the rendezvous catch every mutant of `dev/repo/mutants/bootstrap.toml`: each is applied to a copy of the crate,
//! whose tests must then fail.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use crate::common::root;
use serde::Deserialize;

#[derive(Deserialize)]
struct File {
    mutant: Vec<Mutant>,
}

#[derive(Deserialize)]
struct Mutant {
    name: String,
    why: String,
    edits: Vec<Edit>,
}

/// `find`, which occurs once in the file, becomes `replace`.
#[derive(Deserialize)]
struct Edit {
    file: String,
    find: String,
    replace: String,
}

fn mutants() -> Vec<Mutant> {
    toml::from_str::<File>(include_str!("../mutants/bootstrap.toml")).unwrap().mutant
}

/// The texts of the files that a mutant changes.
fn changed(mutant: &Mutant) -> Vec<(PathBuf, String)> {
    let mut files: Vec<(PathBuf, String)> = Vec::new();
    for edit in &mutant.edits {
        let path = Path::new("crates/bootstrap/src").join(&edit.file);
        let at = files.iter().position(|(known, _)| *known == path).unwrap_or_else(|| {
            files.push((path.clone(), fs::read_to_string(root().join(&path)).unwrap()));
            files.len() - 1
        });
        let text = &mut files[at].1;
        assert_eq!(text.matches(&edit.find).count(), 1, "{}: {}: {}", mutant.name, edit.file, edit.find);
        *text = text.replacen(&edit.find, &edit.replace, 1);
    }
    files
}

#[test]
fn mutants_of_the_rendezvous_have_their_places() {
    let mutants = mutants();
    assert!(mutants.len() >= 13);
    for mutant in &mutants {
        assert!(!mutant.why.is_empty() && !changed(mutant).is_empty(), "{}", mutant.name);
    }
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let target = to.join(entry.file_name());
        if entry.path().is_dir() {
            copy(&entry.path(), &target);
        } else {
            fs::copy(entry.path(), target).unwrap();
        }
    }
}

/// A workspace of the crate and what it depends on.
fn workspace(folder: &Path) {
    let _ = fs::remove_dir_all(folder);
    for package in ["crates/bootstrap", "crates/clock", "crates/ranks", "dev/lockstep"] {
        copy(&root().join(package), &folder.join(package));
    }
    let read = |path: &Path| toml::from_str::<toml::Table>(&fs::read_to_string(path).unwrap()).unwrap();
    let mut manifest = read(&root().join("Cargo.toml"));
    manifest.retain(|key, _| key == "workspace");
    let workspace = manifest["workspace"].as_table_mut().unwrap();
    workspace.remove("default-members");
    workspace.insert("members".to_owned(), vec!["crates/*", "dev/*"].into());
    fs::write(folder.join("Cargo.toml"), toml::to_string(&manifest).unwrap()).unwrap();
    // Its integration tests, and what only they need, stay behind.
    let path = folder.join("crates/bootstrap/Cargo.toml");
    let mut bootstrap = read(&path);
    bootstrap.remove("test");
    bootstrap["dev-dependencies"].as_table_mut().unwrap().remove("anabranch-testkit");
    fs::write(path, toml::to_string(&bootstrap).unwrap()).unwrap();
    fs::copy(root().join("Cargo.lock"), folder.join("Cargo.lock")).unwrap();
}

fn seeded_tests(folder: &Path) -> Output {
    Command::new(env!("CARGO"))
        .args(["test", "--quiet", "--offline", "--package", "anabranch-bootstrap", "--lib", "seeded"])
        .current_dir(folder)
        .env("CARGO_TARGET_DIR", folder.join("../rendezvous-target"))
        .env("RUSTFLAGS", "--cap-lints=allow")
        // Each mutant builds the crate again.
        .env("CARGO_INCREMENTAL", "1")
        .env("CARGO_PROFILE_DEV_DEBUG", "0")
        .output()
        .unwrap()
}

#[test]
#[ignore = "extended"]
fn seeded_tests_catch_every_mutant_of_the_rendezvous() {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("rendezvous");
    workspace(&folder);
    let unchanged = seeded_tests(&folder);
    assert!(unchanged.status.success(), "{}", String::from_utf8_lossy(&unchanged.stdout));
    let mut missed = Vec::new();
    for mutant in mutants() {
        for (path, text) in changed(&mutant) {
            fs::write(folder.join(path), text).unwrap();
        }
        let output = seeded_tests(&folder);
        let text = String::from_utf8_lossy(&output.stdout);
        // A test of seeds failed: a copy that does not compile is no catch.
        match text.lines().find(|line| line.starts_with("seed ")) {
            Some(found) if !output.status.success() => {
                println!("{}: {}", mutant.name, found.chars().take(110).collect::<String>());
            }
            _ => missed.push(format!("{}: {text}{}", mutant.name, String::from_utf8_lossy(&output.stderr))),
        }
        for (path, _) in changed(&mutant) {
            fs::copy(root().join(&path), folder.join(&path)).unwrap();
        }
    }
    assert!(missed.is_empty(), "{}", missed.join("\n"));
}
