//! Compilers: what one must do, and where they are looked for.

#[cfg(feature = "gpu-compilers")]
mod clang;
#[cfg(feature = "gpu-compilers")]
mod gpu;
#[cfg(not(feature = "gpu-compilers"))]
#[path = "no_gpu.rs"]
mod gpu;
mod host;
#[cfg(feature = "gpu-compilers")]
mod nvcc;
mod process;
#[cfg(feature = "gpu-compilers")]
mod rtc;
mod search;
mod stamp;

use std::fmt;
use std::path::Path;
use std::time::Duration;

use crate::disk::Disk;
use crate::error::FailureReason;
use crate::source::Rendered;
use crate::target::Target;

pub use crate::compiler::{CompilerIdentity, Looked};
pub(crate) use crate::diagnostics::parse_diagnostics;
pub use crate::diagnostics::{Diagnostic, Severity};
pub(crate) use search::find_toolchain;
pub use search::{CompilerSetting, ToolSearch};

/// Choices that a tool chain turns into its own options.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct OptionChoices {
    /// Make debug information.
    pub debug_info: bool,
    /// The AMD code-object version; the compiler's default otherwise.
    pub code_object_version: Option<u32>,
}

/// One compilation. The folder `work` already holds `kernel.hip` and, below `include`, every header.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CompileJob<'a> {
    /// The source.
    #[cfg_attr(not(feature = "gpu-compilers"), expect(dead_code, reason = "libraries that compile read it"))]
    pub rendered: &'a Rendered,
    /// All options, the tool chain's own ([`Toolchain::options`]) first.
    pub options: &'a [String],
    /// A folder of its own, which the caller removes.
    pub work: &'a Path,
    /// How long it may take. In-process compilers cannot be stopped and ignore it.
    pub deadline: Duration,
    /// What files of the work folder are reached through.
    pub disk: &'a Disk,
}

/// What a compiler made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CompileOutput {
    /// The code object.
    pub object: Vec<u8>,
    /// Its log (warnings).
    pub log: String,
    /// The command or options, for people.
    pub command: String,
}

/// A compilation that made nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CompileFailure {
    /// Why.
    pub reason: FailureReason,
    /// Its output.
    pub log: String,
    /// The command or options, for people.
    pub command: String,
}

/// Whether a compiler refused the source or failed otherwise. What is refused once is refused for ever and remembered;
/// anything else, a full disk for example, may pass. Fatal errors are mostly about files, and the line they name is where the
/// compiler happened to be.
fn why_failed(code: i32, log: &str) -> FailureReason {
    let refused = log.lines().filter(|line| !line.contains(": fatal error")).flat_map(parse_diagnostics);
    if refused.into_iter().any(|said| said.severity == Severity::Error && said.line > 0) {
        return FailureReason::Refused;
    }
    FailureReason::Failed { code }
}

/// A compiler that was found and identified.
pub(crate) trait Toolchain: Send + Sync + fmt::Debug {
    /// Which it is.
    fn identity(&self) -> &CompilerIdentity;

    /// Whether it is still the one that was identified: a program may be replaced under a running process.
    fn is_current(&self) -> bool {
        true
    }

    /// The options it is given for a target, in order; part of the key.
    fn options(&self, target: &Target, choices: OptionChoices) -> Vec<String>;

    /// Compiles. The caller checks the object.
    ///
    /// # Errors
    /// Whatever kept it from making an object.
    fn compile(&self, job: &CompileJob<'_>) -> Result<CompileOutput, CompileFailure>;
}

/// File names inside a work folder and a cache entry.
pub(crate) const SOURCE_FILE: &str = "kernel.hip";
pub(crate) const OBJECT_FILE: &str = "kernel.co";
pub(crate) const INCLUDE_FOLDER: &str = "include";
