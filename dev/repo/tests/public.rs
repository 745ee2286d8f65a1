//! The public interface: every public item of the crates that the root exports, and of other crates what those export again, as
//! `UPDATE_EXPECT=1 cargo test -p anabranch-repo --test it -- public::` writes it. Every addition, removal
//! and change shows in `tests/public` and belongs in CHANGELOG.md.
//!
//! An item with `pub` can be named from outside its crate: the lint `unreachable_pub` refuses the others. So sources say it, in the form
//! that `cargo fmt` gives them, and no compiler but the stable one is needed. What macros of a crate make stands there as their calls.

use crate::common::root;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use expect_test::expect_file;

/// The crates whose interface is the project's, and where their sources lie.
const CRATES: [(&str, &str); 11] = [
    ("anabranch", "src"),
    ("bootstrap", "crates/bootstrap/src"),
    ("ccl", "crates/ccl/src"),
    ("ep", "crates/ep/src"),
    ("hip", "crates/hip/src"),
    ("hip-jit", "crates/hip-jit/src"),
    ("ranks", "crates/ranks/src"),
    ("shmem", "crates/shmem/src"),
    ("transport", "crates/transport/src"),
    ("transport-ofi", "crates/transport-ofi/src"),
    ("transport-rdma", "crates/transport-rdma/src"),
];

/// Macros of the crates that make public items of what they are given.
const MAKING: [&str; 14] = [
    "device_struct",
    "elements",
    "errors",
    "float8",
    "handle",
    "hip_table",
    "layout",
    "operators",
    "property_fields",
    "rank_type",
    "setters",
    "settings",
    "transport_trait",
    "words",
];

/// Attributes that belong to an interface.
const KEPT: [&str; 4] = ["#[derive(", "#[non_exhaustive]", "#[macro_export]", "#[deprecated"];
/// Attributes of what is for tests, for another build, or not for users.
const LEFT_OUT: [&str; 8] = [
    "#[doc(hidden)]",
    "#[cfg(feature = \"simulation\")]",
    "#[cfg_attr(not(feature = \"simulation\")",
    "#[cfg(test)]",
    "#[cfg(all(test",
    "#[cfg(any(test",
    "#[cfg(loom)]",
    "#[cfg(doctest)]",
];

/// One thing that is declared, in the columns of its block.
struct Declaration<'a> {
    attributes: Vec<&'a str>,
    /// Without its body, in one line.
    head: String,
    body: &'a [&'a str],
    /// With its body.
    lines: &'a [&'a str],
}

fn column(line: &str) -> usize {
    line.len() - line.trim_start().len()
}

/// Lines as one, without what `cargo fmt` adds where it breaks them.
fn joined(lines: &[&str]) -> String {
    let mut text = String::new();
    for line in lines.iter().map(|line| line.trim()) {
        let close = text.ends_with(['(', '[', '<']) || line.starts_with([')', ']', '>']);
        if line.starts_with([')', ']', '>']) && text.ends_with(',') {
            text.pop();
        }
        text.push_str(if text.is_empty() || close { "" } else { " " });
        text.push_str(line);
    }
    text
}

/// What a block declares; its lines are without comments and empty ones.
fn declarations<'a>(lines: &'a [&'a str]) -> Vec<Declaration<'a>> {
    let Some(own) = lines.first().map(|line| column(line)) else { return Vec::new() };
    let here = |line: &&str| column(line) == own;
    let mut found = Vec::new();
    let mut attributes = Vec::new();
    let mut at = 0;
    while at < lines.len() {
        let rest = &lines[at..];
        if rest[0].trim().starts_with('#') {
            let length = rest.iter().position(|line| line.ends_with(']')).map_or(rest.len(), |end| end + 1);
            attributes.push(rest[0].trim());
            at += length;
            continue;
        }
        let ends = |line: &&str| here(line) && line.ends_with([';', ',', '}', '{']);
        let head = rest.iter().position(ends).map_or(rest.len(), |end| end + 1);
        let opens = rest[head - 1].ends_with('{');
        let closes = |line: &&str| here(line) && line.trim_start().starts_with('}');
        let length = if opens {
            rest[head..].iter().position(closes).map_or(rest.len(), |end| head + end + 1)
        } else {
            head
        };
        let body = if opens { &rest[head..length - 1] } else { &[] };
        let attributes = std::mem::take(&mut attributes);
        found.push(Declaration { attributes, head: joined(&rest[..head]), body, lines: &rest[..length] });
        at += length;
    }
    found
}

/// The file of a module that is declared in `file`.
fn module_file(file: &Path, name: &str) -> PathBuf {
    let stem = file.file_stem().and_then(|stem| stem.to_str()).unwrap_or_default();
    let folder = file.parent().unwrap_or(file);
    let own = if ["lib", "mod"].contains(&stem) { folder.to_owned() } else { folder.join(stem) };
    let (flat, nested) = (own.join(format!("{name}.rs")), own.join(name).join("mod.rs"));
    if flat.exists() { flat } else { nested }
}

/// What is public of a block of a module, a declaration a line, in its order.
fn items(file: &Path, lines: &[&str], depth: usize, found: &mut Vec<String>) {
    for declaration in declarations(lines) {
        let Declaration { attributes, head, body, lines } = declaration;
        let is_left_out = |attribute: &&str| {
            LEFT_OUT.iter().any(|begins| attribute.replace(' ', "").starts_with(&begins.replace(' ', "")))
        };
        if attributes.iter().any(is_left_out) {
            continue;
        }
        let kept: Vec<&str> =
            attributes.into_iter().filter(|one| KEPT.iter().any(|kept| one.starts_with(kept))).collect();
        let mut say = |depth: usize, text: &str, kept: &[&str]| {
            let text = text.trim_end_matches(['{', ';', ',']).trim_end();
            let mut line = format!("{}{text}", "    ".repeat(depth));
            for attribute in kept {
                line.push_str("  ");
                line.push_str(attribute);
            }
            found.push(line);
        };
        let is_public = head.starts_with("pub ");
        let qualifiers = ["pub", "unsafe", "async", "extern", "\"C\"", "const", "auto"];
        let mut words = head
            .split([' ', '<', '!', '('])
            .skip_while(|word| qualifiers.contains(word) && (*word != "const" || head.contains("fn ")));
        match (words.next().unwrap_or_default(), is_public) {
            ("mod", _) => {
                let name = words.next().unwrap_or_default().trim_end_matches([';', '{']);
                let inside = if is_public { depth + 1 } else { depth };
                if is_public {
                    say(depth, &head, &kept);
                }
                if head.ends_with(';') {
                    source(&module_file(file, name), inside, found);
                } else {
                    items(file, body, inside, found);
                }
            }
            // What a trait asks of a type is the trait's to say.
            ("impl", _) if head.contains(" for ") => say(depth, &head, &kept),
            ("impl", _) => {
                let mut inside = Vec::new();
                items(file, body, depth + 1, &mut inside);
                if !inside.is_empty() {
                    say(depth, &head, &kept);
                    found.append(&mut inside);
                }
            }
            ("macro_rules", _) if !kept.is_empty() => say(depth, &head, &kept),
            ("macro_rules", _) | (_, false) if !is_call(&head) => {}
            (_, false) | ("use", true) => say(depth, &joined(lines), &kept),
            // Values are no interface, and most are long.
            ("const" | "static", true) => say(depth, head.split(" = ").next().unwrap_or_default(), &kept),
            ("struct" | "union", true) => {
                say(depth, &head, &kept);
                let fields = declarations(body).into_iter().filter(|field| field.head.starts_with("pub "));
                fields.for_each(|field| say(depth + 1, &field.head, &[]));
            }
            ("enum" | "trait", true) => {
                say(depth, &head, &kept);
                for one in declarations(body) {
                    let text = if head.contains("enum ") { joined(one.lines) } else { one.head };
                    say(depth + 1, &text, &[]);
                }
            }
            _ => say(depth, &head, &kept),
        }
    }
}

/// Whether a declaration is a call of a macro that makes public items.
fn is_call(head: &str) -> bool {
    head.split_once('!').is_some_and(|(name, _)| MAKING.contains(&name))
}

fn source(file: &Path, depth: usize, found: &mut Vec<String>) {
    let text = fs::read_to_string(file);
    assert!(text.is_ok(), "{}: {text:?}", file.display());
    let text = text.unwrap_or_default();
    let code = text.lines().filter(|line| !line.trim().is_empty() && !line.trim_start().starts_with("//"));
    // A comment behind code.
    let code: Vec<&str> = code.map(|line| line.split(" // ").next().unwrap_or(line).trim_end()).collect();
    items(file, &code, depth, found);
}

/// The interface of what begins in a file.
fn interface(file: &Path) -> String {
    let mut found = Vec::new();
    source(file, 0, &mut found);
    found.join("\n") + "\n"
}

#[test]
fn the_public_interface_is_the_one_that_is_kept() {
    let root = root();
    // Which crates these are is said by the root's exports.
    let exported = fs::read_to_string(root.join("src/lib.rs")).unwrap_or_default();
    let exported =
        exported.lines().filter(|line| line.starts_with("pub use anabranch_") && line.contains(" as "));
    assert_eq!(exported.count() + 1, CRATES.len());
    for (name, folder) in CRATES {
        let text = interface(&root.join(folder).join("lib.rs"));
        assert!(text.lines().count() > 20, "{name}: {text}");
        expect_file![root.join(format!("dev/repo/tests/public/{name}.api"))].assert_eq(&text);
    }
}

/// The words of a line.
fn words(line: &str) -> impl Iterator<Item = &str> {
    line.split(|one: char| !one.is_ascii_alphanumeric() && one != '_').filter(|word| !word.is_empty())
}

/// What an interface exports again of crates of the workspace: for each crate its items.
fn exported_again(interface: &str) -> Vec<(&str, Vec<&str>)> {
    let lines = interface.lines().filter_map(|line| line.trim().strip_prefix("pub use anabranch_"));
    let parted = lines.filter_map(|line| line.split_once("::"));
    parted.map(|(name, items)| (name, words(items).collect())).collect()
}

/// Of an interface what declares one of these items or is implemented for one.
fn of_items(interface: &str, items: &BTreeSet<String>) -> String {
    let declares = |line: &str| {
        let qualifiers = ["pub", "const", "unsafe", "async", "extern", "C"];
        let mut all = words(line).skip_while(|word| qualifiers.contains(word));
        match all.next() {
            // A module's own export of what it has elsewhere in the crate.
            Some("use") => false,
            Some("fn" | "struct" | "enum" | "union" | "trait" | "type" | "mod" | "static") => {
                all.next().is_some_and(|name| items.contains(name))
            }
            // An implementation, a constant, or a call of a macro.
            _ => words(line).any(|word| items.contains(word)),
        }
    };
    let mut kept = false;
    let mut found = String::new();
    for line in interface.lines() {
        if !line.starts_with(' ') {
            kept = declares(line);
        }
        if kept {
            found.push_str(line);
            found.push('\n');
        }
    }
    found
}

#[test]
fn what_is_exported_of_other_crates_is_kept_too() {
    let root = root();
    let mut others: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for (_, folder) in CRATES {
        let text = interface(&root.join(folder).join("lib.rs"));
        for (name, items) in exported_again(&text) {
            let name = name.replace('_', "-");
            if !CRATES.iter().any(|(known, _)| *known == name) {
                others.entry(name).or_default().extend(items.into_iter().map(str::to_owned));
            }
        }
    }
    assert!(others.contains_key("elements"), "{others:?}");
    let mut kept = Vec::new();
    for (name, items) in &others {
        let found = of_items(&interface(&root.join("crates").join(name).join("src/lib.rs")), items);
        for item in items {
            assert!(found.lines().any(|line| words(line).any(|word| word == item)), "{name} has no {item}");
        }
        kept.push(format!("{name}:\n{found}"));
    }
    expect_file![root.join("dev/repo/tests/public/exported-again.api")].assert_eq(&kept.concat());
}

#[test]
fn items_that_are_exported_again_are_found_with_what_is_theirs() {
    let exports = "pub use anabranch_ccl as ccl\npub mod inner\n    pub use anabranch_clock::{ One, Two, }\n\
                   pub use anabranch_elements::float8\npub use other::{ Three, }\n";
    assert_eq!(exported_again(exports), [("clock", vec!["One", "Two"]), ("elements", vec!["float8"])]);
    let whole = "pub use inner::{ One, Other, }\npub struct One  #[derive(Debug)]\n    pub size: u32\npub struct Other\n    pub one: One\n\
                 impl One\n    pub const fn new(size: u32) -> Self\nimpl Other\n    pub fn one(&self) -> One\nimpl From<One> for u32\n\
                 pub fn make() -> One\npub mod float8\n    pub fn decode()\nwords! { Two { A = \"a\" } }\n";
    let items = ["One", "Two", "float8"].map(str::to_owned).into();
    assert_eq!(
        of_items(whole, &items),
        "pub struct One  #[derive(Debug)]\n    pub size: u32\nimpl One\n    pub const fn new(size: u32) -> Self\n\
         impl From<One> for u32\npub mod float8\n    pub fn decode()\nwords! { Two { A = \"a\" } }\n"
    );
}

#[test]
fn what_is_lost_or_changed_shows() {
    const ROOT: &str = "//! A crate.\nmod inner;\npub mod named {\n    pub const SEVEN: u32 = 7;\n    fn own() {}\n}\n\
                        pub use inner::{\n    Thing, more,\n};\nwords! {\n    /// Said.\n    Word { One = \"one\" }\n}\n\
                        #[cfg(test)]\nmod tests {\n    pub fn left_out() {}\n}\n";
    const INNER: &str = "/// One.\n#[derive(Debug)]\n#[must_use]\npub struct Thing {\n    /// Its size.\n    pub size: u32,\n    secret: u8,\n}\n\
        impl Thing {\n    /// New.\n    pub const fn new(\n        size: u32,\n        more: u32,\n    ) -> Self {\n        Self { size, secret: 0 }\n    }\n\
        \n    fn own(&self) {}\n}\nimpl Clone for Thing {\n    fn clone(&self) -> Self {\n        inside()\n    }\n}\nfn own() {\n    pub_like();\n}\n\
        pub enum Kind {\n    /// One.\n    One {\n        size: u32,\n    },\n    Two,\n}\npub(crate) struct Own;\n\
        pub trait Does {\n    fn it(&self) -> u32 {\n        3\n    }\n}\npub fn more<T>(value: T) -> T\nwhere\n    T: Copy,\n{\n    value\n}\n";
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("public-{}", std::process::id()));
    let show = |root: &str, inner: &str| {
        let made = fs::create_dir_all(&folder).and_then(|()| fs::write(folder.join("lib.rs"), root));
        assert!(made.and_then(|()| fs::write(folder.join("inner.rs"), inner)).is_ok());
        interface(&folder.join("lib.rs"))
    };
    let whole = show(ROOT, INNER);
    assert_eq!(
        whole,
        "pub struct Thing  #[derive(Debug)]\n    pub size: u32\nimpl Thing\n    pub const fn new(size: u32, more: u32) -> Self\n\
         impl Clone for Thing\npub enum Kind\n    One { size: u32, }\n    Two\npub trait Does\n    fn it(&self) -> u32\n\
         pub fn more<T>(value: T) -> T where T: Copy,\npub mod named\n    pub const SEVEN: u32\npub use inner::{ Thing, more, }\n\
         words! { Word { One = \"one\" } }\n"
    );
    for (old, new) in [
        ("pub size: u32", "size: u32"),
        ("pub size: u32", "pub size: u64"),
        ("pub const fn new", "const fn new"),
        ("        more: u32,\n", ""),
        ("        size: u32,\n    },", "        size: u64,\n    },"),
        ("    Two,\n", ""),
        ("impl Clone", "impl Copy"),
        ("#[derive(Debug)]", ""),
        ("fn it(&self)", "fn it(&mut self)"),
        ("T: Copy", "T: Clone"),
    ] {
        assert_ne!(show(ROOT, &INNER.replacen(old, new, 1)), whole, "{old}");
    }
    for (old, new) in [("SEVEN: u32", "SEVEN: u64"), ("Thing, more", "Thing"), ("\"one\"", "\"two\"")] {
        assert_ne!(show(&ROOT.replacen(old, new, 1), INNER), whole, "{old}");
    }
    assert!(fs::remove_dir_all(folder).is_ok());
}
