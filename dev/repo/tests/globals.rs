//! No state of a process: everything hangs from a world. The few statics that can change are listed here, with the reason.

use crate::common::{self, root};

use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;

/// Statics of the libraries that can change: file, name, and why it may be one.
const KNOWN: [(&str, &str, &str); 42] = [
    ("crates/capi/src/status.rs", "LAST", "the last error of the C interface is per thread"),
    ("crates/ccl/src/run/communicator.rs", "WARNED", "a log line is said once in a process"),
    (
        "crates/ccl/src/planner/tuning.rs",
        "EMBEDDED",
        "tables of the crate, parsed when first asked for, and never changed",
    ),
    (
        "crates/clock/src/attach.rs",
        "CURRENT",
        "the driver that a simulation attaches a thread to is per thread",
    ),
    (
        "crates/ep/src/plan/launch/mod.rs",
        "EMBEDDED",
        "tables of the crate, parsed when first asked for, and never changed",
    ),
    ("crates/ep/src/plan/launch/choice.rs", "LOGGED", "a line is logged once in a process"),
    (
        "crates/hip-jit/src/source.rs",
        "FOUND",
        "headers of a unit, which cannot change, are found once in a process",
    ),
    ("crates/nccl/src/blocks.rs", "TAKEN", "communicators of a process share the blocks of a device"),
    ("crates/nccl/src/comm.rs", "COMMS", "callers of NCCL name a communicator by a number"),
    (
        "crates/nccl/src/comm.rs",
        "ROOTS",
        "the id of a communicator is all that its first rank has of its socket",
    ),
    (
        "crates/nccl/src/comm.rs",
        "CLIQUES",
        "ranks of one communicator in a process know each other by its id",
    ),
    ("crates/nccl/src/comm.rs", "NUMBER", "numbers of communicators are used once in a process"),
    ("crates/nccl/src/error.rs", "LAST", "NCCL's last error is per thread"),
    ("crates/nccl/src/fallback.rs", "LIBRARY", "the real library is one per process"),
    ("crates/nccl/src/fallback.rs", "REFUSED", "a name is logged once in a process"),
    ("crates/nccl/src/group.rs", "GROUP", "NCCL's groups are per thread"),
    ("crates/nccl/src/host.rs", "STREAMS", "programs on the host runtime have addresses of streams"),
    ("crates/nccl/src/host.rs", "GRAPHS", "programs on the host runtime have numbers of graphs"),
    (
        "crates/nccl/src/leave.rs",
        "LEAVING",
        "the end of the process waits for communicators that it has destroyed",
    ),
    (
        "crates/nccl/src/leave.rs",
        "KEPT",
        "worlds whose kernels had not ended when their communicator was destroyed",
    ),
    ("crates/nccl/src/leave.rs", "NUMBER", "numbers of worlds that are left are used once in a process"),
    ("crates/nccl/src/leave.rs", "REGISTERED", "a function is registered once for the end of the process"),
    (
        "crates/nccl/src/process.rs",
        "PROCESS",
        "communicators of a process share one runtime, as NCCL's callers expect",
    ),
    ("crates/nccl/src/process.rs", "HOST_DEVICE", "the current device is per thread"),
    ("crates/nccl/src/process.rs", "STARTED", "the log is one per process"),
    ("crates/nccl/src/window.rs", "BUFFERS", "ncclMemFree has an address alone"),
    ("crates/nccl/src/window.rs", "NUMBER", "numbers of windows are used once in a process"),
    ("crates/python/src/joining.rs", "JOINED", "worlds of one store meet at different keys"),
    ("crates/python/src/state.rs", "WORLDS", "a call that names no world takes the only one of the process"),
    ("crates/python/src/xla/collectives.rs", "GROUPS", "a program of XLA names a group by a number alone"),
    ("crates/python/src/xla/experts.rs", "PLANS", "a program of XLA names a plan by a number alone"),
    ("crates/python/src/xla/ffi.rs", "KEPT_ID", "XLA numbers a type of kept state once in a process"),
    ("crates/python/src/errors.rs", "MAKE", "the function of Python that makes exceptions, looked up once"),
    ("crates/python/src/logs.rs", "RING", "the log is one per process; records wait there for Python"),
    ("crates/python/src/logs.rs", "IS_WAITING", "whether records wait there"),
    ("crates/hip-cuda/src/call.rs", "LAST", "HIP's last error is per thread"),
    ("crates/hip-cuda/src/context.rs", "CHOSEN", "HIP's current device is per thread"),
    ("crates/hip-cuda/src/driver.rs", "DRIVER", "NVIDIA's library is one per process"),
    ("crates/hip-cuda/src/driver.rs", "OPENING", "NVIDIA's library is opened once"),
    (
        "crates/hip-cuda/src/shims/device.rs",
        "NAMES",
        "texts of codes, made when first asked for, and never changed",
    ),
    (
        "crates/hip-host/src/calls/current.rs",
        "MACHINES",
        "HIP's current device and last error are per thread",
    ),
    ("crates/transport-ofi/src/signals.rs", "KEEPING", "handlers of signals are the process's"),
];

/// Types through which a static can change; a plain `static` of any other type cannot.
const CHANGES: [&str; 10] =
    ["Mutex", "RwLock", "OnceLock", "OnceCell", "LazyLock", "Atomic", "Cell", "Once", "Condvar", "Registry"];

/// Names of the statics of a source that can change; code of tests at its end is left out.
fn changing(source: &str) -> Vec<String> {
    let code = source.split("#[cfg(test)]\nmod ").next().unwrap_or_default();
    let code = code.split("#[cfg(all(test").next().unwrap_or_default();
    let mut found = Vec::new();
    let mut of_threads = false;
    for line in code.lines().map(str::trim) {
        of_threads = (of_threads || line.starts_with("thread_local!")) && line != "}";
        if line.starts_with("//") {
            continue;
        }
        let words = line.split_once("static ").filter(|(before, _)| {
            before.is_empty()
                || (before.starts_with("pub") && before.ends_with(' '))
                || before.ends_with("{ ")
        });
        let Some((_, rest)) = words else { continue };
        let (mutable, rest) = rest.strip_prefix("mut ").map_or((false, rest), |rest| (true, rest));
        let Some((name, rest)) = rest.split_once(':') else { continue };
        if name.is_empty()
            || !name.chars().all(|letter| letter.is_ascii_uppercase() || "_0123456789".contains(letter))
        {
            continue;
        }
        let kind = rest.split('=').next().unwrap_or_default();
        if mutable || of_threads || CHANGES.iter().any(|word| kind.contains(word)) {
            found.push(name.to_owned());
        }
    }
    found
}

/// Sources of the libraries; `bench` and `cli` are a program.
fn sources() -> Vec<PathBuf> {
    let is_of_tests = |name: &str| name == "tests" || name.ends_with("tests.rs") || name.contains("loom");
    common::sources_but(&["bench", "cli"], is_of_tests)
}

#[test]
fn statics_that_change_are_those_of_the_list() {
    let root = root();
    let sources = sources();
    assert!(sources.len() > 150, "{} sources", sources.len());
    let mut found = BTreeSet::new();
    for path in &sources {
        let file = path.strip_prefix(root).unwrap_or(path).display().to_string();
        let names = changing(&fs::read_to_string(path).unwrap());
        found.extend(names.into_iter().map(|name| (file.clone(), name)));
    }
    let known: BTreeSet<(String, String)> =
        KNOWN.iter().map(|(file, name, _)| ((*file).to_owned(), (*name).to_owned())).collect();
    assert_eq!(found, known);
}

#[test]
fn statics_that_change_are_found() {
    for source in [
        "static mut COUNT: u32 = 0;\n",
        "pub static HEAPS: Mutex<Vec<u8>> = Mutex::new(Vec::new());\n",
        "pub(crate) static READY: AtomicBool = AtomicBool::new(false);\n",
        "fn f() {\n    static ONCE: OnceLock<u32> = OnceLock::new();\n}\n",
        "thread_local! {\n    static DEPTH: u32 = const { 0 };\n}\n",
        "static LOGGER: std::sync::LazyLock<u32> = std::sync::LazyLock::new(|| 1);\n",
    ] {
        assert_eq!(changing(source).len(), 1, "{source}");
    }
    for source in [
        "pub static UNIT: KernelUnit = KernelUnit { name: \"a\" };\n",
        "static NAMES: [&str; 2] = [\"a\", \"b\"];\n",
        "fn f(text: &'static str) {}\n",
        "// static mut COUNT: u32 = 0;\n",
        "#[cfg(test)]\nmod tests {\n    static COUNT: AtomicU32 = AtomicU32::new(0);\n}\n",
    ] {
        assert_eq!(changing(source), Vec::<String>::new(), "{source}");
    }
}
