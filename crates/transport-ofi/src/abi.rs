//! The declarations against the system's headers: a C++ program prints what they say.

use std::fmt::Write as _;
use std::process::Command;

use super::bindings::{CONSTANTS, LAYOUTS};
use super::library::FUNCTIONS;

const HEADERS: [&str; 8] =
    ["fabric", "fi_domain", "fi_endpoint", "fi_eq", "fi_cm", "fi_rma", "fi_atomic", "fi_errno"];

/// A line for each size, offset and constant as the Rust side has them.
fn ours() -> Vec<(String, i64)> {
    let mut lines = Vec::new();
    for layout in LAYOUTS {
        if let Some(bytes) = layout.bytes {
            lines.push((format!("sizeof(struct {})", layout.name), bytes as i64));
        }
        for (field, offset) in layout.fields {
            lines.push((format!("offsetof(struct {}, {field})", layout.name), *offset as i64));
        }
    }
    lines.extend(CONSTANTS.iter().map(|(name, value)| ((*name).to_owned(), *value)));
    lines
}

/// A program that prints the value of each expression, and that compiles only if the functions have the types of our table.
fn program(expressions: &[(String, i64)]) -> String {
    let mut text = String::from("#include <cstddef>\n#include <cstdio>\n#include <type_traits>\n");
    for header in HEADERS {
        writeln!(text, "#include <rdma/{header}.h>").unwrap();
    }
    for (name, c_type) in FUNCTIONS {
        writeln!(text, "static_assert(std::is_same<decltype(&::{name}), {c_type}>::value, \"{name}\");")
            .unwrap();
    }
    text.push_str("int main() {\n");
    for (expression, _) in expressions {
        writeln!(text, "    std::printf(\"%lld\\n\", static_cast<long long>({expression}));").unwrap();
    }
    text.push_str("}\n");
    text
}

#[test]
fn types_constants_and_signatures_are_those_of_the_system_headers() {
    let expressions = ours();
    let folder = std::env::temp_dir().join(format!("anabranch-fabric-abi-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let (source, binary) = (folder.join("abi.cpp"), folder.join("abi"));
    std::fs::write(&source, program(&expressions)).unwrap();
    let compiled =
        Command::new("c++").args(["-std=c++17", "-o"]).arg(&binary).arg(&source).output().expect("c++ runs");
    let said = String::from_utf8_lossy(&compiled.stderr);
    assert!(compiled.status.success(), "the headers are Debian's libfabric-dev: {said}");
    let printed = Command::new(&binary).output().unwrap();
    std::fs::remove_dir_all(&folder).unwrap();
    let theirs: Vec<i64> =
        String::from_utf8(printed.stdout).unwrap().lines().map(|line| line.parse().unwrap()).collect();
    assert_eq!(theirs.len(), expressions.len());
    let differing: Vec<_> =
        expressions.iter().zip(&theirs).filter(|((_, ours), theirs)| ours != *theirs).collect();
    assert!(differing.is_empty(), "ours, theirs: {differing:#?}");
}
