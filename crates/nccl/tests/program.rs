//! Programs of other languages: one in C that is linked with `libnccl.so.2`, one in Python that opens it, and a library in C in the place of
//! the real one.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::common::{Nccl, alone, cache, nccl, path};

fn compile(name: &str, arguments: &[&str]) -> PathBuf {
    let output = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("nccl-{name}-{}", std::process::id()));
    let made = Command::new("cc").args(arguments).arg("-o").arg(&output).output().unwrap();
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    output
}

#[test]
fn a_program_that_is_linked_with_nccl_runs_with_the_library_preloaded() {
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/program.c");
    let library = path();
    let program = compile("program", &[source, library.to_str().unwrap()]);
    // It asks for libnccl.so.2, which no folder has: the preloaded file counts as it.
    let run = |preload: &Path| {
        let mut command = Command::new(&program);
        command.env("ANABRANCH__DEVICE__RUNTIME", "host").env("ANABRANCH__KERNELS__CACHE", cache());
        command.env("LD_PRELOAD", preload).output().unwrap()
    };
    let output = run(&library);
    let text =
        String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && text.contains("sums 7 7"), "{text}");
    let without = run(Path::new(""));
    assert!(!without.status.success() && String::from_utf8_lossy(&without.stderr).contains("libnccl.so.2"));
}

#[test]
fn a_python_program_that_opens_the_library_has_the_values_it_expects() {
    if let Err(error) = Command::new("python3").arg("--version").output() {
        println!("skipped: python3: {error}");
        return;
    }
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/program.py");
    for kind in ["threads", "processes"] {
        let mut command = Command::new("python3");
        command.arg(source).arg(kind).arg(path()).arg("3");
        command.env("ANABRANCH__DEVICE__RUNTIME", "host").env("ANABRANCH__KERNELS__CACHE", cache());
        // A rank that fails leaves the others in calls that end with their deadlines.
        command.env("ANABRANCH__DEADLINE__OPERATION", "30 s").env("ANABRANCH__DEADLINE__RENDEZVOUS", "60 s");
        let output = command.env("ANABRANCH__KERNELS__PATIENCE", "600 s").output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout);
        let errors = String::from_utf8_lossy(&output.stderr);
        let passed = (0..3).all(|rank| text.contains(&format!("rank {rank} of 3 passed")));
        assert!(output.status.success() && passed, "{kind}: {text}{errors}");
    }
}

#[test]
fn a_function_that_is_not_there_is_handed_to_the_library_that_the_user_names() {
    alone!("a_function_that_is_not_there_is_handed_to_the_library_that_the_user_names");
    let source = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("nccl-real-{}.c", std::process::id()));
    std::fs::write(&source, "int ncclSetEncryption(const void *config) { return config ? 41 : 42; }\n")
        .unwrap();
    let real = compile("real.so", &["-shared", "-fPIC", source.to_str().unwrap()]);
    let nccl = Nccl::open(&[("ANABRANCH_NCCL_FALLBACK", real.to_str().unwrap())]);
    assert_eq!(nccl!(nccl, ncclSetEncryption(std::ptr::null() => *const std::ffi::c_void)), 42);
    // One that it does not have, and one of a communicator.
    assert_eq!(
        nccl!(nccl, ncclParamBind(std::ptr::null_mut() => *mut std::ffi::c_void, std::ptr::null() => *const std::ffi::c_char)),
        5
    );
    assert_eq!(nccl!(nccl, ncclCommResume(std::ptr::null_mut() => *mut std::ffi::c_void)), 5);
}

#[test]
fn a_fallback_that_is_this_library_is_refused() {
    alone!("a_fallback_that_is_this_library_is_refused");
    let nccl = Nccl::open(&[("ANABRANCH_NCCL_FALLBACK", path().to_str().unwrap())]);
    assert_eq!(nccl!(nccl, ncclSetEncryption(std::ptr::null() => *const std::ffi::c_void)), 5);
}
