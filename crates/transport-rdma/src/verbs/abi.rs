//! The declarations against the system's `infiniband/verbs.h`: a C++ program prints what the header says.

use std::fmt::Write as _;
use std::path::Path;
use std::process::Command;

use super::library::FUNCTIONS;
use crate::bindings::{CONSTANTS, LAYOUTS};

const HEADER: &str = "/usr/include/infiniband/verbs.h";

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
    let mut text = String::from(
        "#include <infiniband/verbs.h>\n#include <cstddef>\n#include <cstdio>\n#include <type_traits>\n",
    );
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
fn types_constants_and_signatures_are_those_of_the_system_header() {
    if !Path::new(HEADER).exists() {
        println!("skipped: {HEADER} is not here (Debian's libibverbs-dev)");
        return;
    }
    let expressions = ours();
    let folder = std::env::temp_dir().join(format!("anabranch-verbs-abi-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let (source, binary) = (folder.join("abi.cpp"), folder.join("abi"));
    std::fs::write(&source, program(&expressions)).unwrap();
    let compiled =
        Command::new("c++").args(["-std=c++17", "-o"]).arg(&binary).arg(&source).output().expect("c++ runs");
    assert!(compiled.status.success(), "{}", String::from_utf8_lossy(&compiled.stderr));
    let printed = Command::new(&binary).output().unwrap();
    std::fs::remove_dir_all(&folder).unwrap();
    let theirs: Vec<i64> =
        String::from_utf8(printed.stdout).unwrap().lines().map(|line| line.parse().unwrap()).collect();
    assert_eq!(theirs.len(), expressions.len());
    let differing: Vec<_> =
        expressions.iter().zip(&theirs).filter(|((_, ours), theirs)| ours != *theirs).collect();
    assert!(differing.is_empty(), "ours, theirs: {differing:#?}");
}
