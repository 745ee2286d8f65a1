//! Local measurements stay out of the repository, which has sources, pages, settings and one data set.

use crate::common::root;

use std::path::Path;
use std::process::Command;

/// Endings of files that are kept anywhere.
const KEPT: [&str; 13] =
    ["api", "rs", "hip", "h", "c", "cpp", "toml", "md", "py", "pyi", "sh", "lock", "tree"];
/// Files without one of them.
const KEPT_FILES: [&str; 8] = [
    ".ci/run",
    ".gitignore",
    "LICENSE-APACHE",
    "LICENSE-MIT",
    "crates/capi/anabranch.pc.in",
    "crates/python/python/anabranch/py.typed",
    "justfile",
    "data/moe-trace-minilm-e64k8.safetensors",
];

/// The files of a list, one a line, that are nothing of what is kept.
fn strays(listed: &str) -> Vec<&str> {
    let is_kept = |path: &&str| {
        let ending = Path::new(path).extension().and_then(|ending| ending.to_str());
        KEPT_FILES.contains(path) || ending.is_some_and(|ending| KEPT.contains(&ending))
    };
    listed.lines().filter(|path| !is_kept(path)).collect()
}

/// The files that are kept under version control, where this is a checkout and git is here.
fn listed() -> Option<String> {
    let root = root();
    let output = Command::new("git").args(["ls-files"]).current_dir(root).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    (output.status.success() && text.lines().any(|path| path == "Cargo.toml")).then_some(text)
}

#[test]
fn no_measurement_is_kept() {
    let Some(listed) = listed() else {
        println!("skipped: no checkout, or no git");
        return;
    };
    assert!(listed.lines().count() > 500, "the repository was found");
    assert_eq!(strays(&listed), [""; 0], "results, logs, traces and pictures stay outside");
}

#[test]
fn a_measurement_would_be_found() {
    let wrong =
        ["results/ep.json", "collectives.svg", "bench.log", "trace.pb", "perf.data", "data/mine.safetensors"];
    assert_eq!(strays(&wrong.join("\n")), wrong);
    assert_eq!(strays("src/lib.rs\ndata/moe-trace-minilm-e64k8.safetensors\n.ci/run\n"), [""; 0]);
}
