//! The system's C++ compiler, for the machine made of CPU threads.

use std::path::PathBuf;

use super::process::{CleanEnvironment, find_program};
use super::stamp::Stamp;
use super::{
    CompileFailure, CompileJob, CompileOutput, CompilerIdentity, INCLUDE_FOLDER, Looked, OBJECT_FILE,
    OptionChoices, SOURCE_FILE, ToolSearch, Toolchain,
};
use crate::target::Target;

#[derive(Debug)]
pub(super) struct HostCompiler {
    program: PathBuf,
    stamp: Stamp,
    /// Words after the program in `$CXX`: `ccache g++`.
    leading: Vec<String>,
    environment: CleanEnvironment,
    identity: CompilerIdentity,
}

impl HostCompiler {
    /// `cxx` of the search, and nothing else when it is given; otherwise the usual names.
    pub(super) fn find(search: &ToolSearch, looked: &mut Vec<Looked>) -> Option<Self> {
        let given = search.cxx.as_deref().map(str::trim).filter(|words| !words.is_empty());
        let candidates = given.map_or_else(|| vec!["c++", "g++", "clang++"], |words| vec![words]);
        for words in candidates {
            match Self::open(words, search) {
                Ok(found) => return Some(found),
                Err(problem) => looked.push(Looked::new(format!("C++ compiler `{words}`"), problem)),
            }
        }
        None
    }

    fn open(words: &str, search: &ToolSearch) -> Result<Self, String> {
        let mut words = words.split_whitespace().map(str::to_owned);
        let name = words.next().unwrap_or_default();
        let leading: Vec<_> = words.collect();
        let program = find_program(&name, &search.path).ok_or_else(|| search.not_on_path())?;
        Self::open_program(program, leading, search)
    }

    /// The program, with these words in front of all arguments.
    pub(super) fn open_program(
        program: PathBuf,
        leading: Vec<String>,
        search: &ToolSearch,
    ) -> Result<Self, String> {
        let stamp = Stamp::of(&program);
        let environment = search.environment();
        let ask = |last: &str| {
            let arguments: Vec<_> = leading.iter().map(String::as_str).chain([last]).collect();
            environment.ask(&program, &arguments)
        };
        let version = super::search::version_text(&ask("--version")?);
        let machine = ask("-dumpmachine")?;
        if version.is_empty() {
            return Err("it does not print its version".to_owned());
        }
        let identity = CompilerIdentity {
            kind: "c++",
            version: format!("{version}\nfor {}", machine.trim()),
            location: program.display().to_string(),
        };
        Ok(Self { program, stamp, leading, environment, identity })
    }
}

impl Toolchain for HostCompiler {
    fn identity(&self) -> &CompilerIdentity {
        &self.identity
    }

    fn is_current(&self) -> bool {
        self.stamp.is_current()
    }

    fn options(&self, _target: &Target, choices: OptionChoices) -> Vec<String> {
        let mut options = self.leading.clone();
        options.extend(
            [
                "-x",
                "c++",
                "-std=c++17",
                // Half the time of -O2 to compile; tests that run the kernels take no longer.
                "-O1",
                "-fPIC",
                "-shared",
                "-fno-exceptions",
                "-fno-rtti",
                // Kernels look at the same bytes as vectors, words and elements.
                "-fno-strict-aliasing",
                "-fvisibility=hidden",
                // Sums must be the same on every target, so no multiply-add unless the source has one.
                "-ffp-contract=off",
                "-Wall",
                "-Wextra",
                "-Wundef",
                "-Werror=undef",
            ]
            .map(str::to_owned),
        );
        if choices.debug_info {
            options.push("-g".to_owned());
        }
        options
    }

    fn compile(&self, job: &CompileJob<'_>) -> Result<CompileOutput, CompileFailure> {
        let mut arguments = job.options.to_vec();
        // libm after the objects that use it: drivers for C (`gcc`, `clang`) link no libm of their own.
        arguments.extend(["-I", INCLUDE_FOLDER, SOURCE_FILE, "-o", OBJECT_FILE, "-lm"].map(str::to_owned));
        self.environment.compile(&self.program, &arguments, job)
    }
}
