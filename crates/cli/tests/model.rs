//! `anabranch model`: what grows as it should, what is refused, and that the documents have what it prints.

use crate::common::{Run, run};
use serde_json::Value;

const DOCUMENT: &str = include_str!("../../../docs/performance.md");

fn rows(arguments: &[&str]) -> Vec<Value> {
    let done = run(&[&["model"], arguments, &["--json"]].concat());
    assert_eq!(done.code, 0, "{done:?}");
    assert!(!done.stdout.is_empty());
    done.stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn of<'a>(rows: &'a [Value], op: &str, across: &str) -> Vec<&'a Value> {
    rows.iter().filter(|row| row["op"] == op && row["across"] == across).collect()
}

fn numbers(rows: &[&Value], name: &str) -> Vec<u64> {
    rows.iter().map(|row| row[name].as_u64().unwrap()).collect()
}

#[test]
fn model_of_collectives_scales_as_expected() {
    let which = ["ccl", "--ranks", "4,8,16,32", "--per-node", "4", "--sizes", "32M"];
    let rows = rows(&[&which[..], &["--op", "all_reduce,all_gather,all_to_all,broadcast"]].concat());
    let between = |op, across| numbers(&of(&rows, op, across), "between_bytes");
    // Bytes of 2, 4 and 8 nodes of four; what a rank gets from other nodes, in all.
    let far = [8, 16, 32].map(|ranks| (32_u64 << 20) / ranks * (ranks - 4));
    assert_eq!(between("all_gather", "direct"), far);
    assert_eq!(between("all_gather", "node"), far.map(|bytes| bytes / 4), "an input goes once to each node");
    assert_eq!(between("all_to_all", "direct"), far);
    assert_eq!(between("all_reduce", "direct"), far.map(|bytes| 2 * bytes));
    let rail = (32 << 20) / 4;
    assert_eq!(between("all_reduce", "node"), [2 * rail, 3 * rail, 3 * rail], "bf16 sums, unrounded");
    assert_eq!(between("broadcast", "node"), [rail, 3 * rail, 7 * rail]);
    for op in ["all_reduce", "all_gather", "all_to_all"] {
        let one_node = of(&rows, op, "none");
        assert_eq!((numbers(&one_node, "between_bytes"), numbers(&one_node, "messages")), (vec![0], vec![0]));
        for across in ["direct", "node"] {
            let rows = of(&rows, op, across);
            let messages = numbers(&rows, "messages");
            assert!(messages.is_sorted() && messages.iter().all(|count| *count > 0), "{op} {across}");
            assert!(numbers(&rows, "between_hops").is_sorted());
            for row in &rows {
                assert!(row["us"].as_f64().unwrap() > 0.0);
                assert_eq!(row["links"]["nic_gb_per_s"]["origin"], "assumed, not measured");
                assert_eq!(row["links"]["inside_gb_per_s"]["origin"], "measured on H200");
            }
        }
    }
    // There and back over all nodes but one.
    assert_eq!(numbers(&of(&rows, "all_reduce", "node"), "between_hops"), [2, 6, 14]);
    assert_eq!(between("all_to_all", "node"), far, "packed or not");
}

/// Short parts to four members of each node go in one request where they are packed.
#[test]
fn packed_parts_take_fewer_requests() {
    let rows = rows(&["ccl", "--ranks", "16,32", "--per-node", "4", "--sizes", "32K", "--op", "all_to_all"]);
    let messages = |across| numbers(&of(&rows, "all_to_all", across), "messages");
    assert_eq!((messages("direct"), messages("node")), (vec![3 * 12, 3 * 28], vec![3 * 3, 3 * 7]));
}

#[test]
fn model_of_dispatch_scales_as_expected() {
    let rows = rows(&["ep", "--ranks", "8,16,64,256", "--tokens", "128"]);
    let all = |op, across, name| numbers(&of(&rows, op, across), name);
    let (direct, node) =
        (all("dispatch", "direct", "between_bytes"), all("dispatch", "node", "between_bytes"));
    assert_eq!((direct.len(), node.len()), (3, 3));
    assert!(direct.is_sorted() && node.is_sorted(), "more ranks, more of them on other nodes");
    for (direct, node) in direct.iter().zip(&node) {
        assert!(node < direct, "a token crosses once: {node} {direct}");
    }
    // Of a token with eight experts on two nodes nearly one copy crosses, of many nodes nearly eight do.
    let (row, tokens) = (7168 * 2, 128);
    assert!(node[0] < tokens * (row + 96) && node[0] > tokens * row / 2, "{node:?}");
    assert!(direct[2] > 7 * tokens * row && direct[2] < 8 * tokens * (row + 96), "{direct:?}");
    // What does not cross stays, and rows come back from wherever they went.
    let returned = all("combine", "direct", "between_bytes");
    for (direct, returned) in direct.iter().zip(&returned) {
        assert_eq!(direct % (row + 80), 0, "rows and records");
        assert_eq!(direct / (row + 80), returned / row);
    }
    assert_eq!(all("combine", "none", "between_bytes"), [0]);
    // A run of rows, one of records and a flag for each rank, or each node.
    assert_eq!(all("dispatch", "node", "messages"), [3, 3 * 7, 3 * 31]);
    assert_eq!(all("dispatch", "direct", "messages")[..2], [3 * 8, 3 * 56]);
    assert_eq!(all("dispatch", "node", "inside_hops"), [1, 1, 1]);
}

/// What a plan chooses by itself is the faster of the two, of what is counted over copies, too.
#[test]
fn model_chooses_the_faster_way() {
    for tokens in ["1", "128", "4096"] {
        let which = ["ep", "--ranks", "16,64,512", "--tokens", tokens];
        let both = rows(&which);
        let chosen = rows(&[&which[..], &["--across", "auto"]].concat());
        let chosen: Vec<_> = chosen.iter().filter(|row| row["op"] == "dispatch").collect();
        assert_eq!(chosen.len(), 3);
        for chosen in chosen {
            let same = both.iter().filter(|row| row["op"] == "dispatch" && row["ranks"] == chosen["ranks"]);
            let times: Vec<f64> = same.clone().map(|row| row["us"].as_f64().unwrap()).collect();
            assert_eq!(times.len(), 2);
            let us = chosen["us"].as_f64().unwrap();
            assert!(times.iter().all(|time| us <= 1.02 * time), "{tokens}: {us} {times:?}");
            assert!(same.clone().any(|row| row == chosen), "{chosen}");
        }
    }
}

/// More ranks have fewer blocks, and so chunks that are worth their requests; with more blocks requests are the limit.
#[test]
fn chunks_stay_worth_their_requests() {
    let which = ["ccl", "--ranks", "16,64,256", "--sizes", "256M", "--op", "all_gather,all_to_all"];
    for row in rows(&which) {
        assert_ne!(row["limit"], "messages", "{row}");
    }
    let forced = rows(&[&which[..], &["--channels", "32"]].concat());
    let limits = of(&forced, "all_to_all", "direct");
    assert_eq!(limits.last().unwrap()["limit"], "messages");
}

#[test]
fn times_follow_the_links_that_are_given() {
    let us = |more: &[&str]| {
        let which = ["ep", "--ranks", "16", "--tokens", "4096", "--across", "direct"];
        let rows = rows(&[&which[..], more].concat());
        of(&rows, "dispatch", "direct")[0]["us"].as_f64().unwrap()
    };
    let usual = us(&[]);
    assert!(us(&["--nic-rate", "25"]) > 1.8 * usual);
    assert!(us(&["--nic-rate", "100"]) < usual);
    assert!((us(&["--nic-hop", "1002"]) - usual - 1000.0).abs() < 1e-6);
    assert!((us(&["--launch", "101.4"]) - usual - 100.0).abs() < 1e-6);
    assert!(us(&["--nic-message", "10000"]) > 24.0 * 10_000.0);
    assert!(us(&["--inside-rate", "3.39"]) > usual);
}

#[test]
fn invalid_model_arguments_are_refused() {
    for (arguments, words) in [
        (
            &["ccl", "--ranks", "12"][..],
            "--ranks 12 with --per-node 8; allowed are multiples of 8 up to 1024",
        ),
        (&["ep", "--ranks", "8,0"], "--ranks 0 with --per-node 8"),
        (&["ep", "--ranks", "2048"], "--ranks 2048 with --per-node 8"),
        (&["ep", "--per-node", "0"], "--per-node"),
        (&["ep", "--nic-rate", "0"], "it has to be above 0"),
        (&["ccl", "--nic-hop=-1"], "it must not be below 0"),
        (
            &["ccl", "--ranks", "16", "--per-node", "1", "--op", "all_to_all", "--across", "node"],
            "nodes have one member each",
        ),
        (&["ccl", "--ranks", "8", "--op", "all_gather", "--across", "node"], "all members are on one node"),
        (&["ccl", "--ranks", "16", "--sizes", "100"], "leave nothing"),
        (&["ccl", "--ranks", "16", "--sizes", "0"], "0 bytes leave nothing"),
        (&["ccl", "--ranks", "16", "--channels", "0"], "channels is 0"),
        (&["ccl", "--ranks", "16", "--across", "both"], "is no way across nodes"),
        (&["ep", "--ranks", "8", "--top-k", "300"], "300"),
        (&["ep", "--ranks", "8", "--tokens", "0"], "max_tokens"),
        (&["ep", "--ranks", "8", "--experts", "4", "--top-k", "8"], "8"),
    ] {
        let done = run(&[&["model"], arguments].concat());
        assert!(done.code != 0 && done.stderr.contains(words), "{arguments:?}: {done:?}");
        assert!(done.stdout.is_empty(), "{done:?}");
    }
}

/// Each block of the document that begins with the command has the output after it.
#[test]
#[ignore = "extended"]
fn document_matches_the_output() {
    let mut blocks = 0;
    for block in DOCUMENT.split("```text\n$ anabranch ").skip(1) {
        let (block, _) = block.split_once("```").unwrap();
        let (command, printed) = block.split_once('\n').unwrap();
        let arguments: Vec<_> = command.split(' ').collect();
        let Run { code, stdout, .. } = run(&arguments);
        assert_eq!((code, stdout.as_str()), (0, printed), "{command}");
        blocks += 1;
    }
    assert_eq!(blocks, 1);
}
