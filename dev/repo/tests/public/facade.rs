//! What a user of the facade can name: the items of its modules, wherever they are declared.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::Path;

use super::sources::{Item, Line, Sources, inside};

/// A crate and the index of an item in it.
pub(super) type Id = (String, usize);

/// Parts of exported items that only crates of the workspace can use: each names an item that the facade does not export. A snapshot does
/// not show them.
pub(super) type Internal<'a> = &'a [(&'a str, &'a [&'a str])];

/// Traits that seal others: a user is not meant to name them.
const SEALS: [&str; 1] = ["Sealed"];

/// Where a path leads.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Target {
    Module(String, String),
    Item(Id),
}

impl Target {
    fn is_in(&self, library: &str) -> bool {
        matches!(self, Self::Item(id) if id.0 == library)
    }
}

pub(super) struct Workspace {
    /// By the name in Rust: `anabranch`, `anabranch_hip`.
    crates: BTreeMap<String, Sources>,
    /// The implementations for each item, and those of a trait for types that a parameter stands for, as indices in the item's crate.
    impls: BTreeMap<Id, Vec<usize>>,
    /// The public types of all crates, by name.
    types: HashMap<String, Vec<Id>>,
}

/// What the facade shows, and what is wrong with it.
pub(super) struct Facade {
    pub(super) modules: Vec<Shown>,
    /// Names in it that a user cannot name.
    pub(super) hidden: Vec<String>,
    /// Internal parts that do not exist, or that a user can name.
    pub(super) named: Vec<String>,
}

/// A module of the facade, as a snapshot shows it.
pub(super) struct Shown {
    pub(super) name: String,
    pub(super) lines: Vec<String>,
}

/// The paths in a line of Rust: identifiers that `::` joins, without lifetimes, texts and attributes.
pub(super) fn paths(text: &str) -> Vec<Vec<String>> {
    let mut found: Vec<Vec<String>> = Vec::new();
    let mut word = String::new();
    let mut joins = false;
    let mut rest = text.char_indices().peekable();
    let is_word = |one: char| one.is_ascii_alphanumeric() || one == '_';
    while let Some((at, one)) = rest.next() {
        if one == '"' {
            while rest.next().is_some_and(|(_, inner)| inner != '"') {}
        } else if one == '\'' || (one == '#' && text[at..].starts_with("#[")) {
            let end = |inner: char| if one == '#' { inner == ']' } else { !is_word(inner) };
            while rest.peek().is_some_and(|(_, inner)| !end(*inner)) {
                rest.next();
            }
        } else if is_word(one) {
            word.push(one);
            if rest.peek().is_some_and(|(_, next)| is_word(*next)) {
                continue;
            }
            let word = std::mem::take(&mut word);
            match found.last_mut() {
                Some(path) if joins => path.push(word),
                _ => found.push(vec![word]),
            }
            joins = text[at + 1..].starts_with("::");
        }
    }
    found
}

impl Workspace {
    /// Reads crates: each name in Rust, and the file that its root is in.
    pub(super) fn read<'a>(crates: impl IntoIterator<Item = (&'a str, &'a Path)>) -> Self {
        let read = crates.into_iter().map(|(name, file)| (name.to_owned(), Sources::read(file)));
        let mut found = Self { crates: read.collect(), impls: BTreeMap::new(), types: HashMap::new() };
        for (library, sources) in &found.crates {
            for (index, item) in sources.items.iter().enumerate().filter(|(_, item)| item.is_type()) {
                for name in &item.names {
                    found.types.entry(name.clone()).or_default().push((library.clone(), index));
                }
            }
        }
        let mut impls: BTreeMap<Id, Vec<usize>> = BTreeMap::new();
        for (library, sources) in &found.crates {
            for (index, one) in sources.impls.iter().enumerate() {
                let target = found.written(library, &one.module, &one.own).or_else(|| {
                    let of = one.of.as_deref().filter(|_| one.head.starts_with("impl<"))?;
                    found.written(library, &one.module, of)
                });
                // What a crate implements for an item of another is a trait of its own.
                if let Some(Target::Item(id)) = target.filter(|target| target.is_in(library)) {
                    impls.entry(id).or_default().push(index);
                }
            }
        }
        found.impls = impls;
        found
    }

    /// Where a path leads that stands in a module, as it is written, its generic arguments left out.
    fn written(&self, library: &str, module: &str, path: &str) -> Option<Target> {
        let path = path.split('<').next().unwrap_or_default();
        let path: Vec<String> = path.split("::").map(str::to_owned).collect();
        self.path(library, module, &path, 9)
    }

    fn item(&self, id: &Id) -> &Item {
        &self.crates[&id.0].items[id.1]
    }

    /// What a name is in a module. A module and a function may share a name: modules come last, or first where a path goes on.
    fn named(&self, library: &str, module: &str, name: &str, goes_on: bool, left: u32) -> Option<Target> {
        let sources = self.crates.get(library)?;
        let own = sources.named(module, name).iter().map(|index| (*index, &sources.items[*index]));
        // What a macro adds to an item that is declared as any other is no declaration.
        let own = |is_module: bool| {
            let own = own.clone().filter(|(_, item)| item.is_module == is_module);
            own.min_by_key(|(_, item)| !item.text.contains("struct ") && !item.is_public)
        };
        let item = || own(false).map(|(index, _)| Target::Item((library.to_owned(), index)));
        let below = || own(true).map(|_| Target::Module(library.to_owned(), inside(module, name)));
        let import = || {
            let import = sources.import(module, name)?;
            let is_other = left > 0 && import.path != [name];
            is_other.then(|| self.path(library, module, &import.path, left - 1)).flatten()
        };
        let is_public = |target: &Target| matches!(target, Target::Item(id) if self.item(id).is_public);
        if goes_on {
            below().or_else(item).or_else(import)
        } else {
            // A private item beside an import is another feature's.
            item().filter(is_public).or_else(import).or_else(item).or_else(below)
        }
    }

    /// Where a path leads that stands in a module.
    fn path(&self, library: &str, module: &str, path: &[String], left: u32) -> Option<Target> {
        let (mut at, rest) = match path.first()?.as_str() {
            "crate" => (Target::Module(library.to_owned(), String::new()), &path[1..]),
            "self" => (Target::Module(library.to_owned(), module.to_owned()), &path[1..]),
            "super" => {
                let parent = module.rsplit_once("::").map_or("", |(parent, _)| parent);
                let mut path = path.to_vec();
                "self".clone_into(&mut path[0]);
                return self.path(library, parent, &path, left);
            }
            first if self.crates.contains_key(first) => {
                (Target::Module(first.to_owned(), String::new()), &path[1..])
            }
            first => (self.named(library, module, first, path.len() > 1, left)?, &path[1..]),
        };
        for (index, name) in rest.iter().enumerate() {
            match &at {
                Target::Module(library, module) if name == "super" => {
                    let parent = module.rsplit_once("::").map_or("", |(parent, _)| parent);
                    at = Target::Module(library.clone(), parent.to_owned());
                }
                Target::Module(library, module) => {
                    at = self.named(library, module, name, index + 1 < rest.len(), left)?;
                }
                // A variant or another part of the item.
                Target::Item(_) => return Some(at),
            }
        }
        Some(at)
    }

    /// The items that a module of the facade exports, by name.
    fn exports(&self, module: &str) -> Vec<(String, Id)> {
        let facade = &self.crates["anabranch"];
        let mut found = Vec::new();
        for (index, item) in facade.items.iter().enumerate() {
            if item.module == module && item.is_public && !item.is_module {
                found.extend(item.names.iter().map(|name| (name.clone(), ("anabranch".to_owned(), index))));
            }
        }
        for import in facade.imports.iter().filter(|one| one.module == module && one.is_public) {
            match self.path("anabranch", module, &import.path, 9) {
                Some(Target::Item(id)) => found.push((import.name.clone(), id)),
                other => panic!("the facade exports {:?}, which is {other:?}: name each item", import.path),
            }
        }
        found
    }

    /// The modules of the facade, the root first.
    fn modules(&self) -> Vec<String> {
        let modules = self.crates["anabranch"].items.iter().filter(|item| item.is_module && item.is_public);
        let named = modules.map(|item| inside(&item.module, &item.names[0]));
        std::iter::once(String::new()).chain(named).collect()
    }

    /// The lines of an item: its declaration with the names of the traits that it implements, its parts, its functions.
    fn lines(&self, id: &Id, exported: &BTreeSet<Id>) -> Vec<Line> {
        let item = self.item(id);
        let line = |text: &str, module: &str| Line { text: text.to_owned(), module: module.to_owned() };
        let mut lines = vec![line(&item.text, &item.module)];
        lines.extend(item.members.iter().map(|part| line(&format!("    {part}"), &item.module)));
        let sources = &self.crates[&id.0];
        let mut traits = BTreeSet::new();
        for (index, made) in sources.items.iter().enumerate() {
            // What a macro adds.
            if index != id.1 && !made.is_public && made.module == item.module && made.names == item.names {
                lines.push(line(&format!("    {}", made.text), &made.module));
            }
        }
        for one in self.impls.get(id).into_iter().flatten().map(|index| &sources.impls[*index]) {
            let is_own = self.written(&id.0, &one.module, &one.own) == Some(Target::Item(id.clone()));
            match &one.of {
                None => {
                    let plain = one.head == format!("impl {}", one.own) || one.members.is_empty();
                    if !plain {
                        lines.push(line(&format!("    {}", one.head), &one.module));
                    }
                    let indent = if plain { "    " } else { "        " };
                    let parts = one.members.iter();
                    lines.extend(parts.map(|part| line(&format!("{indent}{part}"), &one.module)));
                }
                // For every type that a parameter stands for.
                Some(_) if !is_own => lines.push(line(&format!("    {}", one.head), &one.module)),
                Some(of) if self.hidden(&id.0, &line(of, &one.module), exported).is_empty() => {
                    let (path, arguments) = of.split_at(of.find('<').unwrap_or(of.len()));
                    let name = path.rsplit("::").next().unwrap_or_default();
                    traits.insert(format!("{name}{arguments}"));
                }
                Some(_) => {}
            }
        }
        if !traits.is_empty() {
            lines[0].text.push_str("  impl ");
            lines[0].text.push_str(&traits.into_iter().collect::<Vec<_>>().join(", "));
        }
        lines
    }

    /// The facade, module by module.
    pub(super) fn facade(&self, internal: Internal<'_>) -> Facade {
        let modules = self.modules();
        let exports: Vec<_> = modules.iter().map(|module| self.exports(module)).collect();
        let exported: BTreeSet<Id> = exports.iter().flatten().map(|(_, id)| id.clone()).collect();
        // Modules below the root are the homes of what they share with it.
        let mut homes: BTreeMap<&Id, &str> = BTreeMap::new();
        for (module, list) in modules.iter().zip(&exports).skip(1).chain(modules.iter().zip(&exports).take(1))
        {
            for (_, id) in list {
                homes.entry(id).or_insert(module);
            }
        }
        let mut left: BTreeSet<(String, &str)> = BTreeSet::new();
        for (item, parts) in internal {
            left.extend(parts.iter().map(|part| ((*item).to_owned(), *part)));
        }
        let (mut hidden, mut named, mut shown) = (Vec::new(), Vec::new(), Vec::new());
        for (module, list) in modules.iter().zip(&exports) {
            let mut lines = Vec::new();
            let mut seen = BTreeSet::new();
            let mut again: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
            for (name, id) in list {
                if homes[id] != module {
                    again.entry(homes[id]).or_default().push(name);
                } else if seen.insert(id) {
                    let path = inside(module, name);
                    for line in self.lines(id, &exported) {
                        let of_line = self.hidden(&id.0, &line, &exported);
                        let key = (path.clone(), part_name(&line.text));
                        let is_internal =
                            internal.iter().any(|(item, parts)| *item == key.0 && parts.contains(&key.1));
                        if is_internal {
                            left.retain(|(item, part)| (item.as_str(), *part) != (key.0.as_str(), key.1));
                            if of_line.is_empty() {
                                named.push(format!(
                                    "{path}: `{}` names only what is exported",
                                    line.text.trim()
                                ));
                            }
                        } else {
                            hidden.extend(of_line.into_iter().map(|found| format!("{path}: {found}")));
                            lines.push(line.text);
                        }
                    }
                }
            }
            for (home, names) in again {
                lines.push(format!("pub use {home}::{{{}}}", names.join(", ")));
            }
            let name = if module.is_empty() { "anabranch".to_owned() } else { module.replace("::", "-") };
            shown.push(Shown { name, lines });
        }
        named.extend(left.into_iter().map(|(item, part)| format!("{item} has no {part}")));
        Facade { modules: shown, hidden, named }
    }

    /// Types of the workspace that a line names and the facade does not export. A name that no import explains, which a macro may bring, is
    /// that of every public type with this name.
    fn hidden(&self, library: &str, line: &Line, exported: &BTreeSet<Id>) -> Vec<String> {
        let text = line.text.trim();
        let is_variant = line.text.starts_with(' ') && text.starts_with(|one: char| one.is_ascii_uppercase());
        let is_call = text.contains("! {");
        // Of a macro's call the types, and no values.
        let value =
            |part: &str| part.split(" = ").next().and_then(|part| part.split(" => ").next()).map(paths);
        let named = if is_call { text.split(';').filter_map(value).flatten().collect() } else { paths(text) };
        let mut found = Vec::new();
        for path in named.into_iter().skip(usize::from(is_variant)) {
            let types = match self.path(library, &line.module, &path, 9) {
                Some(Target::Item(id)) => vec![id],
                Some(Target::Module(..)) => Vec::new(),
                None if is_call || path.len() > 1 => Vec::new(),
                None => self.types.get(&path[0]).cloned().unwrap_or_default(),
            };
            let is_seal = |id: &Id| SEALS.contains(&self.item(id).names[0].as_str());
            let is_hidden = |id: &Id| self.item(id).is_type() && !exported.contains(id) && !is_seal(id);
            if !types.is_empty() && types.iter().all(is_hidden) {
                found.push(format!("`{text}` names {} of {}", path.join("::"), types[0].0));
            }
        }
        found
    }
}

/// The name of a field or function, or nothing.
fn part_name(text: &str) -> &str {
    let text = text.trim_start();
    let qualifiers = ["pub", "const", "unsafe", "fn"];
    let words = text.split([' ', '(', '<', ':']).skip_while(|word| qualifiers.contains(word));
    words.take(1).next().unwrap_or_default()
}
