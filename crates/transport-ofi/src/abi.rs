//! The declarations against the system's headers: a C++ program prints what they say.

use std::fmt::Write as _;
use std::path::Path;
use std::process::Command;

use super::bindings::{CONSTANTS, LAYOUTS};
use super::library::FUNCTIONS;

const HEADERS: [&str; 8] =
    ["fabric", "fi_domain", "fi_endpoint", "fi_eq", "fi_cm", "fi_rma", "fi_atomic", "fi_errno"];

/// The functions behind objects that are called: where the header has them, and their types there as `bindings.rs` has them. An `fi_addr_t`
/// is 64 bits, and enumerations are passed as numbers of 32.
const OPERATIONS: &[(&str, &str)] = &[
    ("fi_ops::close", "int (*)(fid *)"),
    ("fi_ops::bind", "int (*)(fid *, fid *, uint64_t)"),
    ("fi_ops::control", "int (*)(fid *, int, void *)"),
    ("fi_ops_fabric::domain", "int (*)(fid_fabric *, fi_info *, fid_domain **, void *)"),
    ("fi_ops_domain::av_open", "int (*)(fid_domain *, fi_av_attr *, fid_av **, void *)"),
    ("fi_ops_domain::cq_open", "int (*)(fid_domain *, fi_cq_attr *, fid_cq **, void *)"),
    ("fi_ops_domain::endpoint", "int (*)(fid_domain *, fi_info *, fid_ep **, void *)"),
    (
        "fi_ops_mr::reg",
        "int (*)(fid *, const void *, size_t, uint64_t, uint64_t, uint64_t, uint64_t, fid_mr **, void *)",
    ),
    ("fi_ops_av::insert", "int (*)(fid_av *, const void *, size_t, uint64_t *, uint64_t, void *)"),
    ("fi_ops_cq::read", "ssize_t (*)(fid_cq *, void *, size_t)"),
    ("fi_ops_cq::readerr", "ssize_t (*)(fid_cq *, fi_cq_err_entry *, uint64_t)"),
    ("fi_ops_cq::strerror", "const char *(*)(fid_cq *, int, const void *, char *, size_t)"),
    ("fi_ops_cm::getname", "int (*)(fid *, void *, size_t *)"),
    (
        "fi_ops_rma::read",
        "ssize_t (*)(fid_ep *, void *, size_t, void *, uint64_t, uint64_t, uint64_t, void *)",
    ),
    (
        "fi_ops_rma::write",
        "ssize_t (*)(fid_ep *, const void *, size_t, void *, uint64_t, uint64_t, uint64_t, void *)",
    ),
    (
        "fi_ops_atomic::write",
        "ssize_t (*)(fid_ep *, const void *, size_t, void *, uint64_t, uint64_t, uint64_t, fi_datatype, fi_op, void *)",
    ),
    (
        "fi_ops_atomic::readwrite",
        "ssize_t (*)(fid_ep *, const void *, size_t, void *, void *, void *, uint64_t, uint64_t, uint64_t, fi_datatype, fi_op, void *)",
    ),
    (
        "fi_ops_atomic::compwrite",
        "ssize_t (*)(fid_ep *, const void *, size_t, void *, const void *, void *, void *, void *, uint64_t, uint64_t, uint64_t, fi_datatype, fi_op, void *)",
    ),
    ("fi_ops_atomic::writevalid", "int (*)(fid_ep *, fi_datatype, fi_op, size_t *)"),
    ("fi_ops_atomic::readwritevalid", "int (*)(fid_ep *, fi_datatype, fi_op, size_t *)"),
    ("fi_ops_atomic::compwritevalid", "int (*)(fid_ep *, fi_datatype, fi_op, size_t *)"),
];

/// A line for each size, offset and constant as the Rust side has them.
fn ours() -> Vec<(String, i64)> {
    let mut lines = Vec::new();
    // Of a type that is read only as far as it is declared, later headers may have more: nothing is said of its size.
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
    text.push_str("static_assert(sizeof(fi_datatype) == 4 && sizeof(fi_op) == 4, \"numbers of 32 bits\");\n");
    for (name, c_type) in OPERATIONS {
        writeln!(text, "static_assert(std::is_same<decltype({name}), {c_type}>::value, \"{name}\");")
            .unwrap();
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
    const HEADER: &str = "/usr/include/rdma/fabric.h";
    if !Path::new(HEADER).exists() {
        println!("skipped: {HEADER} is not here (Debian's libfabric-dev)");
        return;
    }
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
