//! Mutants of device code: text edits, in the files of `dev/sim/mutants`, whose list says what each word means.

use std::path::Path;

use anabranch_hip_jit::SourceEdit;
use serde::Deserialize;

/// A mistake in device sources that a test must notice.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct Mutant {
    /// Its name.
    pub name: String,
    /// The mistake, in a line.
    pub why: String,
    /// The changes of the sources that make it. A kernel that reaches none of their files is as it was.
    #[serde(rename = "edit")]
    pub edits: Vec<SourceEdit>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    mutant: Vec<Mutant>,
}

/// The mutants of a file's text.
///
/// # Errors
/// What is wrong with the text, and where.
pub fn mutants_of(text: &str) -> Result<Vec<Mutant>, toml::de::Error> {
    toml::from_str(text).map(|file: File| file.mutant)
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
        known.extend(mutants_of(&text).unwrap_or_else(|error| panic!("{}: {error}", path.display())));
    }
    match known.into_iter().find(|mutant| mutant.name == name) {
        Some(mutant) => mutant.edits,
        None => panic!("{name} is no mutant of {}", folder.display()),
    }
}
