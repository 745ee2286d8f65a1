//! NVIDIA's compiler driver.

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
pub(super) struct Nvcc {
    program: PathBuf,
    stamp: Stamp,
    environment: CleanEnvironment,
    identity: CompilerIdentity,
}

impl Nvcc {
    pub(super) fn find(search: &ToolSearch, target: &Target, looked: &mut Vec<Looked>) -> Option<Self> {
        let mut folders: Vec<_> = search.cuda.iter().map(|root| root.join("bin")).collect();
        folders.extend_from_slice(&search.path);
        let Some(program) = find_program("nvcc", &folders) else {
            looked.push(Looked::new("nvcc", ToolSearch::not_in(&folders)));
            return None;
        };
        Self::open(&program, target, search)
            .inspect_err(|problem| looked.push(Looked::new(program.display().to_string(), problem)))
            .ok()
    }

    pub(super) fn open(program: &Path, target: &Target, search: &ToolSearch) -> Result<Self, String> {
        let stamp = Stamp::of(program);
        let environment = search.environment();
        let version = version_text(&environment.ask(program, &["--version"])?);
        if version.is_empty() {
            return Err("it does not print its version".to_owned());
        }
        let known = environment.ask(program, &["--list-gpu-code"])?;
        if !known.split_whitespace().any(|word| word == target.base()) {
            return Err(format!("does not know {}", target.base()));
        }
        let identity = CompilerIdentity { kind: "nvcc", version, location: program.display().to_string() };
        Ok(Self { program: program.to_owned(), stamp, environment, identity })
    }
}

impl Toolchain for Nvcc {
    fn identity(&self) -> &CompilerIdentity {
        &self.identity
    }

    fn is_current(&self) -> bool {
        self.stamp.is_current()
    }

    fn options(&self, target: &Target, choices: OptionChoices) -> Vec<String> {
        let mut options: Vec<_> =
            ["--cubin", "-x", "cu", "-std=c++17", "-O3", "--fmad=false"].map(str::to_owned).to_vec();
        options.push(format!("-arch={target}"));
        if choices.debug_info {
            options.push("-lineinfo".to_owned());
        }
        options
    }

    fn compile(&self, job: &CompileJob<'_>) -> Result<CompileOutput, CompileFailure> {
        let mut arguments = job.options.to_vec();
        arguments.extend(["-I", INCLUDE_FOLDER, SOURCE_FILE, "-o", OBJECT_FILE].map(str::to_owned));
        self.environment.compile(&self.program, &arguments, job)
    }
}
