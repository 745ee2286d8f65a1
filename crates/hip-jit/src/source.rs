//! What is compiled: units (static), specs (values), and the text that goes to the compiler.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fmt;
use std::fmt::Write as _;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use crate::constants::{Constants, KnownStructs, argument_structs};
use crate::edit::SourceEdit;
use crate::error::{Error, Result};
use crate::key::digest_of_texts;
use crate::layout::{DeviceStruct, OFFSET_OF};
use crate::prelude::PRELUDE;
use crate::source_dir::SourceDir;
use crate::target::{Target, TargetKind};

/// A header that kernels include by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// What stands between the quotes: `anabranch/prelude.h`.
    pub name: &'static str,
    /// Its text.
    pub text: &'static str,
}

/// One `.hip` file: the static description from which every instance of it is compiled.
#[derive(Clone, Copy, Debug)]
pub struct KernelUnit {
    /// An identifier; names the file (`<name>.hip`), cache entries, errors.
    pub name: &'static str,
    /// The text of the file.
    pub source: &'static str,
    /// The headers that it may include besides the prelude's; only those reached by `#include` are used.
    pub headers: &'static [&'static [Header]],
    /// C names of the kernels in it; the compiled object must have these and no other.
    pub entries: &'static [&'static str],
    /// Declarations of its argument structs: `XArgs::c_declaration`.
    pub layouts: &'static [fn() -> String],
}

/// The value of a specialising parameter, `#define`d under the parameter's name.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum ParameterValue {
    /// Becomes 1 or 0.
    Bool(bool),
    /// Becomes a decimal number.
    Int(i64),
    /// Becomes the word, which must be an identifier: a type, an operator's name.
    Name(String),
}

impl fmt::Display for ParameterValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Bool(value) => write!(f, "{}", u8::from(*value)),
            Self::Int(value) if *value == i64::MIN => f.write_str("(-9223372036854775807LL - 1)"),
            Self::Int(value) => {
                let suffix = if i32::try_from(*value).is_ok() { "" } else { "LL" };
                if *value < 0 { write!(f, "({value}{suffix})") } else { write!(f, "{value}{suffix}") }
            }
            Self::Name(word) => f.write_str(word),
        }
    }
}

impl From<bool> for ParameterValue {
    fn from(value: bool) -> Self {
        Self::Bool(value)
    }
}

macro_rules! from_integers {
    ($($type:ty),*) => { $(
        impl From<$type> for ParameterValue {
            fn from(value: $type) -> Self {
                Self::Int(i64::from(value))
            }
        }
    )* };
}
from_integers!(u8, u16, u32, i8, i16, i32, i64);

impl From<&str> for ParameterValue {
    fn from(value: &str) -> Self {
        Self::Name(value.to_owned())
    }
}

impl From<String> for ParameterValue {
    fn from(value: String) -> Self {
        Self::Name(value)
    }
}

/// The header that is generated: the structs that Rust declares, the prelude's and the unit's. A unit that does not
/// include it gets its own ones before its text.
pub(crate) const LAYOUTS_HEADER: &str = "anabranch/layouts.h";

/// One instance of a unit: the unit and its parameters. Equal specs render to equal bytes.
#[derive(Clone, Debug)]
pub struct KernelSpec {
    unit: &'static KernelUnit,
    parameters: BTreeMap<&'static str, ParameterValue>,
    constants: KnownStructs,
    edits: Vec<SourceEdit>,
}

impl PartialEq for KernelSpec {
    fn eq(&self, other: &Self) -> bool {
        std::ptr::eq(self.unit, other.unit)
            && self.parameters == other.parameters
            && self.constants == other.constants
            && self.edits == other.edits
    }
}

impl Eq for KernelSpec {}

impl KernelSpec {
    /// The unit without parameters.
    pub fn new(unit: &'static KernelUnit) -> Self {
        Self { unit, parameters: BTreeMap::new(), constants: KnownStructs::default(), edits: Vec::new() }
    }

    /// Adds a parameter, or replaces its value. Names and values are checked when the spec is rendered.
    #[must_use]
    pub fn with(mut self, name: &'static str, value: impl Into<ParameterValue>) -> Self {
        self.parameters.insert(name, value.into());
        self
    }

    /// Gives the argument struct `A` these constants, in place of those that it had. Those of a struct that no kernel of the unit takes
    /// are left out. A [`Jit`](crate::Jit) decides whether it compiles with them ([`ConstantsMode`](crate::ConstantsMode)).
    ///
    /// A kernel with constants copies its arguments. A struct with arrays that are indexed by a variable has none, so that the arrays
    /// stay where the launch put them.
    #[must_use]
    pub fn knowing<A: DeviceStruct>(mut self, constants: Constants<A>) -> Self {
        if argument_structs(self.unit.source).contains(A::NAME) {
            self.constants.insert(constants);
        }
        self
    }

    pub(crate) fn constants(&self) -> &KnownStructs {
        &self.constants
    }

    pub(crate) fn has_constants(&self) -> bool {
        !self.constants.is_empty()
    }

    /// The spec for any plan.
    pub(crate) fn without_constants(&self) -> Self {
        Self { constants: KnownStructs::default(), ..self.clone() }
    }

    /// The spec with these parameters in place of its own of the same name.
    pub(crate) fn with_all(&self, parameters: &[(&'static str, ParameterValue)]) -> Self {
        let each = parameters.iter().cloned();
        each.fold(self.clone(), |spec, (name, value)| spec.with(name, value))
    }

    /// Adds changes of its sources. Those of files that it does not reach change nothing; a file that no source has is an error when
    /// the spec is rendered.
    #[must_use]
    pub fn edited(mut self, edits: &[SourceEdit]) -> Self {
        self.edits.extend_from_slice(edits);
        self
    }

    /// The unit.
    pub fn unit(&self) -> &'static KernelUnit {
        self.unit
    }

    /// The parameters, by name.
    pub fn parameters(&self) -> &BTreeMap<&'static str, ParameterValue> {
        &self.parameters
    }

    /// A word for people: `ep_dispatch<ELEMENT=bf16, TOP_K=8>`, and whether it has constants.
    pub fn label(&self) -> String {
        let known = if self.has_constants() { " with constants" } else { "" };
        if self.parameters.is_empty() {
            return format!("{}{known}", self.unit.name);
        }
        let words: Vec<_> = self.parameters.iter().map(|(name, value)| format!("{name}={value}")).collect();
        format!("{}<{}>{known}", self.unit.name, words.join(", "))
    }

    /// The text for the compiler. `source_dir` replaces embedded text by files of a checkout (see
    /// [`crate::JitConfig::source_dir`]).
    ///
    /// # Errors
    /// A parameter or unit that is not well formed, an include that is not in the unit's headers, a file of
    /// `source_dir` that cannot be read, an edit that does not fit.
    pub fn render(&self, target: &Target, source_dir: Option<&Path>) -> Result<Rendered> {
        self.check()?;
        let overrides = source_dir.map(SourceDir::open).transpose()?;
        let file = format!("{}.hip", self.unit.name);
        let unit_text = match &overrides {
            Some(dir) => dir.read_unit(self.unit.name)?,
            None => None,
        }
        .unwrap_or_else(|| self.unit.source.to_owned());
        let unit_text = SourceEdit::apply(&self.edits, &file, &unit_text)?;
        let headers = if self.edits.is_empty() && overrides.is_none() {
            self.embedded_headers(&file, &unit_text)?
        } else {
            Arc::new(Headers::new(self.close_over_includes(&file, &unit_text, overrides.as_ref())?))
        };
        self.check_edits(&headers)?;
        let is_edited = self.edits.iter().any(|edit| edit.file == file || headers.contains_key(&edit.file));
        let label = if is_edited { format!("{} (edited)", self.label()) } else { self.label() };
        Ok(Rendered {
            unit: self.unit.name,
            text: self.text(target, &label, &file, &unit_text, &headers),
            label,
            file,
            headers,
            entries: self.unit.entries.iter().map(|entry| (*entry).to_owned()).collect(),
            parameters: self
                .parameters
                .iter()
                .map(|(name, value)| ((*name).to_owned(), value.clone()))
                .chain(self.constants.named().map(|(name, value)| (name, value.into())))
                .collect(),
        })
    }

    fn layouts(&self, first: &[fn() -> String]) -> String {
        let mut texts: Vec<String> = Vec::new();
        for text in first.iter().chain(self.unit.layouts).map(|layout| layout()) {
            if !texts.contains(&text) {
                texts.push(text);
            }
        }
        texts.concat()
    }

    fn text(
        &self,
        target: &Target,
        label: &str,
        file: &str,
        unit_text: &str,
        headers: &BTreeMap<String, String>,
    ) -> String {
        let kind = match target.kind() {
            TargetKind::Amd => "AMD",
            TargetKind::Nvidia => "NVIDIA",
            TargetKind::Host => "HOST",
        };
        let mut text = format!(
            "// {} for {target}: rendered from {file}; edit that.\n\
             #define ANABRANCH_TARGET_{kind} 1\n#define ANABRANCH_WAVE_SIZE {}\n#define ANABRANCH_ARCH_{} 1\n",
            label,
            target.wave_size(),
            target.define_name(),
        );
        if let Some(family) = target.amd_family() {
            let _ = writeln!(text, "#define ANABRANCH_AMD_GFX{family} 1");
        }
        if let Some(khz) = target.amd_clock_khz() {
            let _ = writeln!(text, "#define ANABRANCH_NS_PER_TICK {}", 1_000_000 / khz);
        }
        if target.is_instrumented() && !self.parameters.contains_key("HOST_INSTRUMENTED") {
            text.push_str("#define HOST_INSTRUMENTED 1\n");
        }
        text.push_str(OFFSET_OF);
        for (name, value) in &self.parameters {
            let _ = writeln!(text, "#define {name} {value}");
        }
        text.push_str(&self.constants.defines(unit_text));
        if !headers.contains_key(LAYOUTS_HEADER) {
            text.push_str(&self.layouts(&[]));
        }
        // Diagnostics then carry the line numbers of the file that people edit.
        let _ = writeln!(text, "#line 1 \"{file}\"");
        text.push_str(unit_text);
        if !text.ends_with('\n') {
            text.push('\n');
        }
        text
    }

    fn check(&self) -> Result<()> {
        let unit = self.unit.name;
        let refuse = |parameter: &str, problem: &str| {
            Err(Error::Parameter { unit, parameter: parameter.to_owned(), problem: problem.to_owned() })
        };
        if !is_identifier(unit) {
            return refuse("name", "the unit's name is not an identifier");
        }
        if let Some(entry) = self.unit.entries.iter().find(|entry| !is_identifier(entry)) {
            return refuse(entry, "the entry's name is not an identifier");
        }
        for (name, value) in &self.parameters {
            if !is_identifier(name) || name.starts_with("ANABRANCH_") || name.starts_with("__") {
                return refuse(
                    name,
                    "a parameter is an identifier that starts with neither ANABRANCH_ nor __",
                );
            }
            if let ParameterValue::Name(word) = value
                && !is_identifier(word)
            {
                return refuse(name, &format!("its value {word:?} is not an identifier"));
            }
        }
        Ok(())
    }

    fn headers(&self) -> impl Iterator<Item = &'static Header> + use<> {
        self.unit.headers.iter().copied().flatten().chain(PRELUDE)
    }

    /// Refuses edits of files that no source has. A unit knows its own file and the headers that it may include: it takes a file of
    /// another folder for another unit's.
    fn check_edits(&self, reached: &BTreeMap<String, String>) -> Result<()> {
        let folder_of = |name: &str| name.rsplit_once('/').map(|(folder, _)| folder.to_owned());
        let ending = |name: &str| Path::new(name).extension().and_then(OsStr::to_str).map(str::to_owned);
        for edit in &self.edits {
            let folder = folder_of(&edit.file);
            let is_known = |header: &Header| header.name == edit.file;
            let problem = if edit.file == LAYOUTS_HEADER {
                "it is generated: edit the Rust structs"
            } else if ending(&edit.file).as_deref() == Some("hip") || reached.contains_key(&edit.file) {
                continue;
            } else if ending(&edit.file).as_deref() != Some("h") {
                "a source is a header (`folder/name.h`) or a unit (`unit.hip`)"
            } else if self.headers().any(|header| folder_of(header.name) == folder)
                && !self.headers().any(is_known)
            {
                "no source has this name"
            } else {
                continue;
            };
            let (file, line) = (edit.file.clone(), edit.line.clone());
            return Err(Error::Edit { file, line, problem: problem.to_owned() });
        }
        Ok(())
    }

    /// The headers that the unit's own text reaches: found and hashed once for a unit, because they cannot change.
    fn embedded_headers(&self, file: &str, unit_text: &str) -> Result<Arc<Headers>> {
        static FOUND: Mutex<BTreeMap<usize, Arc<Headers>>> = Mutex::new(BTreeMap::new());
        // A unit lives for ever, so no other ever has its address.
        let unit = std::ptr::from_ref(self.unit).addr();
        if let Some(found) = FOUND.lock().unwrap_or_else(PoisonError::into_inner).get(&unit) {
            return Ok(found.clone());
        }
        let headers = Arc::new(Headers::new(self.close_over_includes(file, unit_text, None)?));
        FOUND.lock().unwrap_or_else(PoisonError::into_inner).insert(unit, headers.clone());
        Ok(headers)
    }

    fn close_over_includes(
        &self,
        file: &str,
        unit_text: &str,
        overrides: Option<&SourceDir>,
    ) -> Result<BTreeMap<String, String>> {
        let mut closed = BTreeMap::new();
        let mut open: Vec<(String, String)> = vec![(file.to_owned(), unit_text.to_owned())];
        while let Some((includer, text)) = open.pop() {
            for include in includes(&text) {
                if closed.contains_key(&include.name) {
                    continue;
                }
                if include.name == LAYOUTS_HEADER {
                    let text = format!("#pragma once\n{}", self.layouts(crate::control::LAYOUTS));
                    closed.insert(include.name, text);
                    continue;
                }
                let embedded = self.headers().find(|header| header.name == include.name);
                let replaced = overrides.map(|dir| dir.read_header(&include.name)).transpose()?.flatten();
                let found = replaced.or_else(|| embedded.map(|header| header.text.to_owned()));
                let Some(text) = found.filter(|_| !include.system) else {
                    return Err(Error::Include {
                        unit: self.unit.name,
                        file: includer,
                        line: include.line,
                        include: include.name,
                    });
                };
                let text = SourceEdit::apply(&self.edits, &include.name, &text)?;
                closed.insert(include.name.clone(), text.clone());
                open.push((include.name, text));
            }
        }
        Ok(closed)
    }
}

/// What goes to a compiler: the main text and the headers it reaches. Equal specs give equal values.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rendered {
    /// The unit's name.
    pub unit: &'static str,
    /// The spec's label.
    pub label: String,
    /// The file name of the main text.
    pub file: String,
    /// The main text: defines, layouts, the unit.
    pub text: String,
    /// Headers reached by `#include`.
    pub headers: Arc<Headers>,
    /// C names of the kernels.
    pub entries: Vec<String>,
    /// The specialising parameters, and constants as `Struct.field`.
    pub parameters: BTreeMap<String, ParameterValue>,
}

/// Headers by name: a map to their texts, and the digest that keys are made of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Headers {
    texts: BTreeMap<String, String>,
    digest: [u8; 32],
}

impl Headers {
    pub(crate) fn new(texts: BTreeMap<String, String>) -> Self {
        Self { digest: digest_of_texts(&texts), texts }
    }

    pub(crate) fn digest(&self) -> &[u8; 32] {
        &self.digest
    }
}

impl std::ops::Deref for Headers {
    type Target = BTreeMap<String, String>;

    fn deref(&self) -> &Self::Target {
        &self.texts
    }
}

/// One `#include` line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Include {
    pub(crate) line: u32,
    pub(crate) name: String,
    /// Written with angle brackets.
    pub(crate) system: bool,
}

/// The `#include` lines of a text. Conditions are not evaluated: a header inside an `#if` counts.
pub(crate) fn includes(text: &str) -> Vec<Include> {
    let mut found = Vec::new();
    for (index, line) in text.lines().enumerate() {
        let Some(rest) = line.trim_start().strip_prefix('#') else { continue };
        let Some(rest) = rest.trim_start().strip_prefix("include") else { continue };
        let rest = rest.trim_start();
        let (system, close) = match rest.chars().next() {
            Some('"') => (false, '"'),
            Some('<') => (true, '>'),
            _ => continue,
        };
        let name = rest[1..].split_once(close).map_or(&rest[1..], |(name, _)| name).to_owned();
        found.push(Include { line: index as u32 + 1, name, system });
    }
    found
}

pub(crate) fn is_identifier(word: &str) -> bool {
    let mut bytes = word.bytes();
    bytes.next().is_some_and(|first| first.is_ascii_alphabetic() || first == b'_')
        && bytes.all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEADERS: &[Header] = &[
        Header { name: "a.h", text: "#pragma once\n#  include \"b.h\"\n" },
        Header { name: "b.h", text: "#include \"a.h\"\nint b();\n" },
        Header { name: "unused.h", text: "#error\n" },
    ];
    static UNIT: KernelUnit = KernelUnit {
        name: "scale",
        source: "#include \"a.h\"\nvoid scale() {}",
        headers: &[HEADERS],
        entries: &["anabranch_scale"],
        layouts: &[|| "struct ScaleArgs { int x; };\n".to_owned()],
    };

    fn host() -> Target {
        "host:wave4".parse().unwrap()
    }

    #[test]
    fn rendering_is_a_function_of_the_value() {
        let spec = KernelSpec::new(&UNIT).with("TOP_K", 8).with("ELEMENT", "bf16").with("WEIGHTED", true);
        let same = KernelSpec::new(&UNIT)
            .with("WEIGHTED", true)
            .with("ELEMENT", "f32")
            .with("ELEMENT", "bf16")
            .with("TOP_K", 8u32);
        let rendered = spec.render(&host(), None).unwrap();
        assert_eq!(rendered, same.render(&host(), None).unwrap());
        assert_eq!(
            rendered.text.replace(OFFSET_OF, ""),
            "// scale<ELEMENT=bf16, TOP_K=8, WEIGHTED=1> for host:wave4: rendered from scale.hip; edit that.\n\
             #define ANABRANCH_TARGET_HOST 1\n#define ANABRANCH_WAVE_SIZE 4\n#define ANABRANCH_ARCH_HOST 1\n\
             #define ELEMENT bf16\n#define TOP_K 8\n#define WEIGHTED 1\n\
             struct ScaleArgs { int x; };\n#line 1 \"scale.hip\"\n#include \"a.h\"\nvoid scale() {}\n"
        );
        assert_eq!(rendered.headers.keys().collect::<Vec<_>>(), ["a.h", "b.h"]);
    }

    #[test]
    fn the_layouts_header_is_generated() {
        static WITH_LAYOUTS: KernelUnit = KernelUnit { source: "#include \"anabranch/layouts.h\"\n", ..UNIT };
        let rendered = KernelSpec::new(&WITH_LAYOUTS).render(&"gfx942".parse().unwrap(), None).unwrap();
        assert!(rendered.headers[LAYOUTS_HEADER].contains("struct ScaleArgs { int x; };"));
        assert!(rendered.headers[LAYOUTS_HEADER].contains("struct WaitControl {"));
        assert!(!rendered.text.contains("ScaleArgs"));
        assert!(rendered.text.contains("#define ANABRANCH_AMD_GFX9 1\n"));
    }

    #[test]
    fn numbers_keep_their_value_in_c() {
        for (value, text) in [
            (ParameterValue::from(-1), "(-1)"),
            (ParameterValue::from(1i64 << 40), "1099511627776LL"),
            (ParameterValue::from(i64::MIN), "(-9223372036854775807LL - 1)"),
            (ParameterValue::from(false), "0"),
        ] {
            assert_eq!(value.to_string(), text);
        }
    }

    #[test]
    fn malformed_specs_are_refused() {
        static FOREIGN: KernelUnit = KernelUnit { source: "\n#include <vector>\n", ..UNIT };
        static UNKNOWN: KernelUnit = KernelUnit { source: "#include \"c.h\"\n", ..UNIT };
        for spec in [
            KernelSpec::new(&UNIT).with("ELEMENT", "bf16; evil"),
            KernelSpec::new(&UNIT).with("ELEMENT", ""),
            KernelSpec::new(&UNIT).with("TOP K", 8),
            KernelSpec::new(&UNIT).with("ANABRANCH_WAVE_SIZE", 8),
        ] {
            assert!(matches!(spec.render(&host(), None), Err(Error::Parameter { unit: "scale", .. })));
        }
        let error = KernelSpec::new(&FOREIGN).render(&host(), None).unwrap_err();
        assert!(matches!(&error, Error::Include { line: 2, include, .. } if include == "vector"), "{error}");
        assert!(KernelSpec::new(&UNKNOWN).render(&host(), None).is_err());
    }

    #[test]
    fn edits_change_the_files_that_a_unit_reaches() {
        let edit = |file: &str, line: &str, replace: &str| SourceEdit {
            file: file.to_owned(),
            line: line.to_owned(),
            replace: replace.to_owned(),
        };
        let right = KernelSpec::new(&UNIT).render(&host(), None).unwrap();
        let changes =
            [edit("b.h", "int b();", "int c();"), edit("scale.hip", "void scale() {}", "// edited")];
        let edited = KernelSpec::new(&UNIT).edited(&changes).render(&host(), None).unwrap();
        assert_eq!(edited.headers["b.h"], right.headers["b.h"].replace("b();", "c();"));
        assert!(edited.text.ends_with("// edited\n") && edited.label == "scale (edited)", "{}", edited.text);
        // What a unit does not reach leaves its text, and so its key, as it is.
        let elsewhere = KernelSpec::new(&UNIT).edited(&[edit("unused.h", "#error", "")]);
        assert_eq!(elsewhere.render(&host(), None).unwrap(), right);
        for file in ["a.h", "misspelt.h", "anabranch/gird.h", LAYOUTS_HEADER, "scale"] {
            let wrong = KernelSpec::new(&UNIT).edited(&[edit(file, "int a();", "")]).render(&host(), None);
            assert!(matches!(&wrong, Err(Error::Edit { file: named, .. }) if named == file), "{wrong:?}");
        }
    }

    #[test]
    fn a_source_folder_replaces_embedded_text() {
        // A unit whose name begins with its crate's.
        static OF_CRATE: KernelUnit = KernelUnit { name: "y_z_scale", ..UNIT };
        static WITH_HEADER: KernelUnit = KernelUnit {
            source: "#include \"y-z/seven.h\"\n",
            headers: &[&[Header { name: "y-z/seven.h", text: "int six();" }]],
            name: "other",
            ..UNIT
        };
        let root = crate::scratch::folder("source-dir");
        std::fs::create_dir_all(root.join("crates/x/kernels")).unwrap();
        std::fs::write(root.join("crates/x/kernels/scale.hip"), "#include \"b.h\"\n// edited\n").unwrap();
        let rendered = KernelSpec::new(&UNIT).render(&host(), Some(&root)).unwrap();
        assert!(rendered.text.contains("// edited") && rendered.headers["b.h"].contains("int b"));
        std::fs::create_dir_all(root.join("crates/y-z/kernels")).unwrap();
        std::fs::write(root.join("crates/y-z/kernels/scale.hip"), "// of y-z\n").unwrap();
        let rendered = KernelSpec::new(&OF_CRATE).render(&host(), Some(&root)).unwrap();
        assert!(rendered.text.contains("// of y-z"), "{}", rendered.text);
        // A header beside the kernels of the crate that its name begins with, and none of another crate.
        for (name, words) in [("y-z", "int seven();"), ("x", "int eight();")] {
            std::fs::write(root.join("crates").join(name).join("kernels/seven.h"), words).unwrap();
        }
        let rendered = KernelSpec::new(&WITH_HEADER).render(&host(), Some(&root)).unwrap();
        assert_eq!(rendered.headers["y-z/seven.h"], "int seven();");
        let missing = root.join("absent");
        let refused = KernelSpec::new(&UNIT).render(&host(), Some(&missing));
        assert!(matches!(refused, Err(Error::SourceDir { .. })));
        std::fs::remove_dir_all(root).unwrap();
    }
}
