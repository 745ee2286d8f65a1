//! Many processes, killed processes: the test binary starts itself again in a role.
#![expect(
    clippy::disallowed_methods,
    reason = "tests of real threads and processes run on the machine's time"
)]

use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::common::{HEADERS, REAL, Scratch, entries, host, is_empty, search, spec};
use anabranch_hip_jit::{Jit, JitConfig, Origin};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

const ROLE: &str = "ANABRANCH_JIT_TEST_FOLDER";
const LIMIT: &str = "ANABRANCH_JIT_TEST_LIMIT";

/// What a child does: compile the test kernel with the folder's compiler, and say what came of it.
#[test]
#[ignore = "started by the other tests"]
fn child() {
    #[expect(clippy::disallowed_methods, reason = "the parent tells the child its folder and limit")]
    let (Ok(folder), limit) = (std::env::var(ROLE).map(PathBuf::from), std::env::var(LIMIT)) else { return };
    if let Ok(limit) = limit {
        let soft = Some(limit.parse().unwrap());
        let hard = getrlimit(Resource::Fsize).maximum;
        setrlimit(Resource::Fsize, Rlimit { current: soft, maximum: hard }).unwrap();
    }
    let mut config = JitConfig::new(folder.join("cache"));
    config.compile_deadline = Duration::from_secs(30);
    let compiler = fs::read_to_string(folder.join("compiler")).unwrap();
    let jit = Jit::new(config, search(Some(&compiler)));
    let text = match jit.compile(&spec(), &host()) {
        Ok(object) => format!("ok {:?} {}", object.origin, object.bytes.len()),
        Err(error) => format!("error {}", error.to_string().lines().next().unwrap()),
    };
    let stats = jit.stats();
    writeln!(std::io::stdout(), "RESULT {text} waited {}", stats.waited.min(1)).unwrap();
}

fn start(scratch: &Scratch) -> Child {
    start_limited(scratch, None)
}

/// A child whose files may have so many bytes.
fn start_limited(scratch: &Scratch, limit: Option<u64>) -> Child {
    let mut command = Command::new("/bin/sh");
    // Without the signal the write itself fails.
    command.args(["-c", "trap '' XFSZ; exec \"$0\" processes::child --exact --ignored --nocapture"]);
    command.arg(std::env::current_exe().unwrap()).env(ROLE, &scratch.0);
    if let Some(limit) = limit {
        command.env(LIMIT, limit.to_string());
    }
    command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

fn result(child: Child) -> String {
    let output = child.wait_with_output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    // The test harness prints the test's name on the same line.
    let line = text.lines().find_map(|line| line.split_once("RESULT ").map(|(_, result)| result.to_owned()));
    line.unwrap_or_else(|| panic!("{text}\n{}", String::from_utf8_lossy(&output.stderr)))
}

fn install(scratch: &Scratch, body: &str) {
    let search = scratch.compiler("fake 1", body);
    fs::write(scratch.path("compiler"), search.cxx.unwrap()).unwrap();
}

#[test]
fn sixty_four_processes_compile_a_cold_kernel_once() {
    let scratch = Scratch::new("sixty-four");
    install(&scratch, &format!("sleep 0.3; {REAL}"));
    let children: Vec<_> = (0..64).map(|_| start(&scratch)).collect();
    let results: Vec<_> = children.into_iter().map(result).collect();
    assert!(results.iter().all(|result| result.starts_with("ok ")), "{results:?}");
    assert_eq!(results.iter().filter(|result| result.starts_with("ok Compiled")).count(), 1, "{results:?}");
    assert_eq!(scratch.runs(), 1);
    assert_eq!(entries(&scratch.path("cache")).len(), 1);
    assert!(is_empty(&scratch.path("cache/v2/.tmp")));
}

#[test]
fn losers_of_a_failing_compilation_do_not_repeat_it() {
    let scratch = Scratch::new("losers");
    install(&scratch, "sleep 1; echo 'scale.hip:1:2: error: no' >&2; exit 1");
    let children: Vec<_> = (0..6).map(|_| start(&scratch)).collect();
    let results: Vec<_> = children.into_iter().map(result).collect();
    assert!(
        results
            .iter()
            .all(|result| result.starts_with("error cannot compile ") && result.contains("1 error")),
        "{results:?}"
    );
    let late = results.iter().filter(|result| result.ends_with("waited 0")).count();
    assert_eq!(scratch.runs(), late, "only those that did not wait compiled: {results:?}");
    assert!(late < 6, "{results:?}");
}

#[test]
fn killing_the_compiling_process_loses_nothing() {
    let scratch = Scratch::new("kill");
    let marker = scratch.path("started");
    install(&scratch, &format!("[ -e {0} ] || {{ : > {0}; exec sleep 30; }}; {REAL}", marker.display()));
    let mut first = start(&scratch);
    wait_for(&marker);
    // Others wait for it, it dies, and one of them takes over.
    let others: Vec<_> = (0..3).map(|_| start(&scratch)).collect();
    std::thread::sleep(Duration::from_millis(200));
    assert!(!is_empty(&scratch.path("cache/v2/.tmp")));
    first.kill().unwrap();
    first.wait().unwrap();
    let results: Vec<_> = others.into_iter().map(result).collect();
    assert!(results.iter().all(|result| result.starts_with("ok ")), "{results:?}");
    assert_eq!(scratch.runs(), 2);
    assert_eq!(entries(&scratch.path("cache")).len(), 1);
    // What it left is removed by the next process that compiles.
    let jit = scratch.jit(search(None));
    assert_eq!(jit.compile(&spec().with("STEP", 5), &host()).unwrap().origin, Origin::Compiled);
    assert!(is_empty(&scratch.path("cache/v2/.tmp")));
}

#[test]
fn what_a_killed_process_leaves_at_any_step_is_never_an_entry() {
    let scratch = Scratch::new("steps");
    let jit = scratch.jit(search(None));
    let good = jit.compile(&spec(), &host()).unwrap();
    let work = scratch.path("cache/v2/.tmp/test_scale.1.2.3");
    for files in [
        [].as_slice(),
        &["kernel.hip"],
        &["kernel.hip", "kernel.co"],
        &["kernel.hip", "kernel.co", "manifest.json"],
    ] {
        fs::create_dir_all(&work).unwrap();
        fs::write(scratch.path("cache/v2/.tmp/test_scale.1.2.3.owner"), "").unwrap();
        for file in files {
            fs::copy(good.directory.join(file), work.join(file)).unwrap();
        }
        assert_eq!(jit.cache().list().unwrap().len(), 1);
        let fresh = scratch.jit(search(None));
        fresh.compile(&spec().with("STEP", files.len() as i64 + 2), &host()).unwrap();
        assert!(is_empty(&scratch.path("cache/v2/.tmp")), "{files:?}");
        fresh
            .cache()
            .clean(&anabranch_hip_jit::CleanRule::Key(
                fresh.compile(&spec().with("STEP", files.len() as i64 + 2), &host()).unwrap().key.to_string(),
            ))
            .unwrap();
    }
}

#[test]
fn a_disk_that_is_full_after_any_file_is_an_error_that_names_it() {
    let scratch = Scratch::new("full");
    let good = scratch.jit(scratch.compiler("fake 1", REAL)).compile(&spec(), &host()).unwrap();
    // A limit on the size of files stands in for a full disk: the write that passes it fails after a part.
    // It counts for memory files too, so the compiler must be able to say its name.
    let mut limits = vec![100];
    for file in ["kernel.hip", "kernel.co", "manifest.json"] {
        limits.push(fs::metadata(good.directory.join(file)).unwrap().len() - 1);
    }
    limits.extend(HEADERS.iter().map(|header| header.text.len() as u64 - 1));
    fs::copy(good.directory.join("kernel.co"), scratch.path("object")).unwrap();
    // The compiler meets the limit too, or, on a disk of its own, does not.
    let copy = format!("cp {} kernel.co", scratch.path("object").display());
    for (body, words) in [
        (format!("ulimit -S -f unlimited; exec {copy}"), &["error kernel cache: cannot write "][..]),
        (copy, &["error kernel cache: cannot write ", "error cannot compile test_scale"]),
    ] {
        install(&scratch, &body);
        for limit in &limits {
            fs::remove_dir_all(scratch.path("cache")).unwrap();
            let text = result(start_limited(&scratch, Some(*limit)));
            assert!(words.iter().any(|words| text.starts_with(words)), "{limit}: {text}");
            assert!(entries(&scratch.path("cache")).is_empty(), "{limit}");
            assert!(is_empty(&scratch.path("cache/v2/.tmp")), "{limit}");
            let text = result(start(&scratch));
            assert!(text.starts_with("ok Compiled"), "{limit}: {text}");
        }
    }
}

fn wait_for(path: &Path) {
    let begun = Instant::now();
    while !path.exists() {
        assert!(begun.elapsed() < Duration::from_secs(20), "{} does not come", path.display());
        std::thread::sleep(Duration::from_millis(5));
    }
}
