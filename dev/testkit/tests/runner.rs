//! The runner itself: it must show failures, and it must end.
#![expect(
    clippy::disallowed_methods,
    reason = "tests of real threads and processes run on the machine's time"
)]

use std::time::{Duration, Instant};

use anabranch_testkit::{Error, Ranks, role, test_path};

#[test]
fn ranks_run_and_failures_are_shown() {
    if let Some(role) = role() {
        println!("I am {} of {}: {}", role.rank, role.size, role.argument);
        assert!(role.argument != "fail" || role.rank != 1, "rank 1 fails");
        return;
    }
    let outcomes = Ranks::start(test_path!("ranks_run_and_failures_are_shown"), 3, "work")
        .unwrap()
        .succeed(limit())
        .unwrap();
    assert!(outcomes[2].output.contains("I am 2 of 3: work"), "{}", outcomes[2].output);
    let error = Ranks::start(test_path!("ranks_run_and_failures_are_shown"), 2, "fail")
        .unwrap()
        .succeed(limit())
        .unwrap_err();
    assert!(matches!(error, Error::Failed { rank: 1, .. }));
    assert!(error.to_string().contains("rank 1 fails"), "{error}");
}

#[test]
fn ranks_that_hang_are_killed() {
    if let Some(role) = role() {
        println!("hanging");
        if role.argument == "hang" {
            std::thread::sleep(Duration::from_secs(60));
        }
        return;
    }
    let start = Instant::now();
    let mut ranks = Ranks::start(test_path!("ranks_that_hang_are_killed"), 2, "hang").unwrap();
    ranks.processes()[0].wait_for("hanging", limit()).unwrap();
    ranks.processes()[0].kill().unwrap();
    let error = ranks.wait(Duration::from_secs(1)).unwrap_err();
    assert!(matches!(error, Error::Late { rank: 1, .. }), "{error}");
    assert!(start.elapsed() < Duration::from_secs(20));
    let mut ranks = Ranks::start(test_path!("ranks_that_hang_are_killed"), 1, "").unwrap();
    assert!(matches!(ranks.processes()[0].wait_for("never", limit()), Err(Error::Silent { .. })));
}

#[test]
#[ignore = "extended: what is ignored runs in processes that it starts too"]
fn an_extended_test_runs_in_its_processes() {
    if let Some(role) = role() {
        println!("rank {} runs", role.rank);
        return;
    }
    let test = test_path!("an_extended_test_runs_in_its_processes");
    let outcomes = Ranks::start(test, 1, "").unwrap().succeed(limit()).unwrap();
    assert!(outcomes[0].output.contains("rank 0 runs"), "{}", outcomes[0].output);
}

#[test]
fn a_test_that_is_not_there_is_no_success() {
    let alone = std::panic::catch_unwind(|| anabranch_testkit::is_alone(test_path!("no_such_test")));
    let problem = *alone.unwrap_err().downcast::<String>().unwrap();
    assert!(problem.contains("no_such_test did not run"), "{problem}");
}

fn limit() -> Duration {
    Duration::from_secs(30)
}
