//! The header is what the sources give.

use std::fs;
use std::mem::offset_of;
use std::process::Command;

use anabranch_capi::collectives::anabranch_gathered;
use anabranch_capi::communicator::anabranch_comm_options;
use anabranch_capi::config::anabranch_config_options;
use anabranch_capi::ep::{anabranch_ep_info, anabranch_tokens, anabranch_windows};
use anabranch_capi::ep_config::anabranch_ep_config;
use anabranch_capi::expert_major::{anabranch_expert_row, anabranch_expert_windows};
use anabranch_capi::join::anabranch_join_options;
use anabranch_capi::memory::anabranch_location;
use anabranch_capi::messages::anabranch_message;

use crate::common::{crate_folder, folder, succeeds};

/// Sources in the order of the header.
const SOURCES: [&str; 15] = [
    "status",
    "types",
    "config",
    "join",
    "world",
    "group",
    "stream",
    "memory",
    "communicator",
    "collectives",
    "messages",
    "ep_config",
    "ep",
    "ep_halves",
    "expert_major",
];

fn generated() -> String {
    let config = cbindgen::Config::from_file(crate_folder().join("cbindgen.toml")).unwrap();
    let builder = SOURCES.iter().fold(cbindgen::Builder::new().with_config(config), |builder, name| {
        builder.with_src(crate_folder().join("src").join(format!("{name}.rs")))
    });
    let mut text = Vec::new();
    builder.generate().unwrap().write(&mut text);
    String::from_utf8(text).unwrap()
}

#[test]
fn header_is_generated_from_the_sources() {
    let path = crate_folder().join("include/anabranch.h");
    let text = generated();
    #[expect(
        clippy::disallowed_methods,
        reason = "a test that writes what it compares with, when it is told to"
    )]
    if std::env::var_os("UPDATE").is_some() {
        fs::write(&path, &text).unwrap();
    }
    let kept = fs::read_to_string(&path).unwrap_or_default();
    assert!(
        kept == text,
        "anabranch.h is not what the sources give: UPDATE=1 cargo test -p anabranch-capi --test it -- header::"
    );
}

#[test]
fn header_declares_every_exported_function() {
    let header = generated();
    let mut functions = 0;
    for entry in fs::read_dir(crate_folder().join("src")).unwrap() {
        let text = fs::read_to_string(entry.unwrap().path()).unwrap();
        for exported in text.split("#[unsafe(no_mangle)]").skip(1) {
            let (_, rest) = exported.split_once(" fn ").unwrap();
            let (name, _) = rest.split_once('(').unwrap();
            assert!(header.contains(&format!("{name}(")), "{name} is not in the header");
            functions += 1;
        }
    }
    assert!(functions > 70, "{functions}");
}

#[test]
fn structs_have_the_layout_of_rust() {
    macro_rules! checks {
        ($($name:ident.$last:ident),* $(,)?) => {
            [$(
                format!(
                    "ASSERT(sizeof({0}) == {1}, \"{0}\");\nASSERT(offsetof({0}, {2}) == {3}, \"{0}.{2}\");\n",
                    stringify!($name), size_of::<$name>(), stringify!($last), offset_of!($name, $last)
                )
            ),*].concat()
        };
    }
    let checks = checks!(
        anabranch_config_options.ignore_environment,
        anabranch_join_options.root,
        anabranch_location.tag,
        anabranch_comm_options.symmetric,
        anabranch_gathered.data_type,
        anabranch_message.is_receive,
        anabranch_ep_config.placement,
        anabranch_ep_info.heap_bytes,
        anabranch_tokens.device_count,
        anabranch_windows.combine_weights,
        anabranch_expert_row.weight,
        anabranch_expert_windows.slot_map,
    );
    let version = anabranch_capi::status::anabranch_version();
    for (name, compiler, standard, assert) in [
        ("layout.c", "cc", "-std=c11", "_Static_assert"),
        ("layout.cpp", "c++", "-std=c++17", "static_assert"),
    ] {
        let path = folder("layout").join(name);
        let text = format!(
            "#include \"anabranch.h\"\n#define ASSERT {assert}\nASSERT(ANABRANCH_VERSION == {version}, \"version\");\n{checks}"
        );
        fs::write(&path, text).unwrap();
        let mut command = Command::new(compiler);
        command.args([standard, "-Wall", "-Wextra", "-Werror", "-pedantic", "-fsyntax-only", "-I"]);
        succeeds(command.arg(crate_folder().join("include")).arg(path));
    }
}
