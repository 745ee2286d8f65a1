//! `anabranch run`.
#![expect(
    clippy::disallowed_methods,
    reason = "tests of real threads and processes run on the machine's time"
)]

use crate::common;

use std::collections::BTreeSet;
use std::process::Stdio;
use std::time::{Duration, Instant};

use crate::common::{command, run};

#[test]
fn every_rank_gets_its_number() {
    let script = "echo $RANK $WORLD_SIZE $LOCAL_RANK $LOCAL_WORLD_SIZE $MASTER_ADDR $MASTER_PORT $ANABRANCH_SECRET $OMPI_COMM_WORLD_RANK.";
    let done = common::finish(
        command(&["run", "-n", "3", "--", "sh", "-c", script]).env("OMPI_COMM_WORLD_RANK", "9"),
    );
    assert_eq!(done.code, 0, "{done:?}");
    let lines: BTreeSet<Vec<&str>> = done.stdout.lines().map(|line| line.split(' ').collect()).collect();
    assert_eq!(lines.len(), 3, "{done:?}");
    let mut meetings = BTreeSet::new();
    for (rank, line) in lines.iter().enumerate() {
        let rank = rank.to_string();
        assert_eq!(line[..5], [rank.as_str(), "3", &rank, "3", "127.0.0.1"]);
        assert!(line[5].parse::<u16>().is_ok_and(|port| port > 0) && line[6].len() == 64, "{line:?}");
        assert_eq!(line[7], ".", "another launcher's variables are taken away");
        meetings.insert((line[5], line[6]));
    }
    assert_eq!(meetings.len(), 1, "all ranks meet in one place with one secret");
}

#[test]
fn one_failing_rank_stops_the_others() {
    let begun = Instant::now();
    let script = "echo before $RANK; if [ $RANK = 1 ]; then echo cause >&2; exit 7; fi; sleep 60";
    let done = run(&["run", "-n", "3", "--prefix", "always", "--", "sh", "-c", script]);
    assert!(begun.elapsed() < Duration::from_secs(20), "the others were not waited for");
    assert_eq!(done.code, 7, "{done:?}");
    assert!(done.stdout.contains("[1] before 1\n"), "{done:?}");
    assert!(
        done.stderr.contains("rank 1 of 3 exited with code 7; the other ranks were stopped"),
        "{}",
        done.stderr
    );
    let tail = done.stderr.split("its last lines:").nth(1).unwrap_or_default();
    assert!(tail.contains("[1] before 1") && tail.contains("[1] cause"), "{}", done.stderr);
}

/// Rank 1 ends first, of what rank 0 does later.
#[test]
fn causing_rank_is_blamed_before_the_first_to_end() {
    let script = "if [ $RANK = 1 ]; then echo 'Error: rank 0 died (its connection closed without a goodbye); the world cannot be used \
                  any more' >&2; exit 1; fi; if [ $RANK = 0 ]; then sleep 0.4; echo cause >&2; exit 7; fi; sleep 60";
    let begun = Instant::now();
    let done = run(&["run", "-n", "3", "--", "sh", "-c", script]);
    assert!(begun.elapsed() < Duration::from_secs(20), "the others were not stopped");
    assert_eq!(done.code, 7, "{done:?}");
    assert!(done.stderr.contains("rank 0 of 3 exited with code 7"), "{}", done.stderr);
    // Who is blamed lives on: it is no cause.
    let script = script.replace("sleep 0.4; echo cause >&2; exit 7", "sleep 60");
    let done = run(&["run", "-n", "3", "--", "sh", "-c", &script]);
    assert!(done.stderr.contains("rank 1 of 3 exited with code 1"), "{}", done.stderr);
}

#[test]
fn ranks_that_ignore_the_signal_are_killed_after_the_grace_period() {
    let begun = Instant::now();
    // Rank 0 waits until rank 1 is deaf.
    let deaf = common::file("deaf", "");
    std::fs::remove_file(&deaf).unwrap();
    let script = "trap '' TERM; if [ $RANK = 1 ]; then : > $DEAF; else while [ ! -e $DEAF ]; do sleep 0.01; done; \
                  kill -KILL $$; fi; while :; do sleep 1; done";
    let arguments = ["run", "-n", "2", "--grace", "300 ms", "--", "sh", "-c", script];
    let done = common::finish(command(&arguments).env("DEAF", &deaf));
    assert_eq!(done.code, 128 + 9, "{done:?}");
    assert!(done.stderr.contains("rank 0 of 2 was killed by SIGKILL"), "{}", done.stderr);
    assert!((Duration::from_millis(300)..Duration::from_secs(20)).contains(&begun.elapsed()));
}

/// The kill at the end of the grace period is the launcher's own.
#[test]
fn a_rank_that_the_launcher_killed_is_not_blamed() {
    let script = "if [ $RANK = 2 ]; then kill -STOP $$; fi; if [ $RANK = 1 ]; then sleep 0.2; echo 'Error: rank 2 died (it was \
                  silent)' >&2; exit 5; fi; sleep 60";
    let done = run(&["run", "-n", "3", "--grace", "300 ms", "--", "sh", "-c", script]);
    assert_eq!(done.code, 5, "{done:?}");
    assert!(done.stderr.contains("rank 1 of 3 exited with code 5"), "{}", done.stderr);
}

#[test]
fn an_interrupt_reaches_the_ranks() {
    let script = "trap 'echo told $RANK; exit 0' INT; echo ready; while :; do sleep 0.05; done";
    let mut child =
        command(&["run", "-n", "2", "--", "sh", "-c", script]).stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = std::io::BufRead::lines(std::io::BufReader::new(child.stdout.take().unwrap()));
    for _ in 0..2 {
        assert_eq!(lines.next().unwrap().unwrap(), "ready");
    }
    signal(child.id(), "INT");
    let told: BTreeSet<String> = lines.map(Result::unwrap).collect();
    assert_eq!(told, BTreeSet::from(["told 0".to_owned(), "told 1".to_owned()]));
    assert_eq!(child.wait().unwrap().code(), Some(128 + 2));
}

#[test]
fn an_interrupt_after_a_failure_does_not_hide_it() {
    let script = "if [ $RANK = 1 ]; then echo cause >&2; exit 7; fi; trap 'echo told' TERM; while :; do sleep 0.05; done";
    let mut child = command(&["run", "-n", "2", "--grace", "60 s", "--", "sh", "-c", script])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = std::io::BufRead::lines(std::io::BufReader::new(child.stdout.take().unwrap()));
    assert_eq!(lines.next().unwrap().unwrap(), "told");
    signal(child.id(), "INT");
    let done = child.wait_with_output().unwrap();
    let report = String::from_utf8_lossy(&done.stderr);
    assert_eq!(done.status.code(), Some(7), "{report}");
    assert!(report.contains("rank 1 of 2 exited with code 7"), "{report}");
}

#[test]
fn ranks_die_with_the_launcher() {
    let script = "echo $$; exec sleep 60";
    let mut child =
        command(&["run", "-n", "2", "--", "sh", "-c", script]).stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = std::io::BufRead::lines(std::io::BufReader::new(child.stdout.take().unwrap()));
    let ranks: Vec<String> = (0..2).map(|_| lines.next().unwrap().unwrap()).collect();
    signal(child.id(), "KILL");
    child.wait().unwrap();
    let gone = |rank: &String| {
        // A zombie that was not reaped yet has ended too.
        let status = std::fs::read_to_string(format!("/proc/{rank}/stat")).unwrap_or_default();
        status.is_empty() || status.contains(") Z ")
    };
    let until = Instant::now() + Duration::from_secs(10);
    while !ranks.iter().all(gone) {
        assert!(Instant::now() < until, "ranks {ranks:?} are still there");
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn program_that_cannot_start_is_named() {
    let done = run(&["run", "-n", "2", "--", "/nonexistent/program"]);
    assert_eq!(done.code, 1);
    assert!(done.stderr.contains("rank 0: cannot start /nonexistent/program"), "{}", done.stderr);
    assert_eq!(run(&["run", "-n", "0", "--", "true"]).code, 2);
    assert_eq!(run(&["run", "-n", "2"]).code, 2);
    assert_eq!(run(&["run", "-n", "2", "--", "true"]).code, 0);
}

fn signal(process: u32, name: &str) {
    let sent = std::process::Command::new("kill").args([format!("-{name}"), process.to_string()]).status();
    assert!(sent.is_ok_and(|status| status.success()), "kill -{name} {process}");
}
