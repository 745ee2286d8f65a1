//! The structures and numbers against the kernel's headers (Debian: linux-libc-dev, which every compiler brings).

use std::fmt::Write as _;
use std::mem::offset_of;
use std::process::Command;

use super::*;

const HEADERS: [&str; 6] = [
    "stddef.h",
    "rdma/ib_user_verbs.h",
    "rdma/ib_user_ioctl_verbs.h",
    "rdma/mlx5-abi.h",
    "rdma/rdma_user_ioctl_cmds.h",
    "rdma/mlx5_user_ioctl_cmds.h",
];

/// A C program that compiles only where all is as the headers have it. A structure may have more there at its end.
fn program() -> String {
    let mut text = HEADERS.map(|header| format!("#include <{header}>\n")).concat();
    text.push_str("#include <sys/ioctl.h>\n");
    let mut same = |what: String, value: u64| {
        writeln!(text, "_Static_assert(({what}) == {value}ull, \"{}\");", what.replace('"', "")).unwrap();
    };
    for (name, size, fields) in STRUCTURES {
        same(format!("sizeof(struct {name}) >= {size}"), 1);
        for (field, offset) in *fields {
            same(format!("offsetof(struct {name}, {field})"), *offset as u64);
        }
    }
    for (name, value) in NUMBERS {
        same((*name).to_owned(), *value);
    }
    // What extended answers have behind the short ones.
    let tail = offset_of!(ExtendedAnswer, response_length) as u64;
    for (short, extended, size) in [
        ("query_device", "ex_query_device", size_of::<DeviceAnswer>()),
        ("create_cq", "ex_create_cq", size_of::<CreateCqAnswer>()),
        ("create_qp", "ex_create_qp", size_of::<CreateQpAnswer>()),
    ] {
        same(format!("sizeof(struct ib_uverbs_{short}_resp)"), size as u64);
        same(format!("offsetof(struct ib_uverbs_{extended}_resp, response_length)"), size as u64 + tail);
    }
    same("offsetof(struct ib_uverbs_ex_modify_qp_resp, response_length)".to_owned(), tail);
    // What the extended forms have in common with the short ones.
    for (short, extended, field) in
        [("create_cq", "ex_create_cq", "cqe"), ("create_qp", "ex_create_qp", "qp_type")]
    {
        let difference = format!(
            "offsetof(struct ib_uverbs_{short}, {field}) - offsetof(struct ib_uverbs_{extended}, {field})"
        );
        same(difference, 8);
    }
    // Where these end, attributes and the driver's parts begin.
    same("sizeof(struct ib_uverbs_ioctl_hdr)".to_owned(), size_of::<MethodHead>() as u64);
    same("sizeof(struct ib_uverbs_attr)".to_owned(), size_of::<Attribute>() as u64);
    same("sizeof(struct ib_uverbs_create_cq)".to_owned(), size_of::<CreateCq>() as u64);
    same("sizeof(struct ib_uverbs_create_qp)".to_owned(), size_of::<CreateQp>() as u64);
    text
}

#[test]
fn structures_and_numbers_are_those_of_the_kernels_headers() {
    let folder = std::env::temp_dir().join(format!("softhca-abi-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let compile = |name: &str, text: &str| {
        let file = folder.join(name);
        std::fs::write(&file, text).unwrap();
        let done = Command::new("cc").args(["-std=c11", "-fsyntax-only"]).arg(&file).output();
        done.map(|output| (output.status.success(), String::from_utf8_lossy(&output.stderr).into_owned()))
    };
    let text = program();
    let probe = compile("probe.c", "#include <rdma/mlx5_user_ioctl_cmds.h>\n");
    let judged = compile("abi.c", &text);
    let wrong = compile("wrong.c", &text.replace("(RDMA_VERBS_IOCTL) == ", "(RDMA_VERBS_IOCTL) == 1 + "));
    std::fs::remove_dir_all(&folder).unwrap();
    match probe {
        Err(error) => println!("skipped: no C compiler: {error}"),
        Ok((false, _)) => println!("skipped: no rdma/mlx5_user_ioctl_cmds.h (Debian: linux-libc-dev)"),
        Ok((true, _)) => {
            let (same, words) = judged.unwrap();
            assert!(same, "{words}");
            assert!(!wrong.unwrap().0, "the compiler judges");
        }
    }
}
