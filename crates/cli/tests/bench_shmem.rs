//! `anabranch bench shmem`: every operation of the heap between ranks that are processes, over each kind of route.

use crate::common::{Run, run};

const BASE: &[&str] = &["bench", "shmem", "--runtime", "host", "--iters", "2", "--json"];

fn rows(done: &Run) -> Vec<serde_json::Value> {
    assert_eq!(done.code, 0, "{done:?}");
    done.stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// Rows of the matrix: eight copies (two of them of values, by threads alone), and messages.
const COPIES: usize = 6 * 3 + 2 + (4 + 3 + 3);
/// Nine atomics of four types, and signals; for mapped memory and for NICs apart.
const ATOMICS: usize = 9 * 4 + 1;
/// Rows of times to one peer: six operations of each size, and two of values.
const TIMES: usize = 6 * 2 + 2;

fn every_operation_is_verified(ranks: &str, more: &[&str], routes: &[&str]) {
    let rows = rows(&run(&[BASE, &["--ranks", ranks, "--bytes", "64,4 KiB"], more].concat()));
    let cells = COPIES + ATOMICS * routes.len();
    assert_eq!(rows.len(), cells + TIMES * routes.len(), "{more:?}");
    for row in &rows {
        assert_eq!(row["verified"].as_bool(), Some(true), "{row}");
        assert!(row["us_median"].as_f64() > Some(0.0), "{row}");
    }
    let timed = rows[cells..].chunks(TIMES).map(|rows| rows[0]["route"].as_str().unwrap());
    assert_eq!(timed.collect::<Vec<_>>(), routes);
}

#[test]
fn every_operation_is_verified_between_threads() {
    every_operation_is_verified("3", &["--threads"], &["p2p"]);
}

#[test]
#[ignore = "extended"]
fn every_operation_is_verified_over_every_route() {
    every_operation_is_verified("2", &["--set", "transport.order=sdma,p2p"], &["sdma"]);
    every_operation_is_verified("3", &["--nodes", "2"], &["p2p", "rdma"]);
}

/// Copies and signals that set; two lines say what is left out and why.
#[test]
#[ignore = "extended"]
fn nic_without_atomics_verifies_all_other_operations() {
    let more = ["--ranks", "2", "--threads", "--nodes", "2", "--bytes", "64"];
    let done = run(&[
        BASE,
        &more,
        &["--set", "transport.rdma.driver=software", "--set", "transport.rdma.software_atomics=false"],
    ]
    .concat());
    let rows = rows(&done);
    assert_eq!(rows.len(), COPIES + TIMES - 6, "{done:?}");
    for row in &rows {
        assert_eq!(row["verified"].as_bool(), Some(true), "{row}");
    }
    for left_out in ["signals that add", "atomic_add of 64 bits", "atomic_compare_swap of 32 bits"] {
        let line = done.stderr.lines().find(|line| line.contains(left_out));
        assert!(
            line.is_some_and(|line| line.contains("the NIC has no atomic operations")),
            "{left_out}: {done:?}"
        );
    }
}

#[test]
fn invalid_runs_are_refused_before_ranks_start() {
    for (more, words) in [
        (&["--ranks", "33"][..], "at most 32 with it"),
        (&["--ranks", "2", "--bytes", "0"], "no number of bytes"),
        (&["--ranks", "2", "--bytes", "33550336", "--set", "heap.bytes=64 MiB"], "heap.bytes is 67108864"),
        (&["--ranks", "1"], "at least 2 ranks"),
    ] {
        let done = run(&[BASE, more].concat());
        assert!(done.code != 0 && done.stderr.contains(words), "{more:?}: {done:?}");
    }
}
