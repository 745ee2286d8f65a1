//! Compilers for every kind of target.

use anabranch::{Config, Environment, kernel_pipeline};
use anabranch_hip::with_distinct_causes;
use anabranch_hip_jit::CompileMode;
use anabranch_hip_jit::{CompilerSetting, Target, TargetKind};

use super::finding::Finding;

/// Looks for the compiler of each kind of target: for the devices that are here (`seen`, with whether the
/// configuration wants them), and else for a usual one of that kind.
pub(super) fn compilers(config: &Config, environment: &Environment, seen: &[(String, bool)]) -> Vec<Finding> {
    let jit = match kernel_pipeline(&config.kernels, environment, None) {
        Ok(jit) => jit,
        Err(error) => {
            let hint = "look at the [kernels] settings";
            return vec![
                Finding::missing("compilers", "settings", true, with_distinct_causes(&error)).hint(hint),
            ];
        }
    };
    let usual = [
        (TargetKind::Host, format!("host:wave{}", config.device.host.wave_width())),
        (TargetKind::Nvidia, "sm_90".to_owned()),
        (TargetKind::Amd, "gfx942".to_owned()),
    ];
    let mut findings = Vec::new();
    // A path that names nothing is wrong also where no device is here that it would be used for.
    let chosen = config.kernels.compiler.parse::<CompilerSetting>();
    let problem = chosen.ok().and_then(|setting| setting.check().err());
    let problem =
        problem.map(|problem| format!("kernels.compiler = {:?}: {problem}", config.kernels.compiler));
    if let Some(detail) = problem.or_else(|| config.check_compiler().err().map(|error| error.to_string())) {
        findings.push(
            Finding::missing("compilers", "kernels.compiler", true, detail)
                .hint("name a compiler that is there and serves the runtime, or choose \"auto\""),
        );
    }
    for (kind, example) in usual {
        let here = seen.iter().filter_map(|(arch, wanted)| Some((arch.parse::<Target>().ok()?, *wanted)));
        let here = here.into_iter().find(|(target, _)| target.kind() == kind);
        let Some((target, wanted)) = here.or_else(|| Some((example.parse().ok()?, false))) else { continue };
        let needed = wanted && config.kernels.compile == CompileMode::Auto;
        findings.push(match jit.compiler(&target) {
            Ok(found) => Finding::ok("compilers", format!("{kind} ({target})"), found.to_string())
                .with("target", target.to_string())
                .with("compiler", found.kind)
                .with("version", found.version.lines().next().unwrap_or_default())
                .with("location", found.location),
            Err(error) => {
                Finding::missing("compilers", format!("{kind} ({target})"), needed, error.to_string())
                    .hint(hint(kind))
                    .with("target", target.to_string())
            }
        });
    }
    findings
}

fn hint(kind: TargetKind) -> &'static str {
    match kind {
        TargetKind::Host => "install a C++ compiler (apt install g++), or set CXX or kernels.compiler",
        TargetKind::Nvidia => {
            "install NVRTC (pip install nvidia-cuda-nvrtc-cu12, or CUDA), or set CUDA_HOME or kernels.compiler"
        }
        TargetKind::Amd => {
            "install ROCm or a clang with the AMDGPU target, or set ROCM_PATH or kernels.compiler"
        }
    }
}
