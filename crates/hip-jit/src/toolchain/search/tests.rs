//! Tests of the search for compilers.

use super::*;

#[test]
fn settings_are_read_and_refused() {
    for text in [
        "auto",
        "hipcc",
        "clang",
        "hiprtc",
        "nvrtc",
        "nvcc",
        "/usr/bin/clang++-22",
        "/x/libnvrtc.so.12",
        "/usr/bin/g++",
        "./c++",
        "/usr/bin/cc",
    ] {
        assert_eq!(text.parse::<CompilerSetting>().unwrap().to_string(), text);
    }
    for text in ["", "gcc", "off", "cc", "/usr/bin/icx", "/usr/bin/icc", "/usr/bin/", "Auto"] {
        assert!(matches!(text.parse::<CompilerSetting>(), Err(Error::CompilerSetting { .. })), "{text}");
    }
}

#[test]
fn finding_nothing_lists_all_that_was_looked_for() {
    let search = ToolSearch {
        path: vec!["/nonexistent/bin".into()],
        rocm: vec!["/nonexistent/rocm".into()],
        cuda: vec!["/nonexistent/cuda".into()],
        ..ToolSearch::default()
    };
    for (target, words) in [
        ("host", ["`c++`", "`g++`", "`clang++`"].as_slice()),
        (
            "gfx942",
            &[
                "hipcc",
                "amdclang++",
                "clang++-32",
                "/nonexistent/rocm/lib/libhiprtc.so.7",
                "cannot open shared object file",
            ],
        ),
    ] {
        let message = find_toolchain(&search, &target.parse().unwrap()).unwrap_err().to_string();
        for word in words.iter().chain(&["/nonexistent/bin"]) {
            assert!(message.contains(word), "{word}: {message}");
        }
    }
}

#[test]
fn a_named_compiler_that_does_not_serve_is_not_replaced() {
    let mut search = ToolSearch { cxx: Some("/nonexistent/c++".into()), ..ToolSearch::default() };
    search.path = vec!["/usr/bin".into(), "/bin".into()];
    let Err(Error::NoCompiler { looked, .. }) = find_toolchain(&search, &"host".parse().unwrap()) else {
        panic!("found one")
    };
    assert_eq!(looked.len(), 1);
    search.compiler = Some(CompilerSetting::Path("/nonexistent/clang++".into()));
    let Err(Error::NoCompiler { looked, .. }) = find_toolchain(&search, &"gfx942".parse().unwrap()) else {
        panic!("found one")
    };
    assert_eq!(looked.len(), 1);
}

#[test]
fn a_path_is_taken_for_what_it_serves_or_refused() {
    let chosen = |path: &str, target: &str| {
        let search = ToolSearch {
            // Of the two, the setting is the nearer one.
            cxx: Some("/nonexistent/c++".to_owned()),
            compiler: Some(path.parse().unwrap()),
            ..ToolSearch::default()
        };
        let found = find_toolchain(&search, &target.parse().unwrap());
        found.map(|found| found.identity().location.clone()).map_err(|error| error.to_string())
    };
    let folder = crate::scratch::folder("chosen");
    let plain = folder.join("g++");
    std::fs::write(&plain, "no program").unwrap();
    let hipcc = folder.join("hipcc");
    std::fs::copy("/bin/false", &hipcc).unwrap();
    assert_eq!(chosen("/usr/bin/g++", "host"), Ok("/usr/bin/g++".to_owned()));
    // A compiler for GPUs leaves the host machine its own.
    let search = ToolSearch {
        path: vec!["/usr/bin".into()],
        compiler: Some(CompilerSetting::Path(hipcc.clone())),
        ..ToolSearch::default()
    };
    let found = find_toolchain(&search, &"host".parse().unwrap()).unwrap();
    assert_eq!(found.identity().location, "/usr/bin/c++");
    let setting = CompilerSetting::Path(hipcc.clone());
    assert_eq!(setting.check_serves(TargetKind::Amd), Ok(()));
    assert!(setting.check_serves(TargetKind::Host).unwrap_err().contains("compiles for amd alone"));
    assert_eq!(CompilerSetting::Hipcc.check_serves(TargetKind::Host), Ok(()));
    for (path, target, told) in [
        ("/nonexistent/clang++", "host", "/nonexistent/clang++: no such file"),
        ("/nonexistent/clang++", "gfx942", "/nonexistent/clang++: no such file"),
        ("/usr/bin/g++", "gfx942", "compiles for host alone"),
        ("/usr/bin/g++", "gfx942", "hipcc"),
        ("/nonexistent/nvcc", "host", "/nonexistent/nvcc: no such file"),
        (hipcc.to_str().unwrap(), "host", "compiles for amd alone"),
        (plain.to_str().unwrap(), "host", "is not executable"),
        ("/nonexistent/libnvrtc.so", "sm_90", "no such file"),
    ] {
        let refused = chosen(path, target).unwrap_err();
        assert!(refused.contains(told), "{path}, {target}: {refused}");
    }
    std::fs::create_dir(folder.join("gcc")).unwrap();
    let setting = CompilerSetting::Path(folder.join("gcc"));
    assert_eq!(setting.check(), Err("is no file".to_owned()));
    std::fs::remove_dir_all(folder).unwrap();
}

#[test]
fn a_compiler_that_cannot_be_identified_does_not_serve() {
    let search = ToolSearch { cxx: Some("/bin/false".into()), ..ToolSearch::default() };
    assert!(find_toolchain(&search, &"host".parse().unwrap()).is_err());
}
