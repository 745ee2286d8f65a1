//! `anabranch bench ep --payload`, with ranks that are processes on the host runtime.

#![expect(clippy::unwrap_used, reason = "a failing helper fails its test")]

mod common;

use common::{Run, run};

const SMALL: &[&str] =
    &["--runtime", "host", "--ranks", "2", "--iters", "2", "--json", "--set", "heap.bytes=64 MiB"];
const EP: &[&str] = &["--tokens", "5,9", "--hidden", "64", "--experts", "8", "--top-k", "3"];

fn rows(done: &Run) -> Vec<serde_json::Value> {
    assert_eq!(done.code, 0, "{done:?}");
    done.stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[test]
fn rows_that_copy_engines_move_are_verified() {
    let queues = ["--set", "transport.order=sdma,p2p"];
    for more in
        [&[][..], &["--graph", "--combine-source", "buffer"], &queues, &[queues[0], queues[1], "--graph"]]
    {
        let rows = rows(&run(&[&["bench", "ep", "--payload", "copy-engine"], SMALL, EP, more].concat()));
        assert_eq!(rows.len(), 4);
        for row in &rows {
            assert_eq!(
                (row["verified"] == true, row["payload"].as_str()),
                (true, Some("copy-engine")),
                "{row}"
            );
        }
    }
    for (more, said) in [
        (&["--mode", "compact"][..], "payload is copy-engine, and mode is compact"),
        (&["--replay-routing"], "--replay-routing is for --payload kernels"),
    ] {
        let refused = run(&[&["bench", "ep", "--payload", "copy-engine"], SMALL, EP, more].concat());
        assert!(refused.code != 0 && refused.stderr.contains(said), "{refused:?}");
    }
}
