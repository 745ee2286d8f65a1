//! The mutants: device sources with one mistake each, as edits of their text (`mutants/*.toml`).
//!
//! A file of the folder is a list of entries:
//!
//! ```toml
//! [[mutant]]
//! name = "NO_BARRIER"                  # what tests and the command line call it
//! why = "meet: the block does not"     # the mistake, in a line
//!
//! [[mutant.edit]]                      # once for each place
//! file = "ccl/meet.h"                  # as kernels include it, or <unit>.hip
//! line = "grid.block_barrier();"       # occurs in it exactly once; several lines where one is not enough
//! replace = ""                         # what stands there instead
//! ```

use std::sync::LazyLock;

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

macro_rules! files {
    ($($name:literal),* $(,)?) => {
        &[$(($name, include_str!(concat!("../../mutants/", $name)))),*]
    };
}

/// Every file, by its name.
const FILES: &[(&str, &str)] = files![
    "prelude.toml",
    "shmem.toml",
    "shmem_results.toml",
    "shmem_kernels.toml",
    "ep.toml",
    "ep_counts.toml",
    "ep_experts.toml",
    "ep_nodes.toml",
    "ccl.toml",
    "ccl_kernels.toml",
    "ccl_network.toml",
    "sdma.toml",
    "rdma.toml",
    "rdma_entries.toml",
];

fn parsed(text: &str) -> Result<Vec<Mutant>, toml::de::Error> {
    toml::from_str(text).map(|file: File| file.mutant)
}

/// The mutants of this crate. That the files can be read is a test.
static EMBEDDED: LazyLock<Vec<Mutant>> =
    LazyLock::new(|| FILES.iter().flat_map(|(_, text)| parsed(text).unwrap_or_default()).collect());

/// All mutants.
pub fn mutants() -> &'static [Mutant] {
    &EMBEDDED
}

/// The mutant of that name.
pub fn mutant(name: &str) -> Option<&'static Mutant> {
    mutants().iter().find(|mutant| mutant.name == name)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::{FILES, mutant, mutants, parsed};

    #[test]
    fn every_file_of_the_folder_is_read_and_no_name_stands_twice() {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/mutants");
        let there: BTreeSet<String> = std::fs::read_dir(folder)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        let read: BTreeSet<String> = FILES.iter().map(|(name, _)| (*name).to_owned()).collect();
        assert_eq!(read, there);
        for (name, text) in FILES {
            let found = parsed(text).unwrap_or_else(|error| panic!("{name}: {error}"));
            assert!(found.iter().all(|mutant| !mutant.edits.is_empty() && !mutant.why.is_empty()), "{name}");
        }
        let names: BTreeSet<&str> = mutants().iter().map(|mutant| mutant.name.as_str()).collect();
        assert_eq!(names.len(), mutants().len(), "a name stands twice");
        assert!(mutant("EPOCH_LOOSE").is_some_and(|loose| loose.edits.len() == 2));
        assert_eq!(mutant("LAST"), None);
    }
}
