//! The kernels' sources keep the rules, and what compilers for AMD make of them does too.

use std::collections::BTreeMap;

use crate::common::{cache, tools};
use anabranch_ep::{EpConfig, EpShape, Plan, kernels};
use anabranch_hip_jit::{ConstantsMode, Error, Jit, JitConfig, Target};
use anabranch_testkit::isa::{check_disassembly, disassemble, resources, wave_releases};
use anabranch_testkit::lint::lint_source;

/// Vector registers of a thread in a block of 1024 threads.
const VECTOR_REGISTERS: u64 = 128;

#[test]
fn sources_keep_the_rules() {
    let mut found = Vec::new();
    let units: BTreeMap<_, _> = kernels().iter().map(|spec| (spec.unit().name, spec.unit())).collect();
    assert!(units.len() >= 15, "{units:?}");
    found.extend(units.values().flat_map(|unit| lint_source(&format!("{}.hip", unit.name), unit.source)));
    found.extend(kernels::HEADERS.iter().flat_map(|header| lint_source(header.name, header.text)));
    let found: Vec<_> = found.iter().map(ToString::to_string).collect();
    assert!(found.is_empty(), "{}", found.join("\n"));
}

#[test]
fn every_variant_is_listed_once() {
    let mut labels: Vec<_> = kernels().iter().map(anabranch_hip_jit::KernelSpec::label).collect();
    let all = labels.len();
    labels.sort();
    labels.dedup();
    assert_eq!(labels.len(), all);
}

#[test]
#[ignore = "extended"]
fn code_for_amd_keeps_the_ordering_rules_and_spills_nothing() {
    let mut config = JitConfig::new(cache());
    config.deny_warnings = true;
    config.constants = ConstantsMode::Always;
    let jit = Jit::new(config, tools());
    let mut problems = Vec::new();
    let shape = EpShape { hidden: 7168, experts: 256, top_k: 8, max_tokens: 128 };
    let plan = Plan::new(EpConfig::new(shape), 8).unwrap();
    for (target, with_constants) in [("gfx942", true), ("gfx1201", false)] {
        let target: Target = target.parse().unwrap();
        let for_any_plan = kernels().into_iter();
        let for_plan = kernels().into_iter().map(|spec| plan.known_to(spec)).filter(|_| with_constants);
        for spec in for_any_plan.chain(for_plan) {
            let object = match jit.compile(&spec, &target) {
                Ok(object) => object,
                Err(error @ Error::NoCompiler { .. }) => {
                    println!("skipped {target}: {error}");
                    break;
                }
                Err(error) => panic!("{}: {error}", spec.label()),
            };
            let what = format!("{} for {target}", spec.label());
            match disassemble(&tools(), &object).unwrap() {
                Some(text) => {
                    let entry = spec.unit().entries[0];
                    assert!(text.contains(&format!("<{entry}>:")), "{what}: {text}");
                    // These publish what whole blocks stored; what the others leave is read by later kernels.
                    let publishes = [
                        "anabranch_ep_count",
                        "anabranch_ep_dispatch",
                        "anabranch_ep_dispatch_experts",
                        "anabranch_ep_dispatch_replay",
                        "anabranch_ep_combine",
                        "anabranch_ep_dispatch_engine_send",
                        "anabranch_ep_combine_engine_send",
                        "anabranch_ep_dispatch_nodes",
                        "anabranch_ep_dispatch_relay",
                        "anabranch_ep_combine_nodes",
                    ]
                    .contains(&entry);
                    if publishes && wave_releases(&text, entry) == 0 {
                        problems.push(format!("{what}: no wave releases its stores before a barrier"));
                    }
                    problems
                        .extend(check_disassembly(&text).iter().map(|finding| format!("{what}: {finding}")));
                }
                None => println!("skipped the code of {what}: no llvm-objdump"),
            }
            let Some(found) = resources(&tools(), &object).unwrap() else {
                println!("skipped the registers of {what}: no llvm-readelf");
                continue;
            };
            assert_eq!(found.len(), spec.unit().entries.len(), "{what}");
            for kernel in &found {
                // The count of spills has scalar registers too, which go to lanes of vector registers and not to memory.
                let vectors_to_spare = kernel.vector_registers < VECTOR_REGISTERS;
                if kernel.scratch_bytes != 0 || (kernel.spills != 0 && !vectors_to_spare) {
                    problems.push(format!("{what}: {kernel:?}"));
                }
                assert_eq!(kernel.max_block_threads, 1024, "{what}");
            }
        }
    }
    assert!(problems.is_empty(), "{}", problems.join("\n"));
}
