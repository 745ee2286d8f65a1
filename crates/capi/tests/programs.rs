//! Programs in C and C++, built with the system's compilers and run as ranks.

use std::os::unix::process::ExitStatusExt as _;
use std::process::Child;

use crate::common::{build, crate_folder, finish, folder, program, root, run, start};

fn test_program(name: &str) -> std::path::PathBuf {
    build(&crate_folder().join("tests/c").join(name))
}

#[test]
fn example_in_c_sums_over_ranks() {
    let program = build(&root().join("examples/c/all_reduce.c"));
    let texts = run(&program, 2, &[root().join("config/host-4.toml").to_str().unwrap()]);
    assert_eq!(texts, ["rank 0: 65536 sums of 3\n", "rank 1: 65536 sums of 3\n"]);
}

#[test]
fn example_in_cpp_dispatches_tokens() {
    let program = build(&root().join("examples/c/expert_parallel.cpp"));
    for (rank, text) in run(&program, 2, &[]).iter().enumerate() {
        assert!(text.starts_with(&format!("rank {rank}: 64 tokens, largest error ")), "{text}");
    }
}

#[test]
fn calls_give_the_values_of_arithmetic() {
    run(&test_program("calls.c"), 2, &[]);
}

#[test]
fn experts_get_their_rows() {
    run(&test_program("experts.c"), 2, &[]);
}

#[test]
fn threads_share_a_world() {
    run(&test_program("threads.cpp"), 2, &[]);
}

#[test]
fn wrong_arguments_give_statuses_with_texts() {
    let output = program(&test_program("errors.c")).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn ranks_join_by_an_id() {
    let (path, file) = (test_program("by_id.c"), folder("by-id").join(std::process::id().to_string()));
    let _ = std::fs::remove_file(&file);
    let rank = |rank: &str| program(&path).arg(rank).arg(&file).spawn().unwrap();
    let ranks: Vec<Child> = ["0", "1"].map(rank).into();
    for output in finish(ranks) {
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }
}

#[test]
fn killed_rank_is_named_within_the_deadline() {
    let program = test_program("lost.c");
    let outputs = finish(start(&program, 2, &[]));
    assert_eq!(outputs[1].status.signal(), Some(9));
    let texts =
        [&outputs[0].stdout, &outputs[0].stderr].map(|bytes| String::from_utf8_lossy(bytes).into_owned());
    assert!(outputs[0].status.success(), "{texts:?}");
    assert!(texts[0].starts_with("rank 0: ") && texts[0].contains("rank 1"), "{texts:?}");
}
