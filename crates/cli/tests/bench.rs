//! `anabranch bench`, with ranks that are processes on the host runtime.

use crate::common::{Run, command, file, finish, run};

const SMALL: &[&str] =
    &["--runtime", "host", "--ranks", "2", "--iters", "2", "--json", "--set", "heap.bytes=64 MiB"];
const EP: &[&str] = &["--tokens", "5,9", "--hidden", "64", "--experts", "8", "--top-k", "3"];

fn rows(done: &Run) -> Vec<serde_json::Value> {
    assert_eq!(done.code, 0, "{done:?}");
    done.stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[test]
fn every_exchange_is_verified_and_the_second_run_compiles_nothing() {
    let cache = file("bench-cache", "");
    std::fs::remove_file(&cache).unwrap();
    let arguments = [&["bench", "ep"], SMALL, EP].concat();
    let bench = || finish(command(&arguments).env("XDG_CACHE_HOME", &cache));
    for compiles in [true, false] {
        let done = bench();
        let rows = rows(&done);
        let said: Vec<_> =
            rows.iter().map(|row| (row["op"].as_str().unwrap(), row["tokens"].as_u64().unwrap())).collect();
        assert_eq!(said, [("dispatch", 5), ("combine", 5), ("dispatch", 9), ("combine", 9)]);
        for row in &rows {
            assert_eq!((row["verified"].as_bool(), row["ranks"].as_u64()), (Some(true), Some(2)), "{row}");
            assert_eq!(row["compiled"].as_u64().unwrap() > 0, compiles, "{row}");
            assert!(
                row["us_median"].as_f64().unwrap() > 0.0 && row["gb_per_s"].as_f64().unwrap() > 0.0,
                "{row}"
            );
        }
    }
    std::fs::remove_dir_all(cache).unwrap();
}

#[test]
fn rows_contain_the_measurement_conditions() {
    for (more, routing, mode) in
        [(&[][..], "random", "eager"), (&["--routing", "hot", "--graph"], "hot", "graph")]
    {
        let rows = rows(&run(&[&["bench", "ep"], SMALL, EP, more].concat()));
        assert_eq!(rows.len(), 4);
        for (row, tokens) in rows.iter().zip([5, 5, 9, 9]) {
            let numbers = ["ranks", "tokens", "hidden", "experts", "top_k"].map(|name| row[name].as_u64());
            assert_eq!(numbers, [2, tokens, 64, 8, 3].map(Some), "{row}");
            assert!(row["blocks"].as_u64() > Some(0) && row["threads"].as_u64() > Some(0), "{row}");
            let words = ["dtype", "runtime", "routing", "mode", "layout"].map(|name| row[name].as_str());
            assert_eq!(words, ["bf16", "host", routing, mode, "token-major"].map(Some), "{row}");
        }
    }
}

#[test]
fn modes_and_caps_are_verified_and_reported() {
    for (mode, max_recv, said, drops) in [
        ("auto", None, "slotted", false),
        ("slotted", Some("4"), "slotted", true),
        ("compact", None, "compact", false),
        ("compact", Some("7"), "compact", true),
    ] {
        let mut arguments = [&["bench", "ep"], SMALL, EP, &["--mode", mode]].concat();
        arguments.extend(max_recv.map(|rows| ["--max-recv", rows]).into_iter().flatten());
        for row in &rows(&run(&arguments)) {
            assert_eq!((row["verified"] == true, row["dispatch_mode"].as_str()), (true, Some(said)), "{row}");
            assert_eq!(row["dropped"].as_u64() > Some(0), drops, "{mode} {max_recv:?}: {row}");
        }
    }
}

#[test]
fn rows_of_every_type_are_verified() {
    for (dispatch, given, combine) in [
        ("f16", None, "f16"),
        ("f32", Some("bf16"), "bf16"),
        ("float8_e4m3fn", None, "bf16"),
        ("float8_e4m3fnuz", Some("f32"), "f32"),
        ("fp4", Some("f16"), "f16"),
    ] {
        let mut arguments = [&["bench", "ep"], SMALL, EP, &["--dispatch-dtype", dispatch]].concat();
        arguments.extend(given.map(|given| ["--combine-dtype", given]).into_iter().flatten());
        let rows = rows(&run(&arguments));
        let said: Vec<_> = rows.iter().map(|row| (row["op"].as_str(), row["dtype"].as_str())).collect();
        let pair = [(Some("dispatch"), Some(dispatch)), (Some("combine"), Some(combine))];
        assert_eq!(said, [pair, pair].concat());
        assert!(rows.iter().all(|row| row["verified"] == true), "{dispatch}: {rows:?}");
    }
}

#[test]
#[ignore = "extended"]
fn rows_cast_inside_dispatch_are_verified_and_measured_beside_rows_cast_before() {
    let sizes = ["--tokens", "5,9", "--hidden", "256", "--experts", "8", "--top-k", "3"];
    for (cast, given, sent, more) in [
        ("fp8_block", "bf16", "float8_e4m3fn", &["--mode", "compact"][..]),
        ("fp8_block_fnuz", "f32", "float8_e4m3fnuz", &["--graph"]),
        ("fp8_block", "bf16", "float8_e4m3fn", &["--layout", "expert-major"]),
    ] {
        let chosen = ["--dispatch-cast", cast, "--dispatch-dtype", given];
        let rows = rows(&run(&[&["bench", "ep"], SMALL, &sizes, &chosen, more].concat()));
        let said: Vec<_> = rows
            .iter()
            .filter(|row| row["op"] == "dispatch")
            .map(|row| (row["cast"].as_str().unwrap(), row["dtype"].as_str().unwrap()))
            .collect();
        assert_eq!(said, [(cast, sent), ("before", sent)].repeat(2));
        for row in &rows {
            assert!(row["verified"] == true && row["us_median"].as_f64().unwrap() > 0.0, "{row}");
            assert!(row["op"] != "combine" || row["dtype"] == given, "{row}");
        }
    }
    let done = run(&[&["bench", "ep"], SMALL, EP, &["--dispatch-cast", "fp8_block"]].concat());
    assert!(done.code != 0 && done.stderr.contains("multiple of 128"), "{done:?}");
}

#[test]
#[ignore = "extended"]
fn expert_major_rows_are_verified_and_have_times_of_their_own() {
    for more in [
        &["--dispatch-dtype", "float8_e4m3fn", "--expert-alignment", "8"][..],
        &["--graph", "--dispatch-dtype", "f16"],
        // Fewer rows than pairs: some are dropped, and the oracle knows which.
        &["--expert-capacity", "2", "--routing", "hot"],
        &["--combine-source", "buffer"],
        &["--combine-source", "buffer", "--combine-quant", "fp8_direct", "--graph"],
        &["--combine-source", "buffer", "--combine-quant", "fp4_block", "--expert-capacity", "2"],
    ] {
        for (layout, ops) in [
            ("expert-major", &["dispatch", "combine"][..]),
            ("expert-major-steps", &["dispatch", "combine", "expand", "contract"]),
        ] {
            let rows = rows(&run(&[&["bench", "ep"], SMALL, EP, &["--layout", layout], more].concat()));
            let said: Vec<_> = rows.iter().map(|row| row["op"].as_str().unwrap()).collect();
            assert_eq!(said, ops.repeat(2));
            for row in &rows {
                assert!(row["verified"] == true && row["layout"] == layout, "{row}");
                assert!(row["us_median"].as_f64().unwrap() > 0.0, "{row}");
                let local = ["expand", "contract"].contains(&row["op"].as_str().unwrap());
                assert_eq!(local, row["link_fraction"].is_null(), "{row}");
                assert!(!local || row["gb_per_s"].as_f64().unwrap() > 0.0, "{row}");
            }
        }
    }
}

#[test]
fn replayed_routings_are_verified_and_timed_beside_dispatch() {
    for more in [&["--mode", "slotted"][..], &["--mode", "compact", "--max-recv", "9", "--graph"]] {
        let rows = rows(&run(&[&["bench", "ep", "--replay-routing"], SMALL, EP, more].concat()));
        let said: Vec<_> = rows.iter().map(|row| row["op"].as_str().unwrap()).collect();
        assert_eq!(said, ["dispatch", "combine", "dispatch-again"].repeat(2));
        for row in &rows {
            assert!(row["verified"] == true && row["us_median"].as_f64().unwrap() > 0.0, "{row}");
            assert!(row["gb_per_s"].as_f64().unwrap() > 0.0, "{row}");
        }
    }
}

#[test]
fn every_copy_route_is_verified() {
    let done = run(&[&["bench", "p2p", "--bytes", "4 KiB"], SMALL].concat());
    let rows = rows(&done);
    assert_eq!(rows.len(), 3 + 3 + 4, "{done:?}");
    assert!(rows.iter().all(|row| row["verified"] == true), "{done:?}");
    let (copies, pings) = rows.split_at(6);
    for same_pattern in copies.chunks(3) {
        let shares: Vec<f64> =
            same_pattern.iter().map(|row| row["link_fraction"].as_f64().unwrap()).collect();
        assert!(
            shares.contains(&1.0) && shares.iter().all(|share| (0.0..=1.0).contains(share)),
            "{shares:?}"
        );
    }
    assert!(pings.iter().all(|row| row["link_fraction"].is_null()), "{done:?}");
    let payloads: Vec<_> = pings.iter().map(|row| row["bytes"].as_u64().unwrap()).collect();
    assert_eq!(payloads, [0, 16, 4096, 16384]);
}

#[test]
#[ignore = "extended"]
fn every_collective_is_verified_in_groups_and_forms_and_drawn() {
    let plot = file("collectives.svg", "");
    let drawn = plot.to_str().unwrap();
    let all = "all_reduce,all_gather,reduce_scatter,all_to_all,broadcast,reduce,gather,scatter";
    let done = run(&[&["bench", "ccl", "--op", all, "--sizes", "1K,33K", "--plot", drawn], SMALL].concat());
    let found = rows(&done);
    let said: Vec<_> =
        found.iter().map(|row| (row["op"].as_str().unwrap(), row["bytes"].as_u64().unwrap())).collect();
    let expected: Vec<_> =
        all.split(',').flat_map(|op| [1 << 10, 33 << 10].map(|bytes| (op, bytes))).collect();
    assert_eq!(said, expected);
    for row in &found {
        assert_eq!((row["verified"].as_bool(), row["ranks"].as_u64()), (Some(true), Some(2)), "{row}");
        assert!(row["algorithm"].is_string() && row["blocks"].as_u64() > Some(0), "{row}");
        // Two ranks: what crosses a link is half of what all parts together have, or all of it.
        let share = row["busbw"].as_f64().unwrap() / row["algbw"].as_f64().unwrap();
        let factor = match row["op"].as_str().unwrap() {
            "all_reduce" | "broadcast" | "reduce" => 1.0,
            _ => 0.5,
        };
        assert!((share - factor).abs() < 1e-3, "rounded to four digits: {row}");
    }
    let picture = std::fs::read_to_string(&plot).unwrap();
    assert!(all.split(',').all(|op| picture.contains(&format!("{op}: bus bandwidth"))), "{picture}");
    std::fs::remove_file(plot).unwrap();
    for more in [
        &["--group", "2,0", "--in-place", "--graph", "--op", "all_reduce,all_gather,reduce_scatter"][..],
        &["--group", "1", "--threads"],
        &["--memory", "local", "--dtype", "f32", "--reduce", "avg", "--threads"],
        &["--algorithm", "pull", "--op", "all_reduce", "--reduce", "premul_sum:0.5"],
        &["--dtype", "bool", "--reduce", "bxor", "--op", "reduce", "--root", "2"],
    ] {
        let three = ["--runtime", "host", "--ranks", "3", "--iters", "1", "--json", "--sizes", "96"];
        let done = run(&[&["bench", "ccl"], &three[..], more].concat());
        let found = rows(&done);
        assert!(!found.is_empty() && found.iter().all(|row| row["verified"] == true), "{more:?}: {done:?}");
        assert!(
            found.iter().all(|row| row["mode"] == if more.contains(&"--graph") { "graph" } else { "eager" })
        );
    }
}

#[test]
fn invalid_collectives_fail_before_ranks_start() {
    for (arguments, words) in [
        (&["--compare", "nccl"][..], "NCCL runs on NVIDIA GPUs, and device.runtime is host"),
        (&["--group", "0,5"], "group rank 5"),
        (&["--group", "1,1"], "rank 1 is given twice"),
        (&["--root", "2"], "the group has the ranks 0 to 1"),
        (&["--op", "all_to_all", "--in-place"], "all_to_all has no such form"),
        (&["--dtype", "bool", "--reduce", "avg"], "avg is not defined for bool"),
        (&["--sizes", "8"], "the least is 32 bytes"),
        (&["--sizes", "1G"], "heap.bytes is 67108864"),
        (&["--algorithm", "magic"], "magic"),
        (
            &["--op", "all_gather", "--algorithm", "push"],
            "--algorithm push: all_gather does not go by it: it is for reductions",
        ),
        (
            &["--op", "all_gather", "--set", "ccl.algorithm=pull"],
            "ccl.algorithm pull: all_gather does not go by it",
        ),
    ] {
        let refused = run(&[&["bench", "ccl"], SMALL, arguments].concat());
        assert!(refused.code == 2 && refused.stdout.is_empty(), "{arguments:?}: {refused:?}");
        assert!(refused.stderr.contains(words), "{arguments:?}: {}", refused.stderr);
        assert_eq!(refused.stderr.lines().count(), 1, "{arguments:?}: {}", refused.stderr);
    }
}

#[test]
fn invalid_sizes_fail_before_ranks_start() {
    let most = u32::MAX.to_string();
    let half = (1_u64 << 60).to_string();
    for (arguments, words) in [
        (vec!["ep", "--tokens", &most, "--hidden", &most], "hidden"),
        (vec!["ep", "--tokens", "4", "--expert-capacity", "8"], "need --layout expert-major"),
        (
            vec!["ep", "--tokens", "4", "--replay-routing", "--layout", "expert-major"],
            "--replay-routing is for --layout token-major",
        ),
        (
            vec![
                "ep",
                "--tokens",
                "4",
                "--hidden",
                "64",
                "--layout",
                "expert-major",
                "--expert-alignment",
                "3",
            ],
            "alignment is 3; allowed are powers of two from 1 to 1024",
        ),
        (vec!["ep", "--tokens", &most, "--hidden", "64"], "max_tokens"),
        (vec!["ep", "--tokens", "16384", "--hidden", "7168"], "heap.bytes is 67108864"),
        (
            vec!["ep", "--tokens", "4", "--compare", "nccl"],
            "NCCL runs on NVIDIA GPUs, and device.runtime is host",
        ),
        (
            vec!["ep", "--tokens", "4", "--combine-dtype", "fp4"],
            "combine_type is fp4; allowed are bf16, f16, f32",
        ),
        (vec!["ep", "--tokens", "4", "--max-recv", "1"], "max_recv is 1; allowed are 0 (no cap) and"),
        (vec!["p2p", "--bytes", "9223372036854775792"], "more than any heap holds"),
        (vec!["p2p", "--bytes", &half], "heap.bytes is 67108864"),
        (vec!["p2p", "--bytes", "17"], "no positive multiple of 16"),
    ] {
        let refused = run(&[&["bench"], &arguments[..], SMALL].concat());
        assert!(refused.code == 2 && refused.stdout.is_empty(), "{arguments:?}: {refused:?}");
        assert!(refused.stderr.contains(words), "{arguments:?}: {}", refused.stderr);
        assert_eq!(refused.stderr.lines().count(), 1, "{arguments:?}: {}", refused.stderr);
    }
}

#[test]
fn a_truncated_trace_is_one_error() {
    let whole = concat!(env!("CARGO_MANIFEST_DIR"), "/../../data/moe-trace-minilm-e64k8.safetensors");
    let mut bytes = std::fs::read(whole).unwrap();
    bytes.truncate(bytes.len() / 2);
    let path = file("truncated.safetensors", "");
    std::fs::write(&path, bytes).unwrap();
    let refused = run(&[&["bench", "ep", "--trace", path.to_str().unwrap()], SMALL].concat());
    assert!(refused.code > 0 && refused.stdout.is_empty(), "{refused:?}");
    assert!(refused.stderr.contains("it is truncated"), "{}", refused.stderr);
    assert_eq!(refused.stderr.lines().count(), 1, "{}", refused.stderr);
    std::fs::remove_file(path).unwrap();
}

/// The kernels are those that the collectives' own tests have compiled, where these ran before.
#[test]
#[ignore = "extended"]
fn a_machine_is_checked_and_wrong_flags_are_refused() {
    let cache = format!("kernels.cache={}/kernels", env!("CARGO_TARGET_TMPDIR"));
    let check = ["bench", "ccl", "--check", "--replays", "12", "--runtime", "host", "--ranks", "2", "--json"];
    let rest = ["--set", "device.host.wave=4", "--set", "heap.bytes=64 MiB", "--set", &cache];
    let rows = rows(&run(&[&check[..], &rest[..]].concat()));
    let said: Vec<_> = rows.iter().map(|row| (row["op"].as_str().unwrap(), row["wrong"].as_u64())).collect();
    assert_eq!(said, [("sweep", Some(0)), ("replays", Some(0))]);
    assert!(rows.iter().all(|row| row["verified"] == true && row["calls"].as_u64() > Some(50)), "{rows:?}");
    assert_eq!(rows[0]["groups"], 4);
    for lists in ["gathers_of_many", "batches", "send_receives"] {
        assert!(rows.iter().all(|row| row[lists].as_u64() > Some(2)), "{lists}: {rows:?}");
    }
    for wrong in [&["--check", "--graph"][..], &["--check", "--dtype", "f32"], &["--replays", "5"]] {
        let done = run(&[&["bench", "ccl"], wrong].concat());
        assert_eq!(done.code, 2, "{done:?}");
    }
}

#[test]
#[ignore = "extended"]
fn a_measured_table_is_written_and_chooses() {
    let path = file("tuned.toml", "").display().to_string();
    let host = ["--runtime", "host", "--ranks", "2", "--set", "heap.bytes=64 MiB"];
    let tune =
        ["tune", "--op", "all_reduce,scatter", "--max", "4K", "--samples", "2", "--json", "--output", &path];
    let done = run(&[&tune[..], &host].concat());
    assert_eq!(done.code, 0, "{done:?}");
    let rows: Vec<serde_json::Value> =
        done.stdout.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
    assert!(rows.len() > 8 && rows.iter().all(|row| row["us_median"].as_f64() > Some(0.0)), "{done:?}");
    let text = std::fs::read_to_string(&path).unwrap();
    assert_eq!(text.matches("[[choices]]").count(), 4, "{text}");
    // What is in the table decides: the same for all sizes.
    let forced = "device = \"any\"\n[[choices]]\ncollective = \"all_reduce\"\nmembers = 2\nreached = true\n\
         steps = [{ algorithm = \"push\", block_bytes = 1000000 }]\n"
        .to_owned();
    for (text, algorithm) in [(text, None), (forced, Some("push"))] {
        std::fs::write(&path, text).unwrap();
        let set = format!("ccl.table={path}");
        let bench = [
            "bench",
            "ccl",
            "--op",
            "all_reduce",
            "--sizes",
            "1K,64K",
            "--iters",
            "2",
            "--json",
            "--set",
            &set,
        ];
        for row in self::rows(&run(&[&bench[..], &host].concat())) {
            assert!(algorithm.is_none_or(|algorithm| row["algorithm"] == algorithm), "{row}");
            assert!(row["verified"] == true, "{row}");
        }
    }
    for (wrong, said) in [
        (&["--members", "3"][..], "--members 3"),
        (&["--max", "1G"], "--max"),
        (&["--set", "ccl.algorithm=pull"], "ccl.algorithm is set"),
    ] {
        let done = run(&[&["tune"], &host[..], wrong].concat());
        assert!(done.code != 0 && done.stderr.contains(said), "{done:?}");
    }
}

#[test]
fn a_placement_from_a_file_is_used_and_verified() {
    let path =
        file("placement.toml", "ranks_of_experts = [[1], [1, 0], [1], [0, 1]]\n").display().to_string();
    let bench = [
        "bench",
        "ep",
        "--runtime",
        "host",
        "--ranks",
        "2",
        "--hidden",
        "128",
        "--top-k",
        "2",
        "--tokens",
        "9",
    ];
    let rest = ["--iters", "2", "--set", "heap.bytes=64 MiB", "--placement", &path, "--json", "--experts"];
    for row in rows(&run(&[&bench[..], &rest, &["4"]].concat())) {
        assert!(row["verified"] == true && row["placement"] == "6 places", "{row}");
    }
    let done = run(&[&bench[..], &rest, &["5"]].concat());
    assert!(done.code != 0 && done.stderr.contains("the placement's table has 4 experts"), "{done:?}");
}

#[test]
fn plan_reports_its_memory_for_any_number_of_ranks() {
    let plan = ["bench", "ep", "--plan", "--ranks", "256", "--tokens", "128,4096", "--runtime", "host"];
    let done = run(&[&plan[..], &["--json"]].concat());
    let said: Vec<serde_json::Value> =
        done.stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let bytes = |index: usize, name: &str| said[index]["bytes"][name].as_u64().unwrap();
    assert_eq!(said.len(), 2, "{done:?}");
    assert_eq!(
        (bytes(0, "received_rows"), bytes(1, "received_rows")),
        (256 * 128 * 14336, 256 * 4096 * 14336)
    );
    assert_eq!((said[0]["mode"].as_str(), said[1]["mode"].as_str()), (Some("slotted"), Some("compact")));
    for one in &said {
        let parts: u64 =
            one["bytes"].as_object().unwrap().values().filter_map(serde_json::Value::as_u64).sum();
        assert_eq!(one["heap_bytes"].as_u64().unwrap() + one["own_bytes"].as_u64().unwrap(), parts, "{one}");
    }
    let table = run(&plan).stdout;
    assert!(table.contains("256 ranks, 128 tokens") && table.contains("received rows"), "{table}");
    assert_eq!(run(&["bench", "ep", "--plan", "--tokens", "1"]).code, 2, "of how many ranks?");
    let done = run(&[&plan[..], &["--layout", "expert-major", "--combine-source", "window"]].concat());
    assert!(done.code != 0 && done.stderr.contains("without the buffers of --layout"), "{done:?}");
}

#[test]
#[ignore = "extended"]
fn measured_launches_are_written_and_shape_dispatch_and_combine() {
    let path = file("launches.toml", "device = \"anabranch host device\"\n").display().to_string();
    let host = ["--runtime", "host", "--ranks", "2", "--set", "heap.bytes=64 MiB", "--wave", "4"];
    let rows = ["--hidden", "256", "--experts", "8", "--top-k", "2"];
    let tune =
        ["tune", "ep", "--tokens", "1,4", "--samples", "2", "--waves", "1,2", "--blocks", "1,2", "--json"];
    let done = run(&[&tune[..], &host, &rows, &["--output", &path]].concat());
    assert_eq!(done.code, 0, "{done:?}");
    let lines: Vec<serde_json::Value> =
        done.stdout.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
    for op in ["dispatch", "combine_pull", "combine_push"] {
        let of = lines.iter().filter(|line| line["op"] == op);
        assert!(
            of.clone().count() > 16 && of.clone().all(|line| line["us_median"].as_f64() > Some(0.0)),
            "{done:?}"
        );
    }
    let text = std::fs::read_to_string(&path).unwrap();
    assert_eq!(text.matches("[[launches]]").count(), 2, "{text}");
    // What is in the file of other ranks stays, and what is measured again is there once.
    let again = ["--dispatch-dtype", "bf16", "--ranks", "3", "--output", &path];
    let done =
        run(&[&tune[..], &["--runtime", "host", "--set", "heap.bytes=64 MiB"], &rows, &again].concat());
    assert_eq!(done.code, 0, "{done:?}");
    assert_eq!(std::fs::read_to_string(&path).unwrap().matches("[[launches]]").count(), 3);
    // The shape of what is launched is the table's, up to what the tokens need.
    let forced = "device = \"anabranch host device\"\n[[launches]]\nranks = 2\ndispatch_type = \"bf16\"\ncombine_type = \"bf16\"\n\
         hidden = 256\ntop_k = 2\ndispatch = [{ max_blocks = 3, waves_per_block = 2, segments = 1 }]\n\
         combine_pull = [{ up_to = 6, max_blocks = 1, waves_per_block = 3, segments = 1 }, { max_blocks = 5, waves_per_block = 1, \
         segments = 1 }]\n";
    for (text, shapes) in [(text.as_str(), None), (forced, Some([(3, 8), (5, 4)]))] {
        std::fs::write(&path, text).unwrap();
        let set = format!("ep.table={path}");
        let bench = ["bench", "ep", "--tokens", "12", "--iters", "2", "--json", "--set", &set];
        let measured = self::rows(&run(&[&bench[..], &host, &rows].concat()));
        for (index, row) in measured.iter().enumerate() {
            assert!(row["verified"] == true && row["launch"] == "table", "{row}");
            let shape = (row["blocks"].as_u64().unwrap(), row["threads"].as_u64().unwrap());
            assert!(shapes.is_none_or(|shapes| shapes[index] == shape), "{row}");
        }
        // Rows without a measured launch are reported as such, once.
        let done = run(&[&bench[..], &host, &["--hidden", "128", "--experts", "8", "--top-k", "2"]].concat());
        assert_eq!(done.stderr.matches("no launches for 2 ranks").count(), 1, "{done:?}");
    }
    for (wrong, said) in [
        (&["--set", "ep.blocks=2"][..], "ep.blocks is set"),
        (&["--tokens", "100000", "--hidden", "7168"], "heap.bytes"),
        (&["--hidden", "100"], "hidden is 100"),
        (&["--output", "/nowhere/at/all.toml", "--tokens", "1"], "/nowhere/at/all.toml"),
    ] {
        let done = run(&[&["tune", "ep"], &host[..], wrong].concat());
        assert!(done.code != 0 && done.stderr.contains(said), "{done:?}");
    }
    std::fs::write(&path, "device = \"another\"\n").unwrap();
    let done = run(&[&tune[..], &host, &rows, &["--output", &path]].concat());
    assert!(done.code != 0 && done.stderr.contains("take another file"), "{done:?}");
}
