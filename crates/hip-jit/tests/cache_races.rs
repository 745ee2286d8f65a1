//! What others do to the cache between two file operations of a call.
#![expect(clippy::disallowed_methods, reason = "other processes, and real time")]

use std::fmt;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use crate::common::{REAL, Scratch, copy_tree, entries, host, is_empty, spec};
use anabranch_hip_jit::disk::{Disk, DiskFaults, DiskOperation};
use anabranch_hip_jit::{
    Cache, CleanRule, CompileMode, Error, FailureReason, Jit, JitConfig, Origin, ToolSearch,
};

/// Does something once, before the first operation that `when` picks; nothing fails by it.
struct Meanwhile<W> {
    when: W,
    act: Mutex<Option<Box<dyn FnOnce() + Send>>>,
}

impl<W> fmt::Debug for Meanwhile<W> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Meanwhile")
    }
}

impl<W: Fn(DiskOperation, &Path) -> bool + Send + Sync> DiskFaults for Meanwhile<W> {
    fn before(&self, operation: DiskOperation, path: &Path) -> io::Result<()> {
        if (self.when)(operation, path) {
            // Not under the lock: what is done may use the disk.
            let act = self.act.lock().unwrap().take();
            if let Some(act) = act {
                act();
            }
        }
        Ok(())
    }
}

fn meanwhile(
    when: impl Fn(DiskOperation, &Path) -> bool + Send + Sync + 'static,
    act: impl FnOnce() + Send + 'static,
) -> Disk {
    Disk::with_faults(Arc::new(Meanwhile { when, act: Mutex::new(Some(Box::new(act))) }))
}

fn with_disk(scratch: &Scratch, disk: Disk) -> JitConfig {
    let mut config = scratch.config();
    config.disk = disk;
    config
}

fn assert_in_order(scratch: &Scratch, place: &str) {
    let listed = Cache::new(scratch.path("cache")).list().unwrap();
    assert!(listed.len() == 1 && listed[0].manifest.is_ok(), "{place}: {listed:?}");
    assert!(is_empty(&scratch.path("cache/v2/.tmp")), "{place}");
    assert!(is_empty(&scratch.path("cache/v2/.trash")), "{place}");
}

/// An entry, and a whole one of the same key with other bytes, as a compiler makes that is not deterministic.
fn two_versions(scratch: &Scratch) -> (ToolSearch, PathBuf, [Vec<u8>; 2]) {
    let search = scratch.compiler("fake 1", &format!("c++ \"$@\"; printf x >> kernel.co; : {REAL}"));
    let other = scratch.jit(search).compile(&spec(), &host()).unwrap();
    fs::rename(&other.directory, scratch.path("other")).unwrap();
    let search = scratch.compiler("fake 1", REAL);
    let good = scratch.jit(search.clone()).compile(&spec(), &host()).unwrap();
    assert_ne!(good.bytes, other.bytes);
    (search, good.directory, [good.bytes.to_vec(), other.bytes.to_vec()])
}

#[test]
fn an_entry_replaced_while_it_is_read_is_read_again() {
    let scratch = Scratch::new("swap");
    let (search, entry, [_, other]) = two_versions(&scratch);
    let (place, next) = (entry.clone(), scratch.path("other"));
    let disk = meanwhile(
        move |operation, path| operation == DiskOperation::Read && path.ends_with("kernel.co"),
        move || {
            fs::remove_dir_all(&place).unwrap();
            fs::rename(next, place).unwrap();
        },
    );
    let mut config = with_disk(&scratch, disk);
    config.compile = CompileMode::Deny;
    let found = Jit::new(config, search).compile(&spec(), &host()).unwrap();
    assert_eq!((found.origin, &*found.bytes), (Origin::Cache, &*other));
}

#[test]
#[ignore = "extended"]
fn an_entry_damaged_under_a_reader_at_any_moment_does_no_harm() {
    type Damage = (&'static str, fn(&Path));
    let damages: &[Damage] = &[
        ("changed", |entry| {
            let mut bytes = fs::read(entry.join("kernel.co")).unwrap();
            let middle = bytes.len() / 2;
            bytes[middle] ^= 1;
            fs::write(entry.join("kernel.co"), bytes).unwrap();
        }),
        ("truncated", |entry| {
            File::options().write(true).open(entry.join("kernel.co")).unwrap().set_len(100).unwrap();
        }),
        ("no object", |entry| fs::remove_file(entry.join("kernel.co")).unwrap()),
        ("no manifest", |entry| fs::remove_file(entry.join("manifest.json")).unwrap()),
        ("gone", |entry| fs::remove_dir_all(entry).unwrap()),
        ("a file", |entry| {
            fs::remove_dir_all(entry).unwrap();
            fs::write(entry, "x").unwrap();
        }),
    ];
    let scratch = Scratch::new("under");
    let (search, entry, [good, other]) = two_versions(&scratch);
    copy_tree(&scratch.path("cache"), &scratch.path("template"));
    for (name, damage) in damages {
        for file in ["manifest.json", "kernel.co"] {
            let place = format!("{name} before {file}");
            fs::remove_dir_all(scratch.path("cache")).unwrap();
            copy_tree(&scratch.path("template"), &scratch.path("cache"));
            let (damage, target) = (*damage, entry.clone());
            let disk = meanwhile(
                move |operation, path| operation == DiskOperation::Read && path.ends_with(file),
                move || damage(&target),
            );
            let jit = Jit::new(with_disk(&scratch, disk), search.clone());
            let found = jit.compile(&spec(), &host()).unwrap_or_else(|error| panic!("{place}: {error}"));
            assert!(*found.bytes == *good || *found.bytes == *other, "{place}");
            // What was verified is in memory: what becomes of the entry then is nothing to the holder.
            damage_all(&entry);
            assert!(*found.bytes == *good || *found.bytes == *other, "{place}");
            assert_eq!(*jit.compile(&spec(), &host()).unwrap().bytes, *good, "{place}: later");
            assert_in_order(&scratch, &place);
        }
    }
}

fn damage_all(entry: &Path) {
    for file in fs::read_dir(entry).unwrap().map(|file| file.unwrap().path()).filter(|path| path.is_file()) {
        File::options().write(true).open(file).unwrap().set_len(3).unwrap();
    }
}

#[test]
fn of_two_who_publish_one_key_the_first_stays() {
    for broken in [false, true] {
        let scratch = Scratch::new("publishers");
        let (search, entry, [good, _]) = two_versions(&scratch);
        fs::remove_dir_all(&entry).unwrap();
        // The second does not get the lock and goes on without, as long as the first is about to publish.
        let mut config = scratch.config();
        config.wait_deadline = Duration::from_millis(20);
        let second = Jit::new(config, search.clone());
        let seen = Arc::new(Mutex::new(None));
        let (told, place) = (seen.clone(), entry.clone());
        let disk = meanwhile(
            |operation, path| operation == DiskOperation::Rename && path.to_string_lossy().contains("/.tmp/"),
            move || {
                *told.lock().unwrap() = Some(second.compile(&spec(), &host()).unwrap().origin);
                if broken {
                    damage_all(&place);
                }
            },
        );
        let first = Jit::new(with_disk(&scratch, disk), search).compile(&spec(), &host()).unwrap();
        assert_eq!(*seen.lock().unwrap(), Some(Origin::Compiled), "both compiled");
        assert_eq!((first.origin, &*first.bytes), (Origin::Compiled, &*good));
        assert_in_order(&scratch, &format!("broken: {broken}"));
    }
}

#[test]
fn a_lock_that_is_never_released_delays_no_thread_for_ever() {
    let scratch = Scratch::new("stuck");
    let search = scratch.compiler("fake 1", REAL);
    let key = scratch.jit(search.clone()).compile(&spec(), &host()).unwrap().key.to_string();
    fs::remove_dir_all(&entries(&scratch.path("cache"))[0]).unwrap();
    let path = scratch.path("cache/v2/.locks").join(&key);
    // A dead owner's words, without its lock.
    fs::write(&path, "host gone process 1 since 0\n").unwrap();
    let begun = Instant::now();
    assert_eq!(scratch.jit(search.clone()).compile(&spec(), &host()).unwrap().origin, Origin::Compiled);
    fs::remove_dir_all(&entries(&scratch.path("cache"))[0]).unwrap();
    let held = File::options().write(true).open(&path).unwrap();
    held.lock().unwrap();
    let mut config = scratch.config();
    config.wait_deadline = Duration::from_millis(100);
    let jit = Jit::new(config, search);
    assert_eq!(jit.compile(&spec(), &host()).unwrap().origin, Origin::Compiled);
    assert!(begun.elapsed() < Duration::from_secs(20));
    assert_eq!(jit.stats().waited, 1);
    assert_in_order(&scratch, "stuck");
}

#[test]
fn a_cleaner_does_not_take_a_living_owners_folder() {
    let scratch = Scratch::new("cleaner");
    let cache = Cache::new(scratch.path("cache"));
    // A cleaner that looks at the lock file in the moment between its making and its locking.
    let temporary = scratch.path("cache/v2/.tmp");
    let cleaner = Arc::new(Mutex::new(None));
    let told = cleaner.clone();
    let disk = meanwhile(
        |operation, path| operation == DiskOperation::Lock && path.to_string_lossy().ends_with(".owner"),
        move || {
            let owner = fs::read_dir(temporary).unwrap().next().unwrap().unwrap().path();
            let file = File::options().write(true).open(owner).unwrap();
            file.try_lock().unwrap();
            let holding = std::thread::spawn(move || {
                std::thread::sleep(Duration::from_millis(50));
                drop(file);
            });
            *told.lock().unwrap() = Some(holding);
        },
    );
    let mut config = with_disk(&scratch, disk);
    config.observer = Some(Arc::new(CleansMeanwhile { cache, cleaner }));
    let jit = Jit::new(config, scratch.compiler("fake 1", REAL));
    assert_eq!(jit.compile(&spec(), &host()).unwrap().origin, Origin::Compiled);
    assert_in_order(&scratch, "cleaner");
}

/// Cleans, when the first cleaner is done with its look.
#[derive(Debug)]
struct CleansMeanwhile {
    cache: Cache,
    cleaner: Arc<Mutex<Option<std::thread::JoinHandle<()>>>>,
}

impl anabranch_hip_jit::JitObserver for CleansMeanwhile {
    fn compiling(&self, _: &str, _: &anabranch_hip_jit::Target) {
        self.cleaner.lock().unwrap().take().unwrap().join().unwrap();
        self.cache.clean(&CleanRule::Broken).unwrap();
    }

    fn finished(&self, _: &str, _: &anabranch_hip_jit::Target, _: anabranch_hip_jit::Outcome, _: Duration) {}
}

#[test]
#[ignore = "extended"]
fn a_cache_that_vanishes_at_any_step_is_missed_once_at_most() {
    let scratch = Scratch::new("vanish");
    let search = scratch.compiler("fake 1", REAL);
    let good = scratch.jit(search.clone()).compile(&spec(), &host()).unwrap().bytes;
    let object = scratch.path("object");
    fs::copy(entries(&scratch.path("cache"))[0].join("kernel.co"), &object).unwrap();
    let search = scratch.compiler("fake 1", &format!("exec cp {} kernel.co", object.display()));
    let root = scratch.path("cache");
    for fallback in [false, true] {
        for at in 0.. {
            let _ = fs::remove_dir_all(&root);
            let (asked, reached) = (AtomicU64::new(0), Arc::new(Mutex::new(false)));
            let (told, gone, below) = (reached.clone(), root.clone(), root.clone());
            let disk = meanwhile(
                move |_, path| path.starts_with(&below) && asked.fetch_add(1, Ordering::Relaxed) == at,
                move || {
                    *told.lock().unwrap() = true;
                    let _ = fs::remove_dir_all(gone);
                },
            );
            let mut config = with_disk(&scratch, disk);
            config.scratch = fallback.then(|| scratch.0.clone());
            let jit = Jit::new(config, search.clone());
            match jit.compile(&spec(), &host()) {
                Ok(object) => assert_eq!(object.bytes, good, "{at}"),
                Err(Error::Cache { path, .. }) if !fallback => assert!(path.starts_with(&root), "{at}"),
                Err(Error::Compile(error)) if !fallback => {
                    let FailureReason::WorkFolder { problem } = &error.reason else {
                        panic!("{at}: {error}")
                    };
                    assert!(problem.contains(root.to_str().unwrap()), "{at}: {problem}");
                }
                Err(error) => panic!("{at}, fallback {fallback}: {error}"),
            }
            if !*reached.lock().unwrap() {
                break;
            }
            assert_eq!(jit.compile(&spec(), &host()).unwrap().bytes, good, "{at}: later");
            assert_in_order(&scratch, &format!("{at}"));
        }
    }
}
