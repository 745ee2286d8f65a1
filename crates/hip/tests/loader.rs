//! What `load_amd` says about libraries that are not there, or not HIP's.

use std::path::{Path, PathBuf};
use std::process::Command;

use anabranch_hip::{HipApi, LoadError, Runtime, RuntimeKind, load_amd};

const SONAMES: [&str; 3] = ["libamdhip64.so.7", "libamdhip64.so.6", "libamdhip64.so"];

/// A folder that goes away with the test.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("hip-{}-{name}", std::process::id()));
        std::fs::create_dir_all(&path).expect("cargo's folder for tests is writable");
        // As the kernel names mapped files.
        Self(path.canonicalize().expect("it was just made"))
    }

    /// A shared object of this source.
    fn library(&self, file: &str, source: &str) -> PathBuf {
        let text = self.0.join("source.cpp");
        let library = self.0.join(file);
        std::fs::write(&text, source).expect("the folder is writable");
        let output = Command::new("c++")
            .args(["-shared", "-fPIC", "-o"])
            .args([&library, &text])
            .output()
            .expect("c++ is installed");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        library
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _left_behind_at_worst = std::fs::remove_dir_all(&self.0);
    }
}

/// Functions that return `code`, under these names.
fn functions<'a>(names: impl IntoIterator<Item = &'a str>, code: u32) -> String {
    let lines: Vec<_> = names.into_iter().map(|name| format!("int {name}() {{ return {code}; }}")).collect();
    format!("extern \"C\" {{\n{}\n}}\n", lines.join("\n"))
}

fn required() -> impl Iterator<Item = &'static str> {
    HipApi::SYMBOLS.iter().filter(|(_, required)| *required).map(|(name, _)| *name)
}

/// Runs a test that maps a library by the name of AMD's runtime in a process of its own: it stays mapped, and a mapped copy comes first.
#[expect(clippy::disallowed_methods, reason = "a test reports to its own child that it is one")]
fn in_own_process(test: &str, body: impl FnOnce()) {
    const CHILD: &str = "ANABRANCH_TEST_LOADER_CHILD";
    if std::env::var_os(CHILD).is_some() {
        return body();
    }
    let program = std::env::current_exe().expect("a test has a program");
    let child = Command::new(program).args(["--exact", test]).env(CHILD, "1").output();
    let child = child.expect("this program runs");
    let (text, errors) = (String::from_utf8_lossy(&child.stdout), String::from_utf8_lossy(&child.stderr));
    assert!(child.status.success() && text.contains("1 passed"), "{text}{errors}");
}

/// What loading from `place` gives, unless the machine's own runtime came first.
fn load(place: &Path) -> Option<Result<Runtime, LoadError>> {
    let given = |path: &Path| path.starts_with(place);
    let result = load_amd(&[place.to_owned()]);
    let ours = match &result {
        Ok(runtime) => given(Path::new(runtime.origin())),
        Err(LoadError::MissingSymbol { path, .. } | LoadError::Init { path, .. }) => given(path),
        Err(_) => true,
    };
    if !ours {
        println!("skipped: another test loaded this machine's ROCm, and a mapped copy comes first");
    }
    ours.then_some(result)
}

#[test]
fn nothing_found_lists_every_candidate_with_the_loaders_words() {
    let folder = Folder::new("empty");
    let files = [PathBuf::from("/nowhere/libamdhip64.so"), PathBuf::from("/nowhere/at/all/libamdhip64.so.9")];
    let search = [files[0].clone(), folder.0.clone(), files[1].clone()];
    let tried = match load_amd(&search) {
        Err(LoadError::NotFound { runtime: RuntimeKind::Amd, tried }) => tried,
        Err(error @ LoadError::Init { .. }) => {
            println!("skipped: this machine has a ROCm that does not start: {error}");
            return;
        }
        Err(other) => panic!("{other}"),
        Ok(runtime) => {
            println!("skipped: this machine has ROCm ({})", runtime.origin());
            return;
        }
    };

    // A mapped copy, then what was given in its order, a folder by its three names, then the loader's own path.
    let sonames = || SONAMES.iter().map(PathBuf::from);
    let mut expected: Vec<PathBuf> = sonames().collect();
    expected.push(files[0].clone());
    expected.extend(SONAMES.iter().map(|name| folder.0.join(name)));
    expected.push(files[1].clone());
    expected.extend(sonames());
    let paths: Vec<_> = tried.iter().map(|(path, _)| path.clone()).collect();
    assert_eq!(paths, expected);

    for (path, why) in &tried[SONAMES.len()..] {
        let words = format!("{}: cannot open shared object file", path.display());
        assert!(why.contains(&words), "{}: {why}", path.display());
    }
    for (path, why) in &tried[..SONAMES.len()] {
        assert!(!why.is_empty(), "{}", path.display());
    }
    let message = LoadError::NotFound { runtime: RuntimeKind::Amd, tried: tried.clone() }.to_string();
    assert!(message.starts_with("no amd runtime found; tried libamdhip64.so.7 ("), "{message}");
    for (path, why) in &tried {
        assert!(message.contains(&format!("{} ({why})", path.display())), "{message}");
    }
}

#[test]
fn a_library_without_hips_functions_is_named_with_the_first_that_it_lacks() {
    let folder = Folder::new("foreign");
    let foreign = folder.library("libforeign.so", &functions(["foreign"], 0));
    match load(&foreign) {
        Some(Err(error @ LoadError::MissingSymbol { .. })) => {
            let expected = "no hipInit; the amd runtime is too old or another library";
            assert_eq!(error.to_string(), format!("{}: {expected}", foreign.display()));
        }
        Some(other) => panic!("{other:?}"),
        None => {}
    }
}

#[test]
fn a_library_that_lacks_one_required_function_is_refused() {
    in_own_process("loader::a_library_that_lacks_one_required_function_is_refused", || {
        let folder = Folder::new("old");
        let lacking = "hipGetDevicePropertiesR0600";
        let names: Vec<_> = required().filter(|name| *name != lacking).collect();
        let old = folder.library("libamdhip64.so", &functions(names, 0));
        // Found through its folder, after the newer sonames that are not there.
        match load(&folder.0) {
            Some(Err(LoadError::MissingSymbol { runtime, path, symbol })) => {
                assert_eq!((runtime, path, symbol.as_str()), (RuntimeKind::Amd, old, lacking));
            }
            Some(other) => panic!("{other:?}"),
            None => {}
        }
    });
}

#[test]
fn a_runtime_that_does_not_start_gives_its_code() {
    let folder = Folder::new("broken");
    let broken = folder.library("libbroken.so", &functions(required(), 3));
    match load(&broken) {
        Some(Err(LoadError::Init { path, call: "hipInit", code: 3 })) => assert_eq!(path, broken),
        Some(other) => panic!("{other:?}"),
        None => {}
    }
}

#[test]
fn a_library_with_the_required_functions_loads_and_lacks_the_optional_ones() {
    let folder = Folder::new("minimal");
    // 100 is hipErrorNoDevice: a runtime without devices is a runtime.
    let minimal = folder.library("libminimal.so", &functions(required(), 100));
    match load(&minimal) {
        Some(Ok(runtime)) => {
            assert_eq!((runtime.kind(), runtime.origin()), (RuntimeKind::Amd, &*minimal.to_string_lossy()));
            assert!(runtime.api().optional().iter().all(|(_, has)| !has));
        }
        Some(other) => panic!("{other:?}"),
        None => {}
    }
}

/// A framework's copy, under a name and a soname of its own.
#[test]
fn mapped_copy_under_another_name_comes_first() {
    in_own_process("loader::mapped_copy_under_another_name_comes_first", || {
        let folder = Folder::new("mapped");
        let copy = folder.library("libamdhip64-0a1b2c3d.so.6", &functions(required(), 100));
        // SAFETY: a library of functions that return a number.
        let _mapped = unsafe { libloading::Library::new(&copy) }.expect("it was just built");
        let runtime = load_amd(&[PathBuf::from("/nowhere/libamdhip64.so")]).expect("the mapped copy is one");
        assert_eq!(runtime.origin(), &*copy.to_string_lossy());
    });
}
