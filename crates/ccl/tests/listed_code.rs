//! The kernels that work through lists of tensors, and those of several hops, keep the rules, and so does what compilers make of
//! them.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]
#![allow(clippy::print_stdout, reason = "says what is skipped")]

mod common;

use anabranch_ccl::DataType;
use anabranch_ccl::kernels::{
    GATHER_MANY, NETWORK_MOVE, NETWORK_REDUCE, PIPES, RING, RING_REDUCE, TWO_HOP, gather_many, network_move,
    network_reduce, pipes, ring, ring_reduce, two_hop,
};
use anabranch_hip_jit::isa::{check_disassembly, disassemble, resources, wave_releases};
use anabranch_hip_jit::lint::lint_source;
use anabranch_hip_jit::{Error, Jit, JitConfig, Target, TargetKind};
use anabranch_shmem::{Atomics, Provider};
use common::{cache, tools};

#[test]
fn sources_keep_the_rules() {
    let units = [&GATHER_MANY, &PIPES, &TWO_HOP, &RING, &RING_REDUCE, &NETWORK_MOVE, &NETWORK_REDUCE];
    let found: Vec<_> =
        units.iter().flat_map(|unit| lint_source(&format!("{}.hip", unit.name), unit.source)).collect();
    assert!(found.is_empty(), "{found:#?}");
}

#[test]
fn code_for_gpus_keeps_the_ordering_rules_and_spills_nothing() {
    let mut config = JitConfig::new(cache());
    config.deny_warnings = true;
    let jit = Jit::new(config, tools());
    let mut problems = Vec::new();
    for target in ["gfx90a", "gfx942", "gfx950", "gfx1100", "sm_80", "sm_90"] {
        let target: Target = target.parse().unwrap();
        let types = [DataType::F32, DataType::F64, DataType::Bf16, DataType::Bool];
        let reduce = types.map(ring_reduce).into_iter().chain(types.map(network_reduce));
        // As it is where members are reached by mapping alone, and where some are by a NIC.
        let by_nic = [Provider::Mlx5, Provider::Bnxt].map(|provider| {
            let spec = network_move().with("SHMEM_NIC", 1).with("RDMA_PROVIDER", provider.number());
            spec.with("RDMA_ATOMICS", Atomics::Standard.number())
        });
        let bytes = [gather_many(), pipes(), two_hop(), ring(), network_move()];
        for spec in bytes.into_iter().chain(by_nic).chain(reduce) {
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
                Some(text) => {
                    for entry in spec.unit().entries {
                        // These publish what whole blocks stored; packets carry their flags themselves.
                        if !entry.ends_with("packets") && wave_releases(&text, entry) == 0 {
                            problems.push(format!("{what}: {entry}: no wave releases before a barrier"));
                        }
                    }
                    problems
                        .extend(check_disassembly(&text).iter().map(|finding| format!("{what}: {finding}")));
                }
                None => println!("skipped the code of {what}: no llvm-objdump"),
            }
            for kernel in resources(&tools(), &object).unwrap().unwrap_or_default() {
                if kernel.scratch_bytes != 0 {
                    problems.push(format!("{what}: {kernel:?}"));
                }
            }
        }
    }
    assert!(problems.is_empty(), "{}", problems.join("\n"));
}
