//! Lists the prelude's headers, so that one that is added to `device/anabranch` cannot be forgotten.

use std::fmt::Write as _;
use std::path::Path;
use std::{env, error::Error, fs};

fn main() -> Result<(), Box<dyn Error>> {
    #[expect(
        clippy::disallowed_methods,
        reason = "cargo hands a build script its folders in the environment"
    )]
    let (manifest, out) = (env::var("CARGO_MANIFEST_DIR")?, env::var("OUT_DIR")?);
    let folder = Path::new(&manifest).join("device/anabranch");
    println!("cargo::rerun-if-changed={}", folder.display());
    let mut names = Vec::new();
    for entry in fs::read_dir(&folder)? {
        let name =
            entry?.file_name().into_string().map_err(|name| format!("{}: not UTF-8", name.display()))?;
        if Path::new(&name).extension().is_some_and(|extension| extension == "h") {
            names.push(name);
        }
    }
    names.sort();
    let mut text = String::from("&[\n");
    for name in names {
        let path = folder.join(&name);
        writeln!(
            text,
            "    Header {{ name: \"anabranch/{name}\", text: include_str!({:?}) }},",
            path.display().to_string()
        )?;
    }
    text.push(']');
    fs::write(Path::new(&out).join("prelude.rs"), text)?;
    Ok(())
}
