//! The list of kernels has every kernel, once.

use crate::common::root;

use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;

/// Kernel sources of the library crates. `anabranch_bench::kernels` and `doctor` list the kernels of `bench` and `cli`; the kernels of the searches are not
/// listed.
fn sources() -> Vec<PathBuf> {
    let crates = root().join("crates");
    let folders = fs::read_dir(crates).into_iter().flatten().flatten().map(|entry| entry.path());
    let folders = folders.filter(|path| !path.ends_with("bench") && !path.ends_with("cli"));
    let files = folders.flat_map(|path| fs::read_dir(path.join("kernels")).into_iter().flatten().flatten());
    let mut found: Vec<PathBuf> = files.map(|entry| entry.path()).collect();
    found.retain(|path| path.extension().is_some_and(|ending| ending == "hip"));
    found.sort();
    found
}

#[test]
fn every_kernel_file_is_in_the_registry() {
    let registry = anabranch::kernel_registry();
    let sources = sources();
    assert!(sources.len() >= 4, "{sources:?}");
    for path in sources {
        let text = fs::read_to_string(&path).unwrap();
        assert!(
            registry.iter().any(|spec| spec.unit().source == text),
            "{} is in no prebuild",
            path.display()
        );
    }
}

#[test]
fn every_kernel_is_listed_once_and_renders() {
    let registry = anabranch::kernel_registry();
    let labels: BTreeSet<String> = registry.iter().map(anabranch_hip_jit::KernelSpec::label).collect();
    assert_eq!(labels.len(), registry.len(), "two specs with one label");
    for target in ["host:wave32", "sm_90", "gfx942"] {
        let target = target.parse().unwrap();
        for spec in &registry {
            assert!(spec.render(&target, None).is_ok(), "{} for {target}", spec.label());
        }
    }
}
