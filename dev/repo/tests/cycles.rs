//! Folders of a crate form no import cycle. A node is a first-level module of a crate (a folder, or a file beside `lib.rs`), an edge is a
//! path that begins with `crate` or `super`. A cycle is wrong where a folder is part of it: files of one folder may depend on each other.

use crate::common::{packages, root, rust_files};

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use syn::visit::Visit;
use syn::{Attribute, File, Item, ItemMod, ItemUse, UseTree, Visibility};

/// From a first-level module to those that it imports, each with one file that does.
type Edges = BTreeMap<String, BTreeMap<String, String>>;

/// Whether an item is compiled for tests only.
fn is_for_tests(attributes: &[Attribute]) -> bool {
    attributes.iter().any(|attribute| {
        attribute.path().is_ident("cfg") && {
            let text = quote_of(attribute);
            text.contains("test") && !text.contains("not") && !text.contains("any")
        }
    })
}

fn quote_of(attribute: &Attribute) -> String {
    match &attribute.meta {
        syn::Meta::List(list) => list.tokens.to_string(),
        _ => String::new(),
    }
}

/// The paths of one file, absolute: its own module's path is `module`.
struct Paths<'a> {
    module: Vec<String>,
    found: &'a mut Vec<Vec<String>>,
}

impl Paths<'_> {
    /// A path as segments below the crate's root; nothing for one that begins elsewhere.
    fn push(&mut self, segments: &[String]) {
        let mut module = self.module.clone();
        let mut rest = segments;
        match rest.first().map(String::as_str) {
            Some("crate") => {
                module.clear();
                rest = &rest[1..];
            }
            Some("self") => rest = &rest[1..],
            Some("super") => {
                while rest.first().is_some_and(|segment| segment == "super") {
                    module.pop();
                    rest = &rest[1..];
                }
            }
            _ => return,
        }
        module.extend(rest.iter().cloned());
        self.found.push(module);
    }

    fn tree(&mut self, before: &[String], tree: &UseTree) {
        let with = |name: &syn::Ident| before.iter().cloned().chain([name.to_string()]).collect::<Vec<_>>();
        match tree {
            UseTree::Path(path) => self.tree(&with(&path.ident), &path.tree),
            UseTree::Name(name) => self.push(&with(&name.ident)),
            UseTree::Rename(rename) => self.push(&with(&rename.ident)),
            UseTree::Glob(_) => self.push(before),
            UseTree::Group(group) => group.items.iter().for_each(|item| self.tree(before, item)),
        }
    }
}

impl<'ast> Visit<'ast> for Paths<'_> {
    fn visit_item(&mut self, item: &'ast Item) {
        let attributes = match item {
            Item::Mod(item) => &item.attrs,
            Item::Fn(item) => &item.attrs,
            Item::Impl(item) => &item.attrs,
            Item::Use(item) => &item.attrs,
            _ => return syn::visit::visit_item(self, item),
        };
        if !is_for_tests(attributes) {
            syn::visit::visit_item(self, item);
        }
    }

    fn visit_item_mod(&mut self, item: &'ast ItemMod) {
        self.module.push(item.ident.to_string());
        syn::visit::visit_item_mod(self, item);
        self.module.pop();
    }

    fn visit_item_use(&mut self, item: &'ast ItemUse) {
        self.tree(&[], &item.tree);
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        let segments: Vec<_> = path.segments.iter().map(|segment| segment.ident.to_string()).collect();
        self.push(&segments);
        syn::visit::visit_path(self, path);
    }
}

/// The module that a file below `src` is: `a/b.rs` and `a/b/mod.rs` are `a::b`, `lib.rs` is the root.
fn module_of(file: &Path) -> Vec<String> {
    let mut segments: Vec<_> =
        file.with_extension("").iter().map(|segment| segment.to_string_lossy().into_owned()).collect();
    if segments.last().is_some_and(|last| matches!(last.as_str(), "mod" | "lib" | "main")) {
        segments.pop();
    }
    segments
}

/// Names that the crate's root exports again, with the first-level module of each.
fn exports(root: &File) -> BTreeMap<String, String> {
    fn below(module: &str, tree: &UseTree, found: &mut BTreeMap<String, String>) {
        match tree {
            UseTree::Path(path) => below(module, &path.tree, found),
            UseTree::Name(name) => drop(found.insert(name.ident.to_string(), module.to_owned())),
            UseTree::Rename(rename) => drop(found.insert(rename.rename.to_string(), module.to_owned())),
            UseTree::Group(group) => group.items.iter().for_each(|item| below(module, item, found)),
            UseTree::Glob(_) => {}
        }
    }
    let mut found = BTreeMap::new();
    for item in &root.items {
        let Item::Use(item) = item else { continue };
        if let UseTree::Path(path) = &item.tree {
            let is_own = matches!(path.ident.to_string().as_str(), "crate" | "self");
            match (&*path.tree, is_own) {
                (UseTree::Path(inner), true) => below(&inner.ident.to_string(), &inner.tree, &mut found),
                (tree, false) if !matches!(item.vis, Visibility::Inherited) || path.ident != "std" => {
                    below(&path.ident.to_string(), tree, &mut found);
                }
                _ => {}
            }
        }
    }
    found
}

/// The imports between first-level modules of the sources in `files`, given as paths below `src` with their texts.
fn edges(files: &[(String, String)]) -> Edges {
    let parsed: Vec<_> = files
        .iter()
        .map(|(name, text)| (module_of(Path::new(name)), name, syn::parse_file(text).unwrap()))
        .collect();
    let nodes: BTreeSet<_> = parsed.iter().filter_map(|(module, ..)| module.first().cloned()).collect();
    let exported = parsed.iter().filter(|(module, ..)| module.is_empty()).map(|(.., file)| exports(file));
    let exported: BTreeMap<_, _> = exported.flatten().collect();
    let mut edges = Edges::new();
    for (module, name, file) in &parsed {
        let Some(from) = module.first() else { continue };
        let mut found = Vec::new();
        Paths { module: module.clone(), found: &mut found }.visit_file(file);
        for to in found.iter().filter_map(|path| path.first()) {
            let to = if nodes.contains(to) { Some(to) } else { exported.get(to) };
            if let Some(to) = to.filter(|to| *to != from && nodes.contains(*to)) {
                edges.entry(from.clone()).or_default().entry(to.clone()).or_insert_with(|| (*name).clone());
            }
        }
    }
    edges
}

/// The modules that can be reached from one.
fn reached<'a>(edges: &'a Edges, from: &'a str) -> BTreeSet<&'a str> {
    let mut found = BTreeSet::new();
    let mut open = vec![from];
    while let Some(node) = open.pop() {
        for to in edges.get(node).into_iter().flat_map(BTreeMap::keys) {
            if found.insert(to.as_str()) {
                open.push(to);
            }
        }
    }
    found
}

/// Each import that is part of a cycle with a folder in it, as text.
fn in_cycles(edges: &Edges, folders: &BTreeSet<String>) -> Vec<String> {
    let mut found = Vec::new();
    for (from, targets) in edges {
        let after = reached(edges, from);
        let is_with = |node: &str| after.contains(node) && reached(edges, node).contains(from.as_str());
        let has_folder = folders.iter().any(|folder| is_with(folder));
        for (to, file) in targets {
            if has_folder && is_with(to) {
                found.push(format!("{from} -> {to} ({file})"));
            }
        }
    }
    found
}

/// First-level modules that are folders.
fn folders(files: &[(String, String)]) -> BTreeSet<String> {
    files.iter().filter_map(|(name, _)| name.split_once('/')).map(|(folder, _)| folder.to_owned()).collect()
}

#[test]
fn folders_have_no_import_cycle() {
    let mut found = Vec::new();
    for package in packages() {
        let source = package.join("src");
        let mut paths = Vec::new();
        rust_files(
            &source,
            &|name| name == "tests.rs" || name.ends_with("_tests.rs") || name == "tests",
            &mut paths,
        );
        let files: Vec<_> = paths
            .iter()
            .map(|path| {
                let name = path.strip_prefix(&source).unwrap().to_string_lossy().into_owned();
                (name, fs::read_to_string(path).unwrap())
            })
            .collect();
        let package =
            package.strip_prefix(root()).map_or("src".to_owned(), |path| path.display().to_string());
        found.extend(
            in_cycles(&edges(&files), &folders(&files)).into_iter().map(|edge| format!("{package}: {edge}")),
        );
    }
    assert!(found.is_empty(), "imports across folders that form cycles:\n{}", found.join("\n"));
}

#[test]
fn import_cycle_is_found() {
    let found = |c: &str, d: &str| {
        let files = [
            ("lib.rs", "mod a; mod b; mod c; mod d; pub use c::Thing;"),
            ("a/mod.rs", "mod inner; use crate::b::B;"),
            ("a/inner.rs", "use super::X; use crate::Thing;"),
            ("b.rs", "#[cfg(test)] mod tests { use crate::a::X; } use crate::d::D;"),
            ("c.rs", c),
            ("d.rs", d),
        ];
        let files = files.map(|(name, text)| (name.to_owned(), text.to_owned()));
        in_cycles(&edges(&files), &folders(&files))
    };
    assert_eq!(found("", ""), Vec::<String>::new());
    assert_eq!(found("", "use crate::b::B;"), Vec::<String>::new(), "two files of one folder");
    let cycle = ["a -> c (a/inner.rs)", "c -> a (c.rs)"];
    assert_eq!(found("use crate::a;", ""), cycle);
    assert_eq!(found("fn f() { super::a::g() }", ""), cycle);
}
