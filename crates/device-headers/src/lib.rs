//! Lists a crate's device headers, for its build script, so that no list is kept by hand.
//!
//! The build script is `fn main() -> std::io::Result<()> { anabranch_device_headers::write("device") }`. The crate then has its
//! headers as `anabranch_hip_jit::device_headers!()`: the header `device/ep/rows.h` is included as `"ep/rows.h"`.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::{env, fs, io};

/// Writes the list of all `.h` files below `folder`, a path relative to the crate's manifest, sorted by name.
///
/// # Errors
/// A folder that cannot be read, a name that is not UTF-8, or a call outside of a build script.
#[expect(clippy::print_stdout, reason = "cargo reads a build script's output")]
pub fn write(folder: &str) -> io::Result<()> {
    #[expect(
        clippy::disallowed_methods,
        reason = "cargo hands a build script its folders in the environment"
    )]
    let variable = |name| env::var(name).map_err(io::Error::other);
    let root = Path::new(&variable("CARGO_MANIFEST_DIR")?).join(folder);
    println!("cargo::rerun-if-changed={}", root.display());
    let mut paths = Vec::new();
    collect(&root, &mut paths)?;
    paths.sort();
    let mut text = String::from("&[\n");
    for path in paths {
        let utf8 = |path: &Path| {
            path.to_str().map(str::to_owned).ok_or_else(|| io::Error::other("a path is not UTF-8"))
        };
        let name = utf8(path.strip_prefix(&root).map_err(io::Error::other)?)?.replace('\\', "/");
        let _ = writeln!(
            text,
            "    ::anabranch_hip_jit::Header {{ name: {name:?}, text: include_str!({:?}) }},",
            utf8(&path)?
        );
    }
    text.push(']');
    fs::write(Path::new(&variable("OUT_DIR")?).join("device_headers.rs"), text)
}

fn collect(folder: &Path, found: &mut Vec<PathBuf>) -> io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() {
            collect(&path, found)?;
        } else if path.extension().is_some_and(|extension| extension == "h") {
            found.push(path);
        }
    }
    Ok(())
}
