//! What the command is linked from: no vendor's library, no device code, no constructor that registers any, and nothing that glibc keeps to
//! itself.

use std::path::Path;
use std::process::Command;

use object::elf::{DT_NEEDED, FileHeader64};
use object::read::elf::{Dyn, ElfFile};
use object::{Endianness, Object, ObjectSection, ObjectSymbol};

/// Libraries of the system that a Rust program needs; nothing else is needed before it runs.
const NEEDED: [&str; 8] = [
    "libc.so.",
    "libm.so.",
    "libgcc_s.so.",
    "ld-linux",
    "libdl.so.",
    "libpthread.so.",
    "librt.so.",
    "linux-vdso.so.",
];
/// Beginnings of names that belong to vendors' libraries.
const VENDORS: [&str; 11] =
    ["hip", "__hip", "hsa_", "cuda", "__cuda", "cu", "nvrtc", "nccl", "rccl", "ibv_", "mlx5dv_"];
/// Sections in which compilers keep device code for the host's loader.
const DEVICE_CODE: [&str; 6] = [
    ".hip_fatbin",
    ".hipFatBinSegment",
    ".nv_fatbin",
    ".nvFatBinSegment",
    "__CLANG_OFFLOAD_BUNDLE__",
    ".llvm.offloading",
];

type Elf<'a> = ElfFile<'a, FileHeader64<Endianness>>;

fn needed(elf: &Elf<'_>, bytes: &[u8]) -> Vec<String> {
    let (endian, sections) = (elf.endian(), elf.elf_section_table());
    let Some((entries, strings)) = sections.dynamic(endian, bytes).unwrap() else { return Vec::new() };
    let strings = sections.strings(endian, bytes, strings).unwrap();
    let libraries = entries.iter().filter(|entry| entry.tag32(endian) == Some(DT_NEEDED));
    libraries
        .map(|entry| String::from_utf8_lossy(entry.string(endian, strings).unwrap()).into_owned())
        .collect()
}

/// Whether a vendor's interface has a function of this name: `cuMemAlloc`, and not `cue`.
fn is_of_a_vendor(name: &str) -> bool {
    VENDORS.iter().filter_map(|begins| name.strip_prefix(begins)).any(|rest| {
        rest.starts_with(|first: char| first.is_ascii_uppercase())
            || name.starts_with("ibv_")
            || name.starts_with("mlx5dv_")
            || name.starts_with("hsa_")
    })
}

/// What is wrong with a program or shared object.
fn complaints(bytes: &[u8]) -> Vec<String> {
    let elf = Elf::parse(bytes).unwrap();
    let mut found = Vec::new();
    for library in needed(&elf, bytes) {
        if !NEEDED.iter().any(|known| library.starts_with(known)) {
            found.push(format!("needs {library}"));
        }
    }
    for symbol in elf.dynamic_symbols().filter(ObjectSymbol::is_undefined) {
        let name = symbol.name().unwrap();
        if name == "atexit" || is_of_a_vendor(name) {
            found.push(format!("asks the loader for {name}"));
        }
    }
    for symbol in elf.symbols() {
        let name = symbol.name().unwrap();
        if ["__hip", "__cuda"].iter().any(|begins| name.starts_with(begins))
            && name.to_lowercase().contains("register")
        {
            found.push(format!("has {name}"));
        }
    }
    for section in elf.sections() {
        let name = section.name().unwrap();
        if DEVICE_CODE.iter().any(|known| name.starts_with(known)) {
            found.push(format!("has {name}"));
        }
    }
    found
}

#[test]
fn the_command_needs_the_system_and_has_no_device_code() {
    let bytes = std::fs::read(env!("CARGO_BIN_EXE_anabranch")).unwrap();
    let libraries = needed(&Elf::parse(&*bytes).unwrap(), &bytes);
    assert!(libraries.iter().any(|library| library.starts_with("libc.so.")), "{libraries:?}");
    assert_eq!(complaints(&bytes), [""; 0]);
}

/// The first C++ compiler that is there.
fn compiler() -> &'static str {
    const KNOWN: [&str; 3] = ["c++", "g++", "clang++"];
    let runs = |name: &&str| Command::new(name).arg("--version").output().is_ok();
    let found = KNOWN.into_iter().find(runs);
    assert!(found.is_some(), "this test compiles C++, and none of {} is on the path", KNOWN.join(", "));
    found.unwrap()
}

/// A shared object from a line of C.
fn shared_object(name: &str, code: &str, flags: &[&str]) -> Vec<u8> {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let (source, object) = (folder.join(format!("{name}.cpp")), folder.join(format!("{name}.so")));
    std::fs::write(&source, code).unwrap();
    let output = Command::new(compiler())
        .args(["-shared", "-fPIC", "-nostdlib", "-o"])
        .arg(&object)
        .arg(&source)
        .args(flags)
        .output();
    let output = output.unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    std::fs::read(object).unwrap()
}

#[test]
fn forbidden_symbols_are_found() {
    let clean = shared_object("clean", "extern \"C\" int cue(int); int six() { return cue(6); }", &[]);
    assert_eq!(complaints(&clean), [""; 0]);
    for (name, code, words) in [
        (
            "vendor",
            "extern \"C\" int hipFree(void*); int f() { return hipFree(0); }",
            "asks the loader for hipFree",
        ),
        (
            "verbs",
            "extern \"C\" int ibv_fork_init(); int f() { return ibv_fork_init(); }",
            "asks the loader for ibv_fork_init",
        ),
        (
            "at-exit",
            // As a reference that the linker cannot serve from the part of libc that is linked statically.
            "extern \"C\" int hidden(void (*)()) __asm__(\"atexit\"); int f() { return hidden(0); }",
            "asks the loader for atexit",
        ),
        (
            "section",
            "__attribute__((section(\".hip_fatbin\"), used)) static const char code[] = \"x\";",
            "has .hip_fatbin",
        ),
        ("constructor", "extern \"C\" void __hipRegisterFatBinary() {} ", "has __hipRegisterFatBinary"),
    ] {
        let found = complaints(&shared_object(name, code, &[]));
        assert!(found.iter().any(|complaint| complaint == words), "{name}: {found:?}");
    }
    let dependency = Path::new(env!("CARGO_TARGET_TMPDIR")).join("libamdhip64.so");
    std::fs::write(
        &dependency,
        shared_object(
            "stand-in",
            "extern \"C\" int seven() { return 7; }",
            &["-Wl,-soname,libamdhip64.so.7"],
        ),
    )
    .unwrap();
    let linked = shared_object(
        "linked",
        "extern \"C\" int seven(); int f() { return seven(); }",
        &[dependency.to_str().unwrap()],
    );
    assert_eq!(complaints(&linked), ["needs libamdhip64.so.7"]);
}
