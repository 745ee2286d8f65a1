//! Where compilers are looked for, in which order.

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use super::gpu;
use super::host::HostCompiler;
use super::process::{CleanEnvironment, check_file, check_program};
use super::{Looked, Toolchain};
use crate::error::{Error, Result};
use crate::target::{Target, TargetKind};

/// The user's choice of a compiler. A word names a GPU tool chain: other targets are compiled as with `auto`, and a warning says so.
/// A path is used for the targets that it serves, for the host machine before [`ToolSearch::cxx`]; others are compiled as with `auto`,
/// and a warning says by what. A path that cannot be used is an error for every target.
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
    /// A program or library, identified by its file name (`hipcc`, `clang`, `nvcc`, `libnvrtc`, `libhiprtc`; `g++`, `gcc`, `c++` and `cc`
    /// for the host machine, which a `clang` serves too).
    Path(PathBuf),
}

/// What is opened for a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Family {
    Hipcc,
    Clang,
    Hiprtc,
    Nvrtc,
    Nvcc,
    Cxx,
}

impl Family {
    fn of_path(path: &Path) -> Option<Self> {
        let name = path.file_name()?.to_str()?;
        // Too short to be looked for within names.
        if name == "cc" {
            return Some(Self::Cxx);
        }
        // `clang++` ends like `g++`.
        [
            ("libnvrtc", Self::Nvrtc),
            ("libhiprtc", Self::Hiprtc),
            ("hipcc", Self::Hipcc),
            ("nvcc", Self::Nvcc),
            ("clang", Self::Clang),
            ("g++", Self::Cxx),
            ("gcc", Self::Cxx),
            ("c++", Self::Cxx),
        ]
        .into_iter()
        .find(|(word, _)| name.contains(word))
        .map(|(_, family)| family)
    }

    fn targets(self) -> &'static [TargetKind] {
        match self {
            Self::Hipcc | Self::Hiprtc => &[TargetKind::Amd],
            Self::Clang => &[TargetKind::Amd, TargetKind::Host],
            Self::Nvrtc | Self::Nvcc => &[TargetKind::Nvidia],
            Self::Cxx => &[TargetKind::Host],
        }
    }

    fn compiles_for(self) -> String {
        let kinds: Vec<_> = self.targets().iter().map(ToString::to_string).collect();
        format!("compiles for {} alone", kinds.join(" and "))
    }

    fn is_library(self) -> bool {
        matches!(self, Self::Hiprtc | Self::Nvrtc)
    }
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
                if Family::of_path(Path::new(path)).is_none() {
                    return Err(Error::CompilerSetting { given: text.to_owned() });
                }
                Self::Path(path.into())
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
    /// Whether what a path names is there and can be run; says nothing of the other settings, for which compilers are looked for.
    ///
    /// # Errors
    /// Why it cannot be used.
    pub fn check(&self) -> Result<(), String> {
        let Self::Path(path) = self else { return Ok(()) };
        if family_of(path)?.is_library() {
            // A bare name in a folder of the loader's is none: a path names a file.
            check_file(path).map(|_| ())
        } else {
            check_program(path)
        }
    }

    /// Whether a path can serve targets of this kind, for a program that needs it for nothing else. Other settings can: what they do
    /// not name is looked for.
    ///
    /// # Errors
    /// What it compiles for.
    pub fn check_serves(&self, kind: TargetKind) -> Result<(), String> {
        let Self::Path(path) = self else { return Ok(()) };
        match Family::of_path(path) {
            Some(family) if !family.targets().contains(&kind) => Err(format!(
                "{}, not for {kind}; choose \"auto\", or a compiler for {kind}",
                family.compiles_for()
            )),
            _ => Ok(()),
        }
    }

    /// The target of a tool chain that is chosen by a word; none is chosen by `auto`.
    fn target_of_word(&self) -> Option<TargetKind> {
        match self {
            Self::Hipcc | Self::Clang | Self::Hiprtc => Some(TargetKind::Amd),
            Self::Nvrtc | Self::Nvcc => Some(TargetKind::Nvidia),
            Self::Auto | Self::Path(_) => None,
        }
    }
}

/// Where to look for compilers: a plain value that the caller fills, from the environment or otherwise.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ToolSearch {
    /// The C++ compiler for the host machine (`$CXX`); may have arguments after the program. When given, no other is tried.
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
    /// The choice of a compiler; `None` is `auto`.
    pub compiler: Option<CompilerSetting>,
    /// How long a program may take to say its version or what it knows.
    pub patience: Duration,
}

impl Default for ToolSearch {
    fn default() -> Self {
        Self {
            cxx: None,
            path: Vec::new(),
            rocm: Vec::new(),
            cuda: Vec::new(),
            python_site: Vec::new(),
            library_path: Vec::new(),
            compiler: None,
            patience: Self::PATIENCE,
        }
    }
}

impl ToolSearch {
    /// The default limit of a query for a compiler's version or abilities: a compiler that hangs must not delay the search for as long
    /// as a compilation may take.
    pub const PATIENCE: Duration = Duration::from_secs(60);

    pub(super) fn environment(&self) -> CleanEnvironment {
        CleanEnvironment {
            path: self.path.clone(),
            library_path: self.library_path.clone(),
            patience: self.patience,
        }
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
pub(crate) fn find_toolchain(search: &ToolSearch, target: &Target) -> Result<Arc<dyn Toolchain>> {
    let mut looked = Vec::new();
    let setting = search.compiler.clone().unwrap_or_default();
    let found = match (&setting, setting.target_of_word()) {
        (CompilerSetting::Path(path), _) => by_path(path, search, target, &mut looked),
        (family, Some(kind)) if kind == target.kind() => gpu::find(family, search, target, &mut looked),
        (word, Some(kind)) => {
            tracing::warn!(
                "the compiler {word} was chosen, which compiles for {kind}; for {target} one is looked for"
            );
            automatic(search, target, &mut looked)
        }
        (_, None) => automatic(search, target, &mut looked),
    };
    found.ok_or(Error::NoCompiler { target: target.clone(), looked })
}

fn automatic(search: &ToolSearch, target: &Target, looked: &mut Vec<Looked>) -> Option<Arc<dyn Toolchain>> {
    let order: &[CompilerSetting] = match target.kind() {
        TargetKind::Host => return boxed(HostCompiler::find(search, looked)),
        TargetKind::Amd => &[CompilerSetting::Hipcc, CompilerSetting::Clang, CompilerSetting::Hiprtc],
        TargetKind::Nvidia => &[CompilerSetting::Nvrtc, CompilerSetting::Nvcc],
    };
    order.iter().find_map(|family| gpu::find(family, search, target, looked))
}

/// What the path names; for a target that it does not serve, what is found without it.
fn by_path(
    path: &Path,
    search: &ToolSearch,
    target: &Target,
    looked: &mut Vec<Looked>,
) -> Option<Arc<dyn Toolchain>> {
    let mut refused = |problem| looked.push(Looked::new(path.display().to_string(), problem));
    let family = match CompilerSetting::Path(path.to_owned()).check().and_then(|()| family_of(path)) {
        Ok(family) => family,
        Err(problem) => {
            refused(problem);
            return None;
        }
    };
    if family.targets().contains(&target.kind()) {
        return open_path(path, family, search, target).inspect_err(|problem| refused(problem.clone())).ok();
    }
    refused(family.compiles_for());
    let found = automatic(search, target, looked)?;
    tracing::warn!(
        "kernels.compiler is {}, which {}; for {target} {} is taken",
        path.display(),
        family.compiles_for(),
        found.identity().location
    );
    Some(found)
}

fn family_of(path: &Path) -> Result<Family, String> {
    Family::of_path(path).ok_or_else(|| "its name matches no known compiler".to_owned())
}

fn open_path(
    path: &Path,
    family: Family,
    search: &ToolSearch,
    target: &Target,
) -> Result<Arc<dyn Toolchain>, String> {
    // Compilers run in folders of their own.
    let path = std::path::absolute(path).map_err(|error| error.to_string())?;
    Ok(match family {
        Family::Clang if target.kind() == TargetKind::Host => {
            Arc::new(HostCompiler::open_program(path, Vec::new(), search)?)
        }
        Family::Cxx => Arc::new(HostCompiler::open_program(path, Vec::new(), search)?),
        gpu => gpu::open(&path, gpu, search, target)?,
    })
}

pub(super) fn boxed<T: Toolchain + 'static>(found: Option<T>) -> Option<Arc<dyn Toolchain>> {
    found.map(|found| Arc::new(found) as Arc<dyn Toolchain>)
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
mod tests;
