//! What `install.sh` installs is enough for programs that know pkg-config alone.

use std::fs;
use std::process::Command;

use crate::common::{compiler, crate_folder, folder, libraries, root, run, succeeds};

/// The flags that pkg-config gives, `None` where it is not installed.
fn flags(prefix: &std::path::Path, arguments: &[&str]) -> Option<Vec<String>> {
    let mut command = Command::new("pkg-config");
    command.args(arguments).arg("anabranch").env("PKG_CONFIG_PATH", prefix.join("lib/pkgconfig"));
    if command.output().is_err() {
        println!("skipped: pkg-config is not installed");
        return None;
    }
    Some(succeeds(&mut command).split_whitespace().map(str::to_owned).collect())
}

#[test]
fn installed_libraries_link_by_pkg_config() {
    let prefix = folder("prefix");
    let _ = fs::remove_dir_all(&prefix);
    succeeds(Command::new(crate_folder().join("install.sh")).arg(&prefix).env("FROM", libraries()));
    for file in ["include/anabranch.h", "lib/libanabranch.so", "lib/libanabranch.so.0", "lib/libanabranch.a"]
    {
        assert!(prefix.join(file).exists(), "{file}");
    }
    let Some(version) = flags(&prefix, &["--modversion"]) else { return };
    assert_eq!(version, [env!("CARGO_PKG_VERSION")]);
    let source = root().join("examples/c/all_reduce.c");
    let link = |name: &str, flags: Vec<String>, more: &[String]| {
        let program = prefix.join(name);
        succeeds(compiler(&source).arg("-o").arg(&program).args(flags).args(more));
        assert_eq!(run(&program, 2, &[])[1], "rank 1: 65536 sums of 3\n", "{name}");
    };
    let rpath = format!("-Wl,-rpath,{}", prefix.join("lib").display());
    link("shared", flags(&prefix, &["--cflags", "--libs"]).unwrap(), &[rpath]);
    // The linker takes the archive where it does not find the shared library.
    fs::remove_file(prefix.join("lib/libanabranch.so")).unwrap();
    link("static", flags(&prefix, &["--cflags", "--libs", "--static"]).unwrap(), &[]);
}
