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

use std::collections::BTreeSet;
use std::sync::LazyLock;

use anabranch_conformance as conformance;
use anabranch_hip_jit::KernelUnit;
use anabranch_shmem::TEAM_BARRIER_UNIT;
use anabranch_shmem::p2p::P2P_UNIT;
pub use anabranch_testkit::Mutant;
use anabranch_testkit::mutants_of as parsed;

use crate::kernels::{AROUND, COPY, ENGINES_UNIT, GATHER, MESSAGES};

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

/// The mutants of this crate.
#[expect(clippy::expect_used, reason = "the files are embedded, and a test loads them")]
static EMBEDDED: LazyLock<Vec<Mutant>> = LazyLock::new(|| {
    let load = |(name, text): &(&str, &str)| loaded(name, text).expect("embedded mutants load");
    FILES.iter().flat_map(load).collect()
});

/// Every unit of kernels that edits may name.
pub fn units() -> impl Iterator<Item = &'static KernelUnit> {
    let own: [&KernelUnit; 5] = [&AROUND, &MESSAGES, &GATHER, &COPY, &ENGINES_UNIT];
    let shmem = conformance::shmem::UNITS.into_iter().chain([&TEAM_BARRIER_UNIT, &P2P_UNIT]);
    let ccl = anabranch_ccl::kernels::UNITS.into_iter().chain([&conformance::ccl::arithmetic::REDUCE_UNIT]);
    let ep = anabranch_ep::kernels().into_iter().chain(conformance::ep::kernels());
    own.into_iter().chain(shmem).chain(ccl).chain(ep.map(|spec| spec.unit()))
}

/// The names of the sources that are compiled: units and their headers.
static SOURCES: LazyLock<BTreeSet<String>> = LazyLock::new(|| {
    let headers = units().flat_map(|unit| unit.headers.iter().copied().flatten());
    let names = headers.map(|header| header.name.to_owned());
    names.chain(units().map(|unit| format!("{}.hip", unit.name))).collect()
});

/// The mutants of one file. A unit ignores edits of other units' files, so a misspelt name would change nothing.
fn loaded(name: &str, text: &str) -> Result<Vec<Mutant>, String> {
    let found = parsed(text).map_err(|error| format!("{name}: {error}"))?;
    for mutant in &found {
        if let Some(edit) = mutant.edits.iter().find(|edit| !SOURCES.contains(&edit.file)) {
            return Err(format!("{name}: {}: no kernel is compiled from {:?}", mutant.name, edit.file));
        }
    }
    Ok(found)
}

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

    use super::{FILES, loaded, mutant, mutants};

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
            let found = loaded(name, text).unwrap();
            assert!(found.iter().all(|mutant| !mutant.edits.is_empty() && !mutant.why.is_empty()), "{name}");
        }
        let names: BTreeSet<&str> = mutants().iter().map(|mutant| mutant.name.as_str()).collect();
        assert_eq!(names.len(), mutants().len(), "a name stands twice");
        assert!(mutant("EPOCH_LOOSE").is_some_and(|loose| loose.edits.len() == 2));
        assert_eq!(mutant("LAST"), None);
    }

    #[test]
    fn edit_of_an_unknown_file_is_rejected() {
        let of = |file: &str| {
            let edit = format!("file = \"{file}\"\nline = \"a\"\nreplace = \"b\"\n");
            loaded("x.toml", &format!("[[mutant]]\nname = \"A\"\nwhy = \"b\"\n\n[[mutant.edit]]\n{edit}"))
        };
        for known in ["ep_dispatch.hip", "conformance_copy.hip", "ep/mask.h", "rdma/bnxt.h"] {
            assert_eq!(of(known).unwrap().len(), 1);
        }
        for unknown in ["ep_dispach.hip", "ep/dispatch.hip", "conformance_shmem_copy.hip", "ep/masks.h"] {
            let expected = format!("x.toml: A: no kernel is compiled from {unknown:?}");
            assert_eq!(of(unknown).unwrap_err(), expected);
        }
    }
}
