//! The code that compilers for GPUs make of the headers, and the matrix of operations. GPU compilers are optional.

use anabranch_conformance::shmem as conformance;
use anabranch_hip_jit::{Error, KernelSpec, KernelUnit, Target};
use anabranch_shmem::device_api::has_operation;
use anabranch_shmem::engine_copies_kernel;
use anabranch_testkit::isa::{check_disassembly, disassemble};
use anabranch_testkit::mutant;
use anabranch_transport::{Operation, Scope};

use crate::device_api::ranks::{jit, tools};

#[test]
#[ignore = "extended"]
fn kernels_for_amd_keep_the_ordering_rules() {
    let jit = jit();
    let target: Target = "gfx942".parse().unwrap();
    for spec in conformance::kernels().into_iter().chain([engine_copies_kernel()]) {
        let object = match jit.compile(&spec, &target) {
            Ok(object) => object,
            Err(Error::NoCompiler { .. }) => return,
            Err(error) => panic!("{}: {error}", spec.label()),
        };
        let Ok(Some(text)) = disassemble(&tools(), &object) else { return };
        let found = check_disassembly(&text);
        assert!(found.is_empty(), "{}: {found:#?}", spec.label());
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
    let broken = right.clone().edited(&mutant("NO_RELEASE"));
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

/// What matters of the code that makes packets known, in its order: stores of packets' words (`D`), stores of 64-bit pointers (`F`),
/// write-backs of caches at system scope (`W`), and waits for all stores (`w`, once however many there are in a row).
fn order_of_stores(text: &str) -> String {
    let mut order = String::new();
    for line in text.lines().map(str::trim) {
        let event = match line.split_whitespace().next() {
            Some("global_store_dwordx2") => 'F',
            Some("global_store_dword") => 'D',
            Some("buffer_wbl2") if line.contains("sc0 sc1") => 'W',
            Some("s_waitcnt") if line.contains("vmcnt(0)") => 'w',
            _ => continue,
        };
        if event != 'w' || !order.ends_with('w') {
            order.push(event);
        }
    }
    order
}

#[test]
fn packets_pointer_and_doorbell_are_released_in_order() {
    static POST: KernelUnit = unit!(
        "post",
        "sdma::Operation copy = {1, 2, 64, sdma::Tail::SET, reinterpret_cast<u64*>(8), 7, true};
         u64 end = 0;
         sdma::post(grid, context.wait, sdma::load_queue(grid, args.queues), copy, end);"
    );
    let jit = jit();
    let right = KernelSpec::new(&POST).with("SHMEM_ENGINES", 1);
    let broken = |name| right.clone().edited(&mutant(name));
    // The last piece of an operation, and those before it.
    for (spec, expected) in [
        (right.clone(), 2),
        (broken("SDMA_WORDS_UNRELEASED"), 0),
        (broken("SDMA_POINTER_UNRELEASED"), 0),
        (broken("SDMA_DOORBELL_UNRELEASED"), 0),
    ] {
        for target in ["gfx942", "gfx950"] {
            let target: Target = target.parse().unwrap();
            let object = match jit.compile(&spec, &target) {
                Ok(object) => object,
                Err(Error::NoCompiler { .. }) => return,
                Err(error) => panic!("{}: {error}", spec.label()),
            };
            let Ok(Some(text)) = disassemble(&tools(), &object) else { return };
            assert!(check_disassembly(&text).is_empty(), "{} for {target}", spec.label());
            let order = order_of_stores(&text);
            let found = order.matches("DWwFWwFWwF").count();
            assert_eq!(found, expected, "{} for {target}: {order}", spec.label());
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
