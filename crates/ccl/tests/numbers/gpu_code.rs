//! The headers compiled for GPUs, if the compilers are installed.

use anabranch_ccl::kernels;
use anabranch_conformance::ccl::arithmetic as conformance;
use anabranch_hip_jit::{Error, Target, TargetKind};
use anabranch_testkit::isa::{check_disassembly, disassemble, resources};

use crate::numbers::device::{jit, tools};

fn compiles_for(targets: &[&str]) {
    let jit = jit();
    let mut problems = Vec::new();
    for target in targets {
        let target: Target = target.parse().unwrap();
        let norms = kernels::NORM_TYPES.map(|data_type| kernels::spec(&kernels::REDUCE_NORM_UNIT, data_type));
        for spec in conformance::kernels().into_iter().chain(norms) {
            let object = match jit.compile(&spec, &target) {
                Ok(object) => object,
                Err(error @ Error::NoCompiler { .. }) => {
                    println!("skipped {target}: {error}");
                    break;
                }
                Err(error) => panic!("{} for {target}: {error}", spec.label()),
            };
            let what = format!("{} for {target}", spec.label());
            if target.kind() != TargetKind::Amd {
                continue;
            }
            match disassemble(&tools(), &object).unwrap() {
                Some(text) => problems
                    .extend(check_disassembly(&text).iter().map(|finding| format!("{what}: {finding}"))),
                None => println!("skipped the code of {what}: no llvm-objdump"),
            }
            for kernel in resources(&tools(), &object).unwrap().unwrap_or_default() {
                // Loops over the elements of a unit unroll; otherwise their array would be in memory.
                if kernel.scratch_bytes != 0 {
                    problems.push(format!("{what}: {kernel:?}"));
                }
            }
        }
    }
    assert!(problems.is_empty(), "{}", problems.join("\n"));
}

#[test]
fn every_type_compiles_for_amd_without_spills() {
    compiles_for(&["gfx942"]);
}

#[test]
fn every_type_compiles_for_nvidia() {
    compiles_for(&["sm_90"]);
}
