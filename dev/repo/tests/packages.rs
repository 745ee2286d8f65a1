//! What cargo packs is enough: kernels render from the packed files alone to the same text, and sources include nothing else.

use crate::common::{self, root};

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anabranch_hip_jit::{KernelSpec, KernelUnit, Rendered};

/// Files that cargo writes into a package and that are not in the tree.
const WRITTEN: [&str; 3] = [".cargo_vcs_info.json", "Cargo.lock", "Cargo.toml.orig"];

/// Files that units and includes call otherwise than crate and file: where they are packed, and where they are looked for.
const OTHER_NAMES: [(&str, &str); 1] =
    [("crates/shmem/kernels/p2p.hip", "crates/shmem/kernels/bench_p2p.hip")];

/// Folders of the workspace's packages, below its root.
fn packages() -> Vec<PathBuf> {
    let product = common::packages().into_iter().filter(|path| !path.starts_with(root().join("dev")));
    product.map(|path| path.strip_prefix(root()).unwrap().to_owned()).collect()
}

/// What cargo would put into the package of a folder.
fn packed(folder: &Path) -> Vec<String> {
    let manifest = fs::read_to_string(root().join(folder).join("Cargo.toml")).unwrap();
    let manifest: toml::Table = toml::from_str(&manifest).unwrap();
    let output = Command::new(env!("CARGO"))
        .args(["package", "--list", "--offline", "--allow-dirty", "--package"])
        .arg(manifest["package"]["name"].as_str().unwrap())
        .current_dir(root())
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap().lines().map(str::to_owned).collect()
}

/// An empty folder of the test.
fn empty(name: &str) -> PathBuf {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}-{}", std::process::id()));
    let _ = fs::remove_dir_all(&path);
    fs::create_dir_all(&path).unwrap();
    path
}

/// Every package unpacked, in the places that it has in the tree.
fn unpack(target: &Path) -> usize {
    let mut files = 0;
    for package in packages() {
        for file in packed(&package).iter().filter(|file| !WRITTEN.contains(&file.as_str())) {
            let place = target.join(&package).join(file);
            fs::create_dir_all(place.parent().unwrap()).unwrap();
            fs::copy(root().join(&package).join(file), place).unwrap();
            files += 1;
        }
    }
    // Files that kernels know by other names than those they have.
    for (file, name) in OTHER_NAMES {
        fs::copy(target.join(file), target.join(name)).unwrap();
    }
    files
}

/// A unit without its embedded text: whatever it renders to comes from files.
fn stripped(unit: &'static KernelUnit) -> &'static KernelUnit {
    Box::leak(Box::new(KernelUnit { source: "", headers: &[], ..*unit }))
}

fn render(spec: &KernelSpec, folder: Option<&Path>) -> Result<Rendered, String> {
    spec.render(&"gfx942".parse().unwrap(), folder).map_err(|error| error.to_string())
}

/// Units that do not come out of the folder as they are embedded. One variant of each: variants differ in numbers and words.
fn lost(folder: &Path) -> Vec<String> {
    let specs: BTreeMap<&str, KernelSpec> =
        anabranch::kernel_registry().into_iter().map(|spec| (spec.unit().name, spec)).collect();
    assert!(specs.len() > 15, "{:?}", specs.keys());
    let mut lost = Vec::new();
    for (name, spec) in specs {
        let bare = spec.parameters().iter();
        let bare = bare.fold(KernelSpec::new(stripped(spec.unit())), |bare, (name, value)| {
            bare.with(name, value.clone())
        });
        match (render(&bare, Some(folder)), render(&spec, None).unwrap()) {
            (Ok(found), wanted) if found == wanted => {}
            (Ok(found), wanted) => {
                let headers =
                    wanted.headers.iter().filter(|(name, text)| found.headers.get(*name) != Some(text));
                lost.push(format!("{name}: {:?}", headers.map(|(name, _)| name).collect::<Vec<_>>()));
            }
            (Err(error), _) => lost.push(format!("{name}: {error}")),
        }
    }
    lost
}

/// Paths that a source includes while it is compiled, where they are written out.
fn included(source: &str) -> Vec<&str> {
    let calls = ["include_str!(", "include_bytes!(", "include!("].into_iter();
    let after = calls.flat_map(|call| source.split(call).skip(1));
    after.filter_map(|rest| rest.trim_start().strip_prefix('"')?.split('"').next()).collect()
}

/// What sources of a package include and is not in it. Tests are not built from a package.
fn missing(folder: &Path) -> Vec<String> {
    let mut sources = vec![folder.join("build.rs")];
    common::rust_files(&folder.join("src"), &|_| false, &mut sources);
    let mut missing = Vec::new();
    for source in sources.iter().filter(|source| source.exists()) {
        let text = fs::read_to_string(source).unwrap();
        let code: String = text.lines().filter(|line| !line.trim_start().starts_with("//")).collect();
        for path in included(&code) {
            let place = source.parent().unwrap().join(path);
            let is_there =
                place.canonicalize().is_ok_and(|place| place.starts_with(folder.canonicalize().unwrap()));
            if !is_there {
                missing.push(format!("{}: {path}", source.display()));
            }
        }
    }
    missing
}

#[test]
fn packages_hold_all_that_kernels_and_sources_are_made_of() {
    let folder = empty("unpacked");
    assert!(unpack(&folder) > 500, "the repository was packed");
    assert_eq!(lost(&folder), [""; 0]);
    for package in packages() {
        assert_eq!(missing(&folder.join(package)), [""; 0]);
    }

    // A header, a kernel and a table that were forgotten are noticed.
    fs::remove_file(folder.join("crates/shmem/device/shmem/shmem.h")).unwrap();
    assert!(!lost(&folder).is_empty());
    fs::remove_file(folder.join("crates/ccl/kernels/move.hip")).unwrap();
    assert!(lost(&folder).iter().any(|unit| unit.starts_with("ccl_move: ")));
    let ccl = folder.join("crates/ccl");
    fs::remove_file(ccl.join("tables/host.toml")).unwrap();
    // The kernel and the table.
    assert_eq!(missing(&ccl).len(), 2, "{:?}", missing(&ccl));
    fs::remove_dir_all(folder).unwrap();
}

#[test]
fn includes_are_found_and_have_to_lie_within() {
    let source = "const A: &str = include_str!(\"../a.h\"); const B: &[u8] = include_bytes!(\n    \"b.bin\"\n);\n\
                  include!(concat!(env!(\"OUT_DIR\"), \"/c.rs\"));";
    assert_eq!(included(source), ["../a.h", "b.bin"]);
    let folder = empty("outside");
    fs::create_dir_all(folder.join("one/src")).unwrap();
    fs::write(folder.join("shared.h"), "").unwrap();
    fs::write(folder.join("one/src/lib.rs"), "const A: &str = include_str!(\"../../shared.h\");\n").unwrap();
    assert_eq!(missing(&folder.join("one")).len(), 1);
    fs::copy(folder.join("shared.h"), folder.join("one/shared.h")).unwrap();
    fs::write(folder.join("one/src/lib.rs"), "const A: &str = include_str!(\"../shared.h\");\n").unwrap();
    assert_eq!(missing(&folder.join("one")), [""; 0]);
    fs::remove_dir_all(folder).unwrap();
}
