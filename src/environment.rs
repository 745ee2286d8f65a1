//! The process's environment, read once, and what is derived from it: where tools are looked for and where
//! compiled kernels are kept.
//!
//! This is the only place of the library that reads the environment; everything below takes values.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anabranch_hip_jit::{CompilerSetting, ToolSearch};

use crate::config::{KernelsConfig, process_variables};
use crate::error::{Error, Result};

/// A snapshot of environment variables. Those that are no text are left out.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Environment {
    variables: BTreeMap<String, String>,
}

impl Environment {
    /// What the process has now.
    pub fn of_process() -> Self {
        process_variables().into_iter().collect()
    }

    /// A variable's value; empty ones count as not set.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.variables.get(name).map(String::as_str).filter(|value| !value.is_empty())
    }

    /// All variables, for [`LoadOptions::environment`](crate::config::LoadOptions::environment).
    pub fn to_vec(&self) -> Vec<(String, String)> {
        self.variables.iter().map(|(name, value)| (name.clone(), value.clone())).collect()
    }

    fn paths(&self, name: &str) -> Vec<PathBuf> {
        let paths = self.get(name).map(|value| std::env::split_paths(value).collect::<Vec<_>>());
        paths.unwrap_or_default().into_iter().filter(|path| !path.as_os_str().is_empty()).collect()
    }

    /// Where compilers and vendor libraries are looked for: `$CXX`, `$PATH`, `$LD_LIBRARY_PATH`; `$ROCM_PATH`,
    /// `$HIP_PATH`, `/opt/rocm`; `$CUDA_HOME`, `$CUDA_PATH`, `/usr/local/cuda*`; and Python's `site-packages`,
    /// where wheels put NVRTC.
    ///
    /// # Errors
    /// `kernels.compiler` names no compiler.
    pub(crate) fn tool_search(&self, kernels: &KernelsConfig) -> Result<ToolSearch> {
        let compiler: CompilerSetting = kernels.compiler.parse()?;
        Ok(ToolSearch {
            cxx: self.get("CXX").map(str::to_owned),
            path: self.paths("PATH"),
            rocm: self.rocm_roots(),
            cuda: self.cuda_roots(),
            python_site: self.python_sites(),
            library_path: self.paths("LD_LIBRARY_PATH"),
            compiler: Some(compiler),
            patience: ToolSearch::PATIENCE,
        })
    }

    /// Roots of ROCm installations.
    pub(crate) fn rocm_roots(&self) -> Vec<PathBuf> {
        let named = ["ROCM_PATH", "HIP_PATH"].iter().filter_map(|name| self.get(name).map(PathBuf::from));
        distinct(named.chain([PathBuf::from("/opt/rocm")]))
    }

    /// Roots of CUDA installations; versioned ones newest first.
    pub(crate) fn cuda_roots(&self) -> Vec<PathBuf> {
        let named = ["CUDA_HOME", "CUDA_PATH"].iter().filter_map(|name| self.get(name).map(PathBuf::from));
        let mut versioned = children(Path::new("/usr/local"), |name| name.starts_with("cuda-"));
        versioned.reverse();
        distinct(named.chain([PathBuf::from("/usr/local/cuda")]).chain(versioned))
    }

    /// Python's `site-packages` folders that exist.
    pub fn python_sites(&self) -> Vec<PathBuf> {
        let mut sites = Vec::new();
        if let Some(root) = self.get("VIRTUAL_ENV") {
            sites.extend(sites_below(&Path::new(root).join("lib")));
        }
        sites.extend(self.paths("PYTHONPATH"));
        for folder in self.paths("PATH") {
            // Resolved, as `python3` in a virtual environment or in /usr/local/bin points at its installation.
            let links = [folder.join("python3"), folder.join("python")];
            for program in links.iter().filter(|program| program.exists()) {
                let resolved = program.canonicalize().unwrap_or_else(|_| program.clone());
                for program in [program, &resolved] {
                    let root = program.parent().and_then(Path::parent);
                    sites.extend(root.map(|root| sites_below(&root.join("lib"))).unwrap_or_default());
                }
            }
        }
        if let Some(home) = self.get("HOME") {
            sites.extend(sites_below(&Path::new(home).join(".local/lib")));
        }
        // Version managers put shims on PATH, which point nowhere.
        let home = self.get("HOME").map(|home| Path::new(home).join(".pyenv"));
        let pyenv = self.get("PYENV_ROOT").map(PathBuf::from).or(home);
        for version in pyenv.map(|root| children(&root.join("versions"), |_| true)).unwrap_or_default() {
            sites.extend(sites_below(&version.join("lib")));
        }
        sites.push(PathBuf::from("/usr/lib/python3/dist-packages"));
        distinct(sites).into_iter().filter(|site| site.is_dir()).collect()
    }

    /// Where kernels are compiled when the cache cannot be written, and where the parts of a trace are: `$TMPDIR`, `/tmp`.
    pub fn scratch_folder(&self) -> PathBuf {
        self.get("TMPDIR").map_or_else(|| PathBuf::from("/tmp"), PathBuf::from)
    }

    /// The directory of compiled kernels: `kernels.cache`, `$XDG_CACHE_HOME/anabranch`, `~/.cache/anabranch`.
    ///
    /// # Errors
    /// [`Error::NoCacheDirectory`] when none of the three is known.
    pub fn cache_root(&self, kernels: &KernelsConfig) -> Result<PathBuf> {
        if let Some(cache) = &kernels.cache {
            return Ok(cache.clone());
        }
        let absolute = |name| self.get(name).map(PathBuf::from).filter(|path| path.is_absolute());
        let user = absolute("XDG_CACHE_HOME").or_else(|| absolute("HOME").map(|home| home.join(".cache")));
        user.map(|root| root.join("anabranch")).ok_or(Error::NoCacheDirectory)
    }
}

impl FromIterator<(String, String)> for Environment {
    fn from_iter<I: IntoIterator<Item = (String, String)>>(pairs: I) -> Self {
        Self { variables: pairs.into_iter().collect() }
    }
}

/// `lib/python3.*/site-packages` and Debian's `lib/python3/dist-packages`.
fn sites_below(lib: &Path) -> Vec<PathBuf> {
    let versions = children(lib, |name| name.starts_with("python3"));
    versions.iter().flat_map(|python| [python.join("site-packages"), python.join("dist-packages")]).collect()
}

/// The entries of a folder that are wanted, in the order of their names; none when it cannot be read.
fn children(folder: &Path, wanted: impl Fn(&str) -> bool) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let mut paths: Vec<PathBuf> = entries
        .filter(|entry| entry.file_name().to_str().is_some_and(&wanted))
        .map(|entry| entry.path())
        .collect();
    paths.sort();
    paths
}

fn distinct(paths: impl IntoIterator<Item = PathBuf>) -> Vec<PathBuf> {
    let mut kept: Vec<PathBuf> = Vec::new();
    for path in paths {
        if !kept.contains(&path) {
            kept.push(path);
        }
    }
    kept
}

#[cfg(test)]
mod tests {
    use super::*;

    fn environment(pairs: &[(&str, &str)]) -> Environment {
        pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
    }

    #[test]
    fn the_cache_is_found_in_the_stated_order() {
        let mut kernels = KernelsConfig::default();
        let full = environment(&[("XDG_CACHE_HOME", "/x"), ("HOME", "/h")]);
        assert_eq!(full.cache_root(&kernels).unwrap(), Path::new("/x/anabranch"));
        assert_eq!(
            environment(&[("HOME", "/h"), ("XDG_CACHE_HOME", "")]).cache_root(&kernels).unwrap(),
            Path::new("/h/.cache/anabranch")
        );
        assert_eq!(
            environment(&[("XDG_CACHE_HOME", "relative"), ("HOME", "/h")]).cache_root(&kernels).unwrap(),
            Path::new("/h/.cache/anabranch")
        );
        assert!(matches!(environment(&[]).cache_root(&kernels), Err(Error::NoCacheDirectory)));
        kernels.cache = Some("/c".into());
        assert_eq!(full.cache_root(&kernels).unwrap(), Path::new("/c"));
    }

    #[test]
    fn scratch_space_follows_the_given_environment() {
        assert_eq!(environment(&[("TMPDIR", "/scratch")]).scratch_folder(), Path::new("/scratch"));
        assert_eq!(environment(&[("TMPDIR", "")]).scratch_folder(), Path::new("/tmp"));
        assert_eq!(environment(&[]).scratch_folder(), Path::new("/tmp"));
    }

    #[test]
    fn tools_are_looked_up_in_the_environment() {
        let given = environment(&[
            ("CXX", "ccache g++"),
            ("PATH", "/a::/b"),
            ("ROCM_PATH", "/rocm"),
            ("HIP_PATH", "/rocm"),
            ("CUDA_HOME", "/cuda"),
        ]);
        let search = given.tool_search(&KernelsConfig::default()).unwrap();
        assert_eq!(search.cxx.as_deref(), Some("ccache g++"));
        assert_eq!(search.path, [Path::new("/a"), Path::new("/b")]);
        assert_eq!(search.rocm, [Path::new("/rocm"), Path::new("/opt/rocm")]);
        assert_eq!(search.cuda[..2], [PathBuf::from("/cuda"), PathBuf::from("/usr/local/cuda")]);
        let kernels = KernelsConfig { compiler: "gcc".to_owned(), ..KernelsConfig::default() };
        assert!(given.tool_search(&kernels).is_err());
    }

    #[test]
    fn site_packages_are_found_beside_python() {
        let root = std::env::temp_dir().join(format!("anabranch-sites-{}", std::process::id()));
        let site = root.join("lib/python3.12/site-packages");
        std::fs::create_dir_all(&site).unwrap();
        std::fs::create_dir_all(root.join("bin")).unwrap();
        std::fs::write(root.join("bin/python3"), "").unwrap();
        let bin = root.join("bin");
        let sites = environment(&[("PATH", bin.to_str().unwrap())]).python_sites();
        assert!(sites.contains(&site) || sites.contains(&site.canonicalize().unwrap()), "{sites:?}");
        let sites = environment(&[("VIRTUAL_ENV", root.to_str().unwrap())]).python_sites();
        assert_eq!(sites.first(), Some(&site));
        std::fs::remove_dir_all(root).unwrap();
    }
}
