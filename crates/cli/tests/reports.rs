//! `anabranch doctor`, `topo` and `jit`, on a machine with nothing but a C++ compiler.

use crate::common;

use crate::common::{Run, command, finish, run};
use serde_json::Value;

fn rows(run: &Run) -> Vec<Value> {
    assert!(!run.stdout.is_empty(), "{run:?}");
    run.stdout.lines().map(|line| serde_json::from_str(line).unwrap_or_default()).collect()
}

#[test]
fn the_doctor_finds_nothing_wrong_with_the_host_runtime() {
    let done = run(&["doctor", "--json", "--runtime", "host"]);
    assert_eq!(done.code, 0, "{done:?}");
    let rows = rows(&done);
    let section = |name: &str| rows.iter().filter(|row| row["section"] == name).cloned().collect::<Vec<_>>();
    assert!(section("runtimes").iter().any(|row| row["runtime"] == "host" && row["status"] == "ok"));
    assert_eq!(section("runtimes").len(), 3, "all three are looked for");
    let host = section("devices").into_iter().filter(|row| row["runtime"] == "host").collect::<Vec<_>>();
    assert_eq!((host.len(), host[0]["arch"].as_str()), (4, Some("host:wave1")));
    assert!(host.iter().all(|row| row["virtual_memory"] == true), "{host:?}");
    let mode =
        section("configuration").into_iter().find(|row| row["name"] == "heap.mode").unwrap_or_default();
    assert!(mode["detail"].as_str().unwrap_or_default().starts_with("static ("), "{mode}");
    assert!(section("heap").is_empty(), "a static heap asks for nothing");
    let link = section("links").into_iter().find(|row| row["runtime"] == "host").unwrap_or_default();
    assert_eq!(link["reaches"], serde_json::json!([1, 2, 3]), "each pair was probed by a copy");
    assert!(section("compilers").iter().any(|row| row["target"] == "host:wave1" && row["status"] == "ok"));
    for name in ["configuration", "limits", "cache"] {
        assert!(!section(name).is_empty(), "{name}");
    }
    let nics = section("nics");
    assert!(nics.iter().all(|row| row["status"] != "wrong"), "a machine needs no NIC: {nics:?}");
    let libraries: Vec<_> = nics.iter().filter_map(|row| row["library"].as_str()).collect();
    assert_eq!(libraries, ["libibverbs.so.1", "libmlx5.so.1", "libbnxt_re.so", "libionic.so.1"]);
    let shown = std::fs::read_dir("/sys/class/infiniband").map_or(0, Iterator::count);
    let devices = nics.iter().filter(|row| row["provider"].is_string()).count();
    assert_eq!(devices, shown, "{nics:?}");
    if shown == 0 {
        let none = nics.iter().find(|row| row["name"] == "devices").cloned().unwrap_or_default();
        assert!(none["detail"].as_str().unwrap_or_default().contains("shows none"), "{nics:?}");
    }
}

#[test]
fn the_doctor_fails_with_a_hint_when_the_configured_runtime_or_compiler_is_missing() {
    let missing = run(&["doctor", "--runtime", "amd", "--set", "device.library=/nonexistent/libamdhip64.so"]);
    // Where AMD's library is installed, nothing is missing.
    if missing.code != 0 {
        assert_eq!(missing.code, 1, "{missing:?}");
        assert!(
            missing.stdout.contains("WRONG amd") && missing.stdout.contains("hint: install ROCm"),
            "{missing:?}"
        );
    }
    let compiler = finish(command(&["doctor", "--runtime", "host"]).env("CXX", "/nonexistent/c++"));
    assert_eq!(compiler.code, 1, "{compiler:?}");
    assert!(compiler.stdout.contains("hint: install a C++ compiler"), "{compiler:?}");
    // One that the settings choose is not replaced by another.
    let chosen = "kernels.compiler=/nonexistent/clang++";
    let chosen = run(&["doctor", "--runtime", "host", "--set", chosen]);
    assert_eq!(chosen.code, 1, "{chosen:?}");
    assert!(chosen.stdout.contains("WRONG kernels.compiler: "), "{chosen:?}");
    assert!(chosen.stdout.contains("/nonexistent/clang++: no such file"), "{chosen:?}");
}

#[test]
fn the_doctor_runs_a_kernel_on_each_device() {
    let done = run(&["doctor", "--json", "--runtime", "host", "--wave", "4"]);
    assert_eq!(done.code, 0, "{done:?}");
    let ran = |done: &Run| {
        rows(done)
            .into_iter()
            .filter(|row| row["section"] == "kernels" && row["runtime"] == "host")
            .collect::<Vec<_>>()
    };
    assert_eq!(ran(&done).len(), 4, "{done:?}");
    assert!(ran(&done).iter().all(|row| row["status"] == "ok"), "{done:?}");
    // Every load fails where kernels are compiled for another machine than the device.
    let other = run(&["doctor", "--json", "--runtime", "host", "--set", "kernels.arch=host:wave4"]);
    assert_eq!(other.code, 1, "{other:?}");
    let failed = ran(&other);
    assert!(failed.len() == 4 && failed.iter().all(|row| row["status"] == "wrong"), "{other:?}");
    let cause = failed[0]["detail"].as_str().unwrap_or_default();
    assert!(cause.contains("reports host:wave1, but the configuration asks for host:wave4"), "{cause}");
}

#[test]
fn topo_shows_every_direction_in_processes_and_threads() {
    for threads in [false, true] {
        let mut arguments =
            vec!["topo", "--json", "--ranks", "3", "--runtime", "host", "--set", "heap.bytes=1 MiB"];
        arguments.extend(threads.then_some("--threads"));
        let done = run(&arguments);
        assert_eq!(done.code, 0, "{done:?}");
        let rows = rows(&done);
        assert_eq!(rows.len(), 9);
        assert!(rows.iter().all(|row| row["heap"] == "static"));
        assert!(rows.iter().all(|row| row["transport"] == "p2p" && row["reason"].is_string()));
        assert!(
            rows.iter().all(|row| row["nic_reason"].as_str().is_some_and(|why| !why.is_empty())),
            "{rows:?}"
        );
        let across = rows.iter().find(|row| row["from"] == 0 && row["to"] == 2).unwrap().clone();
        let reason = across["reason"].as_str().unwrap_or_default();
        assert_eq!(reason.contains("same process"), threads, "{reason}");
    }
}

#[test]
fn a_flat_heap_is_reported() {
    let set = ["--runtime", "host", "--set", "heap.mode=flat", "--set", "heap.bytes=1 MiB"];
    for threads in [false, true] {
        let mut arguments = [&["topo", "--ranks", "2", "--json"][..], &set].concat();
        arguments.extend(threads.then_some("--threads"));
        let done = run(&arguments);
        assert_eq!(done.code, 0, "{done:?}");
        for row in rows(&done) {
            assert_eq!(row["heap"], "flat");
            let slot = format!("slot {} of a flat range", row["to"]);
            assert!(row["reason"].as_str().unwrap_or_default().contains(&slot), "{row}");
        }
    }
    let text = run(&[&["topo", "--ranks", "2"][..], &set].concat());
    let first = text.stdout.lines().next().unwrap_or_default();
    let expected = "heap.mode = flat, heap.bytes = 1048576; rank r's heap at base + r * 1048576";
    assert_eq!(first, expected, "{text:?}");
    let doctor = run(&["doctor", "--json", "--runtime", "host", "--set", "heap.mode=flat"]);
    let heap: Vec<_> = rows(&doctor).into_iter().filter(|row| row["section"] == "heap").collect();
    assert!(heap.len() == 4 && heap.iter().all(|row| row["unit_bytes"] == 65536), "{doctor:?}");
}

#[test]
fn ranks_that_cannot_join_fail_the_command() {
    let done = run(&["topo", "--ranks", "3", "--runtime", "host", "--set", "device.host.count=2"]);
    assert_eq!(done.code, 2, "{done:?}");
    assert!(done.stderr.contains("3 ranks") && done.stderr.contains("device.host.count is 2"), "{done:?}");
}

#[test]
#[ignore = "extended"]
fn kernels_are_built_listed_verified_and_cleaned() {
    let cache = common::file("kernels", "");
    let _ = std::fs::remove_file(&cache);
    let set = format!("kernels.cache={}", cache.display());
    let jit = |arguments: &[&str]| run(&[&["jit"], arguments, &["--set", &set, "--json"]].concat());
    let built = jit(&["build", "--target", "host"]);
    assert_eq!(built.code, 0, "{built:?}");
    let first = rows(&built);
    assert!(first.len() >= 3 && first.iter().all(|row| row["outcome"] == "compiled"), "{built:?}");
    assert!(rows(&jit(&["build", "--target", "host,host:wave1"])).iter().all(|row| row["outcome"] == "hit"));
    let listed = rows(&jit(&["list"]));
    assert_eq!(listed.len(), first.len());
    assert_eq!(jit(&["verify"]).code, 0);

    // It is all that runs need: they go on where nothing may be compiled, and say what is missing elsewhere.
    let ranks = ["--runtime", "host", "--ranks", "2", "--iters", "2", "--json", "--set", "heap.bytes=64 MiB"];
    let forbidden = [&ranks[..], &["--set", &set, "--set", "kernels.compile=deny"]].concat();
    let exchange = ["bench", "ep", "--tokens", "5", "--hidden", "64", "--experts", "8", "--top-k", "3"];
    let sum = ["bench", "ccl", "--op", "all_reduce,all_gather", "--sizes", "4 KiB"];
    for command in [&exchange[..], &sum] {
        let done = run(&[command, &forbidden].concat());
        assert_eq!(done.code, 0, "{done:?}");
        assert!(rows(&done).iter().all(|row| row["verified"] == true), "{done:?}");
    }
    let elsewhere = run(&[&exchange[..], &forbidden, &["--set", "device.host.wave=4"]].concat());
    assert!(elsewhere.code != 0 && elsewhere.stderr.contains("compiling is forbidden"), "{elsewhere:?}");

    let object = std::path::Path::new(listed[0]["directory"].as_str().unwrap()).join("kernel.co");
    let mut bytes = std::fs::read(&object).unwrap();
    bytes.truncate(bytes.len() / 2);
    std::fs::write(&object, bytes).unwrap();
    let verified = jit(&["verify"]);
    assert_eq!(verified.code, 1, "a truncated entry is noticed");
    assert_eq!(rows(&verified).iter().filter(|row| row["ok"] == false).count(), 1);
    assert_eq!(rows(&jit(&["clean", "--broken"]))[0]["removed"], 1);
    assert_eq!(jit(&["verify"]).code, 0);

    assert_eq!(jit(&["clean"]).code, 2, "what to remove has to be said");
    assert_eq!(jit(&["clean", "--key", "abc"]).code, 1);
    assert_eq!(rows(&jit(&["clean", "--all"]))[0]["kept"], 0);
    let _ = std::fs::remove_dir_all(cache);
}

#[test]
fn a_build_that_fails_fails_the_command() {
    let cache = common::file("failing", "");
    let _ = std::fs::remove_file(&cache);
    let set = format!("kernels.cache={}", cache.display());
    let broken = [
        "jit",
        "build",
        "--target",
        "host",
        "--set",
        &set,
        "--set",
        "kernels.extra_options=-fno-such-option",
    ];
    let done = run(&broken);
    assert_eq!(done.code, 4, "{done:?}");
    assert!(done.stdout.contains("FAILED") && done.stdout.contains("failed"), "{done:?}");
    let missing =
        finish(command(&["jit", "build", "--target", "host", "--set", &set]).env("CXX", "/nonexistent/c++"));
    assert_eq!(missing.code, 3, "{missing:?}");
    assert!(missing.stderr.contains("/nonexistent/c++"), "{missing:?}");
    let failed: Vec<&str> = missing.stdout.lines().filter(|line| line.contains("FAILED")).collect();
    assert!(failed.len() == 1 && failed[0].ends_with(" kernels: no compiler"), "{failed:?}");
    assert_eq!(missing.stderr.matches("no compiler for").count(), 1, "{missing:?}");
    assert_eq!(missing.stderr.lines().count(), 1, "{missing:?}");
    let both = ["jit", "build", "--target", "host,host:wave4", "--json", "--set", &set];
    let both = finish(command(&both).env("CXX", "/nonexistent/c++"));
    assert_eq!((both.code, rows(&both).len()), (3, 2), "one for each target: {both:?}");
    let unknown = run(&["jit", "build", "--target", "gfx94x", "--set", &set]);
    assert_eq!(unknown.code, 2, "{unknown:?}");
    let nic = run(&["jit", "build", "--target", "host", "--nic", "mlx4", "--set", &set]);
    assert!(nic.code == 2 && nic.stderr.contains("mlx5, bnxt_re, ionic, posted"), "{nic:?}");
    let _ = std::fs::remove_dir_all(cache);
}

#[test]
fn help_lists_only_existing_commands() {
    let help = run(&["--help"]).stdout;
    for command in ["bench", "config", "doctor", "jit", "run", "sim", "topo", "trace", "tune"] {
        assert!(help.contains(&format!("\n  {command} ")), "{help}");
    }
    for absent in ["bench-rank", "topo-rank", "tune-rank"] {
        assert!(!help.contains(&format!("\n  {absent} ")), "{help}");
    }
}
