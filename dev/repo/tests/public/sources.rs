//! What the sources of a crate declare: its modules, items with their public parts, implementations and imports. Sources are read in the
//! form that `cargo fmt` gives them. Items that a macro makes are shown as the call.

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};

/// A macro that makes public items: what stands directly before and after each name that it makes, and what it makes besides.
struct Making {
    name: &'static str,
    before: &'static str,
    after: &'static str,
    more: &'static [&'static str],
}

const MAKING: [Making; 7] = [
    Making { name: "float8", before: "", after: " =", more: &[] },
    // Its names are in the macro.
    Making { name: "hip_table", before: "\n", after: "{", more: &["HipApi"] },
    Making { name: "operators", before: "", after: " =>", more: &[] },
    Making { name: "rank_type", before: "", after: ",", more: &[] },
    Making { name: "settings", before: "", after: " {", more: &["SETTINGS"] },
    Making { name: "word_enum", before: "pub enum ", after: ",", more: &[] },
    Making { name: "words", before: "", after: " {", more: &[] },
];

/// Attributes that belong to an interface.
const KEPT: [&str; 4] = ["#[derive(", "#[non_exhaustive]", "#[macro_export]", "#[deprecated"];
/// Attributes of what is for tests or for another build.
const LEFT_OUT: [&str; 6] = [
    "#[cfg(feature = \"simulation\")]",
    "#[cfg(test)]",
    "#[cfg(all(test",
    "#[cfg(any(test",
    "#[cfg(loom)]",
    "#[cfg(doctest)]",
];

/// A line of an interface, and the module in which its names are looked up.
#[derive(Clone, Debug)]
pub(super) struct Line {
    pub(super) text: String,
    pub(super) module: String,
}

#[derive(Clone, Debug)]
pub(super) struct Item {
    /// The path of its module in the crate: empty for the root, else `one::two`.
    pub(super) module: String,
    pub(super) names: Vec<String>,
    pub(super) is_public: bool,
    pub(super) is_module: bool,
    pub(super) text: String,
    /// Public fields, variants, items of a trait.
    pub(super) members: Vec<String>,
}

impl Item {
    /// Whether it is a public type or trait, which signatures may name.
    pub(super) fn is_type(&self) -> bool {
        let mut words = self.text.split(' ').skip_while(|word| ["pub", "unsafe"].contains(word));
        let kind = words.next().unwrap_or_default();
        let is_made = self.text.contains("! {") && kind != "macro_rules!";
        self.is_public && (is_made || ["enum", "struct", "trait", "type", "union"].contains(&kind))
    }
}

/// An implementation.
#[derive(Clone, Debug)]
pub(super) struct Impl {
    pub(super) module: String,
    /// Without `where`.
    pub(super) head: String,
    /// As it is written; without generic arguments.
    pub(super) own: String,
    pub(super) of: Option<String>,
    /// Public functions and constants.
    pub(super) members: Vec<String>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Import {
    pub(super) module: String,
    pub(super) is_public: bool,
    pub(super) path: Vec<String>,
    pub(super) name: String,
}

#[derive(Debug, Default)]
pub(super) struct Sources {
    pub(super) items: Vec<Item>,
    pub(super) impls: Vec<Impl>,
    pub(super) imports: Vec<Import>,
    /// The items of a module that have a name.
    names: HashMap<(String, String), Vec<usize>>,
    /// The import of a module that has a name.
    imported: HashMap<(String, String), usize>,
}

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
        let ends = |at: usize| {
            let is_last = rest.get(at + 1).is_none_or(|next| column(next) <= own);
            (here(&rest[at]) && rest[at].ends_with([',', '}', '{'])) || (is_last && rest[at].ends_with(';'))
        };
        let head = (0..rest.len()).find(|at| ends(*at)).map_or(rest.len(), |end| end + 1);
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

/// A path in a module.
pub(super) fn inside(module: &str, name: &str) -> String {
    if module.is_empty() { name.to_owned() } else { format!("{module}::{name}") }
}

/// A declaration's line: what it begins with, and the attributes that are kept.
fn shown(text: &str, attributes: &[&str]) -> String {
    let mut line = text.trim_end_matches(['{', ';', ',', ' ']).to_owned();
    for attribute in attributes.iter().filter(|one| KEPT.iter().any(|kept| one.starts_with(kept))) {
        line.push_str("  ");
        line.push_str(attribute);
    }
    line
}

fn is_left_out(attributes: &[&str]) -> bool {
    let bare = |text: &str| text.replace(' ', "");
    attributes.iter().any(|one| LEFT_OUT.iter().any(|begins| bare(one).starts_with(&bare(begins))))
}

/// The names that a `use` brings: each path, and the name by which it is known.
fn imports(text: &str, before: &[String], found: &mut Vec<(Vec<String>, String)>) {
    let mut path = before.to_vec();
    let mut rest = text.trim();
    loop {
        if let Some(list) = rest.strip_prefix('{') {
            let (mut depth, mut from) = (0, 0);
            let list = list.trim_end().strip_suffix('}').unwrap_or(list);
            for (at, one) in list.char_indices().chain([(list.len(), ',')]) {
                match one {
                    '{' => depth += 1,
                    '}' => depth -= 1,
                    ',' if depth == 0 => {
                        if !list[from..at].trim().is_empty() {
                            imports(&list[from..at], &path, found);
                        }
                        from = at + 1;
                    }
                    _ => {}
                }
            }
            return;
        }
        match rest.split_once("::") {
            Some((first, after)) if !first.contains(' ') => {
                path.push(first.to_owned());
                rest = after;
            }
            _ => break,
        }
    }
    let (last, name) = rest.split_once(" as ").unwrap_or((rest, rest));
    if last != "self" {
        path.push(last.to_owned());
    }
    let name = if name == "self" { path.last().cloned().unwrap_or_default() } else { name.to_owned() };
    found.push((path, name));
}

/// What an implementation is of and for: `impl<T> Into<U> for Vec<T> where ..` is `Into<U>` for `Vec`.
fn parts_of_impl(head: &str) -> (Option<String>, String) {
    let mut text = head.trim_start_matches("unsafe ").trim_start_matches("impl");
    if text.starts_with('<') {
        let mut depth = 0;
        let mut previous = ' ';
        let end = text.find(|one| {
            depth += i32::from(one == '<') - i32::from(one == '>' && previous != '-');
            previous = one;
            depth == 0
        });
        text = &text[end.unwrap_or(0) + 1..];
    }
    let text = text.trim();
    let (of, own) = match text.split_once(" for ") {
        Some((of, own)) => (Some(of.to_owned()), own),
        None => (None, text),
    };
    (of, own.split(['<', ' ', '{']).next().unwrap_or_default().to_owned())
}

impl Sources {
    pub(super) fn read(file: &Path) -> Self {
        let mut found = Self::default();
        found.file(file, "");
        for (index, item) in found.items.iter().enumerate() {
            for name in &item.names {
                found.names.entry((item.module.clone(), name.clone())).or_default().push(index);
            }
        }
        for (index, import) in found.imports.iter().enumerate() {
            found.imported.entry((import.module.clone(), import.name.clone())).or_insert(index);
        }
        found
    }

    /// What a module imports by this name.
    pub(super) fn import(&self, module: &str, name: &str) -> Option<&Import> {
        Some(&self.imports[*self.imported.get(&(module.to_owned(), name.to_owned()))?])
    }

    /// The items of a module that have this name.
    pub(super) fn named(&self, module: &str, name: &str) -> &[usize] {
        self.names.get(&(module.to_owned(), name.to_owned())).map_or(&[], Vec::as_slice)
    }

    fn file(&mut self, file: &Path, module: &str) {
        let text = fs::read_to_string(file).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
        let code =
            text.lines().filter(|line| !line.trim().is_empty() && !line.trim_start().starts_with("//"));
        // A comment behind code.
        let code: Vec<&str> = code.map(|line| line.split(" // ").next().unwrap_or(line).trim_end()).collect();
        self.block(file, &code, module);
    }

    fn block(&mut self, file: &Path, lines: &[&str], module: &str) {
        for Declaration { attributes, head, body, lines } in declarations(lines) {
            if is_left_out(&attributes) {
                continue;
            }
            let is_public = head.starts_with("pub ");
            let qualifiers = ["pub", "unsafe", "async", "extern", "\"C\"", "const"];
            let bare = ["pub(crate) ", "pub(super) "].iter().find_map(|begins| head.strip_prefix(begins));
            let mut words = bare
                .unwrap_or(&head)
                .split([' ', '<', '!', '(', ':', ';', '='])
                .skip_while(|word| qualifiers.contains(word) && (*word != "const" || head.contains("fn ")))
                .filter(|word| !word.is_empty());
            let kind = words.next().unwrap_or_default();
            let name = words.next().unwrap_or_default().to_owned();
            let mut add = |names: Vec<String>, text: String, members: Vec<String>| {
                let (module, is_module) = (module.to_owned(), kind == "mod");
                self.items.push(Item { module, names, is_public, is_module, text, members });
            };
            match kind {
                "mod" => {
                    add(vec![name.clone()], shown(&head, &attributes), Vec::new());
                    let nested = inside(module, &name);
                    if head.ends_with(';') {
                        self.file(&module_file(file, &name), &nested);
                    } else {
                        self.block(file, body, &nested);
                    }
                }
                "use" => {
                    let mut list = Vec::new();
                    let text = joined(lines);
                    let text = text.trim_start_matches("pub").trim_start_matches("(crate)");
                    let text = text.trim_start_matches("(super)").trim().trim_start_matches("use ");
                    imports(text.trim_end_matches(';'), &[], &mut list);
                    let import = |(path, name)| Import { module: module.to_owned(), is_public, path, name };
                    self.imports.extend(list.into_iter().map(import));
                }
                "impl" => self.implementation(&head, body, module),
                "const" | "static" => {
                    add(vec![name], shown(head.split(" = ").next().unwrap_or_default(), &[]), Vec::new());
                }
                "struct" | "union" => {
                    let fields = declarations(body).into_iter().filter(|one| one.head.starts_with("pub "));
                    let members = fields.map(|field| shown(&field.head, &[])).collect();
                    let text = match head.split_once('(') {
                        Some((begin, fields)) if !fields.starts_with("pub ") && body.is_empty() => {
                            format!("{begin}(_)")
                        }
                        _ => head.clone(),
                    };
                    add(vec![name], shown(&text, &attributes), members);
                }
                "enum" => {
                    let variants = declarations(body).into_iter();
                    let members = variants.map(|one| shown(&joined(one.lines), &[])).collect();
                    add(vec![name], shown(&head, &attributes), members);
                }
                "trait" => {
                    let inside = declarations(body).into_iter();
                    let members = inside.map(|one| shown(&one.head, &[])).collect();
                    add(vec![name], shown(&head, &attributes), members);
                }
                "fn" | "type" => add(vec![name], shown(&head, &attributes), Vec::new()),
                "macro_rules" if attributes.contains(&"#[macro_export]") => self.items.push(Item {
                    module: String::new(),
                    names: vec![name],
                    is_public: true,
                    is_module: false,
                    text: shown(&head, &attributes),
                    members: Vec::new(),
                }),
                // Structs inside: they are declared as anywhere else.
                "device_struct" => {
                    let from = self.items.len();
                    self.block(file, body, module);
                    self.items[from..].iter_mut().for_each(|item| item.text.push_str("  device_struct!"));
                }
                _ => self.call(&head, lines, module),
            }
        }
    }

    fn implementation(&mut self, head: &str, body: &[&str], module: &str) {
        let head = shown(head.split(" where ").next().unwrap_or(head), &[]);
        let (of, own) = parts_of_impl(&head);
        let public = declarations(body)
            .into_iter()
            .filter(|one| !is_left_out(&one.attributes) && one.head.starts_with("pub "));
        let short = |one: Declaration<'_>| {
            if one.head.contains("fn ") {
                shown(&one.head, &one.attributes)
            } else {
                // Values are no interface, and most are long.
                shown(one.head.split(" = ").next().unwrap_or_default(), &[])
            }
        };
        let members = public.map(short).collect();
        self.impls.push(Impl { module: module.to_owned(), head, own, of, members });
    }

    /// A macro's call.
    fn call(&mut self, head: &str, lines: &[&str], module: &str) {
        let called = head.split_once('!').map_or("", |(path, _)| path);
        let called = called.rsplit("::").next().unwrap_or_default();
        if called == "setters" {
            self.setters(lines, module);
            return;
        }
        let Some(making) = MAKING.iter().find(|making| making.name == called) else { return };
        let text = joined(lines);
        let names = text.match_indices(making.after).filter_map(|(at, _)| {
            let begin = text[..at].rfind([' ', '(']).map_or(0, |begin| begin + 1);
            let is_made = text[..begin].ends_with(making.before)
                && text[begin..at].starts_with(|one: char| one.is_ascii_uppercase());
            is_made.then(|| text[begin..at].to_owned())
        });
        self.items.push(Item {
            module: module.to_owned(),
            names: names.chain(making.more.iter().map(|name| (*name).to_owned())).collect(),
            is_public: called != "rank_type",
            is_module: false,
            text: shown(&text, &[]),
            members: Vec::new(),
        });
    }

    /// The builder's methods that `setters!` makes, which lists each as a field and its type.
    fn setters(&mut self, lines: &[&str], module: &str) {
        let fields = lines.iter().filter_map(|line| line.trim().strip_suffix(';')?.split_once(": "));
        let fields = fields.filter(|(field, _)| !field.starts_with("//"));
        let members =
            fields.map(|(field, of)| format!("pub fn {field}(mut self, value: {of}) -> Self")).collect();
        let (head, own) = ("impl EpConfig".to_owned(), "EpConfig".to_owned());
        self.impls.push(Impl { module: module.to_owned(), head, own, of: None, members });
    }
}
