//! Where dependencies come from: the registry and this repository, and nowhere else.

use crate::common::{packages, root};

use std::fs;
use std::path::{Path, PathBuf};

use toml::{Table, Value};

/// The only place that packages of others come from.
const REGISTRY: &str = "registry+https://github.com/rust-lang/crates.io-index";
/// Keys by which a manifest, or cargo's configuration, takes a package from elsewhere.
const ELSEWHERE: [&str; 4] = ["git", "registry", "registry-index", "source"];
/// Tables that put another package in the place of a dependency.
const REPLACING: [&str; 3] = ["patch", "replace", "source"];

fn table(path: &Path) -> Table {
    let text = fs::read_to_string(path).unwrap_or_default();
    toml::from_str(&text).unwrap_or_default()
}

/// Manifests of the workspace.
fn manifests() -> Vec<PathBuf> {
    packages().iter().map(|folder| folder.join("Cargo.toml")).collect()
}

fn word<'a>(package: &'a Value, key: &str) -> &'a str {
    package.get(key).and_then(Value::as_str).unwrap_or_default()
}

/// Packages of a lock file that come from elsewhere, or that nothing tells from another of the same name.
fn strangers(lock: &Table, members: &[String]) -> Vec<String> {
    let packages = lock.get("package").and_then(Value::as_array).cloned().unwrap_or_default();
    let is_known = |package: &Value| match word(package, "source") {
        "" => members.iter().any(|member| member == word(package, "name")),
        source => source == REGISTRY && word(package, "checksum").len() == 64,
    };
    let strange = packages.iter().filter(|package| !is_known(package));
    strange.map(|package| format!("{} from {:?}", word(package, "name"), word(package, "source"))).collect()
}

/// What a manifest in `folder`, or cargo's configuration, takes from elsewhere, wherever in it that stands.
fn detours(folder: &Path, table: &Table) -> Vec<String> {
    fn visit(at: &str, value: &Value, folder: &Path, found: &mut Vec<String>) {
        let Some(table) = value.as_table() else { return };
        for (key, value) in table {
            let at = format!("{at}.{key}");
            let outside = |path: &str| {
                let place = folder.join(path).canonicalize().ok();
                !place.is_some_and(|place| root().canonicalize().is_ok_and(|root| place.starts_with(root)))
            };
            let dependency = at.contains("dependencies.");
            if dependency && ELSEWHERE.contains(&key.as_str())
                || dependency && key == "path" && value.as_str().is_none_or(outside)
            {
                found.push(at.clone());
            }
            visit(&at, value, folder, found);
        }
    }
    let replacing = REPLACING.iter().filter(|key| table.contains_key(**key));
    let mut found: Vec<String> = replacing.map(|key| format!(".{key}")).collect();
    visit("", &Value::Table(table.clone()), folder, &mut found);
    found
}

fn members() -> Vec<String> {
    let names = manifests().into_iter().map(|path| {
        let table = table(&path);
        word(table.get("package").unwrap_or(&Value::Boolean(false)), "name").to_owned()
    });
    names.collect()
}

#[test]
fn every_package_is_the_registrys_or_the_workspaces() {
    let lock = table(&root().join("Cargo.lock"));
    let packages = lock.get("package").and_then(Value::as_array).map_or(0, Vec::len);
    let members = members();
    assert!(packages > 100 && members.len() > 10, "{packages} packages, {members:?}");
    assert_eq!(strangers(&lock, &members), [""; 0]);
    for path in manifests().into_iter().chain([root().join(".cargo/config.toml")]) {
        let folder = path.parent().unwrap_or(root());
        let table = table(&path);
        assert!(!table.is_empty(), "{}", path.display());
        assert_eq!(detours(folder, &table), [""; 0], "{}", path.display());
    }
}

#[test]
fn packages_from_elsewhere_are_found() {
    let lock = |entry: &str| -> Table {
        toml::from_str(&format!("[[package]]\nname = \"one\"\nversion = \"1.0.0\"\n{entry}\n"))
            .unwrap_or_default()
    };
    let (members, sum) = (["ours".to_owned()], "0".repeat(64));
    for entry in [
        "source = \"git+https://example.org/one#abc\"".to_owned(),
        // A path out of the workspace has no source.
        String::new(),
        format!("source = \"registry+https://example.org/index\"\nchecksum = \"{sum}\""),
        format!("source = \"{REGISTRY}\""),
    ] {
        assert_eq!(strangers(&lock(&entry), &members).len(), 1, "{entry}");
    }
    let good = lock(&format!("source = \"{REGISTRY}\"\nchecksum = \"{sum}\""));
    assert_eq!(strangers(&good, &members), [""; 0]);
    assert_eq!(strangers(&lock(""), &["one".to_owned()]), [""; 0]);
}

#[test]
fn manifests_that_take_from_elsewhere_are_found() {
    for text in [
        "[dependencies]\none = { git = \"https://example.org/one\" }\n",
        "[target.'cfg(unix)'.dev-dependencies.one]\nversion = \"1\"\nregistry = \"theirs\"\n",
        "[workspace.dependencies]\none = { path = \"../..\" }\n",
        "[build-dependencies]\none = { path = \"absent\" }\n",
        "[patch.crates-io]\none = { version = \"1\" }\n",
        "[source.crates-io]\nreplace-with = \"mirror\"\n",
    ] {
        let table: Table = toml::from_str(text).unwrap_or_default();
        assert_eq!(detours(root(), &table).len(), 1, "{text}");
    }
    let good =
        "[dependencies]\none = { path = \"crates/ranks\" }\ntwo = \"1\"\n[lib]\npath = \"src/other.rs\"\n";
    assert_eq!(detours(root(), &toml::from_str(good).unwrap_or_default()), [""; 0]);
}
