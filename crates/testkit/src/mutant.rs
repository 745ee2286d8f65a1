//! Mutants of device code for tests below the simulation, which has the list (`crates/sim/mutants`).

use std::path::Path;

use anabranch_hip_jit::SourceEdit;
use serde::Deserialize;

#[derive(Deserialize)]
struct File {
    mutant: Vec<Mutant>,
}

#[derive(Deserialize)]
struct Mutant {
    name: String,
    edit: Vec<SourceEdit>,
}

/// The edits of the mutant of that name, for `KernelSpec::edited` or `JitConfig::edits`.
///
/// # Panics
/// There is no such mutant, or the list cannot be read: the test is wrong.
#[expect(clippy::panic, reason = "a test that names no mutant is wrong")]
pub fn mutant(name: &str) -> Vec<SourceEdit> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../sim/mutants");
    let files = std::fs::read_dir(&folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    let mut known = Vec::new();
    for path in files.filter_map(|entry| entry.ok().map(|entry| entry.path())) {
        let text =
            std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        let file: File = toml::from_str(&text).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        known.extend(file.mutant);
    }
    match known.into_iter().find(|mutant| mutant.name == name) {
        Some(mutant) => mutant.edit,
        None => panic!("{name} is no mutant of {}", folder.display()),
    }
}
