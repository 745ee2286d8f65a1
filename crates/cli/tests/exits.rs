//! Runs with ranks that are threads, one after the other: each verifies its data, ends with success, and neither the allocator, the
//! runtime nor the library has anything to say.

use crate::common::{command, finish};

const EP: &[&str] = &["ep", "--tokens", "9", "--hidden", "64", "--experts", "16", "--top-k", "3"];
const COLLECTIVES: &[&str] =
    &["ccl", "--op", "all_reduce,all_gather,reduce_scatter,all_to_all,broadcast", "--sizes", "4K"];

/// Verifies a benchmark; `filled` is the byte with which freed memory is filled, so that a late read gets other bytes.
fn verified(bench: &[&str], ranks: &str, more: &[&str], filled: u32) {
    let common = ["--runtime", "host", "--iters", "2", "--json", "--threads", "--ranks", ranks];
    let arguments = [&["bench"], bench, &common, more, &["--set", "heap.bytes=64 MiB"]].concat();
    let done = finish(command(&arguments).env("MALLOC_PERTURB_", filled.to_string()));
    // Only that nothing was measured for these sizes.
    let said: Vec<&str> = done.stderr.lines().filter(|line| !line.contains("`anabranch tune")).collect();
    assert!(done.code == 0 && said.is_empty(), "{arguments:?}: {done:?}");
    let rows: Vec<serde_json::Value> =
        done.stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let right = |row: &serde_json::Value| {
        row["verified"] == true
            && row["ranks"].as_u64().map(|count| count.to_string()).as_deref() == Some(ranks)
    };
    assert!(!rows.is_empty() && rows.iter().all(right), "{arguments:?}: {rows:?}");
}

#[test]
#[ignore = "extended"]
fn runs_of_two_four_and_eight_threads_end_silently() {
    let by_queues = ["--set", "transport.order=sdma,p2p"];
    let by_engine = [&by_queues[..], &["--algorithm", "copy-engine"]].concat();
    for (round, filled) in [165, 90, 255, 1, 85].into_iter().enumerate() {
        for ranks in ["2", "4", "8"] {
            // Reductions by engines too: their parts go by copies, and kernels sum.
            let (of_tokens, of_collectives) =
                if round % 2 == 0 { (&[][..], &by_engine[..]) } else { (&by_queues[..], &["--graph"][..]) };
            verified(EP, ranks, of_tokens, filled);
            verified(COLLECTIVES, ranks, of_collectives, filled);
        }
    }
}
