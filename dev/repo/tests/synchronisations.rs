//! No host synchronisation hides a mistake: each of the libraries is listed here with what would go wrong without it, and another one is
//! found. And none breaks the capture of another thread.

use crate::common::{self, root};

use std::fs;
use std::path::PathBuf;

/// Where the host waits for a stream or device: file, function, and who would see what too early; a line for each wait of a function.
const KNOWN: [(&str, &str, &str); 12] = [
    ("crates/capi/src/world.rs", "anabranch_synchronize", "the user asks for it"),
    ("crates/ep/src/run/mod.rs", "check_ids", "the host reads the ids that dispatch met and put down"),
    ("crates/ep/src/run/dropped.rs", "dropped", "the host reads the map of copies that dispatch writes"),
    ("crates/ep/src/run/mask.rs", "quiet_mask", "the host reads and writes the mask that launches read"),
    ("crates/nccl/src/host.rs", "anabranchHostStreamSynchronize", "the program asks for it"),
    (
        "crates/python/src/ep/parallel.rs",
        "wait_for",
        "the calls after it read what the stream writes, and Ctrl-C ends this wait",
    ),
    ("crates/python/src/world.rs", "synchronize", "the user asks for it"),
    (
        "crates/python/src/xla/mod.rs",
        "run_on_device",
        "XLA reads the results of a call on the CPU when it returns",
    ),
    (
        "crates/shmem/src/fault/control.rs",
        "drop",
        "a copy of an abort on its way would outlive the words it copies",
    ),
    (
        "crates/shmem/src/world/nic_probe/queues.rs",
        "probe",
        "the host reads the words that the kernel wrote, and frees its tables",
    ),
    (
        "crates/shmem/src/world/check.rs",
        "synchronize",
        "it is the wait itself, with a deadline, for those who ask for one",
    ),
    ("crates/shmem/src/world/mod.rs", "zero", "peers would write into an allocation that is being zeroed"),
];

/// Functions of a source that wait for a stream or device, each as often as it does; code of tests at its end is left out.
fn waiting(source: &str) -> Vec<String> {
    let code = source.split("#[cfg(test)]\nmod ").next().unwrap_or_default();
    let mut within = String::new();
    let mut found = Vec::new();
    for line in code.lines().map(str::trim).filter(|line| !line.starts_with("//")) {
        let declared = line.split_once("fn ").filter(|(before, _)| {
            before.split_whitespace().all(|word| {
                word.starts_with("pub")
                    || ["const", "unsafe", "async", "extern", "super)", "\"C\""].contains(&word)
            })
        });
        if let Some((_, rest)) = declared {
            let is_letter = |letter: char| letter.is_ascii_alphanumeric() || letter == '_';
            within = rest.chars().take_while(|letter| is_letter(*letter)).collect();
        }
        let calls = [".synchronize(", ".synchronize_within("].iter().map(|call| line.matches(call).count());
        found.extend(std::iter::repeat_n(within.clone(), calls.sum()));
    }
    found
}

/// Sources of the libraries. `bench` and `cli` are a program that compares what kernels left, and in `hip` are the
/// calls themselves.
fn sources() -> Vec<PathBuf> {
    let others = ["bench", "cli", "hip", "hip-host", "hip-cuda"];
    common::sources_but(&others, |name| name == "tests" || name.ends_with("tests.rs"))
}

#[test]
fn host_synchronisations_are_those_of_the_list() {
    let root = root();
    let sources = sources();
    assert!(sources.len() > 150, "{} sources", sources.len());
    let mut found = Vec::new();
    for path in &sources {
        let file = path.strip_prefix(root).unwrap_or(path).display().to_string();
        let functions = waiting(&fs::read_to_string(path).unwrap_or_default());
        found.extend(functions.into_iter().map(|function| (file.clone(), function)));
    }
    found.sort();
    let known = KNOWN.iter().map(|(file, function, _)| ((*file).to_owned(), (*function).to_owned()));
    let mut known: Vec<(String, String)> = known.collect();
    known.sort();
    assert_eq!(found, known);
}

#[test]
fn host_synchronisations_are_found() {
    for source in [
        "fn wait(stream: &Stream) {\n    stream.synchronize()?;\n}\n",
        "pub(crate) const unsafe fn wait<T>(one: T) -> u8 {\n    one\n        .synchronize_within(&stream, limit)\n}\n",
    ] {
        assert_eq!(waiting(source), ["wait"], "{source}");
    }
    let both = "fn wait() {\n    one.synchronize()?;\n    two.synchronize()?.synchronize_within(limit)\n}\n";
    assert_eq!(waiting(both), ["wait"; 3]);
    for source in [
        "/// As `stream.synchronize()` does.\nfn f() {}\n",
        "pub fn synchronize(&self) -> Result<()> {\n    self.call()\n}\n",
        "#[cfg(test)]\nmod tests {\n    fn f() { stream.synchronize(); }\n}\n",
    ] {
        assert_eq!(waiting(source), Vec::<String>::new(), "{source}");
    }
}

/// Calls that HIP refuses on every thread while any thread captures, in whatever mode; it invalidates that capture.
const NEVER: [&str; 3] = ["hipMemcpy", "hipMemset", "hipDeviceSynchronize"];

/// Lines of a source with such a call, comments left out.
fn breaking(source: &str) -> Vec<&str> {
    let calls = |line: &&str| {
        NEVER.iter().any(|name| {
            line.match_indices(name).any(|(at, _)| {
                let after = line[at + name.len()..].chars().next();
                !after.is_some_and(|letter| letter.is_ascii_alphanumeric())
            })
        })
    };
    source.lines().map(str::trim).filter(|line| !line.starts_with("//")).filter(calls).collect()
}

/// The table names them, for tests of the runtimes that fill it; neither libraries nor programs call them.
#[test]
fn nothing_breaks_the_capture_of_another_thread() {
    let root = root();
    let sources = common::sources_but(&["hip-host", "hip-cuda"], |_| false);
    assert!(sources.len() > 200, "{} sources", sources.len());
    for path in sources.iter().filter(|path| **path != root.join("crates/hip/src/table.rs")) {
        let source = fs::read_to_string(path).unwrap_or_default();
        assert_eq!(breaking(&source), Vec::<&str>::new(), "{}", path.display());
    }
    let table = fs::read_to_string(root.join("crates/hip/src/table.rs")).unwrap_or_default();
    assert_eq!(breaking(&table).len(), NEVER.len(), "the table has them");
    let call = "let code = unsafe { (api.hipMemset)(target, 0, bytes) };";
    assert_eq!(breaking(call), [call]);
    assert_eq!(breaking("(api.hipMemsetAsync)(target); // hipMemcpyAsync"), Vec::<&str>::new());
}
