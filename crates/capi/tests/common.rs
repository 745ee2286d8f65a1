//! Building programs in C, and running them as ranks.

use std::ffi::OsStr;
use std::fs;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::Once;

/// The folder of the crate.
pub(crate) fn crate_folder() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// The root of the repository.
pub(crate) fn root() -> PathBuf {
    crate_folder().join("../..")
}

/// A folder of a test.
pub(crate) fn folder(test: &str) -> PathBuf {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("capi-{test}"));
    fs::create_dir_all(&path).unwrap();
    path
}

/// Where cargo put the libraries: beside this program.
pub(crate) fn libraries() -> PathBuf {
    std::env::current_exe().unwrap().parent().unwrap().to_owned()
}

/// Runs a command that has to succeed, and returns its standard output.
pub(crate) fn succeeds(command: &mut Command) -> String {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(output.status.success(), "{command:?}\n{}\n{}", text(&output.stdout), text(&output.stderr));
    text(&output.stdout)
}

/// A compiler for a source, with all warnings as errors.
pub(crate) fn compiler(source: &Path) -> Command {
    let is_c = source.extension() == Some(OsStr::new("c"));
    let (compiler, standard) = if is_c { ("cc", "-std=c11") } else { ("c++", "-std=c++17") };
    let mut command = Command::new(compiler);
    command.args([standard, "-Wall", "-Wextra", "-Werror", "-pedantic"]).arg(source);
    command
}

/// Makes the link that programs find the library by.
static LINK: Once = Once::new();

/// Builds a program against the header and the shared library that cargo built.
pub(crate) fn build(source: &Path) -> PathBuf {
    let libraries = libraries();
    let program = folder("programs").join(source.file_stem().unwrap());
    let mut command = compiler(source);
    command.arg("-I").arg(crate_folder().join("include")).arg("-o").arg(&program);
    command.arg("-L").arg(&libraries).arg("-lanabranch_capi");
    // The library has the name that it is installed under.
    LINK.call_once(|| {
        let link = folder("programs").join("libanabranch.so.0");
        let _ = fs::remove_file(&link);
        std::os::unix::fs::symlink(libraries.join("libanabranch_capi.so"), link).unwrap();
    });
    succeeds(command.arg(format!("-Wl,-rpath,{}", folder("programs").display())));
    program
}

/// A program with nothing set that a launcher or a user may have set.
pub(crate) fn program(path: &Path) -> Command {
    let mut command = Command::new(path);
    for (name, _) in std::env::vars_os() {
        let name = name.to_string_lossy().into_owned();
        if name.starts_with("ANABRANCH") || name == "RANK" || name == "WORLD_SIZE" {
            command.env_remove(name);
        }
    }
    command.env("ANABRANCH__KERNELS__CACHE", Path::new(env!("CARGO_TARGET_TMPDIR")).join("kernels"));
    command.env("ANABRANCH__HEAP__BYTES", "64 MiB").env("ANABRANCH__DEVICE__HOST__WORKERS", "2");
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// A port that is free now.
pub(crate) fn port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

/// Starts the ranks of a program with the variables of torchrun.
pub(crate) fn start(path: &Path, ranks: u32, arguments: &[&str]) -> Vec<Child> {
    let port = port();
    let rank = |rank: u32| {
        let mut command = program(path);
        command.args(arguments).env("RANK", rank.to_string()).env("LOCAL_RANK", rank.to_string());
        command.env("WORLD_SIZE", ranks.to_string()).env("LOCAL_WORLD_SIZE", ranks.to_string());
        command.env("MASTER_ADDR", "127.0.0.1").env("MASTER_PORT", (port - 1).to_string());
        command.env("ANABRANCH_SECRET", "the secret of a test").spawn().unwrap()
    };
    (0..ranks).map(rank).collect()
}

/// Waits for ranks, and returns what they printed.
pub(crate) fn finish(ranks: Vec<Child>) -> Vec<Output> {
    ranks.into_iter().map(|rank| rank.wait_with_output().unwrap()).collect()
}

/// Runs the ranks of a program, all of which have to succeed, and returns what each printed.
pub(crate) fn run(path: &Path, ranks: u32, arguments: &[&str]) -> Vec<String> {
    let outputs = finish(start(path, ranks, arguments));
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let one =
        |output: &Output| format!("{}\n{}{}\n", output.status, text(&output.stdout), text(&output.stderr));
    let all = outputs.iter().map(one).collect::<Vec<_>>().concat();
    assert!(outputs.iter().all(|output| output.status.success()), "{}:\n{all}", path.display());
    outputs.iter().map(|output| text(&output.stdout)).collect()
}
