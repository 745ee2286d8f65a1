//! Where compilers are looked for, in which order.

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;

use super::clang::AmdClang;
use super::host::HostCompiler;
use super::nvcc::Nvcc;
use super::process::{CleanEnvironment, find_program};
use super::rtc::{RtcKind, RtcLibrary};
use super::{Looked, Toolchain};
use crate::error::{Error, Result};
use crate::target::{Target, TargetKind};

/// The user's choice of a GPU compiler. The host machine's compiler is chosen by [`ToolSearch::cxx`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum CompilerSetting {
    /// First found.
    #[default]
    Auto,
    /// `hipcc --genco`.
    Hipcc,
    /// A clang with the AMDGPU target.
    Clang,
    /// AMD's compiler library.
    Hiprtc,
    /// NVIDIA's compiler library.
    Nvrtc,
    /// NVIDIA's compiler driver.
    Nvcc,
    /// A program or library, told apart by its file name (`hipcc`, `clang`, `nvcc`, `libnvrtc`, `libhiprtc`).
    Path(PathBuf),
}

impl FromStr for CompilerSetting {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        Ok(match text {
            "auto" => Self::Auto,
            "hipcc" => Self::Hipcc,
            "clang" => Self::Clang,
            "hiprtc" => Self::Hiprtc,
            "nvrtc" => Self::Nvrtc,
            "nvcc" => Self::Nvcc,
            path if path.contains('/') => {
                let setting = Self::Path(path.into());
                if setting.family().is_none() {
                    return Err(Error::CompilerSetting { given: text.to_owned() });
                }
                setting
            }
            _ => return Err(Error::CompilerSetting { given: text.to_owned() }),
        })
    }
}

impl fmt::Display for CompilerSetting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Path(path) => write!(f, "{}", path.display()),
            Self::Auto => f.write_str("auto"),
            Self::Hipcc => f.write_str("hipcc"),
            Self::Clang => f.write_str("clang"),
            Self::Hiprtc => f.write_str("hiprtc"),
            Self::Nvrtc => f.write_str("nvrtc"),
            Self::Nvcc => f.write_str("nvcc"),
        }
    }
}

impl CompilerSetting {
    /// Which compiler it asks for, a path by its file name.
    fn family(&self) -> Option<Self> {
        let Self::Path(path) = self else { return Some(self.clone()) };
        let name = path.file_name()?.to_str()?;
        [
            ("libnvrtc", Self::Nvrtc),
            ("libhiprtc", Self::Hiprtc),
            ("hipcc", Self::Hipcc),
            ("nvcc", Self::Nvcc),
            ("clang", Self::Clang),
        ]
        .into_iter()
        .find(|(word, _)| name.contains(word))
        .map(|(_, family)| family)
    }

    /// Whether it says something about a kind of target; other kinds are searched as with `auto`.
    fn applies_to(&self, kind: TargetKind) -> bool {
        match self.family() {
            Some(Self::Hipcc | Self::Clang | Self::Hiprtc) => kind == TargetKind::Amd,
            Some(Self::Nvrtc | Self::Nvcc) => kind == TargetKind::Nvidia,
            _ => false,
        }
    }
}

/// Where to look for compilers: a plain value that the caller fills, from the environment or otherwise.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ToolSearch {
    /// The C++ compiler for the host machine (`$CXX`); may have words behind the program. When given, no other is tried.
    pub cxx: Option<String>,
    /// Folders of programs (`$PATH`); also what the compilers get as theirs.
    pub path: Vec<PathBuf>,
    /// Roots of ROCm installations (`$ROCM_PATH`, `$HIP_PATH`, `/opt/rocm`).
    pub rocm: Vec<PathBuf>,
    /// Roots of CUDA installations (`$CUDA_HOME`, `$CUDA_PATH`, `/usr/local/cuda`).
    pub cuda: Vec<PathBuf>,
    /// `site-packages` folders, in which NVIDIA's wheels put NVRTC.
    pub python_site: Vec<PathBuf>,
    /// Folders of libraries that compilers are given (`$LD_LIBRARY_PATH`).
    pub library_path: Vec<PathBuf>,
    /// The choice of a GPU compiler; `None` is `auto`.
    pub compiler: Option<CompilerSetting>,
}

impl ToolSearch {
    pub(super) fn environment(&self) -> CleanEnvironment {
        CleanEnvironment { path: self.path.clone(), library_path: self.library_path.clone() }
    }

    pub(super) fn not_on_path(&self) -> String {
        Self::not_in(&self.path)
    }

    pub(super) fn not_in(folders: &[PathBuf]) -> String {
        let names: Vec<_> = folders.iter().map(|folder| folder.display().to_string()).collect();
        if names.is_empty() {
            return "not found: there is no folder to look in".to_owned();
        }
        format!("not found in {}", names.join(":"))
    }

    /// Candidates for a compiler library, in the order in which they are tried.
    fn libraries(&self, kind: RtcKind) -> Vec<PathBuf> {
        let (roots, folders, sonames): (&[PathBuf], &[&str], &[&str]) = match kind {
            RtcKind::Nvrtc => (
                &self.cuda,
                &[
                    "lib64",
                    "lib",
                    "targets/x86_64-linux/lib",
                    "targets/sbsa-linux/lib",
                    "lib/x86_64-linux-gnu",
                ],
                &["libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so.11.2"],
            ),
            RtcKind::Hiprtc => {
                (&self.rocm, &["lib", "lib64"], &["libhiprtc.so.7", "libhiprtc.so.6", "libhiprtc.so"])
            }
        };
        let below = |root: &PathBuf, folders: &[&str]| -> Vec<PathBuf> {
            folders
                .iter()
                .flat_map(|folder| sonames.iter().map(move |name| root.join(folder).join(name)))
                .collect()
        };
        let mut candidates: Vec<PathBuf> = roots.iter().flat_map(|root| below(root, folders)).collect();
        candidates.extend(sonames.iter().map(PathBuf::from));
        if kind == RtcKind::Nvrtc {
            let wheels = ["nvidia/cu13/lib", "nvidia/cuda_nvrtc/lib"];
            candidates.extend(self.python_site.iter().flat_map(|site| below(site, &wheels)));
        }
        candidates
    }
}

/// Finds the compiler for a target: the setting's, or the first that serves, in this order.
///
/// * host: [`ToolSearch::cxx`], `c++`, `g++`, `clang++`
/// * amd: `hipcc`; `amdclang++`, ROCm's `clang++`, `clang++-<newest>`, `clang++`; hiprtc
/// * nvidia: NVRTC in CUDA's folders, on the loader's path, in Python wheels; `nvcc`
///
/// # Errors
/// [`Error::NoCompiler`] with every candidate and why it does not serve. A compiler that cannot be identified
/// does not serve.
pub fn find_toolchain(search: &ToolSearch, target: &Target) -> Result<Arc<dyn Toolchain>> {
    let mut looked = Vec::new();
    let setting =
        search.compiler.clone().filter(|setting| setting.applies_to(target.kind())).unwrap_or_default();
    let found = match (&setting, setting.family().unwrap_or_default()) {
        (CompilerSetting::Path(path), family) => open_path(path, &family, search, target)
            .inspect_err(|problem| looked.push(Looked::new(path.display().to_string(), problem)))
            .ok(),
        (_, CompilerSetting::Auto) => automatic(search, target, &mut looked),
        (_, family) => one_family(&family, search, target, &mut looked),
    };
    found.ok_or(Error::NoCompiler { target: target.clone(), looked })
}

fn automatic(search: &ToolSearch, target: &Target, looked: &mut Vec<Looked>) -> Option<Arc<dyn Toolchain>> {
    let order: &[CompilerSetting] = match target.kind() {
        TargetKind::Host => return boxed(HostCompiler::find(search, looked)),
        TargetKind::Amd => &[CompilerSetting::Hipcc, CompilerSetting::Clang, CompilerSetting::Hiprtc],
        TargetKind::Nvidia => &[CompilerSetting::Nvrtc, CompilerSetting::Nvcc],
    };
    order.iter().find_map(|family| one_family(family, search, target, looked))
}

fn one_family(
    family: &CompilerSetting,
    search: &ToolSearch,
    target: &Target,
    looked: &mut Vec<Looked>,
) -> Option<Arc<dyn Toolchain>> {
    match family {
        CompilerSetting::Hipcc => boxed(AmdClang::find_hipcc(search, looked)),
        CompilerSetting::Clang => boxed(AmdClang::find_clang(search, target, looked)),
        CompilerSetting::Hiprtc => library(RtcKind::Hiprtc, search, target, looked),
        CompilerSetting::Nvrtc => library(RtcKind::Nvrtc, search, target, looked),
        CompilerSetting::Nvcc => boxed(Nvcc::find(search, target, looked)),
        CompilerSetting::Auto | CompilerSetting::Path(_) => None,
    }
}

fn library(
    kind: RtcKind,
    search: &ToolSearch,
    target: &Target,
    looked: &mut Vec<Looked>,
) -> Option<Arc<dyn Toolchain>> {
    search.libraries(kind).iter().find_map(|path| {
        RtcLibrary::open(kind, path, target)
            .inspect_err(|problem| looked.push(Looked::new(path.display().to_string(), problem)))
            .ok()
            .map(|found| Arc::new(found) as Arc<dyn Toolchain>)
    })
}

fn open_path(
    path: &Path,
    family: &CompilerSetting,
    search: &ToolSearch,
    target: &Target,
) -> Result<Arc<dyn Toolchain>, String> {
    Ok(match family {
        CompilerSetting::Hipcc => Arc::new(AmdClang::open_hipcc(path, search)?),
        CompilerSetting::Clang => Arc::new(AmdClang::open_clang(path, target, search)?),
        CompilerSetting::Hiprtc => Arc::new(RtcLibrary::open(RtcKind::Hiprtc, path, target)?),
        CompilerSetting::Nvrtc => Arc::new(RtcLibrary::open(RtcKind::Nvrtc, path, target)?),
        CompilerSetting::Nvcc => Arc::new(Nvcc::open(path, target, search)?),
        CompilerSetting::Auto | CompilerSetting::Path(_) => {
            return Err("its name tells no known compiler".to_owned());
        }
    })
}

fn boxed<T: Toolchain + 'static>(found: Option<T>) -> Option<Arc<dyn Toolchain>> {
    found.map(|found| Arc::new(found) as Arc<dyn Toolchain>)
}

/// One of LLVM's tools failed on an object.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{} on {}: {problem}", program.display(), object.display())]
pub struct DisassemblyError {
    /// The tool.
    pub program: PathBuf,
    /// The file.
    pub object: PathBuf,
    /// What it said.
    pub problem: String,
}

/// Runs `name` or `name-<version>`, newest first, on the object in `directory`. `Ok(None)`: there is none.
pub(crate) fn run_llvm_tool(
    search: &ToolSearch,
    name: &str,
    arguments: &[&str],
    directory: &Path,
) -> Result<Option<String>, DisassemblyError> {
    let rocm: Vec<_> = search.rocm.iter().map(|root| root.join("llvm/bin")).collect();
    let versioned = || super::clang::CLANG_VERSIONS.rev().map(|version| format!("{name}-{version}"));
    // A bare name may be an old version that cannot read new objects.
    let found = find_program(name, &rocm)
        .or_else(|| versioned().find_map(|name| find_program(&name, &search.path)))
        .or_else(|| find_program(name, &search.path));
    let Some(program) = found else { return Ok(None) };
    let object = directory.join(super::OBJECT_FILE);
    let shown = object.to_string_lossy();
    let arguments: Vec<_> = arguments.iter().copied().chain([shown.as_ref()]).collect();
    match search.environment().ask(&program, &arguments) {
        Ok(text) => Ok(Some(text)),
        Err(problem) => Err(DisassemblyError { program, object: object.clone(), problem }),
    }
}

/// A version text without the lines that only say where the compiler lies.
pub(super) fn version_text(text: &str) -> String {
    let lines: Vec<_> = text
        .lines()
        .map(str::trim_end)
        .filter(|line| {
            !line.is_empty() && !line.starts_with("InstalledDir:") && !line.starts_with("Configuration file:")
        })
        .collect();
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_are_read_and_refused() {
        for text in
            ["auto", "hipcc", "clang", "hiprtc", "nvrtc", "nvcc", "/usr/bin/clang++-22", "/x/libnvrtc.so.12"]
        {
            assert_eq!(text.parse::<CompilerSetting>().unwrap().to_string(), text);
        }
        for text in ["", "gcc", "off", "/usr/bin/gcc", "Auto"] {
            assert!(matches!(text.parse::<CompilerSetting>(), Err(Error::CompilerSetting { .. })), "{text}");
        }
    }

    #[test]
    fn finding_nothing_lists_all_that_was_looked_for() {
        let search = ToolSearch {
            path: vec!["/nonexistent/bin".into()],
            rocm: vec!["/nonexistent/rocm".into()],
            cuda: vec!["/nonexistent/cuda".into()],
            ..ToolSearch::default()
        };
        for (target, words) in [
            ("host", ["`c++`", "`g++`", "`clang++`"].as_slice()),
            (
                "gfx942",
                &[
                    "hipcc",
                    "amdclang++",
                    "clang++-32",
                    "/nonexistent/rocm/lib/libhiprtc.so.7",
                    "cannot open shared object file",
                ],
            ),
        ] {
            let message = find_toolchain(&search, &target.parse().unwrap()).unwrap_err().to_string();
            for word in words.iter().chain(&["/nonexistent/bin"]) {
                assert!(message.contains(word), "{word}: {message}");
            }
        }
    }

    #[test]
    fn a_named_compiler_that_does_not_serve_is_not_replaced() {
        let mut search = ToolSearch { cxx: Some("/nonexistent/c++".into()), ..ToolSearch::default() };
        search.path = vec!["/usr/bin".into(), "/bin".into()];
        let Err(Error::NoCompiler { looked, .. }) = find_toolchain(&search, &"host".parse().unwrap()) else {
            panic!("found one")
        };
        assert_eq!(looked.len(), 1);
        search.compiler = Some(CompilerSetting::Path("/nonexistent/clang++".into()));
        let Err(Error::NoCompiler { looked, .. }) = find_toolchain(&search, &"gfx942".parse().unwrap())
        else {
            panic!("found one")
        };
        assert_eq!(looked.len(), 1);
    }

    #[test]
    fn a_compiler_that_cannot_be_identified_does_not_serve() {
        let search = ToolSearch { cxx: Some("/bin/false".into()), ..ToolSearch::default() };
        assert!(find_toolchain(&search, &"host".parse().unwrap()).is_err());
    }
}
