//! The real compilers, where they are installed, on a kernel that uses the prelude; the generated code of AMD's.

use std::path::PathBuf;

use crate::common::{Scratch, search};
use anabranch_hip_jit::{
    CodeObject, CompilerSetting, ConstantsMode, DevicePointer, DeviceStruct as _, Error, Jit, KernelSpec,
    KernelUnit, NullPointer, Origin, PRELUDE, Target, ToolSearch, constants, device_struct,
};
use anabranch_testkit::isa::{check_disassembly, disassemble, resources};

device_struct! {
    /// Arguments of the probe.
    pub struct ProbeArgs {
        /// Stored last.
        pub flag: DevicePointer<u64>,
        /// `count` values.
        pub data: DevicePointer<u64>,
        /// How many.
        pub count: u64,
    }
}

static PROBE: KernelUnit = KernelUnit {
    name: "probe",
    source: "#include \"anabranch/prelude.h\"\n\
        ANABRANCH_KERNEL(anabranch_probe, ProbeArgs, 256) {\n\
            for (u64 i = grid.thread; i < args.count; i += grid.block_threads) remote_store(grid, args.data + i, i);\n\
            block_release_system(grid);\n\
            if (grid.thread == 0) flag_store(grid, args.flag, u64(1));\n\
        }\n",
    headers: &[PRELUDE],
    entries: &["anabranch_probe"],
    layouts: &[ProbeArgs::c_declaration],
};

static WRONG: KernelUnit =
    KernelUnit { name: "wrong", source: "\nu64x f();\n", headers: &[], entries: &[], layouts: &[] };

/// Where NVRTC's Python wheel is unpacked, if it is.
fn with_wheels() -> ToolSearch {
    #[expect(clippy::disallowed_methods, reason = "where the wheel lies differs by machine")]
    let named = std::env::var("ANABRANCH_TEST_PYTHON_SITE").unwrap_or_default();
    let mut search = search(None);
    search.python_site = std::env::split_paths(&named).filter(|path| path.is_absolute()).collect();
    search.cuda = vec![PathBuf::from("/usr/local/cuda")];
    search
}

/// Compiles the probe, or says that there is no compiler for it here.
fn compile(jit: &Jit, target: &str) -> Option<CodeObject> {
    let target: Target = target.parse().unwrap();
    match jit.compile(&KernelSpec::new(&PROBE), &target) {
        Ok(object) => Some(object),
        Err(error @ Error::NoCompiler { .. }) if target.base() != "host" => {
            println!("skipped {target}: {error}");
            None
        }
        Err(error) => panic!("{error}"),
    }
}

#[test]
fn host_at_every_wave_width() {
    let scratch = Scratch::new("real-host");
    let mut config = scratch.config();
    config.deny_warnings = true;
    let jit = Jit::new(config, search(None));
    for target in ["host", "host:wave4", "host:wave32", "host:wave64"] {
        assert!(compile(&jit, target).unwrap().bytes.starts_with(b"\x7fELF"));
    }
}

#[test]
fn amd_with_a_plain_clang() {
    let scratch = Scratch::new("real-amd");
    let mut config = scratch.config();
    config.deny_warnings = true;
    let search = search(None);
    let jit = Jit::new(config, search.clone());
    for target in ["gfx90a", "gfx942:sramecc+:xnack-", "gfx950", "gfx1100", "gfx1201"] {
        let Some(object) = compile(&jit, target) else { continue };
        if let Some(text) = disassemble(&search, &object).unwrap() {
            assert!(text.contains("<anabranch_probe>:"), "{text}");
            assert_eq!(check_disassembly(&text), [], "{target}");
            if target == "gfx942:sramecc+:xnack-" {
                // The check sees what it is for: without the waits the same code fails.
                assert!(text.contains("buffer_wbl2 sc0 sc1"), "{text}");
                let lines: Vec<_> = text.lines().filter(|line| !line.contains("s_waitcnt")).collect();
                let mutant = lines.join("\n");
                assert!(!check_disassembly(&mutant).is_empty());
            }
        }
        if let Some(kernels) = resources(&search, &object).unwrap() {
            let kernel = &kernels[0];
            assert_eq!(kernels.len(), 1);
            assert_eq!((kernel.name.as_str(), kernel.max_block_threads), ("anabranch_probe", 256));
            assert_eq!((kernel.spills, kernel.scratch_bytes, kernel.argument_bytes), (0, 0, 40), "{target}");
            assert_eq!(kernel.wave_size, u64::from(object.target.wave_size()));
        }
    }
}

/// Prebuilt kernels have no constants: a compiler that fails leaves them.
#[test]
fn a_gpu_compiler_that_fails_leaves_prebuilt_kernels() {
    let scratch = Scratch::new("fails-for-gpus");
    let real = scratch.jit(search(None));
    let Some(general) = compile(&real, "gfx942") else { return };
    let program = real.compiler(&general.target).unwrap().location;
    let script = format!(
        "#!/bin/sh\ncase \"$*\" in *kernel.hip*) echo broken >&2; exit 1;; esac\nexec {program} \"$@\"\n"
    );
    let broken = scratch.program("clang", &script);
    let spec = KernelSpec::new(&PROBE).knowing(constants!(ProbeArgs { flag: NullPointer }));
    let mut config = scratch.config();
    (config.prebuilt, config.cache) = (vec![scratch.path("cache")], scratch.path("empty"));
    for (constants, is_found) in [(ConstantsMode::Auto, true), (ConstantsMode::Always, false)] {
        config.constants = constants;
        let search = ToolSearch { compiler: Some(CompilerSetting::Path(broken.clone())), ..search(None) };
        let jit = Jit::new(config.clone(), search);
        assert!(jit.needs_compile(&spec, &general.target).unwrap());
        match jit.compile(&spec, &general.target) {
            Ok(found) => {
                assert_eq!((found.origin, found.key, is_found), (Origin::Prebuilt, general.key, true));
            }
            Err(error) => assert!(error.compile_error().is_some() && !is_found, "{error}"),
        }
        let jit = Jit::new(config.clone(), ToolSearch::default());
        assert_eq!(jit.needs_compile(&spec, &general.target).unwrap(), !is_found);
    }
}

#[test]
fn amd_refusals_have_file_and_line() {
    let scratch = Scratch::new("real-amd-wrong");
    let error =
        scratch.jit(search(None)).compile(&KernelSpec::new(&WRONG), &"gfx942".parse().unwrap()).unwrap_err();
    let Some(error) = error.compile_error() else {
        println!("skipped: {error}");
        return;
    };
    let first = &error.diagnostics[0];
    assert_eq!((first.file.as_str(), first.line), ("wrong.hip", 2), "{error}");
}

#[test]
fn an_architecture_unknown_to_clang_is_named_in_the_error() {
    let error = search_error("gfx1299");
    assert!(error.contains("does not know gfx1299") || error.contains("not found in"), "{error}");
}

fn search_error(target: &str) -> String {
    let scratch = Scratch::new("unknown");
    let jit = scratch.jit(search(None));
    jit.compile(&KernelSpec::new(&PROBE), &target.parse().unwrap()).unwrap_err().to_string()
}

#[test]
fn nvidia_with_nvrtc() {
    let scratch = Scratch::new("real-nvidia");
    let jit = scratch.jit(with_wheels());
    for target in ["sm_80", "sm_90", "sm_100"] {
        let Some(object) = compile(&jit, target) else { continue };
        assert!(object.bytes.starts_with(b"\x7fELF"));
        let compiler = jit.compiler(&object.target).unwrap();
        println!("{target}: {compiler}");
    }
    let error = jit.compile(&KernelSpec::new(&WRONG), &"sm_90".parse().unwrap()).unwrap_err();
    if let Some(error) = error.compile_error() {
        let first = &error.diagnostics[0];
        assert_eq!((first.file.as_str(), first.line), ("wrong.hip", 2), "{error}");
    }
}
