//! `--nodes`: ranks of this machine as if on several, with NICs in software between them.

use crate::common::{Run, run};

fn rows(done: &Run) -> Vec<serde_json::Value> {
    assert_eq!(done.code, 0, "{done:?}");
    done.stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[test]
fn topo_goes_by_nic_between_machines() {
    let base =
        ["topo", "--json", "--ranks", "3", "--nodes", "2", "--runtime", "host", "--set", "heap.bytes=1 MiB"];
    for more in [&[][..], &["--threads"]] {
        let done = run(&[&base[..], more].concat());
        assert!(done.stderr.contains("3 ranks as if on 2 machines, by NICs in software"), "{done:?}");
        let rows = rows(&done);
        assert_eq!(rows.len(), 9, "{done:?}");
        for row in rows {
            let machine = |key: &str| row[key].as_u64().unwrap() / 2;
            let expected = if machine("from") == machine("to") { "p2p" } else { "rdma" };
            assert_eq!(row["transport"], expected, "{row}");
            // Each rank has one that was opened, and says which.
            assert!(row["nic"].as_str().is_some_and(|nic| nic.contains("queue pair")), "{row}");
            assert!(row["nic_reason"].as_str().is_some_and(|why| why.starts_with("opened")), "{row}");
        }
    }
}

#[test]
fn invalid_node_counts_are_refused() {
    for (command, words) in [
        (&["topo"][..], "--nodes 3 with 2 ranks; allowed are 1 to 2"),
        (&["bench", "ccl"], "--nodes 3 with 2 ranks"),
        (&["bench", "p2p"], "bench p2p is for ranks that map each other's memory"),
        (&["tune"], "tune is for ranks that map each other's memory"),
    ] {
        let nodes = if words.contains('3') { "3" } else { "2" };
        let done = run(&[command, &["--ranks", "2", "--nodes", nodes, "--runtime", "host"]].concat());
        assert!(done.code != 0 && done.stderr.contains(words), "{command:?}: {done:?}");
    }
}

/// Collectives and experts signal by writes.
#[test]
#[ignore = "extended"]
fn collectives_and_experts_run_by_nics_without_atomics() {
    let set = [
        "--set",
        "transport.rdma.driver=software",
        "--set",
        "transport.rdma.software_atomics=false",
        "--set",
        "heap.bytes=64 MiB",
        "--json",
    ];
    let common = ["--runtime", "host", "--ranks", "2", "--nodes", "2", "--threads", "--iters", "2"];
    for which in [
        &["bench", "ccl", "--op", "all_reduce,all_to_all", "--sizes", "64 KiB"][..],
        &["bench", "ep", "--tokens", "16", "--experts", "8", "--top-k", "2", "--hidden", "512"],
    ] {
        let rows = rows(&run(&[which, &common, &set].concat()));
        assert!(!rows.is_empty());
        for row in rows {
            assert_eq!(row["verified"].as_bool(), Some(true), "{row}");
        }
    }
}

#[test]
fn options_without_internode_support_fail_before_ranks_start() {
    let small = ["ep", "--tokens", "4", "--hidden", "128", "--experts", "8", "--top-k", "2"];
    let ep = |more: &[&'static str]| [&small[..], more].concat();
    for (bench, words) in [
        (ep(&["--mode", "compact"]), "mode is compact; allowed then is slotted"),
        (ep(&["--combine-quant", "fp8_block"]), "combine_codec is fp8_block; allowed then is none"),
        (ep(&["--payload", "copy-engine"]), "payload is copy-engine; allowed then is kernels"),
        (ep(&["--replay-routing"]), "--replay-routing: a routing is kept on one machine"),
        (ep(&["--set", "ep.mode=compact"]), "mode is compact; allowed then is slotted"),
        (vec!["ccl", "--algorithm", "push"], "--algorithm push: the group is on 2 machines"),
        (vec!["ccl", "--set", "ccl.algorithm=staged"], "ccl.algorithm staged: the group is on 2 machines"),
        (vec!["ccl", "--transport", "sdma"], "--transport sdma: the group is on 2 machines"),
        (
            vec!["ccl", "--set", "ccl.check=fingerprint"],
            "is for members of one machine, and the group is on 2",
        ),
    ] {
        let common = ["--runtime", "host", "--ranks", "4", "--nodes", "2", "--set", "heap.bytes=64 MiB"];
        let done = run(&[&["bench"], &bench[..], &common].concat());
        assert_eq!((done.code, done.stdout.as_str()), (2, ""), "{bench:?}: {done:?}");
        assert!(done.stderr.contains(words), "{bench:?}: {done:?}");
        assert_eq!(done.stderr.lines().count(), 1, "{bench:?}: {done:?}");
    }
}

#[test]
fn collectives_between_machines_are_verified() {
    for (ranks, more, by_node) in [("4", &[][..], true), ("3", &["--threads"], false)] {
        let arguments =
            ["bench", "ccl", "--runtime", "host", "--ranks", ranks, "--nodes", "2", "--iters", "2", "--json"];
        let which = ["--op", "all_reduce,all_to_all", "--sizes", "300 KiB", "--set", "heap.bytes=64 MiB"];
        let rows = rows(&run(&[&arguments[..], &which, more].concat()));
        assert_eq!(rows.len(), 2);
        for row in rows {
            assert_eq!(row["verified"].as_bool(), Some(true), "{row}");
            let goes_by_node = by_node && row["op"] == "all_reduce";
            let expected = if goes_by_node { "network-by-node" } else { "network-direct" };
            assert_eq!(row["algorithm"], expected, "{row}");
        }
    }
}
