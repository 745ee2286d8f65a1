//! Compiled kernels have no memory of their own that outlives a launch: several devices and worlds share a process. For AMD, whose objects
//! keep constants where nothing is written; NVIDIA's keep both in one place.

use std::collections::BTreeSet;
use std::path::Path;

use anabranch_hip_jit::{CodeObject, Error, Jit, JitConfig, KernelSpec, KernelUnit, PRELUDE, ToolSearch};

/// A kernel that counts its launches in variables of the device.
static WITH_GLOBALS: KernelUnit = KernelUnit {
    name: "with_globals",
    source: "#include \"anabranch/prelude.h\"\n\
             struct Args { u64* out; };\n\
             extern \"C\" { __attribute__((device)) int counter = 3; __attribute__((device)) int cleared; }\n\
             ANABRANCH_KERNEL(with_globals, Args, 64) { args.out[grid.thread] = ++counter + ++cleared; }\n",
    headers: &[PRELUDE],
    entries: &["with_globals"],
    layouts: &[],
};

fn jit() -> Jit {
    #[expect(clippy::disallowed_methods, reason = "a test finds compilers as a user's shell does")]
    let path = std::env::var_os("PATH").unwrap_or_default();
    let path = std::env::split_paths(&path).collect();
    let cache = Path::new(env!("CARGO_TARGET_TMPDIR")).join("kernels");
    Jit::new(JitConfig::new(cache), ToolSearch { path, ..ToolSearch::default() })
}

/// A number of an ELF file.
fn number(bytes: &[u8], at: u64, length: usize) -> u64 {
    bytes[at as usize..][..length].iter().rev().fold(0, |value, byte| (value << 8) | u64::from(*byte))
}

/// The text that starts somewhere and ends with a zero.
fn word(bytes: &[u8], at: u64) -> String {
    let text = bytes[at as usize..].split(|byte| *byte == 0).next().unwrap_or_default();
    String::from_utf8_lossy(text).into_owned()
}

/// The variables of a 64-bit ELF file: objects in sections that are writable. The byte by which HIP's compilers tell
/// the units of a program apart is none.
fn variables(object: &[u8]) -> BTreeSet<String> {
    const WRITE_AND_ALLOCATE: u64 = 3;
    const SYMBOLS: [u64; 2] = [2, 11];
    const OBJECT: u64 = 1;
    let (table, count) = (number(object, 40, 8), number(object, 60, 2));
    let header = |index: u64| table + index * 64;
    let start = |index: u64| number(object, header(index) + 24, 8);
    let holds_variables =
        |index: u64| number(object, header(index) + 8, 8) & WRITE_AND_ALLOCATE == WRITE_AND_ALLOCATE;
    let mut found = BTreeSet::new();
    for section in (0..count).filter(|index| SYMBOLS.contains(&number(object, header(*index) + 4, 4))) {
        let texts = start(number(object, header(section) + 40, 4));
        for symbol in
            (0..number(object, header(section) + 32, 8) / 24).map(|index| start(section) + index * 24)
        {
            let (kind, place) = (number(object, symbol + 4, 1) & 15, number(object, symbol + 6, 2));
            let name = word(object, texts + number(object, symbol, 4));
            if kind == OBJECT && place < count && holds_variables(place) && !name.starts_with("__hip_cuid_") {
                found.insert(name);
            }
        }
    }
    found
}

fn compiled(jit: &Jit, spec: &KernelSpec) -> Option<CodeObject> {
    match jit.compile(spec, &"gfx942".parse().unwrap()) {
        Ok(object) => Some(object),
        Err(error @ Error::NoCompiler { .. }) => {
            println!("skipped: {error}");
            None
        }
        Err(error) => panic!("{}: {error}", spec.label()),
    }
}

#[test]
fn objects_of_all_units_have_no_variables() {
    let jit = jit();
    let Some(bad) = compiled(&jit, &KernelSpec::new(&WITH_GLOBALS)) else { return };
    assert_eq!(variables(&bad.bytes), BTreeSet::from(["cleared", "counter"].map(str::to_owned)));
    // One variant of each unit: variants differ in types and numbers, and variables are the unit's.
    let mut seen = BTreeSet::new();
    for spec in anabranch::kernel_registry().iter().filter(|spec| seen.insert(spec.unit().name)) {
        let Some(object) = compiled(&jit, spec) else { panic!("there was a compiler") };
        assert_eq!(variables(&object.bytes), BTreeSet::new(), "{}", spec.label());
    }
    assert!(seen.len() > 15, "{seen:?}");
}
