//! House rules that no compiler checks.

use crate::common::{packages, root};

use std::fs;
use std::path::{Path, PathBuf};

/// Files above this are too long.
const MOST_LINES: usize = 800;
/// Files above this want to be split; at most a few may be on the way there.
const WANTED_LINES: usize = 500;
const MAY_EXCEED: usize = 3;
/// Files that are written by a tool, which may be long.
const GENERATED: [&str; 1] = ["crates/capi/include/anabranch.h"];

/// Files of the repository with one of these endings, build output left out.
fn files(endings: &[&str]) -> Vec<PathBuf> {
    fn collect(folder: &Path, endings: &[&str], found: &mut Vec<PathBuf>) {
        let mut entries: Vec<_> =
            fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path()).collect();
        entries.sort();
        for path in entries {
            let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
            if path.is_dir() {
                if !["target", ".git", "data"].contains(&name) {
                    collect(&path, endings, found);
                }
            } else if path
                .extension()
                .and_then(|ending| ending.to_str())
                .is_some_and(|ending| endings.contains(&ending))
            {
                found.push(path);
            }
        }
    }
    let mut found = Vec::new();
    collect(root(), endings, &mut found);
    found
}

fn text(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_default()
}

fn shown(path: &Path) -> String {
    path.strip_prefix(root()).unwrap_or(path).display().to_string()
}

/// Whether a line is one that `git merge` puts around what it cannot merge: seven of a sign, alone or before a space.
fn is_of_a_conflict(line: &str) -> bool {
    ['<', '|', '=', '>'].iter().any(|sign| {
        let rest = line.strip_prefix(sign.to_string().repeat(7).as_str());
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(' '))
    })
}

/// What is wrong with a file of code or prose, by line.
fn blemishes(text: &str) -> Vec<String> {
    // Put together here, so that this file does not hold the word.
    let marker = ["FIX", "ME"].concat();
    let mut found = Vec::new();
    for (index, line) in text.lines().enumerate() {
        if line.ends_with([' ', '\t']) {
            found.push(format!("line {}: trailing space", index + 1));
        }
        if line.contains(&marker) {
            found.push(format!("line {}: {marker}", index + 1));
        }
        if is_of_a_conflict(line) {
            found.push(format!("line {}: what a merge left, {line:?}", index + 1));
        }
    }
    if !text.is_empty() && !text.ends_with('\n') {
        found.push("no newline at the end".to_owned());
    }
    found
}

#[test]
fn files_are_clean() {
    let files = files(&["rs", "h", "hip", "toml", "md"]);
    assert!(files.len() > 100, "the repository was found: {} files", files.len());
    let mut found = Vec::new();
    for path in files {
        found.extend(blemishes(&text(&path)).into_iter().map(|what| format!("{}: {what}", shown(&path))));
    }
    assert!(found.is_empty(), "{}", found.join("\n"));
}

#[test]
fn blemishes_are_found() {
    assert_eq!(blemishes("a \nb\tc\n"), ["line 1: trailing space"]);
    assert_eq!(blemishes("a"), ["no newline at the end"]);
    assert_eq!(blemishes(&format!("// {}{}\n", "FIX", "ME")).len(), 1);
    assert!(blemishes("fine\n").is_empty());
    for sign in ["<", "|", "=", ">"] {
        let marker = sign.repeat(7);
        assert_eq!(blemishes(&format!("a\n{marker}\n{marker} main\n")).len(), 2, "{marker}");
        assert!(
            blemishes(&format!(" {marker}\n{marker}{sign}\n{}\n", sign.repeat(6))).is_empty(),
            "{marker}"
        );
    }
}

#[test]
fn files_are_short() {
    let mut long: Vec<(usize, String)> = files(&["rs", "h", "hip"])
        .iter()
        .map(|path| (text(path).lines().count(), shown(path)))
        .filter(|(lines, path)| *lines > WANTED_LINES && !GENERATED.contains(&path.as_str()))
        .collect();
    long.sort();
    let list: Vec<String> = long.iter().map(|(lines, path)| format!("{path}: {lines} lines")).collect();
    assert!(
        long.iter().all(|(lines, _)| *lines <= MOST_LINES) && long.len() <= MAY_EXCEED,
        "{}",
        list.join("\n")
    );
}

#[test]
fn every_crate_has_licence_lints_and_a_description() {
    let manifests: Vec<PathBuf> = packages().iter().map(|folder| folder.join("Cargo.toml")).collect();
    assert!(manifests.len() > 10, "{manifests:?}");
    for path in manifests {
        let manifest: toml::Table = toml::from_str(&text(&path)).unwrap_or_default();
        let name = shown(&path);
        let package = manifest.get("package").and_then(toml::Value::as_table).cloned().unwrap_or_default();
        let workspace = |table: &toml::Table, key: &str| {
            let inherited =
                table.get(key).and_then(|value| value.get("workspace")).and_then(toml::Value::as_bool);
            inherited == Some(true)
        };
        assert!(package.contains_key("description"), "{name}: no description");
        for key in ["license", "edition", "rust-version", "version"] {
            assert!(workspace(&package, key), "{name}: `{key}.workspace = true` is missing");
        }
        let lints =
            manifest.get("lints").and_then(|lints| lints.get("workspace")).and_then(toml::Value::as_bool);
        assert_eq!(lints, Some(true), "{name}: `[lints] workspace = true` is missing");
    }
}

#[test]
fn every_crate_has_documentation() {
    let mut roots = files(&["rs"]);
    roots.retain(|path| path.ends_with("src/lib.rs") || path.ends_with("src/main.rs"));
    assert!(roots.len() > 10, "{roots:?}");
    for path in roots {
        assert!(text(&path).starts_with("//! "), "{}: no crate documentation", shown(&path));
    }
}

/// Paths of the repository between backticks, without the name of a test after `::` and the arguments of a command.
fn repository_paths(page: &str) -> Vec<&str> {
    const FOLDERS: [&str; 8] =
        ["crates/", "src/", "dev/", "docs/", "scripts/", "config/", "examples/", ".ci/"];
    let quoted = page.lines().flat_map(|line| line.split('`').skip(1).step_by(2));
    let paths = quoted.filter(|text| FOLDERS.iter().any(|folder| text.starts_with(folder)));
    let paths = paths.map(|text| text.split([' ', ':']).next().unwrap_or(text));
    // `crates/X` stands for any crate; of a pattern, the folder is checked.
    paths.filter(|path| !path.contains("/X/")).map(|path| path.split('*').next().unwrap_or(path)).collect()
}

#[test]
fn paths_in_pages_exist() {
    let is_missing = |path: &&str| !root().join(path).exists();
    let page = "`src/lib.rs` `src/none.rs::name` src/none.rs\n`dev/repo/*.rs`, `scripts/none.sh ARGUMENT` `crates/X/src`";
    let missing: Vec<_> = repository_paths(page).into_iter().filter(is_missing).collect();
    assert_eq!(missing, ["src/none.rs", "scripts/none.sh"]);

    let mut pages: Vec<_> =
        ["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md"].map(|page| root().join(page)).into();
    pages.extend(fs::read_dir(root().join("docs")).unwrap().map(|entry| entry.unwrap().path()));
    pages.retain(|path| path.extension().is_some_and(|ending| ending == "md"));
    assert!(pages.len() > 10, "{pages:?}");
    for path in pages {
        let page = text(&path);
        let missing: Vec<_> = repository_paths(&page).into_iter().filter(is_missing).collect();
        assert!(missing.is_empty(), "{} names {missing:?}", shown(&path));
    }
}

#[test]
fn every_configuration_file_is_mentioned() {
    let pages: String = files(&["md"]).iter().map(|path| text(path)).collect();
    for entry in fs::read_dir(root().join("config")).into_iter().flatten().flatten() {
        let name = format!("config/{}", entry.file_name().display());
        assert!(pages.contains(&name), "{name} is mentioned in no page");
    }
}

#[test]
fn the_pages_are_there() {
    for page in
        ["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md", "LICENSE-MIT", "LICENSE-APACHE"]
    {
        assert!(!text(&root().join(page)).trim().is_empty(), "{page} is missing");
    }
}
