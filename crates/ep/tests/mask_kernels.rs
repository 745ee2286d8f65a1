//! The kernels of plans that mask, for NVIDIA; `kernels.rs` has them for AMD.

use crate::common::{cache, tools};
use anabranch_ep::kernels::{combine, combine_push, dispatch, masking};
use anabranch_ep::{CombineCodec, DataType};
use anabranch_hip_jit::{Error, Jit, JitConfig, Target, ToolSearch};

/// With NVRTC from a Python environment, where one is named.
fn with_wheels() -> ToolSearch {
    #[expect(clippy::disallowed_methods, reason = "where the wheel lies differs by machine")]
    let named = std::env::var("ANABRANCH_TEST_PYTHON_SITE").unwrap_or_default();
    let python_site = std::env::split_paths(&named).filter(|path| path.is_absolute()).collect();
    ToolSearch { python_site, ..tools() }
}

#[test]
fn kernels_that_mask_compile_for_nvidia() {
    let mut config = JitConfig::new(cache());
    config.deny_warnings = true;
    let jit = Jit::new(config, with_wheels());
    for target in ["sm_80", "sm_90"] {
        let target: Target = target.parse().unwrap();
        for spec in [dispatch(), combine(DataType::Bf16), combine_push(DataType::Bf16, CombineCodec::None)] {
            match jit.compile(&masking(spec.clone()), &target) {
                Ok(masked) => assert_ne!(masked.bytes, jit.compile(&spec, &target).unwrap().bytes),
                Err(error @ Error::NoCompiler { .. }) => {
                    println!("skipped {target}: {error}");
                    break;
                }
                Err(error) => panic!("{} for {target}: {error}", spec.label()),
            }
        }
    }
}
