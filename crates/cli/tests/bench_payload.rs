//! `anabranch bench ep --payload`, `--capture-beside` and with a flat heap, with ranks that are processes on the host runtime.

use crate::common::{Run, run};

const SMALL: &[&str] =
    &["--runtime", "host", "--ranks", "2", "--iters", "2", "--json", "--set", "heap.bytes=64 MiB"];
const EP: &[&str] = &["--tokens", "5,9", "--hidden", "64", "--experts", "8", "--top-k", "3"];

fn rows(done: &Run) -> Vec<serde_json::Value> {
    assert_eq!(done.code, 0, "{done:?}");
    done.stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[test]
#[ignore = "extended"]
fn copy_engine_rows_are_verified() {
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

/// HIP refuses some calls on all threads while one captures, and spoils that capture: neither the ranks, which join, make plans and
/// capture themselves, nor the other thread may see anything of each other.
#[test]
#[ignore = "extended"]
fn concurrent_captures_do_not_disturb_ranks() {
    let beside = ["--threads", "--graph", "--capture-beside"];
    let collective = ["bench", "ccl", "--op", "all_reduce", "--sizes", "4 KiB"];
    for bench in [&[&["bench", "ep"], EP].concat()[..], &collective] {
        let done = run(&[bench, SMALL, &beside].concat());
        assert!(rows(&done).iter().all(|row| row["verified"] == true), "{done:?}");
        let said = done.stderr.lines().find_map(|line| {
            line.strip_suffix(" graphs were captured and replayed beside the ranks")?.parse::<u64>().ok()
        });
        assert!(said > Some(10), "{done:?}");
    }
    let processes = run(&[&["bench", "ep"], SMALL, EP, &["--capture-beside"]].concat());
    assert!(processes.code == 2 && processes.stderr.contains("--threads"), "{processes:?}");
    let seeded = ["--set", "device.host.schedule=seeded", "--set", "device.host.seed=1"];
    let seeded = run(&[&["bench", "ep"], SMALL, EP, &beside, &seeded].concat());
    assert!(seeded.code == 2 && seeded.stderr.contains("device.host.schedule"), "{seeded:?}");
}

#[test]
#[ignore = "extended"]
fn a_flat_heap_carries_the_same_traffic() {
    for threads in [false, true] {
        let mut arguments = [&["bench", "ep"], SMALL, EP, &["--set", "heap.mode=flat"]].concat();
        arguments.extend(threads.then_some("--threads"));
        let rows = rows(&run(&arguments));
        assert_eq!(rows.len(), 4);
        assert!(rows.iter().all(|row| row["verified"] == true), "{rows:?}");
    }
}
