//! Compilers that go, change, fail for reasons of their own, or say nothing.
#![expect(clippy::disallowed_methods, reason = "compilers live in the machine's time")]

use std::fmt;
use std::fs;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::common::{REAL, Scratch, entries, host, is_empty, search, spec};
use anabranch_hip_jit::{
    CompileError, Error, FailureReason, Jit, JitObserver, Origin, Outcome, Target, ToolSearch,
};

/// Does something once, when a compiler is about to run or has run.
struct Meanwhile {
    before: bool,
    act: Mutex<Option<Box<dyn FnOnce() + Send>>>,
}

impl Meanwhile {
    fn new(before: bool, act: impl FnOnce() + Send + 'static) -> Arc<Self> {
        Arc::new(Self { before, act: Mutex::new(Some(Box::new(act))) })
    }

    fn reached(&self, before: bool) {
        if before == self.before
            && let Some(act) = self.act.lock().unwrap().take()
        {
            act();
        }
    }
}

impl fmt::Debug for Meanwhile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Meanwhile")
    }
}

impl JitObserver for Meanwhile {
    fn compiling(&self, _: &str, _: &Target) {
        self.reached(true);
    }

    fn finished(&self, _: &str, _: &Target, _: Outcome, _: Duration) {
        self.reached(false);
    }
}

fn program(search: &ToolSearch) -> PathBuf {
    search.cxx.clone().unwrap().into()
}

fn failure(jit: &Jit) -> CompileError {
    let error = jit.compile(&spec(), &host()).unwrap_err();
    error.compile_error().unwrap_or_else(|| panic!("{error}")).clone()
}

/// Nothing of a failed compilation is in the cache but what is kept on purpose.
fn assert_nothing_left(scratch: &Scratch) {
    assert!(entries(&scratch.path("cache")).is_empty());
    assert!(is_empty(&scratch.path("cache/v2/.tmp")));
}

#[test]
fn a_compiler_that_goes_after_it_was_found_is_missed_and_found_again() {
    let scratch = Scratch::new("gone");
    let search = scratch.compiler("fake 1", REAL);
    let jit = scratch.jit(search.clone());
    jit.compiler(&host()).unwrap();
    let (here, away) = (program(&search), scratch.path("away"));
    fs::rename(&here, &away).unwrap();
    for _ in 0..2 {
        let error = jit.compile(&spec(), &host()).unwrap_err();
        assert!(matches!(error, Error::NoCompiler { .. }), "{error}");
        assert!(error.to_string().contains(here.to_str().unwrap()), "{error}");
    }
    fs::rename(&away, &here).unwrap();
    assert_eq!(jit.compile(&spec(), &host()).unwrap().origin, Origin::Compiled);
}

#[test]
fn a_compiler_that_goes_just_before_it_is_run_is_named() {
    let scratch = Scratch::new("going");
    let search = scratch.compiler("fake 1", REAL);
    let (here, away) = (program(&search), scratch.path("away"));
    let mut config = scratch.config();
    let (from, to) = (here.clone(), away.clone());
    config.observer = Some(Meanwhile::new(true, move || fs::rename(from, to).unwrap()));
    let jit = Jit::new(config, search);
    let error = failure(&jit);
    let FailureReason::NotRun { problem } = &error.reason else { panic!("{error}") };
    assert!(problem.contains(here.to_str().unwrap()), "{problem}");
    assert_nothing_left(&scratch);
    fs::rename(away, here).unwrap();
    jit.compile(&spec(), &host()).unwrap();
}

#[test]
fn objects_of_a_replaced_compiler_have_its_key() {
    let scratch = Scratch::new("replaced");
    let old = scratch.compiler("fake 1", REAL);
    let jit = scratch.jit(old.clone());
    let before = jit.compiler(&host()).unwrap();
    let new = scratch.compiler("fake 22", REAL);
    let expected = scratch.jit(new.clone());
    fs::rename(program(&new), program(&old)).unwrap();
    let made = jit.compile(&spec(), &host()).unwrap();
    assert_ne!(jit.compiler(&host()).unwrap(), before);
    // As the other pipeline names the same program.
    fs::copy(program(&old), program(&new)).unwrap();
    let found = expected.compile(&spec(), &host()).unwrap();
    assert_eq!((found.origin, found.key), (Origin::Cache, made.key));
}

#[test]
fn an_object_of_a_compiler_replaced_meanwhile_is_not_kept() {
    let scratch = Scratch::new("replacing");
    let old = scratch.compiler("fake 1", REAL);
    let new = scratch.compiler("fake 22", REAL);
    let mut config = scratch.config();
    let (from, to) = (program(&new), program(&old));
    config.observer = Some(Meanwhile::new(true, move || fs::rename(from, to).unwrap()));
    let jit = Jit::new(config, old);
    let error = failure(&jit);
    assert_eq!(error.reason, FailureReason::Replaced, "{error}");
    assert!(error.to_string().contains("replaced since it was identified; try again"), "{error}");
    assert_nothing_left(&scratch);
    assert_eq!(jit.compile(&spec(), &host()).unwrap().origin, Origin::Compiled);
    assert!(jit.compiler(&host()).unwrap().version.starts_with("fake 22"));
}

#[test]
fn a_failure_that_does_not_blame_the_source_is_not_remembered() {
    for (index, words) in [
        "",
        "echo 'test_scale.hip:20:1: fatal error: error writing to /tmp/x.s: No space left on device' >&2",
        "echo 'c++: fatal error: Killed signal terminated program cc1plus' >&2",
        "echo '/usr/bin/ld: final link failed: No space left on device' >&2",
        "echo 'collect2: error: ld returned 1 exit status' >&2",
        "echo 'ld.lld: error: failed to write output: No space left on device' >&2",
    ]
    .into_iter()
    .enumerate()
    {
        let scratch = Scratch::new(&format!("passing-{index}"));
        let marker = scratch.path("better");
        let body = format!("[ -e {} ] || {{ {words}\nexit 3; }}\n{REAL}", marker.display());
        let jit = scratch.jit(scratch.compiler("fake 1", &body));
        let error = failure(&jit);
        assert_eq!(error.reason, FailureReason::Failed { code: 3 }, "{error}");
        assert!(error.to_string().contains("failed with code 3"), "{error}");
        fs::write(marker, "").unwrap();
        let made = jit.compile(&spec(), &host()).unwrap_or_else(|error| panic!("{words}: {error}"));
        assert_eq!(made.origin, Origin::Compiled);
    }
}

#[test]
fn a_compiler_without_disk_space_did_not_refuse_the_source() {
    let scratch = Scratch::new("no-space");
    let marker = scratch.path("better");
    // Its files may have one block: what it writes fails as on a full disk.
    let body = format!("[ -e {} ] || {{ trap '' XFSZ; ulimit -f 1; }}\n{REAL}", marker.display());
    let jit = scratch.jit(scratch.compiler("fake 1", &body));
    let error = failure(&jit);
    assert!(!matches!(error.reason, FailureReason::Refused), "{error}\n{}", error.log);
    assert_nothing_left(&scratch);
    fs::write(marker, "").unwrap();
    jit.compile(&spec(), &host()).unwrap();
}

#[test]
fn a_compiler_that_ignores_requests_to_end_is_ended() {
    let scratch = Scratch::new("stubborn");
    let mut config = scratch.config();
    config.compile_deadline = Duration::from_millis(200);
    let body = "trap '' TERM INT HUP; printf half > kernel.co; while :; do sleep 1; done";
    let jit = Jit::new(config, scratch.compiler("fake 1", body));
    let begun = std::time::Instant::now();
    assert_eq!(failure(&jit).reason, FailureReason::TimedOut { after: Duration::from_millis(200) });
    assert!(begun.elapsed() < Duration::from_secs(10));
    assert_nothing_left(&scratch);
}

#[test]
fn a_work_folder_that_goes_meanwhile_is_named() {
    for body in ["rm -rf \"$PWD\"; exit 1", "rm -rf \"$PWD\"; exit 0"] {
        let scratch = Scratch::new("no-work");
        let jit = scratch.jit(scratch.compiler("fake 1", body));
        let error = failure(&jit);
        let FailureReason::WorkFolder { problem } = &error.reason else { panic!("{error}") };
        assert!(problem.contains("cache/v2/.tmp/test_scale."), "{problem}");
        assert_nothing_left(&scratch);
    }
}

#[test]
fn no_deadline_is_too_long() {
    let scratch = Scratch::new("for-ever");
    let mut config = scratch.config();
    config.compile_deadline = Duration::MAX;
    config.wait_deadline = Duration::MAX;
    let jit = Jit::new(config, search(None));
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| jit.compile(&spec(), &host()).unwrap());
        }
    });
}
