//! The arrows between crates, held against `cargo metadata`.

use crate::common::root;

use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;

/// Each crate of the workspace and the crates of it that it may depend on. Arrows point down; dev-dependencies are
/// not counted. A crate's name here is without `anabranch-`.
const ARROWS: &[(&str, &[&str])] = &[
    ("clock", &[]),
    ("lockstep", &["clock"]),
    ("ranks", &[]),
    ("hip", &["clock", "ranks"]),
    ("elements", &[]),
    // For build scripts.
    ("device-headers", &[]),
    ("hip-host", &["clock", "hip"]),
    ("hip-cuda", &["hip"]),
    ("hip-jit", &["clock", "hip", "ranks"]),
    ("weakmem", &["clock", "hip", "hip-host"]),
    ("bootstrap", &["clock", "ranks"]),
    ("transport", &["ranks"]),
    ("transport-p2p", &["hip", "hip-jit", "ranks", "transport"]),
    ("transport-sdma", &["clock", "device-headers", "hip", "hip-jit", "ranks", "transport", "transport-p2p"]),
    ("transport-rdma", &["clock", "device-headers", "hip", "hip-jit", "ranks", "transport"]),
    ("transport-ofi", &["hip", "ranks", "transport", "transport-rdma"]),
    ("softnic", &["clock", "hip", "ranks", "transport", "transport-rdma"]),
    (
        "shmem",
        &[
            "bootstrap",
            "clock",
            "device-headers",
            "hip",
            "hip-jit",
            "ranks",
            "transport",
            "transport-p2p",
            "transport-rdma",
            "transport-sdma",
        ],
    ),
    (
        "ep",
        &[
            "bootstrap",
            "clock",
            "device-headers",
            "elements",
            "hip",
            "hip-jit",
            "ranks",
            "shmem",
            "transport",
        ],
    ),
    ("ccl", &["clock", "device-headers", "elements", "hip", "hip-jit", "ranks", "shmem"]),
    ("testkit", &["bootstrap", "clock", "hip-jit", "ranks"]),
    ("conformance", &["ccl", "device-headers", "elements", "ep", "hip", "hip-jit", "ranks", "shmem"]),
    (
        "sim",
        &[
            "bootstrap",
            "ccl",
            "clock",
            "conformance",
            "ep",
            "hip",
            "hip-host",
            "hip-jit",
            "ranks",
            "shmem",
            "softnic",
            "testkit",
            "transport",
            "transport-p2p",
            "transport-rdma",
            "transport-sdma",
            "weakmem",
        ],
    ),
    (
        "anabranch",
        &[
            "bootstrap",
            "ccl",
            "ep",
            "hip",
            "hip-cuda",
            "hip-host",
            "hip-jit",
            "ranks",
            "shmem",
            "softnic",
            "transport",
            "transport-ofi",
            "transport-rdma",
            "weakmem",
        ],
    ),
    (
        "bench",
        &[
            "anabranch",
            "ccl",
            "conformance",
            "ep",
            "hip",
            "hip-jit",
            "ranks",
            "shmem",
            "transport",
            "transport-rdma",
        ],
    ),
    (
        "cli",
        &[
            "anabranch",
            "bench",
            "hip",
            "hip-jit",
            "shmem",
            "sim",
            "transport",
            "transport-ofi",
            "transport-rdma",
        ],
    ),
    ("python", &["anabranch", "cli"]),
    ("capi", &["anabranch"]),
    ("nccl", &["anabranch"]),
    ("repo", &[]),
    // Written apart from what it tests: it may share nothing with it.
    ("softhca", &[]),
];

/// Crates that no other crate may have as a normal dependency.
const WITHOUT_DEPENDENTS: &[&str] = &["capi", "nccl", "python", "repo", "softhca"];

type Edges = BTreeMap<String, BTreeSet<String>>;

fn short(name: &str) -> String {
    name.strip_prefix("anabranch-").unwrap_or(name).to_owned()
}

/// What the manifests say, dev-dependencies left out.
fn edges() -> Edges {
    let output = Command::new(env!("CARGO"))
        .args(["metadata", "--format-version", "1", "--no-deps", "--offline"])
        .current_dir(root())
        .output();
    let Ok(output) = output else { return Edges::new() };
    let Ok(metadata) = serde_json::from_slice::<serde_json::Value>(&output.stdout) else {
        return Edges::new();
    };
    let list = |value: &serde_json::Value| value.as_array().cloned().unwrap_or_default();
    let packages = list(&metadata["packages"]);
    packages
        .iter()
        .map(|package| {
            let dependencies = list(&package["dependencies"]);
            let own = dependencies
                .iter()
                .filter(|dependency| dependency["kind"] != "dev")
                .filter_map(|dependency| dependency["name"].as_str())
                .filter(|name| name.starts_with("anabranch"));
            (short(package["name"].as_str().unwrap_or_default()), own.map(short).collect())
        })
        .collect()
}

/// Every arrow that the table does not have, and every crate that it does not know.
fn violations(edges: &Edges) -> Vec<String> {
    let mut found = Vec::new();
    for (from, targets) in edges {
        let Some((_, allowed)) = ARROWS.iter().find(|(name, _)| name == from) else {
            found.push(format!("the crate {from} is not in the table"));
            continue;
        };
        for to in targets {
            if !allowed.contains(&to.as_str()) || WITHOUT_DEPENDENTS.contains(&to.as_str()) {
                found.push(format!("{from} depends on {to}"));
            }
        }
    }
    found
}

#[test]
fn arrows_between_crates_are_those_of_the_table() {
    let edges = edges();
    assert!(edges.len() >= 12, "cargo metadata shows the workspace: {edges:?}");
    let found = violations(&edges);
    assert!(
        found.is_empty(),
        "{}\nA new arrow is a change of architecture: see ARCHITECTURE.md, then dev/repo/tests/architecture.rs",
        found.join("\n")
    );
}

#[test]
fn the_table_has_no_cycle() {
    // In the table's order, every arrow points to a crate above it.
    for (index, (name, targets)) in ARROWS.iter().enumerate() {
        for target in *targets {
            let position = ARROWS.iter().position(|(other, _)| other == target);
            assert!(position.is_some_and(|position| position < index), "{name} -> {target} points up");
        }
    }
}

#[test]
fn an_arrow_that_is_not_in_the_table_is_found() {
    let wrong = |from: &str, to: &str| {
        let edges = Edges::from([(from.to_owned(), BTreeSet::from([to.to_owned()]))]);
        violations(&edges)
    };
    assert_eq!(wrong("transport", "hip"), ["transport depends on hip"]);
    assert_eq!(wrong("ep", "testkit"), ["ep depends on testkit"]);
    assert_eq!(wrong("softhca", "transport"), ["softhca depends on transport"]);
    assert_eq!(wrong("new", "hip"), ["the crate new is not in the table"]);
    assert!(wrong("ep", "shmem").is_empty());
}
