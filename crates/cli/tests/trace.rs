//! `anabranch trace`.

use crate::common::{self, Run, command, run};

use std::collections::BTreeSet;
use std::path::PathBuf;

use serde_json::Value;

const RANK: &str =
    "bench-rank ccl --op all_reduce --sizes 4K --runtime host --ranks 3 --set 'heap.bytes=64 MiB' --json";

/// A place for a file that does not exist yet.
fn absent(name: &str) -> PathBuf {
    let path = common::file(name, "");
    std::fs::remove_file(&path).unwrap();
    path
}

/// Runs a script on three ranks, with the command's own path in `$ANABRANCH`.
fn traced(output: &std::path::Path, script: &str) -> Run {
    let arguments = ["trace", "-n", "3", "-o", output.to_str().unwrap(), "--", "sh", "-c", script];
    common::finish(command(&arguments).env("ANABRANCH", env!("CARGO_BIN_EXE_anabranch")))
}

fn picture(path: &std::path::Path) -> Value {
    serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()
}

/// The ranks that have a span of this kind.
fn ranks(picture: &Value, kind: &str) -> BTreeSet<u64> {
    let events = picture["traceEvents"].as_array().unwrap();
    events.iter().filter(|event| event["cat"] == kind).filter_map(|event| event["pid"].as_u64()).collect()
}

#[test]
fn ranks_of_a_program_are_in_one_picture() {
    let output = absent("trace.json");
    let done = traced(&output, &format!("exec $ANABRANCH {RANK} --iters 2"));
    assert_eq!(done.code, 0, "{done:?}");
    let picture = picture(&output);
    for kind in ["call", "device"] {
        assert_eq!(ranks(&picture, kind), BTreeSet::from([0, 1, 2]), "{kind}");
    }
    let about = picture["otherData"].to_string();
    assert!(about.contains("0 entries lost") && !about.contains("without an end"), "{about}");
    assert!(done.stderr.contains("ui.perfetto.dev"), "{}", done.stderr);
    std::fs::remove_file(output).unwrap();
}

#[test]
fn a_killed_rank_leaves_a_picture_of_all() {
    let output = absent("killed.json");
    let script = format!(
        "if [ $RANK != 1 ]; then exec $ANABRANCH {RANK} --iters 1000000; fi; $ANABRANCH {RANK} --iters 1000000 & \
         until grep -q '\"name\":\"all_reduce\"' $ANABRANCH_TRACE/rank-1-*; do sleep 0.05; done; kill -KILL $!; exit 9"
    );
    let done = traced(&output, &script);
    assert_eq!(done.code, 9, "{done:?}");
    let picture = picture(&output);
    assert_eq!(ranks(&picture, "device"), BTreeSet::from([0, 1, 2]));
    let about = picture["otherData"].to_string();
    assert!(about.contains("without an end"), "{about}");
    std::fs::remove_file(output).unwrap();
}

#[test]
fn program_that_joins_no_world_is_an_error() {
    let output = absent("none.json");
    let done = run(&["trace", "-n", "2", "-o", output.to_str().unwrap(), "--", "true"]);
    assert_eq!(done.code, 1, "{done:?}");
    assert!(done.stderr.contains("no rank has joined a world"), "{}", done.stderr);
    assert!(!output.exists());
}
