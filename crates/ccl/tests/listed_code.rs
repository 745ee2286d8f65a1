//! The kernels with lists of tensors and with several hops pass the lints, and so does their compiled code.

use crate::common::{cache, tools};
use anabranch_ccl::DataType;
use anabranch_ccl::device_api::DEVICE_HEADERS as CCL_HEADERS;
use anabranch_ccl::kernels::{
    BULK_REDUCE_UNIT, FINGERPRINT_UNIT, GATHER_MANY_UNIT, MOVE_UNIT, NETWORK_MOVE_UNIT, NETWORK_REDUCE_UNIT,
    PACKET_REDUCE_UNIT, PIPES_UNIT, PUSH_TO_ROOT_UNIT, REDUCE_NORM_UNIT, TWO_HOP_UNIT, UNITS, for_members,
    spec,
};
use anabranch_hip_jit::{
    ConstantsMode, Error, Jit, JitConfig, KernelSpec, KernelUnit, Target, TargetKind, ToolSearch,
};
use anabranch_shmem::device_api::DEVICE_HEADERS as SHMEM_HEADERS;
use anabranch_shmem::{Atomics, Provider};
use anabranch_testkit::isa::{check_disassembly, disassemble, resources, wave_releases};
use anabranch_testkit::lint::lint_source;

#[test]
fn sources_pass_the_lints() {
    let units = [&GATHER_MANY_UNIT, &PIPES_UNIT, &TWO_HOP_UNIT, &NETWORK_MOVE_UNIT, &NETWORK_REDUCE_UNIT];
    let found: Vec<_> =
        units.iter().flat_map(|unit| lint_source(&format!("{}.hip", unit.name), unit.source)).collect();
    assert!(found.is_empty(), "{found:#?}");
}

/// A unit that includes every public header, as a user kernel may, without using it.
fn all_headers() -> &'static KernelUnit {
    let names = SHMEM_HEADERS.iter().chain(CCL_HEADERS).map(|header| header.name);
    // Headers of queues are included by `shmem/engine.h` and `shmem/nic.h`, as parameters select.
    let chosen = names.filter(|name| !name.starts_with("rdma/") && !name.starts_with("sdma/"));
    let lines = chosen.map(|name| format!("#include \"{name}\"\n"));
    let source = format!(
        "#include \"anabranch/prelude.h\"\n#include \"anabranch/float8.h\"\n{}",
        lines.collect::<String>()
    );
    let mut layouts: Vec<fn() -> String> = Vec::new();
    for of_unit in UNITS.iter().flat_map(|unit| unit.layouts) {
        if layouts.iter().all(|other| other() != of_unit()) {
            layouts.push(*of_unit);
        }
    }
    Box::leak(Box::new(KernelUnit {
        name: "all_headers",
        source: source.leak(),
        entries: &[],
        layouts: layouts.leak(),
        ..MOVE_UNIT
    }))
}

#[test]
fn headers_compile_without_warnings() {
    let target: Target = "host:wave4".parse().unwrap();
    let plain = KernelSpec::new(all_headers());
    let by_nic = [Provider::Mlx5, Provider::Bnxt, Provider::Ionic, Provider::Posted].map(|provider| {
        let spec = plain.clone().with("SHMEM_NIC", 1).with("RDMA_PROVIDER", provider.number());
        spec.with("RDMA_ATOMICS", Atomics::Standard.number())
    });
    let by_engine = plain.clone().with("SHMEM_ENGINES", 1);
    let forms: Vec<_> = [plain, by_engine].into_iter().chain(by_nic).collect();
    // The first installed name of Clang.
    for programs in [&["g++"][..], &["clang++", "clang++-22", "clang++-19"]] {
        let with = |program: &str| {
            let mut config = JitConfig::new(cache());
            config.deny_warnings = true;
            Jit::new(config, ToolSearch { cxx: Some(program.to_owned()), ..tools() })
        };
        let Some(jit) = programs.iter().map(|name| with(name)).find(|jit| jit.compiler(&target).is_ok())
        else {
            println!("skipped {}: not here", programs.join(", "));
            continue;
        };
        for spec in &forms {
            let made = jit.compile(spec, &target);
            assert!(made.is_ok(), "{} with {}: {}", spec.label(), programs[0], made.unwrap_err());
        }
    }
}

#[test]
#[ignore = "extended"]
fn gpu_code_keeps_ordering_rules_without_spills() {
    let mut config = JitConfig::new(cache());
    config.deny_warnings = true;
    config.constants = ConstantsMode::Always;
    let jit = Jit::new(config, tools());
    let mut problems = Vec::new();
    for target in ["gfx942", "gfx1201", "sm_90"] {
        let target: Target = target.parse().unwrap();
        let types = [DataType::F32, DataType::F64, DataType::Bf16, DataType::Bool];
        let reduce = types.into_iter().flat_map(|data_type| {
            [&NETWORK_REDUCE_UNIT, &PUSH_TO_ROOT_UNIT].map(|unit| spec(unit, data_type))
        });
        // With mapped members only, and with members behind a NIC.
        let by_nic = [Provider::Mlx5, Provider::Bnxt].map(|provider| {
            let spec = spec(&NETWORK_MOVE_UNIT, DataType::U8)
                .with("SHMEM_NIC", 1)
                .with("RDMA_PROVIDER", provider.number());
            spec.with("RDMA_ATOMICS", Atomics::Standard.number())
        });
        let bytes = [&GATHER_MANY_UNIT, &PIPES_UNIT, &TWO_HOP_UNIT, &NETWORK_MOVE_UNIT];
        let bytes = bytes.map(|unit| spec(unit, DataType::U8));
        let of_a_node = [
            &MOVE_UNIT,
            &TWO_HOP_UNIT,
            &GATHER_MANY_UNIT,
            &PIPES_UNIT,
            &FINGERPRINT_UNIT,
            &PACKET_REDUCE_UNIT,
            &BULK_REDUCE_UNIT,
            &PUSH_TO_ROOT_UNIT,
            &REDUCE_NORM_UNIT,
        ];
        let of_a_node = of_a_node.into_iter().flat_map(|unit| {
            let spec = spec(unit, DataType::Bf16);
            [spec.clone(), for_members(spec, 8)]
        });
        for spec in bytes.into_iter().chain(by_nic).chain(reduce).chain(of_a_node) {
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
                        // These publish the stores of whole blocks. Packets carry their flags, and the norm of rows stays on its rank.
                        let publishes = !entry.ends_with("packets") && !entry.ends_with("rms_norm");
                        if publishes && wave_releases(&text, entry) == 0 {
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
