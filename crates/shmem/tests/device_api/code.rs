//! The code that compilers for GPUs make of the headers, and the matrix of operations. GPU compilers are optional.

use anabranch_hip_jit::isa::{check_disassembly, disassemble};
use anabranch_hip_jit::{Error, KernelSpec, KernelUnit, Target, mutant};
use anabranch_shmem::device_api::{conformance, has_operation};
use anabranch_transport::{Operation, Scope};

use crate::ranks::{jit, tools};

#[test]
fn kernels_for_amd_keep_the_ordering_rules() {
    let jit = jit();
    let target: Target = "gfx942".parse().unwrap();
    for spec in conformance::kernels() {
        let object = match jit.compile(&spec, &target) {
            Ok(object) => object,
            Err(Error::NoCompiler { .. }) => return,
            Err(error) => panic!("{}: {error}", spec.label()),
        };
        let Ok(Some(text)) = disassemble(&tools(), &object) else { return };
        let found = check_disassembly(&text);
        assert!(found.is_empty(), "{} for {target}: {found:#?}", spec.label());
    }
}

/// Whether every wave writes back and waits before the last block barrier of the text, behind which the signal is stored.
fn releases_before_the_last_barrier(text: &str) -> bool {
    let code: Vec<&str> = text.lines().map(str::trim).collect();
    let barrier = code.iter().rposition(|line| line.starts_with("s_barrier")).unwrap();
    let before = &code[barrier.saturating_sub(8)..barrier];
    let Some(write_back) = before.iter().position(|line| line.starts_with("buffer_wbl2")) else {
        return false;
    };
    let signal = code[barrier..].iter().any(|line| line.starts_with("global_store_dwordx2"));
    signal
        && before[write_back..].iter().any(|line| line.starts_with("s_waitcnt") && line.contains("vmcnt(0)"))
}

#[test]
fn put_signal_of_a_block_releases_in_every_wave_before_the_barrier() {
    static PUT_SIGNAL: KernelUnit = unit!(
        "put_signal",
        "shmem::put_signal<shmem::Block>(grid, context, word.cast<u64>(), args.peer_bases, 512,
         shmem::Symmetric<u64>{8}, 1, shmem::SignalOp::SET, shmem::GroupRank{1});"
    );
    let jit = jit();
    let right = KernelSpec::new(&PUT_SIGNAL);
    let broken = right.clone().with("PRELUDE_MUTANT", mutant("NO_RELEASE").unwrap());
    for target in ["gfx90a", "gfx942"] {
        let target: Target = target.parse().unwrap();
        for (spec, releases) in [(&right, true), (&broken, false)] {
            let object = match jit.compile(spec, &target) {
                Ok(object) => object,
                Err(Error::NoCompiler { .. }) => return,
                Err(error) => panic!("{}: {error}", spec.label()),
            };
            let Ok(Some(text)) = disassemble(&tools(), &object) else { return };
            assert_eq!(
                releases_before_the_last_barrier(&text),
                releases,
                "{} for {target}\n{text}",
                spec.label()
            );
        }
    }
}

#[test]
fn the_table_of_operations_is_the_documented_one() {
    // Rows of the table in the documentation of `device_api`, by operation.
    let text = include_str!("../../src/device_api.rs");
    let row = |word: &str| {
        text.lines().find(|line| line.starts_with("//! |") && line.contains(&format!("`{word}`")))
    };
    for operation in Operation::ALL {
        let word = if operation.word().starts_with("atomic_") { "atomic_*" } else { operation.word() };
        let row = row(word).unwrap_or_else(|| panic!("{word} is not in the table"));
        let cells: Vec<&str> = row.split('|').map(str::trim).collect();
        for (cell, scope) in [(2, Scope::Thread), (3, Scope::Wave), (4, Scope::Block)] {
            assert_eq!(cells[cell] == "x", has_operation(*operation, scope), "{operation} at {scope}");
        }
    }
}
