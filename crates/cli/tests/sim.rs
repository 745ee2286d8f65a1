//! `anabranch sim`, from the search to the replay of what it prints.

use crate::common::{Run, file, run};
use serde_json::Value;

/// The words after "replay: anabranch".
fn replay(done: &Run) -> Vec<&str> {
    let line = done.stdout.lines().find_map(|line| line.strip_prefix("replay: anabranch "));
    assert!(line.is_some(), "{done:?}");
    line.unwrap_or_default().split(' ').collect()
}

/// The problem, the timeline: all but what was searched and how it was shrunk.
fn picture(done: &Run) -> Vec<&str> {
    done.stdout.lines().skip_while(|line| !line.starts_with("problem: ")).collect()
}

#[test]
fn a_clean_search_ends_with_what_it_ran() {
    for threads in ["1", "3"] {
        let done = run(&["sim", "barrier", "--ranks", "2", "--seeds", "100..300", "--threads", threads]);
        assert_eq!(done.code, 0, "{done:?}");
        assert_eq!(done.stderr, "", "no progress in a pipe");
        let last = done.stdout.lines().last().unwrap();
        assert!(last.starts_with("barrier: seeds 100..300: no failure; 200 seeds in "), "{last}");
        assert!(last.contains(" seeds/s, ") && last.ends_with(" primitives"), "{last}");
    }
}

#[test]
fn a_mutant_is_found_shrunk_and_replayed_from_the_printed_line() {
    let trace = file("sim.json", "");
    let trace = trace.to_str().unwrap();
    let search = ["sim", "barrier", "--mutant", "EPOCH_LOOSE", "--values-only", "--seeds", "0..1000"];
    let done = run(&[&search[..], &["--threads", "3", "--trace", trace]].concat());
    assert_eq!((done.code, done.stderr.as_str()), (1, ""), "{done:?}");
    assert!(done.stdout.contains("\nshrunk in ") && done.stdout.contains(" to 2 ranks, "), "{done:?}");
    assert!(picture(&done)[0].contains("words of another round"), "{done:?}");
    let written = std::fs::read(trace).unwrap();
    let rows: Value = serde_json::from_slice(&written).unwrap();
    assert!(rows["traceEvents"].as_array().is_some_and(|rows| rows.len() > 50));

    let again = run(&[&search[..], &["--threads", "1"]].concat());
    assert_eq!(again.stdout, done.stdout, "byte for byte, whatever the threads");

    let mut words = replay(&done);
    let replayed = run(&[&words[..], &["--trace", trace]].concat());
    assert_eq!(replayed.code, 1, "{replayed:?}");
    assert_eq!(picture(&replayed), picture(&done), "problem, events and replay line");
    assert!(!replayed.stdout.contains("shrunk"), "{replayed:?}");
    assert_eq!(std::fs::read(trace).unwrap(), written, "the same events");

    // The line without its mistake is no failure: it is the mutant that fails.
    let mutant = words.iter().position(|word| *word == "--mutant").unwrap();
    words.drain(mutant..mutant + 2);
    assert_eq!(run(&words).code, 0);
    std::fs::remove_file(trace).unwrap();
}

#[test]
fn json_matches_the_text() {
    let row = |arguments: &[&str], code: i32| -> Value {
        let done = run(&[&["sim", "barrier", "--json"], arguments].concat());
        assert_eq!((done.code, done.stdout.lines().count()), (code, 1), "{done:?}");
        serde_json::from_str(&done.stdout).unwrap()
    };
    let clean = row(&["--seeds", "0..50", "--ranks", "2"], 0);
    assert_eq!((clean["result"].as_str(), clean["seeds"].as_u64()), (Some("clean"), Some(50)));
    assert!(clean["primitives"].as_u64().is_some_and(|count| count > 1000), "{clean}");
    let cut = row(&["--seeds", "0..1000000000", "--time-limit", "50ms"], 0);
    assert_eq!((cut["result"].as_str(), cut["of"].as_u64()), (Some("time limit"), Some(1_000_000_000)));
    let failed = row(&["--mutant", "EPOCH_LOOSE", "--values-only"], 1);
    assert_eq!(failed["result"], "failed");
    assert_eq!(failed["shrunk"]["ranks"], 2, "{failed}");
    assert!(failed["events"].as_u64().is_some_and(|count| count > 100));
    let line = failed["replay"].as_str().unwrap();
    let words: Vec<&str> = line.strip_prefix("anabranch ").unwrap().split(' ').chain(["--json"]).collect();
    let replayed = run(&words);
    let replayed: Value = serde_json::from_str(&replayed.stdout).unwrap();
    for key in ["timeline", "replay", "events", "kind"] {
        assert_eq!(replayed[key], failed[key], "{key}");
    }
    assert_eq!(replayed["problem"], failed["shrunk"]["problem"]);
}

#[test]
fn interrupted_search_is_reported() {
    let done = run(&["sim", "barrier", "--seeds", "0..1000000000", "--time-limit", "50ms"]);
    assert_eq!(done.code, 0, "{done:?}");
    assert!(done.stdout.starts_with("barrier: the time limit ended the search after "), "{done:?}");
    assert!(done.stdout.contains(" of 1000000000 seeds; no failure in them; "), "{done:?}");
}

#[test]
fn invalid_searches_are_refused() {
    for (arguments, expected) in [
        (&["barrier", "--seeds", "5"][..], "seeds are written like 0..10000"),
        (&["barrier", "--seeds", "6..6"], "one seed alone is 6..7"),
        (
            &["barrier", "--mutant", "4"],
            "barrier contains no mutant 4 in this form; searches of it catch EPOCH_LOOSE, ",
        ),
        (&["barrier", "--mutant", "SIGNAL_BEFORE_DATA"], "barrier contains no mutant SIGNAL_BEFORE_DATA in"),
        (&["barrier", "--ranks", "0"], "--ranks"),
        (&["barrier", "--threads", "0"], "--threads"),
        (&["barrier", "--ranks", "10000"], "anabranch: barrier: ranks is 10000; allowed is 1 to "),
        (&["nothing"], "possible values: ep, ep-compact"),
        (&[], "required"),
    ] {
        let done = run(&[&["sim"], arguments].concat());
        assert_eq!((done.code, done.stdout.as_str()), (2, ""), "{done:?}");
        assert!(done.stderr.contains(expected), "{done:?}");
    }
    let trace = run(&["sim", "barrier", "--mutant", "EPOCH_LOOSE", "--trace", "/nonexistent/trace.json"]);
    assert_eq!(trace.code, 1);
    assert!(trace.stderr.contains("/nonexistent/trace.json cannot be written"), "{trace:?}");
    assert!(
        trace.stdout.contains("\nreplay: anabranch sim barrier "),
        "the failure is reported anyway: {trace:?}"
    );
}

#[test]
fn the_list_has_protocols_and_mutants() {
    let done = run(&["sim", "--list", "--json"]);
    assert_eq!(done.code, 0, "{done:?}");
    let rows: Vec<Value> = done.stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let names = |kind: &str| {
        let rows = rows.iter().filter(|row| row["kind"] == kind);
        rows.map(|row| row["name"].as_str().unwrap_or_default().to_owned()).collect::<Vec<_>>()
    };
    assert!(names("protocol").iter().any(|name| name == "barrier"));
    assert!(names("mutant").iter().any(|name| name == "EPOCH_LOOSE"));
    let protocols = || rows.iter().filter(|row| row["kind"] == "protocol");
    assert!(protocols().all(|row| row["about"].as_str().is_some_and(|about| !about.is_empty())));
    let text = run(&["sim", "--list"]).stdout;
    assert!(rows.iter().all(|row| text.contains(row["about"].as_str().unwrap())), "{text}");
    assert!(text.lines().any(|line| line.trim_start().starts_with("EPOCH_LOOSE ")), "{text}");
    let help = run(&["sim", "--help"]).stdout;
    assert!(names("protocol").iter().all(|name| help.contains(name)), "{help}");
}

#[test]
#[ignore = "extended"]
fn exhaustive_search_reports_whether_it_was_complete() {
    let tiny = ["--rounds", "1", "--tokens", "1", "--blocks", "1", "--waves", "1", "--exhaustive"];
    let sim = |more: &[&str]| run(&[&["sim"], &tiny[..], more].concat());
    let bounds = ["--most-switches", "0", "--landings", "0"];
    let atomics = ["atomics", "--ranks", "1"];
    let all = sim(&[&atomics[..], &bounds].concat());
    assert_eq!(all.code, 0, "{all:?}");
    let expected = "atomics: all 1584 runs with at most 0 switches and 0 landings: no failure; ";
    assert!(all.stdout.starts_with(expected), "{all:?}");
    let some = sim(&[&atomics[..], &bounds, &["--runs", "100", "--json"]].concat());
    let row: Value = serde_json::from_str(&some.stdout).unwrap();
    let expected = (row["result"].as_str(), row["runs"].as_u64(), row["cumulative"].as_bool());
    assert_eq!((some.code, expected), (0, (Some("runs used up"), Some(100), Some(false))), "{some:?}");

    let wrong = sim(&["barrier", "--ranks", "2", "--mutant", "EPOCH_LOOSE", "--cumulative"]);
    assert_eq!(wrong.code, 1, "{wrong:?}");
    assert!(picture(&wrong)[0].contains("race on heap") && picture(&wrong).len() > 10, "{wrong:?}");
    let refused = sim(&["barrier", "--seeds", "0..10"]);
    assert!(refused.code == 2 && refused.stderr.contains("--seeds"), "{refused:?}");
}

#[test]
#[ignore = "extended"]
fn a_world_is_the_same_in_two_processes_with_its_faults() {
    let rows = |arguments: &[&str]| -> Value {
        let done = run(&[&["sim", "world", "--ranks", "2", "--json"], arguments].concat());
        assert!(done.code == 0 && done.stderr.is_empty(), "{done:?}");
        let mut row: Value = serde_json::from_str(&done.stdout).unwrap();
        assert!(row["seconds"].take().as_f64().is_some_and(|seconds| seconds > 0.0), "{row}");
        row
    };
    for arguments in [
        &["--outcomes", "--seeds", "0..20", "--fault", "lose:0>1~8", "--fault", "slow:1:2ms"][..],
        &["--kill-each", "--seeds", "3..4", "--stride", "40", "--threads", "1"],
        &["--cut-each", "--seeds", "0..2", "--stride", "3"],
    ] {
        let first = rows(arguments);
        assert_eq!(rows(arguments), first, "digests of every event and the words of every ending");
        assert!(first["runs"].as_u64().is_some_and(|runs| runs >= 20), "{first}");
    }
    let other = rows(&["--outcomes", "--seeds", "20..40"]);
    assert_ne!(other["digest"], rows(&["--outcomes", "--seeds", "40..60"])["digest"]);
}

#[test]
fn a_world_is_searched_and_its_flags_are_checked() {
    let done = run(&["sim", "world", "--ranks", "2", "--seeds", "0..10", "--fault", "kill:1@200"]);
    assert!(done.code == 0 && done.stdout.contains("seeds 0..10: no failure; 10 seeds"), "{done:?}");
    let text =
        run(&["sim", "world", "--ranks", "2", "--fail-each-call", "--stride", "150", "--seeds", "0..1"]);
    assert!(text.code == 0 && text.stdout.contains("world: ") && text.stdout.contains("digest "), "{text:?}");
    for (arguments, expected) in [
        (&["world", "--fault", "die:1"][..], "\"die:1\" is no fault; written are kill:RANK@PRIMITIVE"),
        (&["world", "--fault", "kill:3@1"], "names a rank that is none of 3"),
        (&["world", "--most-switches", "3"], "world has no limit of switches"),
        (&["world", "--exhaustive"], "world has no runs that can be enumerated"),
        (&["world", "--kill-each", "--cut-each"], "cannot be used with"),
        (&["world", "--stride", "3"], "--stride"),
        (&["barrier", "--kill-each"], "barrier has no points to strike"),
        (&["barrier", "--fault", "kill:1@1"], "barrier has no faults"),
    ] {
        let done = run(&[&["sim"], arguments].concat());
        assert_eq!((done.code, done.stdout.as_str()), (2, ""), "{done:?}");
        assert!(done.stderr.contains(expected), "{done:?}");
    }
}
