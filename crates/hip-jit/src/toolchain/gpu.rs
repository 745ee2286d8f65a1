//! The compilers of GPUs: where each is looked for, and how a path to one is opened.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::clang::AmdClang;
use super::nvcc::Nvcc;
use super::rtc::{RtcKind, RtcLibrary};
use super::search::{Family, boxed};
use super::{CompilerSetting, Looked, ToolSearch, Toolchain};
use crate::target::Target;

/// Finds a compiler of this family.
pub(super) fn find(
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

/// Opens what a path names; the family is one of a GPU.
pub(super) fn open(
    path: &Path,
    family: Family,
    search: &ToolSearch,
    target: &Target,
) -> Result<Arc<dyn Toolchain>, String> {
    Ok(match family {
        Family::Hipcc => Arc::new(AmdClang::open_hipcc(path, search)?),
        Family::Clang => Arc::new(AmdClang::open_clang(path, target, search)?),
        Family::Hiprtc => Arc::new(RtcLibrary::open(RtcKind::Hiprtc, path, target)?),
        Family::Nvrtc => Arc::new(RtcLibrary::open(RtcKind::Nvrtc, path, target)?),
        Family::Nvcc => Arc::new(Nvcc::open(path, target, search)?),
        Family::Cxx => return Err(format!("it compiles for the host machine, not for {target}")),
    })
}

impl ToolSearch {
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
