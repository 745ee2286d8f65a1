//! The device API by NIC compiles for GPUs without a warning, for providers with all operations and with few; and keeps the rules for
//! AMD's. Compilers are optional: without one, the test says so and passes.

use std::path::PathBuf;

use anabranch_conformance::shmem::{
    ATOMICS_UNIT, BARRIER_UNIT, COPY_UNIT, MESSAGE_UNIT, UNITS, WAIT_UNIT, spec,
};
use anabranch_hip_jit::{Error, Jit, JitConfig, KernelUnit, Target, TargetKind, ToolSearch};
use anabranch_shmem::{Atomics, Provider, nic_team_kernel};
use anabranch_testkit::isa::{check_disassembly, disassemble};

/// Compilers of this machine, and NVRTC's Python wheel where it is unpacked.
fn tools() -> ToolSearch {
    #[expect(clippy::disallowed_methods, reason = "where the wheel lies differs by machine")]
    let named = std::env::var("ANABRANCH_TEST_PYTHON_SITE").unwrap_or_default();
    let python_site = std::env::split_paths(&named).filter(|path| path.is_absolute()).collect();
    let path = ["/usr/local/bin", "/usr/bin", "/bin"].map(PathBuf::from).into();
    ToolSearch { path, python_site, cuda: vec![PathBuf::from("/usr/local/cuda")], ..ToolSearch::default() }
}

fn compiles(target: &str, provider: Provider, atomics: Atomics, units: &[&'static KernelUnit]) {
    let mut config = JitConfig::new(PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("kernels"));
    config.deny_warnings = true;
    let jit = Jit::new(config, tools());
    let target: Target = target.parse().unwrap();
    let by_nic = units.iter().copied().map(|unit| {
        let spec = spec(unit).with("SHMEM_NIC", 1).with("RDMA_PROVIDER", provider.number());
        spec.with("RDMA_ATOMICS", atomics.number())
    });
    for spec in by_nic.chain([nic_team_kernel(provider, atomics)]) {
        let object = match jit.compile(&spec, &target) {
            Ok(object) => object,
            Err(error @ Error::NoCompiler { .. }) => {
                println!("skipped {target}: {error}");
                return;
            }
            Err(error) => panic!("{} for {target}: {error}", spec.label()),
        };
        if target.kind() != TargetKind::Amd {
            continue;
        }
        match disassemble(&tools(), &object).unwrap() {
            Some(text) => assert_eq!(check_disassembly(&text), [], "{}", spec.label()),
            None => println!("skipped the code of {}: no llvm-objdump", spec.label()),
        }
    }
}

#[test]
#[ignore = "extended"]
fn every_unit_by_nic_compiles_for_amd() {
    compiles("gfx942", Provider::Mlx5, Atomics::Masked, &UNITS);
}

#[test]
#[ignore = "extended"]
fn copies_and_atomics_by_host_posted_nic_compile_for_amd() {
    compiles("gfx942", Provider::Posted, Atomics::Standard, &[&COPY_UNIT, &ATOMICS_UNIT]);
}

// NVRTC takes minutes for all units in both formats, in this process: each unit is in one of them.
#[test]
#[ignore = "extended"]
fn units_by_nic_compile_for_nvidia() {
    compiles("sm_90", Provider::Mlx5, Atomics::Masked, &[&MESSAGE_UNIT, &WAIT_UNIT, &BARRIER_UNIT]);
    compiles("sm_90", Provider::Posted, Atomics::Standard, &[&COPY_UNIT, &ATOMICS_UNIT]);
}
