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
pub(crate) const SCHEMA: u32 = 2;

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

/// What a key is computed from besides the compiler.
#[derive(Clone, Copy, Debug)]
pub(crate) struct KeyInputs<'a> {
    /// The rendered text, with its headers and parameters.
    pub rendered: &'a Rendered,
    /// The target with its features.
    pub target: &'a Target,
    /// Options that the user adds, in order.
    pub extra_options: &'a [String],
    /// Whether debug information is made.
    pub debug_info: bool,
    /// The AMD code-object version, when chosen.
    pub code_object_version: Option<u32>,
}

/// The compiler's part of a key.
#[derive(Clone, Copy, Debug)]
pub(crate) struct KeyCompiler<'a> {
    /// The compiler; its location is not in the key, so that caches can be shipped.
    pub identity: &'a CompilerIdentity,
    /// Options that the tool chain adds, in order.
    pub options: &'a [String],
}

/// The portable fields, hashed: both keys of a request go on from here.
pub(crate) struct PortableFields(Fields);

impl PortableFields {
    /// The key of the object that this compiler makes.
    pub(crate) fn key(&self, compiler: KeyCompiler<'_>) -> CacheKey {
        let mut fields = self.0.clone();
        fields.list("options", compiler.options);
        fields.text("compiler kind", compiler.identity.kind);
        fields.text("compiler version", &compiler.identity.version);
        fields.finish()
    }

    /// The key without the compiler and its own options: what an operator's prebuilt folder is searched by.
    pub(crate) fn portable_key(self) -> CacheKey {
        let mut fields = self.0;
        fields.text("portable", "");
        fields.finish()
    }
}

impl KeyInputs<'_> {
    pub(crate) fn portable_fields(&self) -> PortableFields {
        let mut fields = Fields(Sha256::new());
        fields.number("schema", u64::from(SCHEMA));
        fields.text("unit", self.rendered.unit);
        fields.text("text", &self.rendered.text);
        fields.bytes("headers", self.rendered.headers.digest());
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
        PortableFields(fields)
    }

    /// The inputs by name, long texts as their digests: what the manifest keeps, so that two entries can be
    /// compared.
    pub(crate) fn describe(&self, compiler: Option<KeyCompiler<'_>>) -> BTreeMap<String, String> {
        let mut inputs = BTreeMap::new();
        let mut put = |name: &str, value: String| inputs.insert(name.to_owned(), value);
        put("schema", SCHEMA.to_string());
        put("text", digest(self.rendered.text.as_bytes()));
        for (name, text) in self.rendered.headers.iter() {
            put(&format!("header {name}"), digest(text.as_bytes()));
        }
        for (name, value) in &self.rendered.parameters {
            put(&format!("parameter {name}"), value.to_string());
        }
        put("target", self.target.to_string());
        put("wave size", self.target.wave_size().to_string());
        put("extra options", self.extra_options.join(" "));
        put("debug info", self.debug_info.to_string());
        put("code object version", self.code_object_version.map_or("default".to_owned(), |v| v.to_string()));
        if let Some(compiler) = compiler {
            put("options", compiler.options.join(" "));
            put("compiler", format!("{}: {}", compiler.identity.kind, compiler.identity.version));
        }
        inputs
    }
}

/// The lower-case hexadecimal sha256 of some bytes.
pub(crate) fn digest(bytes: &[u8]) -> String {
    CacheKey(Sha256::digest(bytes).into()).to_string()
}

/// The digest of texts by name.
pub(crate) fn digest_of_texts(texts: &BTreeMap<String, String>) -> [u8; 32] {
    let mut fields = Fields(Sha256::new());
    for (name, text) in texts {
        fields.text("header name", name);
        fields.text("header text", text);
    }
    fields.finish().0
}

#[derive(Clone)]
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
    use std::sync::Arc;

    use super::*;
    use crate::source::Headers;

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
                    headers: headers(&[("a.h", "int a;"), ("b.h", "int b;")]),
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
                extra_options: &self.extra_options,
                debug_info: self.debug_info,
                code_object_version: self.code_object_version,
            }
        }

        fn compiler(&self) -> KeyCompiler<'_> {
            KeyCompiler { identity: &self.compiler, options: &self.options }
        }

        fn key(&self) -> CacheKey {
            self.inputs().portable_fields().key(self.compiler())
        }

        fn portable_key(&self) -> CacheKey {
            self.inputs().portable_fields().portable_key()
        }

        fn described(&self) -> BTreeMap<String, String> {
            self.inputs().describe(Some(self.compiler()))
        }
    }

    fn headers(texts: &[(&str, &str)]) -> Arc<Headers> {
        let texts = texts.iter().map(|(name, text)| ((*name).to_owned(), (*text).to_owned()));
        Arc::new(Headers::new(texts.collect()))
    }

    #[test]
    fn every_input_changes_the_key() {
        // (name, whether the portable key must change too, change)
        type Change = (&'static str, bool, fn(&mut Owned));
        let changes: &[Change] = &[
            ("text", true, |o| o.rendered.text.push(' ')),
            ("unit", true, |o| o.rendered.unit = "other"),
            ("header text", true, |o| o.rendered.headers = headers(&[("a.h", "int a; "), ("b.h", "int b;")])),
            ("header name", true, |o| o.rendered.headers = headers(&[("aa.h", "int a;"), ("b.h", "int b;")])),
            ("header swap", true, |o| o.rendered.headers = headers(&[("a.h", "int b;"), ("b.h", "int a;")])),
            ("header gone", true, |o| o.rendered.headers = headers(&[("a.h", "int a;")])),
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
        let mut seen = vec![("base", base.key())];
        for (name, portable, change) in changes {
            let mut changed = base.clone();
            change(&mut changed);
            let key = changed.key();
            if let Some((other, _)) = seen.iter().find(|(_, seen)| *seen == key) {
                panic!("{name} has the key of {other}");
            }
            seen.push((name, key));
            assert_eq!(changed.portable_key() != base.portable_key(), *portable, "{name}");
            let differs = changed.described() != base.described();
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
        assert_ne!(narrow.key(), wide.key());
    }

    #[test]
    fn what_is_not_an_input_does_not_change_the_key() {
        let base = Owned::example();
        let mut moved = base.clone();
        moved.compiler.location = "/somewhere/else".into();
        moved.rendered.label = "another label".into();
        assert_eq!(base.key(), moved.key());
    }

    #[test]
    fn keys_are_the_same_on_every_machine() {
        let first = Owned::example();
        let mut second = first.clone();
        second.target = "sm_90".parse().unwrap();
        let mut third = first.clone();
        third.target = "host".parse().unwrap();
        third.rendered.parameters.clear();
        let keys: Vec<_> = [first, second, third].iter().map(|owned| owned.key().to_string()).collect();
        assert_eq!(keys, GOLDEN);
    }

    // A change here makes every shipped cache useless: raise SCHEMA with it.
    const GOLDEN: [&str; 3] = [
        "00b72d5b89e75131231e9c3f8952ec5c0afb8484cffe6ceb97d516db02776690",
        "4c63e9e82b3d410a789b2f4444760690a8d6bde2fbbd3dbcb219008a06206ccd",
        "c4f5037ce66ccb205f4cf4464646d87277de8516237c906fc25388c08d096b0f",
    ];
}
