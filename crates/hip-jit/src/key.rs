//! The cache key. This file computes it; nothing else may.
//!
//! sha256 over tagged, length-prefixed fields in a fixed order. In the key is everything that the code object
//! depends on; the cache's path, verbosity, deadlines, rank, device index, process and time are not.

use std::collections::BTreeMap;
use std::fmt;

use sha2::{Digest, Sha256};

use crate::compiler::CompilerIdentity;
use crate::source::{ParameterValue, Rendered};
use crate::target::Target;

/// Version of the key, of the entry layout and of the kernel argument convention. An entry of another version
/// is in another folder and is never read.
pub(crate) const SCHEMA: u32 = 1;

/// The name of a code object: what it was made from.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct CacheKey([u8; 32]);

impl fmt::Display for CacheKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl std::str::FromStr for CacheKey {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("`{text}` is no key: 64 hexadecimal digits");
        if text.len() != 64 || !text.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            return Err(wrong());
        }
        let mut bytes = [0; 32];
        for (byte, digits) in bytes.iter_mut().zip(text.as_bytes().chunks(2)) {
            let digits = std::str::from_utf8(digits).map_err(|_| wrong())?;
            *byte = u8::from_str_radix(digits, 16).map_err(|_| wrong())?;
        }
        Ok(Self(bytes))
    }
}

impl fmt::Debug for CacheKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CacheKey({self})")
    }
}

/// All that a key is computed from.
#[derive(Clone, Copy, Debug)]
pub(crate) struct KeyInputs<'a> {
    /// The rendered text, with its headers and parameters.
    pub rendered: &'a Rendered,
    /// The target with its features.
    pub target: &'a Target,
    /// Options that the tool chain adds, in order.
    pub options: &'a [String],
    /// Options that the user adds, in order.
    pub extra_options: &'a [String],
    /// Whether debug information is made.
    pub debug_info: bool,
    /// The AMD code-object version, when chosen.
    pub code_object_version: Option<u32>,
    /// The compiler; its location is not in the key, so that caches can be shipped.
    pub compiler: &'a CompilerIdentity,
}

impl KeyInputs<'_> {
    /// The key of the object that this compiler makes.
    pub(crate) fn key(&self) -> CacheKey {
        let mut fields = self.portable_fields();
        fields.list("options", self.options);
        fields.text("compiler kind", self.compiler.kind);
        fields.text("compiler version", &self.compiler.version);
        fields.finish()
    }

    /// The key without the compiler and its own options: what an operator's prebuilt folder is searched by.
    pub(crate) fn portable_key(&self) -> CacheKey {
        let mut fields = self.portable_fields();
        fields.text("portable", "");
        fields.finish()
    }

    fn portable_fields(&self) -> Fields {
        let mut fields = Fields(Sha256::new());
        fields.number("schema", u64::from(SCHEMA));
        fields.text("unit", self.rendered.unit);
        fields.text("text", &self.rendered.text);
        fields.number("headers", self.rendered.headers.len() as u64);
        for (name, text) in &self.rendered.headers {
            fields.text("header name", name);
            fields.text("header text", text);
        }
        fields.list("entries", &self.rendered.entries);
        fields.number("parameters", self.rendered.parameters.len() as u64);
        for (name, value) in &self.rendered.parameters {
            fields.text("parameter name", name);
            match value {
                ParameterValue::Bool(value) => fields.number("bool", u64::from(*value)),
                ParameterValue::Int(value) => fields.number("int", *value as u64),
                ParameterValue::Name(value) => fields.text("name", value),
            }
        }
        fields.text("target", &self.target.to_string());
        fields.number("wave size", u64::from(self.target.wave_size()));
        fields.list("extra options", self.extra_options);
        fields.number("debug info", u64::from(self.debug_info));
        fields.number("code object version", self.code_object_version.map_or(0, u64::from));
        fields
    }

    /// The inputs by name, long texts as their digests: what the manifest keeps, so that two entries can be
    /// compared.
    pub(crate) fn describe(&self) -> BTreeMap<String, String> {
        let mut inputs = BTreeMap::new();
        let mut put = |name: &str, value: String| inputs.insert(name.to_owned(), value);
        put("schema", SCHEMA.to_string());
        put("text", digest(self.rendered.text.as_bytes()));
        for (name, text) in &self.rendered.headers {
            put(&format!("header {name}"), digest(text.as_bytes()));
        }
        for (name, value) in &self.rendered.parameters {
            put(&format!("parameter {name}"), value.to_string());
        }
        put("target", self.target.to_string());
        put("wave size", self.target.wave_size().to_string());
        put("options", self.options.join(" "));
        put("extra options", self.extra_options.join(" "));
        put("debug info", self.debug_info.to_string());
        put("code object version", self.code_object_version.map_or("default".to_owned(), |v| v.to_string()));
        put("compiler", format!("{}: {}", self.compiler.kind, self.compiler.version));
        inputs
    }
}

/// The lower-case hexadecimal sha256 of some bytes.
pub(crate) fn digest(bytes: &[u8]) -> String {
    CacheKey(Sha256::digest(bytes).into()).to_string()
}

struct Fields(Sha256);

impl Fields {
    fn bytes(&mut self, tag: &str, value: &[u8]) {
        for part in [tag.as_bytes(), value] {
            self.0.update((part.len() as u64).to_le_bytes());
            self.0.update(part);
        }
    }

    fn text(&mut self, tag: &str, value: &str) {
        self.bytes(tag, value.as_bytes());
    }

    fn number(&mut self, tag: &str, value: u64) {
        self.bytes(tag, &value.to_le_bytes());
    }

    fn list(&mut self, tag: &str, values: &[String]) {
        self.number(tag, values.len() as u64);
        for value in values {
            self.text(tag, value);
        }
    }

    fn finish(self) -> CacheKey {
        CacheKey(self.0.finalize().into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Clone)]
    struct Owned {
        rendered: Rendered,
        target: Target,
        options: Vec<String>,
        extra_options: Vec<String>,
        debug_info: bool,
        code_object_version: Option<u32>,
        compiler: CompilerIdentity,
    }

    impl Owned {
        fn example() -> Self {
            Self {
                rendered: Rendered {
                    unit: "scale",
                    label: "scale".into(),
                    file: "scale.hip".into(),
                    text: "void scale();\n".into(),
                    headers: [
                        ("a.h".to_owned(), "int a;".to_owned()),
                        ("b.h".to_owned(), "int b;".to_owned()),
                    ]
                    .into(),
                    entries: vec!["anabranch_scale".into()],
                    parameters: [("K".to_owned(), ParameterValue::Int(1))].into(),
                },
                target: "gfx942:sramecc+:xnack-".parse().unwrap(),
                options: vec!["-O3".into(), "-std=c++17".into()],
                extra_options: vec![],
                debug_info: false,
                code_object_version: None,
                compiler: CompilerIdentity {
                    kind: "clang",
                    version: "clang 22.1.8\nx".into(),
                    location: "/a".into(),
                },
            }
        }

        fn inputs(&self) -> KeyInputs<'_> {
            KeyInputs {
                rendered: &self.rendered,
                target: &self.target,
                options: &self.options,
                extra_options: &self.extra_options,
                debug_info: self.debug_info,
                code_object_version: self.code_object_version,
                compiler: &self.compiler,
            }
        }
    }

    #[test]
    fn every_input_changes_the_key() {
        // (name, whether the portable key must change too, change)
        type Change = (&'static str, bool, fn(&mut Owned));
        let changes: &[Change] = &[
            ("text", true, |o| o.rendered.text.push(' ')),
            ("unit", true, |o| o.rendered.unit = "other"),
            ("header text", true, |o| o.rendered.headers.get_mut("a.h").unwrap().push(' ')),
            ("header name", true, |o| {
                let text = o.rendered.headers.remove("a.h").unwrap();
                o.rendered.headers.insert("aa.h".into(), text);
            }),
            ("header swap", true, |o| {
                o.rendered.headers =
                    [("a.h".to_owned(), "int b;".to_owned()), ("b.h".to_owned(), "int a;".to_owned())].into();
            }),
            ("header gone", true, |o| drop(o.rendered.headers.remove("b.h"))),
            ("entries", true, |o| o.rendered.entries.push("second".into())),
            ("parameter value", true, |o| {
                drop(o.rendered.parameters.insert("K".into(), ParameterValue::Int(2)));
            }),
            ("parameter type", true, |o| {
                drop(o.rendered.parameters.insert("K".into(), ParameterValue::Bool(true)));
            }),
            ("parameter word", true, |o| drop(o.rendered.parameters.insert("K".into(), "one".into()))),
            ("parameter name", true, |o| {
                o.rendered.parameters = [("L".to_owned(), ParameterValue::Int(1))].into();
            }),
            ("base", true, |o| o.target = "gfx950:sramecc+:xnack-".parse().unwrap()),
            ("feature", true, |o| o.target = "gfx942:sramecc+:xnack+".parse().unwrap()),
            ("feature gone", true, |o| o.target = "gfx942".parse().unwrap()),
            ("option", false, |o| o.options[0] = "-O2".into()),
            ("option order", false, |o| o.options.swap(0, 1)),
            ("options joined", false, |o| o.options = vec!["-O3-std=c++17".into()]),
            ("extra option", true, |o| o.extra_options.push("-DX".into())),
            ("option moved", true, |o| {
                let last = o.options.pop().unwrap();
                o.extra_options.push(last);
            }),
            ("debug", true, |o| o.debug_info = true),
            ("code object", true, |o| o.code_object_version = Some(5)),
            ("compiler kind", false, |o| o.compiler.kind = "hipcc"),
            ("compiler version, second line", false, |o| o.compiler.version = "clang 22.1.8\ny".into()),
        ];
        let base = Owned::example();
        let mut seen = vec![("base", base.inputs().key())];
        for (name, portable, change) in changes {
            let mut changed = base.clone();
            change(&mut changed);
            let key = changed.inputs().key();
            if let Some((other, _)) = seen.iter().find(|(_, seen)| *seen == key) {
                panic!("{name} has the key of {other}");
            }
            seen.push((name, key));
            assert_eq!(changed.inputs().portable_key() != base.inputs().portable_key(), *portable, "{name}");
            let differs = changed.inputs().describe() != base.inputs().describe();
            let named_elsewhere = ["unit", "entries", "parameter type"].contains(name);
            assert!(differs || named_elsewhere, "{name} is not described");
        }
    }

    #[test]
    fn wave_width_changes_the_key() {
        let mut narrow = Owned::example();
        narrow.target = "host:wave1".parse().unwrap();
        let mut wide = narrow.clone();
        wide.target = "host:wave64".parse().unwrap();
        assert_ne!(narrow.inputs().key(), wide.inputs().key());
    }

    #[test]
    fn what_is_not_an_input_does_not_change_the_key() {
        let base = Owned::example();
        let mut moved = base.clone();
        moved.compiler.location = "/somewhere/else".into();
        moved.rendered.label = "another label".into();
        assert_eq!(base.inputs().key(), moved.inputs().key());
    }

    #[test]
    fn keys_are_the_same_on_every_machine() {
        let first = Owned::example();
        let mut second = first.clone();
        second.target = "sm_90".parse().unwrap();
        let mut third = first.clone();
        third.target = "host".parse().unwrap();
        third.rendered.parameters.clear();
        let keys: Vec<_> =
            [first, second, third].iter().map(|owned| owned.inputs().key().to_string()).collect();
        assert_eq!(keys, GOLDEN);
    }

    // A change here makes every shipped cache useless: raise SCHEMA with it.
    const GOLDEN: [&str; 3] = [
        "b70a95b23918ed75469c3d8cf169845949ea608dda3b20542fcb76ab57595760",
        "b8a03aaff06a685ba4e5032f93d35062ab86f8121c5f9ec88dc03130fb3d6f44",
        "44948e883497edd484ea42667c987348abccba274fa8febf4089acb3bc5f782b",
    ];
}
