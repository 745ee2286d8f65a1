//! AMD's compilers: hipcc, and any clang with the AMDGPU target (no ROCm needed).

use std::path::{Path, PathBuf};

use super::process::{CleanEnvironment, find_program};
use super::search::version_text;
use super::stamp::Stamp;
use super::{
    CompileFailure, CompileJob, CompileOutput, CompilerIdentity, INCLUDE_FOLDER, Looked, OBJECT_FILE,
    OptionChoices, SOURCE_FILE, ToolSearch, Toolchain,
};
use crate::target::Target;

#[derive(Debug)]
pub(super) struct AmdClang {
    program: PathBuf,
    stamp: Stamp,
    hipcc: bool,
    environment: CleanEnvironment,
    identity: CompilerIdentity,
}

/// Newest first, so that the newest architectures are known.
pub(super) const CLANG_VERSIONS: std::ops::RangeInclusive<u32> = 15..=32;

impl AmdClang {
    pub(super) fn find_hipcc(search: &ToolSearch, looked: &mut Vec<Looked>) -> Option<Self> {
        let mut folders: Vec<_> = search.rocm.iter().map(|root| root.join("bin")).collect();
        folders.extend_from_slice(&search.path);
        let Some(program) = find_program("hipcc", &folders) else {
            looked.push(Looked::new("hipcc", ToolSearch::not_in(&folders)));
            return None;
        };
        Self::open_hipcc(&program, search)
            .inspect_err(|problem| looked.push(Looked::new(program.display().to_string(), problem)))
            .ok()
    }

    pub(super) fn find_clang(search: &ToolSearch, target: &Target, looked: &mut Vec<Looked>) -> Option<Self> {
        let rocm: Vec<_> = search
            .rocm
            .iter()
            .flat_map(|root| ["bin", "llvm/bin", "lib/llvm/bin"].map(|folder| root.join(folder)))
            .collect();
        let everywhere: Vec<_> = rocm.iter().chain(&search.path).cloned().collect();
        let mut candidates = vec![("amdclang++".to_owned(), &everywhere), ("clang++".to_owned(), &rocm)];
        candidates.extend(CLANG_VERSIONS.rev().map(|version| (format!("clang++-{version}"), &search.path)));
        candidates.push(("clang++".to_owned(), &search.path));
        let mut found_any = false;
        for (name, folders) in candidates {
            let Some(program) = find_program(&name, folders) else { continue };
            found_any = true;
            match Self::open_clang(&program, target, search) {
                Ok(found) => return Some(found),
                Err(problem) => looked.push(Looked::new(program.display().to_string(), problem)),
            }
        }
        if !found_any {
            let names = format!(
                "amdclang++, clang++-{} to clang++-{}, clang++",
                CLANG_VERSIONS.end(),
                CLANG_VERSIONS.start()
            );
            looked.push(Looked::new(names, ToolSearch::not_in(&everywhere)));
        }
        None
    }

    pub(super) fn open_hipcc(program: &Path, search: &ToolSearch) -> Result<Self, String> {
        let stamp = Stamp::of(program);
        let environment = search.environment();
        let version = version_text(&environment.ask(program, &["--version"])?);
        Self::new(program, stamp, true, environment, version)
    }

    pub(super) fn open_clang(program: &Path, target: &Target, search: &ToolSearch) -> Result<Self, String> {
        let stamp = Stamp::of(program);
        let environment = search.environment();
        let version = version_text(&environment.ask(program, &["--version"])?);
        let known = environment
            .ask(program, &["--target=amdgcn-amd-amdhsa", "--print-supported-cpus"])
            .map_err(|problem| format!("has no AMDGPU target ({problem})"))?;
        if !known.split_whitespace().any(|word| word == target.base()) {
            return Err(format!("does not know {}", target.base()));
        }
        let linker = environment.ask(program, &["-print-prog-name=lld"])?;
        let linker = find_program(linker.trim(), &search.path).ok_or_else(|| {
            "has no lld beside it or on the path (install the lld of its version)".to_owned()
        })?;
        // lld looks at the name it is called by; as plain `lld` it only complains.
        let linker = linker.with_file_name("ld.lld");
        let linker_version = environment.ask(&linker, &["--version"])?;
        Self::new(program, stamp, false, environment, format!("{version}\nlinker {}", linker_version.trim()))
    }

    fn new(
        program: &Path,
        stamp: Stamp,
        hipcc: bool,
        environment: CleanEnvironment,
        version: String,
    ) -> Result<Self, String> {
        if version.is_empty() {
            return Err("it does not print its version".to_owned());
        }
        let kind = if hipcc { "hipcc" } else { "clang" };
        let identity = CompilerIdentity { kind, version, location: program.display().to_string() };
        Ok(Self { program: program.to_owned(), stamp, hipcc, environment, identity })
    }
}

impl Toolchain for AmdClang {
    fn identity(&self) -> &CompilerIdentity {
        &self.identity
    }

    fn is_current(&self) -> bool {
        self.stamp.is_current()
    }

    fn options(&self, target: &Target, choices: OptionChoices) -> Vec<String> {
        let mut options: Vec<String> =
            (if self.hipcc { ["--genco"].as_slice() } else { &["--offload-device-only"] })
                .iter()
                .chain(&[
                    "-x",
                    "hip",
                    "--no-gpu-bundle-output",
                    // The prelude needs neither, and with them the same source would differ by tool chain.
                    "-nogpulib",
                    "-nogpuinc",
                    "-std=c++17",
                    "-O3",
                    "-fno-exceptions",
                    "-fno-strict-aliasing",
                    // Sums must be the same on every target, so no multiply-add unless the source has one.
                    "-ffp-contract=off",
                    "-Wall",
                    "-Wextra",
                    "-Wundef",
                    "-Werror=undef",
                    "-Wno-unused-command-line-argument",
                ])
                .map(|word| (*word).to_owned())
                .collect();
        options.push(format!("--offload-arch={target}"));
        if let Some(version) = choices.code_object_version {
            options.push(format!("-mcode-object-version={version}"));
        }
        if choices.debug_info {
            options.push("-g".to_owned());
        }
        options
    }

    fn compile(&self, job: &CompileJob<'_>) -> Result<CompileOutput, CompileFailure> {
        let mut arguments = job.options.to_vec();
        arguments.extend(["-I", INCLUDE_FOLDER, SOURCE_FILE, "-o", OBJECT_FILE].map(str::to_owned));
        self.environment.compile(&self.program, &arguments, job)
    }
}
