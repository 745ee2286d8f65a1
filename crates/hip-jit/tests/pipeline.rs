//! Compiling, caching, healing, refusing: one process.
#![expect(
    clippy::disallowed_methods,
    reason = "tests of real threads and processes run on the machine's time"
)]

use crate::common;

use std::fs;
use std::time::{Duration, Instant};

use crate::common::{HEADERS, REAL, SOURCE, Scratch, UNIT, entries, host, search, spec};
use anabranch_hip_jit::{
    CleanRule, CompileMode, Error, FailureReason, Header, Jit, KernelSpec, KernelUnit, Origin, Outcome,
    ToolSearch,
};

#[test]
fn compiled_once_then_found() {
    let scratch = Scratch::new("once");
    let search = scratch.compiler("fake 1", REAL);
    let jit = scratch.jit(search.clone());
    assert!(jit.needs_compile(&spec(), &host()).unwrap());
    assert_eq!(scratch.runs(), 0, "asking changes nothing");
    let first = jit.compile(&spec(), &host()).unwrap();
    assert_eq!((first.origin, scratch.runs()), (Origin::Compiled, 1));
    assert!(!jit.needs_compile(&spec(), &host()).unwrap());
    let again = scratch.jit(search);
    let second = again.compile(&spec(), &host()).unwrap();
    assert_eq!((second.origin, second.key, scratch.runs()), (Origin::Cache, first.key, 1));
    assert_eq!(second.bytes, first.bytes);
    assert_eq!((again.stats().hits, again.stats().compiled), (1, 0));
    for file in ["kernel.hip", "kernel.co", "manifest.json"] {
        assert!(second.directory.join(file).exists(), "{file}");
    }
    assert!(!second.directory.join("include").exists());
    assert_eq!(entries(&scratch.path("cache")), [second.directory]);
}

#[test]
fn another_header_parameter_flag_or_compiler_is_another_entry() {
    static EDITED: KernelUnit = KernelUnit {
        headers: &[&[
            Header {
                name: "test/scale.h",
                text: "#pragma once\n#include \"test/host_abi.h\"\nstatic inline void scale(unsigned* value, unsigned factor) { *value += factor * STEP; }\n",
            },
            HEADERS[1],
        ]],
        ..UNIT
    };
    let scratch = Scratch::new("sensitive");
    let search = scratch.compiler("fake 1", REAL);
    let mut keys = Vec::new();
    let mut compile = |jit: &Jit, spec: &KernelSpec| keys.push(jit.compile(spec, &host()).unwrap().key);
    compile(&scratch.jit(search.clone()), &spec());
    compile(&scratch.jit(search.clone()), &KernelSpec::new(&EDITED).with("STEP", 1));
    compile(&scratch.jit(search.clone()), &spec().with("STEP", 2));
    let mut config = scratch.config();
    config.extra_options = vec!["-O1".to_owned()];
    compile(&Jit::new(config, search.clone()), &spec());
    let mut config = scratch.config();
    config.debug_info = true;
    let debug = Jit::new(config, search);
    compile(&debug, &spec());
    let entry = debug.compile(&spec(), &host()).unwrap().directory;
    assert!(entry.join("include/test/scale.h").exists(), "for debuggers");
    compile(&scratch.jit(scratch.compiler("fake 1\nsecond line differs", REAL)), &spec());
    assert_eq!(scratch.runs(), 6);
    keys.sort();
    keys.dedup();
    assert_eq!(keys.len(), 6);
}

#[test]
fn damaged_entries_are_noticed_and_built_again() {
    type Damage = (&'static str, fn(&std::path::Path));
    let damages: &[Damage] = &[
        ("truncated object", |entry| {
            let bytes = fs::read(entry.join("kernel.co")).unwrap();
            fs::write(entry.join("kernel.co"), &bytes[..bytes.len() / 2]).unwrap();
        }),
        ("flipped bit", |entry| {
            let mut bytes = fs::read(entry.join("kernel.co")).unwrap();
            let middle = bytes.len() / 2;
            bytes[middle] ^= 1;
            fs::write(entry.join("kernel.co"), bytes).unwrap();
        }),
        ("no object", |entry| fs::remove_file(entry.join("kernel.co")).unwrap()),
        ("no manifest", |entry| fs::remove_file(entry.join("manifest.json")).unwrap()),
        ("truncated manifest", |entry| fs::write(entry.join("manifest.json"), "{\"schema\": 2,").unwrap()),
        ("other schema", |entry| {
            let text = fs::read_to_string(entry.join("manifest.json")).unwrap();
            fs::write(entry.join("manifest.json"), text.replace("\"schema\": 2,", "\"schema\": 999,"))
                .unwrap();
        }),
        ("empty folder", |entry| {
            fs::remove_dir_all(entry).unwrap();
            fs::create_dir(entry).unwrap();
        }),
        ("a file in its place", |entry| {
            fs::remove_dir_all(entry).unwrap();
            fs::write(entry, "x").unwrap();
        }),
    ];
    let scratch = Scratch::new("damage");
    let search = scratch.compiler("fake 1", REAL);
    let good = scratch.jit(search.clone()).compile(&spec(), &host()).unwrap();
    for (index, (name, damage)) in damages.iter().enumerate() {
        damage(&good.directory);
        let jit = scratch.jit(search.clone());
        assert!(jit.needs_compile(&spec(), &host()).unwrap(), "{name}");
        let healed = jit.compile(&spec(), &host()).unwrap();
        assert_eq!((healed.origin, jit.stats().healed), (Origin::Compiled, 1), "{name}");
        assert_eq!(healed.bytes, good.bytes, "{name}");
        assert_eq!(scratch.runs(), index + 2, "{name}");
        let entries = jit.cache().list().unwrap();
        assert!(entries.len() == 1 && entries[0].manifest.is_ok(), "{name}: {entries:?}");
    }
}

#[test]
fn many_who_find_a_broken_entry_heal_it_once() {
    const ASKERS: usize = 8;
    let scratch = Scratch::new("together");
    let search = scratch.compiler("fake 1", REAL);
    let good = scratch.jit(search.clone()).compile(&spec(), &host()).unwrap();
    fs::write(good.directory.join("kernel.co"), "broken").unwrap();
    // A pipeline each, as processes have: nothing but the cache's lock keeps them apart.
    let jits: Vec<_> = (0..ASKERS).map(|_| scratch.jit(search.clone())).collect();
    let start = std::sync::Barrier::new(ASKERS);
    let ask = |jit: &Jit| {
        jit.compiler(&host()).unwrap();
        start.wait();
        jit.compile(&spec(), &host()).unwrap().bytes
    };
    let found: Vec<_> = std::thread::scope(|scope| {
        let ask = &ask;
        let threads: Vec<_> = jits.iter().map(|jit| scope.spawn(move || ask(jit))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    assert!(found.iter().all(|bytes| *bytes == good.bytes));
    let sum =
        |of: fn(anabranch_hip_jit::JitStats) -> u64| jits.iter().map(|jit| of(jit.stats())).sum::<u64>();
    assert_eq!((sum(|stats| stats.healed), sum(|stats| stats.compiled)), (1, 1));
    assert_eq!(scratch.runs(), 2, "once to fill the cache and once to heal it");
    let entries = scratch.jit(search).cache().list().unwrap();
    assert!(entries.len() == 1 && entries[0].manifest.is_ok(), "{entries:?}");
}

#[test]
fn a_foreign_entry_is_not_taken() {
    let scratch = Scratch::new("foreign");
    let search = scratch.compiler("fake 1", REAL);
    let jit = scratch.jit(search.clone());
    let one = jit.compile(&spec(), &host()).unwrap();
    let two = jit.compile(&spec().with("STEP", 2), &host()).unwrap();
    fs::remove_dir_all(&one.directory).unwrap();
    fs::rename(&two.directory, &one.directory).unwrap();
    let jit = scratch.jit(search);
    let again = jit.compile(&spec(), &host()).unwrap();
    assert_eq!((again.origin, jit.stats().healed), (Origin::Compiled, 1));
    assert_eq!(again.bytes, one.bytes);
}

fn failure(jit: &Jit) -> anabranch_hip_jit::CompileError {
    let error = jit.compile(&spec(), &host()).unwrap_err();
    error.compile_error().unwrap_or_else(|| panic!("{error}")).clone()
}

#[test]
fn refusals_come_with_file_line_and_words() {
    static WRONG: KernelUnit = KernelUnit { name: "wrong", source: "\n\n  u64x f();\n", ..UNIT };
    let scratch = Scratch::new("refusal");
    let jit = scratch.jit(search(None));
    let error = jit.compile(&KernelSpec::new(&WRONG), &host()).unwrap_err();
    let compile = error.compile_error().unwrap();
    let first = &compile.diagnostics[0];
    assert_eq!((first.file.as_str(), first.line, first.column), ("wrong.hip", 3, 3));
    assert!(first.text.contains("u64x"), "{first}");
    let kept = compile.kept.clone().unwrap();
    assert!(fs::read_to_string(kept.join("compile.log")).unwrap().contains("u64x"));
    assert!(kept.join("kernel.hip").exists());
    let message = error.to_string();
    assert!(message.starts_with("cannot compile wrong for host:wave1: "), "{message}");
    for words in
        ["\n  wrong.hip:3:3: error: ", "kept because compilation failed", "\n  compiler: c++ ", " -O1 "]
    {
        assert!(message.contains(words), "{words}: {message}");
    }
    assert!(entries(&scratch.path("cache")).is_empty());
}

#[test]
fn a_refused_source_is_not_tried_twice_by_one_process() {
    let scratch = Scratch::new("memo");
    let jit = scratch.jit(scratch.compiler("fake 1", "echo 'x.hip:1:2: error: no' >&2; exit 1"));
    assert_eq!(failure(&jit), failure(&jit));
    assert_eq!(scratch.runs(), 1);
}

#[test]
fn a_compiler_may_fail_in_any_way() {
    for (name, body, expected) in [
        ("crash", "kill -SEGV $$", FailureReason::Crashed { signal: 11 }),
        ("sleep", "sleep 20", FailureReason::TimedOut { after: Duration::from_millis(300) }),
        ("nothing", "exit 0", FailureReason::BadObject { problem: String::new() }),
        ("garbage", "echo garbage > kernel.co", FailureReason::BadObject { problem: String::new() }),
        (
            "half",
            "c++ \"$@\"; head -c 9000 kernel.co > half; mv half kernel.co",
            FailureReason::BadObject { problem: String::new() },
        ),
    ] {
        let scratch = Scratch::new(name);
        let mut config = scratch.config();
        config.compile_deadline =
            if name == "sleep" { Duration::from_millis(300) } else { config.compile_deadline };
        let jit = Jit::new(config, scratch.compiler("fake 1", body));
        let begun = Instant::now();
        let error = failure(&jit);
        assert!(begun.elapsed() < Duration::from_secs(10), "{name}");
        let same = match (&error.reason, &expected) {
            (FailureReason::BadObject { problem }, FailureReason::BadObject { .. }) => !problem.is_empty(),
            (reason, expected) => reason == expected,
        };
        assert!(same, "{name}: {error}");
        assert!(entries(&scratch.path("cache")).is_empty(), "{name}");
        assert!(fs::read_dir(scratch.path("cache/v2/.tmp")).unwrap().next().is_none(), "{name}: work stays");
        // Such a failure may be the machine's, so it is tried again.
        failure(&jit);
        assert_eq!(scratch.runs(), 2, "{name}");
    }
}

#[test]
fn kernels_must_be_those_of_the_unit() {
    static MORE: KernelUnit = KernelUnit { entries: &["test_scale", "test_other"], ..UNIT };
    static FEWER: KernelUnit = KernelUnit { entries: &[], ..UNIT };
    let scratch = Scratch::new("symbols");
    let jit = scratch.jit(search(None));
    for (unit, words) in [(&MORE, "missing in it: test_other"), (&FEWER, "does not list: test_scale")] {
        let message = jit.compile(&KernelSpec::new(unit).with("STEP", 1), &host()).unwrap_err().to_string();
        assert!(message.contains(words), "{message}");
    }
}

#[test]
fn a_warning_is_not_named_as_the_cause_of_another_failure() {
    static WARNS: KernelUnit = KernelUnit {
        name: "warns_too",
        source: concat!(
            "#include \"test/host_abi.h\"\n",
            "static int unused_thing() { return 1; }\n",
            "extern \"C\" __attribute__((visibility(\"default\"))) const AnabranchHostKernel other_host_kernel;\n",
            "const AnabranchHostKernel other_host_kernel = {};\n",
        ),
        entries: &[],
        ..UNIT
    };
    let scratch = Scratch::new("symbols-warned");
    let jit = scratch.jit(search(None));
    let error = jit.compile(&KernelSpec::new(&WARNS), &host()).unwrap_err();
    let message = error.to_string();
    assert!(error.compile_error().unwrap().log.contains("unused_thing"), "the compiler did warn: {message}");
    assert!(message.contains("does not list: other") && !message.contains("unused_thing"), "{message}");
}

/// Records what is reported to it.
#[derive(Debug, Default)]
struct Recorded(std::sync::Mutex<Vec<String>>);

impl anabranch_hip_jit::JitObserver for Recorded {
    fn compiling(&self, label: &str, _target: &anabranch_hip_jit::Target) {
        self.0.lock().unwrap().push(format!("begun {label}"));
    }
    fn still_compiling(&self, label: &str, target: &anabranch_hip_jit::Target, so_far: Duration) {
        assert!(so_far >= Duration::from_millis(50));
        self.0.lock().unwrap().push(format!("still {label} for {target}"));
    }
    fn waiting(&self, label: &str, _: &anabranch_hip_jit::Target, owner: &str, _: Duration) {
        self.0.lock().unwrap().push(format!("waiting for {owner}: {label}"));
    }
    fn finished(&self, label: &str, _: &anabranch_hip_jit::Target, _: Outcome, _: Duration) {
        self.0.lock().unwrap().push(format!("done {label}"));
    }
}

#[test]
fn a_long_compilation_is_reported_and_has_time() {
    let scratch = Scratch::new("patient");
    let recorded = std::sync::Arc::new(Recorded::default());
    let mut config = scratch.config();
    config.progress_interval = Duration::from_millis(50);
    config.observer = Some(recorded.clone());
    Jit::new(config, scratch.compiler("fake 1", "sleep 0.4; exec c++ \"$@\""))
        .compile(&spec(), &host())
        .unwrap();
    let reports = recorded.0.lock().unwrap().clone();
    let label = spec().label();
    assert_eq!(reports.first(), Some(&format!("begun {label}")));
    assert_eq!(reports.last(), Some(&format!("done {label}")));
    assert_eq!(reports[1], format!("still {label} for host:wave1"));
    let standard = anabranch_hip_jit::JitConfig::new("/nonexistent");
    assert!(standard.compile_deadline >= Duration::from_secs(600));
    let mut set = standard;
    set.set_patience(Duration::from_secs(7));
    assert_eq!(set.compile_deadline, Duration::from_secs(7));
    assert!(set.wait_deadline > set.compile_deadline, "whoever waits outlasts the compilation");
}

#[test]
fn a_wait_for_another_process_is_reported() {
    let scratch = Scratch::new("waiting");
    let search = scratch.compiler("fake 1", "sleep 0.6; exec c++ \"$@\"");
    let jit = |config| Jit::new(config, search.clone());
    let recorded = std::sync::Arc::new(Recorded::default());
    // A pipeline of its own knows nothing of the other's threads: to it this is another process.
    let other = jit(scratch.config());
    std::thread::scope(|scope| {
        scope.spawn(|| other.compile(&spec(), &host()).unwrap());
        while scratch.runs() == 0 {
            std::thread::sleep(Duration::from_millis(5));
        }
        let mut config = scratch.config();
        config.progress_interval = Duration::from_millis(50);
        config.observer = Some(recorded.clone());
        jit(config).compile(&spec(), &host()).unwrap();
    });
    let reports = recorded.0.lock().unwrap().clone();
    let first = reports.first().expect("something is reported");
    let start = format!("waiting for process {} on ", std::process::id());
    assert!(first.starts_with(&start) && first.ends_with(&spec().label()), "{reports:?}");
    assert!(reports.len() > 2 && reports.iter().all(|line| line.starts_with("waiting")), "{reports:?}");
    assert_eq!(scratch.runs(), 1);
}

#[test]
fn drivers_for_c_link_the_mathematics() {
    let body = "static_cast<unsigned>(__builtin_exp2f(static_cast<float>(*value * factor * STEP)))";
    let header = HEADERS[0].text.replace("*value *= factor * STEP;", &format!("*value = {body};"));
    assert!(header.contains(body));
    let header = Header { name: HEADERS[0].name, text: header.leak() };
    let headers: &'static [&'static [Header]] = Box::leak(Box::new([&*vec![header, HEADERS[1]].leak()]));
    let unit: &'static KernelUnit = Box::leak(Box::new(KernelUnit { headers, ..UNIT }));
    let scratch = Scratch::new("drivers");
    for program in ["/usr/bin/gcc", "/usr/bin/cc"] {
        let search = ToolSearch { compiler: Some(program.parse().unwrap()), ..search(None) };
        let made = scratch.jit(search).compile(&KernelSpec::new(unit).with("STEP", 1), &host()).unwrap();
        let names = |name: &[u8]| made.bytes.windows(name.len()).any(|bytes| bytes == name);
        assert!(names(b"exp2f"), "{program}: the kernel calls it");
        assert!(names(b"libm.so"), "{program}: the loader has no path for it");
        assert!(!names(b"libstdc++"), "{program}: a driver for C");
        let path = scratch.path("loaded.so");
        fs::write(&path, &made.bytes).unwrap();
        // SAFETY: the kernel's object has no initialisers.
        unsafe { libloading::Library::new(&path) }.unwrap();
    }
}

#[test]
fn layouts_are_checked_by_the_device_compiler() {
    static SWAPPED: KernelUnit = KernelUnit {
        layouts: &[|| {
            <common::ScaleArgs as anabranch_hip_jit::DeviceStruct>::c_declaration()
                .replace("unsigned int count;", "unsigned int pad[2]; unsigned int count;")
        }],
        ..UNIT
    };
    let scratch = Scratch::new("layout");
    let error =
        scratch.jit(search(None)).compile(&KernelSpec::new(&SWAPPED).with("STEP", 1), &host()).unwrap_err();
    assert!(error.compile_error().unwrap().log.contains("offset of ScaleArgs::count differs"), "{error}");
}

#[test]
fn only_so_many_failures_are_kept() {
    let scratch = Scratch::new("kept");
    let mut config = scratch.config();
    config.keep_failed = 2;
    let jit = Jit::new(config, scratch.compiler("fake 1", "exit 1"));
    for step in 0..4 {
        assert!(jit.compile(&spec().with("STEP", step), &host()).is_err());
    }
    assert_eq!(fs::read_dir(scratch.path("cache/v2/.failed")).unwrap().count(), 2);
}

#[test]
fn denied_compiling_names_what_differs() {
    let scratch = Scratch::new("deny");
    let search = scratch.compiler("fake 1", REAL);
    let mut config = scratch.config();
    config.compile = CompileMode::Deny;
    let deny = Jit::new(config, search.clone());
    let message = deny.compile(&spec(), &host()).unwrap_err().to_string();
    assert!(message.contains("no entry of this unit"), "{message}");
    scratch.jit(search).compile(&spec(), &host()).unwrap();
    assert_eq!(deny.compile(&spec(), &host()).unwrap().origin, Origin::Cache);
    let error = deny.compile(&spec().with("STEP", 7), &host()).unwrap_err();
    let Error::Denied { nearest: Some(nearest), .. } = &error else { panic!("{error}") };
    let names: Vec<_> = nearest.differences.iter().map(|(name, ..)| name.as_str()).collect();
    assert_eq!(names, ["parameter STEP", "text"]);
    assert!(error.to_string().contains("parameter STEP: `1` there, `7` wanted"), "{error}");
    assert_eq!(scratch.runs(), 1);
}

#[test]
fn prebuilt_folders_come_first_and_need_no_compiler() {
    let scratch = Scratch::new("prebuilt");
    let built = scratch.jit(scratch.compiler("fake 1", REAL)).compile(&spec(), &host()).unwrap();
    let mut config = scratch.config();
    config.prebuilt = vec![scratch.path("cache")];
    config.cache = scratch.path("empty");
    for search in [ToolSearch::default(), scratch.compiler("another", "exit 1")] {
        let jit = Jit::new(config.clone(), search);
        assert!(!jit.needs_compile(&spec(), &host()).unwrap());
        let found = jit.compile(&spec(), &host()).unwrap();
        assert_eq!((found.origin, found.key), (Origin::Prebuilt, built.key));
        assert!(jit.compile(&spec().with("STEP", 2), &host()).is_err());
    }
    // A broken prebuilt entry is not used and not touched.
    fs::write(built.directory.join("kernel.co"), "x").unwrap();
    assert!(Jit::new(config, ToolSearch::default()).needs_compile(&spec(), &host()).unwrap());
    assert!(built.directory.exists());
}

#[test]
fn a_warm_cache_needs_no_compiler() {
    let scratch = Scratch::new("warm");
    let built = scratch.jit(search(None)).compile(&spec(), &host()).unwrap();
    let jit = scratch.jit(ToolSearch::default());
    assert_eq!(jit.compile(&spec(), &host()).unwrap().key, built.key);
    let error = jit.compile(&spec().with("STEP", 2), &host()).unwrap_err();
    assert!(matches!(error, Error::NoCompiler { .. }), "{error}");
}

#[test]
fn a_root_that_cannot_be_written_is_an_error_unless_scratch_is_given() {
    let scratch = Scratch::new("root");
    fs::write(scratch.path("file"), "in the way").unwrap();
    for root in [scratch.path("file/cache"), "/proc/anabranch".into()] {
        let mut config = scratch.config();
        config.cache.clone_from(&root);
        let error = Jit::new(config.clone(), search(None)).compile(&spec(), &host()).unwrap_err();
        assert!(
            matches!(&error, Error::Cache { operation: "create folder", path, .. } if path.starts_with(&root)),
            "{error}"
        );
        config.scratch = Some(scratch.0.clone());
        let jit = Jit::new(config, search(None));
        assert_eq!(jit.compile(&spec(), &host()).unwrap().origin, Origin::Compiled);
        assert_eq!(fs::read_dir(&scratch.0).unwrap().count(), 1, "work stays");
    }
}

#[test]
fn threads_share_one_compilation() {
    let scratch = Scratch::new("threads");
    let jit = scratch.jit(scratch.compiler("fake 1", &format!("sleep 0.2; {REAL}")));
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| jit.compile(&spec(), &host()).unwrap());
        }
    });
    assert_eq!(scratch.runs(), 1);
    assert_eq!(jit.stats().compiled, 1);
}

#[test]
fn compile_ahead_reports_every_row_and_fails_hard() {
    static WRONG: KernelUnit = KernelUnit { name: "wrong", source: "int", ..UNIT };
    let scratch = Scratch::new("ahead");
    let jit = scratch.jit(search(None));
    jit.compile(&spec(), &host()).unwrap();
    let wide = "host:wave64".parse().unwrap();
    let wanted = [
        (spec(), host()),
        (KernelSpec::new(&WRONG), host()),
        (spec(), wide),
        (spec().with("STEP", 3), host()),
    ];
    let report = jit.compile_ahead(&wanted, 2);
    let outcomes: Vec<_> = report.rows.iter().map(anabranch_hip_jit::AheadRow::outcome).collect();
    assert_eq!(outcomes, [Outcome::Hit, Outcome::Failed, Outcome::Compiled, Outcome::Compiled]);
    assert_eq!(report.failures().count(), 1);
    assert!(report.to_string().ends_with("2 compiled, 1 from the cache, 1 failed"), "{report}");
    assert!(report.into_result().is_err());
    assert!(jit.compile_ahead(&[], 4).into_result().unwrap().is_empty());
}

#[test]
fn caches_are_listed_and_cleaned() {
    let scratch = Scratch::new("clean");
    let jit = scratch.jit(search(None));
    let cache = jit.cache();
    assert!(cache.list().unwrap().is_empty());
    let objects: Vec<_> =
        (0..4).map(|step| jit.compile(&spec().with("STEP", step), &host()).unwrap()).collect();
    fs::write(objects[0].directory.join("kernel.co"), "broken").unwrap();
    assert_eq!(cache.list().unwrap().iter().filter(|entry| entry.manifest.is_err()).count(), 1);
    let cleaned = |rule: CleanRule| {
        let report = cache.clean(&rule).unwrap();
        (report.removed, report.kept)
    };
    assert_eq!(cleaned(CleanRule::Broken), (1, 3));
    assert_eq!(cleaned(CleanRule::Key(objects[1].key.to_string()[..12].to_owned())), (1, 2));
    assert_eq!(cleaned(CleanRule::Key(String::new())), (0, 2));
    assert_eq!(cleaned(CleanRule::OlderThan(Duration::from_secs(3600))), (0, 2));
    assert_eq!(cleaned(CleanRule::OlderThan(Duration::ZERO)), (2, 0));
    jit.compile(&spec(), &host()).unwrap();
    assert_eq!(cleaned(CleanRule::All), (1, 0));
    assert!(entries(&scratch.path("cache")).is_empty());
}

#[test]
fn warnings_pass_unless_denied() {
    static WARNS: KernelUnit = KernelUnit {
        name: "warns",
        source: "static int unused_thing() { return 1; }\n",
        entries: &[],
        ..UNIT
    };
    let scratch = Scratch::new("warnings");
    let mut config = scratch.config();
    config.deny_warnings = true;
    let error = Jit::new(config, search(None)).compile(&KernelSpec::new(&WARNS), &host()).unwrap_err();
    assert!(error.to_string().contains("unused_thing"), "{error}");
    scratch.jit(search(None)).compile(&KernelSpec::new(&WARNS), &host()).unwrap();
    assert!(SOURCE.contains("test_scale"));
}
