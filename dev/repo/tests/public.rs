//! The public interface: what a user of the package `anabranch` can name. The facade (`src/lib.rs`) lists its items; their declarations,
//! functions and traits are read from the sources, in the form that `cargo fmt` gives them, so that no compiler but the stable one is needed.
//! `UPDATE_EXPECT=1 cargo test -p anabranch-repo --test it -- public::` writes a file for each module of the facade into `tests/public`.
//! Every addition, removal and change shows there and belongs in CHANGELOG.md.
//!
//! A line is an item, a field, a variant or a function. Derived and written implementations of traits stand on the line of their type; what
//! macros make is shown as the call.

mod facade;
mod internal;
mod sources;

use crate::common::{packages, root};

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use expect_test::expect_file;
use facade::{Facade, Workspace};
use internal::INTERNAL;

/// The libraries of the workspace: their names in Rust, and the files of their roots.
fn libraries() -> Vec<(String, PathBuf)> {
    let mut found = Vec::new();
    for folder in packages() {
        let file = folder.join("src/lib.rs");
        let manifest = fs::read_to_string(folder.join("Cargo.toml")).unwrap();
        let (_, package) = manifest.split_once("[package]").unwrap();
        let name = package.lines().find_map(|line| line.strip_prefix("name = ")).unwrap();
        if file.exists() {
            found.push((name.trim_matches('"').replace('-', "_"), file));
        }
    }
    found
}

fn read(libraries: &[(String, PathBuf)], internal: &[(&str, &[&str])]) -> Facade {
    let crates = libraries.iter().map(|(name, file)| (name.as_str(), file.as_path()));
    Workspace::read(crates).facade(internal)
}

/// The facade of this repository.
fn facade() -> &'static Facade {
    static FACADE: OnceLock<Facade> = OnceLock::new();
    FACADE.get_or_init(|| read(&libraries(), INTERNAL))
}

#[test]
fn the_public_interface_is_the_one_that_is_kept() {
    let facade = facade();
    let folder = root().join("dev/repo/tests/public");
    for module in &facade.modules {
        let text = module.lines.join("\n") + "\n";
        expect_file![folder.join(format!("{}.api", module.name))].assert_eq(&text);
    }
    for file in fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().path()) {
        let name = file.file_stem().unwrap().to_str().unwrap();
        let is_module = facade.modules.iter().any(|module| module.name == name);
        let is_snapshot = file.extension().is_some_and(|ending| ending == "api");
        assert!(is_module || !is_snapshot, "{name} is no module of the facade: delete the file");
    }
}

#[test]
fn every_type_in_the_interface_is_exported() {
    let facade = facade();
    assert!(facade.hidden.is_empty(), "a user cannot name:\n{}", facade.hidden.join("\n"));
}

#[test]
fn internal_parts_name_types_that_are_not_exported() {
    let facade = facade();
    assert!(facade.named.is_empty(), "in `INTERNAL`:\n{}", facade.named.join("\n"));
}

const FACADE: &str = "//! A facade.\nmod own;\npub use inner::{\n    Thing, more,\n};\npub use own::Own;\n\
    pub mod inner {\n    //! What is inside.\n\n    pub use anabranch_low::{Does, Kind, Thing, Word, more};\n}\n\
    #[cfg(test)]\nmod tests {\n    pub fn left_out() {}\n}\n";
const OWN: &str = "use anabranch_low::Thing;\n\n/// Said.\npub struct Own(pub Thing);\n";
const LOW: &str = "//! A crate.\nmod parts;\npub use parts::{Does, Kind, Other, Thing, more};\nword_enum! {\n    /// Said.\n    \
    #[derive(Clone)]\n    pub enum Word, name, \"word\" {\n        One = \"one\",\n    }\n}\n";
const PARTS: &str = "use std::fmt;\n\n/// One.\n#[derive(Debug)]\n#[must_use]\npub struct Thing {\n    /// Its size.\n    pub size: u32,\n    secret: u8,\n}\n\
    impl Thing {\n    /// New.\n    pub const fn new(\n        size: u32,\n        more: u32,\n    ) -> Self {\n        Self { size, secret: 0 }\n    }\n\
    \n    fn own(&self) {}\n\n    pub fn other(&self) -> Other {\n        Other\n    }\n}\nimpl fmt::Display for Thing {\n    fn fmt(&self) {\n        inside()\n    }\n}\n\
    pub struct Other;\npub enum Kind {\n    /// One.\n    One {\n        size: u32,\n    },\n    Two,\n}\npub(crate) struct Hidden;\n\
    pub trait Does {\n    fn it(&self) -> u32 {\n        3\n    }\n}\npub fn more<T>(value: T) -> T\nwhere\n    T: Copy,\n{\n    value\n}\n";
const OTHERS: &[(&str, &[&str])] = &[("inner::Thing", &["other"])];

/// The facade of these sources.
fn made(facade: &str, low: &str, parts: &str, internal: &[(&str, &[&str])]) -> Facade {
    let thread = format!("{:?}", std::thread::current().id());
    let folder =
        Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("public-{}-{thread}", std::process::id()));
    let files = [("a/lib.rs", facade), ("a/own.rs", OWN), ("b/lib.rs", low), ("b/parts.rs", parts)];
    for (name, text) in files {
        let file = folder.join(name);
        fs::create_dir_all(file.parent().unwrap()).and_then(|()| fs::write(&file, text)).unwrap();
    }
    let libraries = [("anabranch", "a/lib.rs"), ("anabranch_low", "b/lib.rs")];
    let found = read(&libraries.map(|(name, file)| (name.to_owned(), folder.join(file))), internal);
    fs::remove_dir_all(folder).unwrap();
    found
}

fn text(facade: &Facade) -> String {
    let lines = |module: &facade::Shown| format!("{}:\n{}\n", module.name, module.lines.join("\n"));
    facade.modules.iter().map(lines).collect::<Vec<_>>().concat()
}

#[test]
fn what_is_lost_or_changed_shows() {
    let whole = text(&made(FACADE, LOW, PARTS, OTHERS));
    assert_eq!(
        whole,
        "anabranch:\npub struct Own(pub Thing)\npub use inner::{Thing, more}\n\
         inner:\npub trait Does\n    fn it(&self) -> u32\npub enum Kind\n    One { size: u32, }\n    Two\n\
         pub struct Thing  #[derive(Debug)]  impl Display\n    pub size: u32\n    pub const fn new(size: u32, more: u32) -> Self\n\
         word_enum! { #[derive(Clone)] pub enum Word, name, \"word\" { One = \"one\", } }\n\
         pub fn more<T>(value: T) -> T where T: Copy\n"
    );
    for (old, new) in [
        ("pub size: u32", "size: u32"),
        ("pub size: u32", "pub size: u64"),
        ("pub const fn new", "const fn new"),
        ("        more: u32,\n", ""),
        ("        size: u32,\n    },", "        size: u64,\n    },"),
        ("    Two,\n", ""),
        ("impl fmt::Display", "impl Copy"),
        ("#[derive(Debug)]", ""),
        ("fn it(&self)", "fn it(&mut self)"),
        ("T: Copy", "T: Clone"),
    ] {
        assert_ne!(text(&made(FACADE, LOW, &PARTS.replacen(old, new, 1), OTHERS)), whole, "{old}");
    }
    assert_ne!(text(&made(&FACADE.replacen("Kind, ", "", 1), LOW, PARTS, OTHERS)), whole);
    assert_ne!(text(&made(FACADE, &LOW.replacen("\"one\"", "\"two\"", 1), PARTS, OTHERS)), whole);
}

#[test]
fn names_that_users_lack_are_found() {
    let whole = made(FACADE, LOW, PARTS, OTHERS);
    assert!(whole.hidden.is_empty() && whole.named.is_empty(), "{:?} {:?}", whole.hidden, whole.named);
    let hidden = |parts: &str, internal| made(FACADE, LOW, parts, internal).hidden;
    assert_eq!(
        hidden(PARTS, &[]),
        ["inner::Thing: `pub fn other(&self) -> Other` names Other of anabranch_low"]
    );
    let field = PARTS.replacen("pub size: u32", "pub size: Vec<Other>", 1);
    assert_eq!(hidden(&field, OTHERS), ["inner::Thing: `pub size: Vec<Other>` names Other of anabranch_low"]);
    let variant = PARTS.replacen("    Two,", "    Two(Other),", 1);
    assert_eq!(hidden(&variant, OTHERS), ["inner::Kind: `Two(Other)` names Other of anabranch_low"]);
    let imported =
        FACADE.replacen("Kind, ", "", 1) + "use anabranch_low::Kind;\npub fn kind() -> Kind\n{\n}\n";
    assert_eq!(
        made(&imported, LOW, PARTS, OTHERS).hidden,
        ["kind: `pub fn kind() -> Kind` names Kind of anabranch_low"]
    );
}

#[test]
fn internal_parts_that_users_can_name_are_found() {
    let named = |internal| made(FACADE, LOW, PARTS, internal).named;
    let size: &[(&str, &[&str])] = &[("inner::Thing", &["other", "size"])];
    assert_eq!(named(size), ["inner::Thing: `pub size: u32` names only what is exported"]);
    let absent: &[(&str, &[&str])] = &[("inner::Thing", &["other", "weight"])];
    assert_eq!(named(absent), ["inner::Thing has no weight"]);
}
