//! Every file operation of a build fails once, in turn: the call ends well or says what is wrong, and nothing is left
//! that a later call stumbles over.

use std::fs;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use crate::common::{REAL, Scratch, copy_tree, entries, host, is_empty, spec};
use crate::failing_disk::{Failed, FailingDisk, Outage};
use anabranch_hip_jit::disk::Disk;
use anabranch_hip_jit::{
    Cache, CleanRule, Error, FailureReason, Jit, JitConfig, KernelSpec, Origin, Result, ToolSearch,
};

const NO_SPACE: i32 = 28;
const IO: i32 = 5;
const READ_ONLY: i32 = 30;

/// What fails, how long, and in which words of the system.
const OUTAGES: [(Outage, i32); 3] =
    [(Outage::Once, IO), (Outage::Full, NO_SPACE), (Outage::ForGood, READ_ONLY)];

type Judge<'a> = dyn Fn(&Jit, &Failed, Result<Vec<u8>>) + 'a;

/// Fails every operation in turn, below the cache, of a call on a copy of `template`.
struct Sweep<'a> {
    scratch: &'a Scratch,
    template: &'a Path,
    search: &'a ToolSearch,
    /// A folder on another, healthy disk.
    fallback: bool,
}

impl Sweep<'_> {
    /// Calls `judge` for each place with the pipeline, what failed and what came of it; says how many places there are.
    fn run(&self, (outage, errno): (Outage, i32), judge: &Judge<'_>) -> u64 {
        for at in 0.. {
            let root = self.scratch.path("cache");
            let _ = fs::remove_dir_all(&root);
            copy_tree(self.template, &root);
            let faults = Arc::new(FailingDisk::new(at, outage, errno).below(&root));
            let mut config = self.config();
            config.disk = Disk::with_faults(faults.clone());
            let jit = Jit::new(config, self.search.clone());
            let outcome = jit.compile(&spec(), &host()).map(|object| object.bytes.to_vec());
            let Some(failed) = faults.failed() else {
                outcome.unwrap_or_else(|error| panic!("nothing failed: {error}"));
                return at;
            };
            judge(&jit, &failed, outcome);
        }
        unreachable!("a call needs fewer operations than that")
    }

    fn config(&self) -> JitConfig {
        let mut config = self.scratch.config();
        if self.fallback {
            fs::create_dir_all(self.scratch.path("fallback")).unwrap();
            config.scratch = Some(self.scratch.path("fallback"));
        }
        config
    }

    /// Runs all outages; whatever fails, a call ends as promised, and later calls find a cache in order.
    fn all(&self, good: &[u8], broken_before: bool) {
        let healthy = Cache::new(self.scratch.path("cache"));
        for (outage, errno) in OUTAGES {
            let places = self.run((outage, errno), &|jit, failed, outcome| {
                let place = format!("{outage:?} {failed:?} fallback {}", self.fallback);
                match outcome {
                    Ok(bytes) => assert_eq!(bytes, good, "{place}"),
                    Err(error) => {
                        assert!(!self.fallback, "{place}: {error}");
                        says_what_and_where(&error, errno, &self.scratch.path("cache"), &place);
                    }
                }
                if !broken_before {
                    assert!(
                        healthy.list().unwrap().iter().all(|entry| entry.manifest.is_ok()),
                        "{place}: half an entry"
                    );
                }
                if outage == Outage::Once {
                    let again =
                        jit.compile(&spec(), &host()).unwrap_or_else(|error| panic!("{place}: {error}"));
                    assert_eq!(&*again.bytes, good, "{place}");
                }
                let later = Jit::new(self.config(), self.search.clone());
                let object =
                    later.compile(&spec(), &host()).unwrap_or_else(|error| panic!("{place}: later: {error}"));
                assert_eq!(&*object.bytes, good, "{place}");
                assert!(later.cache().list().unwrap().iter().all(|entry| entry.manifest.is_ok()), "{place}");
                let clean = || {
                    later.cache().clean(&CleanRule::Broken).unwrap();
                };
                clean();
                assert_eq!(entries(&self.scratch.path("cache")).len(), 1, "{place}");
                for folder in [".tmp", ".trash"] {
                    let folder = self.scratch.path("cache/v2").join(folder);
                    assert!(is_cleaned(&folder, clean), "{place}: {} is not clean", folder.display());
                }
            });
            println!("{outage:?}: {places} places, fallback {}", self.fallback);
        }
    }
}

/// Whether a folder is gone or empty, maybe after another cleaning: a child that another test starts has this process's
/// locks until it runs its own program, and what is locked is left alone.
fn is_cleaned(folder: &Path, clean: impl Fn()) -> bool {
    let until = anabranch_clock::Moment::now().after(Duration::from_secs(10));
    while folder.exists() && !is_empty(folder) {
        if until.remaining().is_zero() {
            return false;
        }
        anabranch_clock::sleep(Duration::from_millis(2));
        clean();
    }
    true
}

/// The error has the path, the call and the system's reason, and words about what to do.
fn says_what_and_where(error: &Error, errno: i32, cache: &Path, place: &str) {
    let reason = io::Error::from_raw_os_error(errno);
    match error {
        Error::Cache { path, source, .. } => {
            assert!(path.starts_with(cache), "{place}: {error}");
            assert_eq!(source.raw_os_error(), Some(errno), "{place}: {error}");
            let advised = error.to_string().contains("choose another folder for the cache");
            assert_eq!(advised, errno != IO, "{place}: {error}");
        }
        Error::Compile(compile) => {
            let FailureReason::WorkFolder { problem } = &compile.reason else { panic!("{place}: {error}") };
            assert!(problem.contains(&reason.to_string()), "{place}: {error}");
            assert!(error.to_string().contains(&*cache.to_string_lossy()), "{place}: {error}");
        }
        _ => panic!("{place}: {error}"),
    }
}

/// A compiler that hands out an object made once, and that object.
fn canned(scratch: &Scratch) -> (ToolSearch, Vec<u8>) {
    let search = scratch.compiler("fake 1", REAL);
    let good = scratch.jit(search).compile(&spec(), &host()).unwrap();
    let object = scratch.path("object");
    fs::copy(good.directory.join("kernel.co"), &object).unwrap();
    (scratch.compiler("fake 1", &format!("exec cp {} kernel.co", object.display())), good.bytes.to_vec())
}

fn sweep(name: &str, broken_before: bool, prepare: impl FnOnce(&Scratch)) {
    let scratch = Scratch::new(name);
    let (search, good) = canned(&scratch);
    prepare(&scratch);
    let template = scratch.path("template");
    fs::rename(scratch.path("cache"), &template).unwrap();
    for fallback in [false, true] {
        Sweep { scratch: &scratch, template: &template, search: &search, fallback }.all(&good, broken_before);
    }
}

#[test]
#[ignore = "extended"]
fn filling_an_empty_cache() {
    sweep("fill", false, |scratch| {
        fs::remove_dir_all(scratch.path("cache")).unwrap();
        fs::create_dir(scratch.path("cache")).unwrap();
    });
}

#[test]
#[ignore = "extended"]
fn filling_a_cache_whose_folders_are_there_and_that_a_dead_process_left() {
    sweep("left", false, |scratch| {
        fs::remove_dir_all(&entries(&scratch.path("cache"))[0]).unwrap();
        let dead = scratch.path("cache/v2/.tmp/test_scale.1.2.3");
        fs::create_dir(&dead).unwrap();
        fs::write(dead.join("kernel.hip"), "half").unwrap();
        fs::write(dead.with_file_name("test_scale.1.2.3.owner"), "").unwrap();
        fs::create_dir(scratch.path("cache/v2/.trash/entry.1.2.3")).unwrap();
    });
}

#[test]
#[ignore = "extended"]
fn healing_a_broken_entry() {
    sweep("heal", true, |scratch| {
        fs::write(entries(&scratch.path("cache"))[0].join("kernel.co"), "half").unwrap();
    });
}

#[test]
fn reading_a_warm_cache() {
    sweep("warm-faults", false, |_| {});
}

#[test]
fn keeping_a_refusal() {
    let scratch = Scratch::new("refuse");
    let search = scratch.compiler("fake 1", "echo 'test_scale.hip:1:2: error: no' >&2; exit 1");
    for keep in [0, 8] {
        for at in 0.. {
            let _ = fs::remove_dir_all(scratch.path("cache"));
            let faults = Arc::new(FailingDisk::new(at, Outage::Once, NO_SPACE));
            let mut config = scratch.config();
            config.keep_failed = keep;
            config.disk = Disk::with_faults(faults.clone());
            let jit = Jit::new(config, search.clone());
            let error = jit.compile(&spec(), &host()).unwrap_err();
            let Some(failed) = faults.failed() else { break };
            match &error {
                Error::Compile(compile) if compile.reason == FailureReason::Refused => {
                    let whole = compile.kept.as_ref().is_none_or(|kept| {
                        kept.join("kernel.hip").exists() && kept.join("compile.log").exists()
                    });
                    assert!(whole, "{failed:?}: {error}");
                }
                _ => says_what_and_where(&error, NO_SPACE, &scratch.path("cache"), &format!("{failed:?}")),
            }
            let again = jit.compile(&spec(), &host()).unwrap_err();
            assert!(
                again.compile_error().is_some_and(|error| error.reason == FailureReason::Refused),
                "{failed:?}: {again}"
            );
            let clean = || {
                jit.cache().clean(&CleanRule::Broken).unwrap();
            };
            clean();
            assert!(is_cleaned(&scratch.path("cache/v2/.tmp"), clean), "{failed:?}");
        }
    }
}

#[test]
fn cleaning() {
    let scratch = Scratch::new("clean-faults");
    let (search, _) = canned(&scratch);
    let jit = scratch.jit(search);
    let other = jit.compile(&spec().with("STEP", 2), &host()).unwrap();
    fs::write(other.directory.join("kernel.co"), "half").unwrap();
    fs::create_dir_all(scratch.path("cache/v2/.failed/one")).unwrap();
    let dead = scratch.path("cache/v2/.tmp/test_scale.1.2.3");
    fs::create_dir(&dead).unwrap();
    fs::write(dead.with_file_name("test_scale.1.2.3.owner"), "").unwrap();
    fs::rename(scratch.path("cache"), scratch.path("template")).unwrap();
    let root = scratch.path("cache");
    for at in 0.. {
        let _ = fs::remove_dir_all(&root);
        copy_tree(&scratch.path("template"), &root);
        let faults = Arc::new(FailingDisk::new(at, Outage::Once, IO));
        let outcome = Cache::with_disk(&root, Disk::with_faults(faults.clone())).clean(&CleanRule::All);
        let Some(failed) = faults.failed() else {
            assert_eq!(outcome.unwrap().removed, 2);
            break;
        };
        if let Err(error) = outcome {
            says_what_and_where(&error, IO, &root, &format!("{failed:?}"));
        }
        let clean = || {
            Cache::new(&root).clean(&CleanRule::All).unwrap();
        };
        clean();
        assert!(entries(&root).is_empty(), "{failed:?}");
        for folder in [".tmp", ".trash", ".failed", ".locks"] {
            assert!(is_cleaned(&root.join("v2").join(folder), clean), "{failed:?}: {folder}");
        }
    }
}

#[test]
fn a_cache_that_cannot_be_written_any_more_is_gone_without() {
    let scratch = Scratch::new("read-only");
    let (search, good) = canned(&scratch);
    let config = |fallback: bool| {
        let mut config = scratch.config();
        config.scratch = fallback.then(|| scratch.0.clone());
        let faults = FailingDisk::new(0, Outage::Full, READ_ONLY).below(scratch.path("cache/v2/.locks"));
        config.disk = Disk::with_faults(Arc::new(faults));
        config
    };
    let other: KernelSpec = spec().with("STEP", 9);
    let found = Jit::new(config(false), search.clone()).compile(&spec(), &host()).unwrap();
    assert_eq!((found.origin, &*found.bytes), (Origin::Cache, &*good), "what is there is used");
    let error = Jit::new(config(false), search.clone()).compile(&other, &host()).unwrap_err();
    assert!(matches!(error, Error::Cache { operation: "create folder", .. }), "{error}");
    let made = Jit::new(config(true), search).compile(&other, &host()).unwrap();
    assert_eq!((made.origin, &*made.bytes), (Origin::Compiled, &*good));
    assert_eq!(entries(&scratch.path("cache")).len(), 1);
}
