//! Configuration of a [`Jit`](crate::Jit), and what it reports.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use crate::disk::Disk;
use crate::edit::SourceEdit;
use crate::key::CacheKey;
use crate::source::ParameterValue;
use crate::target::Target;

anabranch_ranks::word_enum! {
    /// Whether kernels may be compiled.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub enum CompileMode, word, "compile mode" {
        /// What is missing is compiled.
        #[default]
        Auto = "auto",
        /// What is missing is an error with the inputs that differ.
        Deny = "deny",
    }
}

anabranch_ranks::word_enum! {
    /// Whether kernels are compiled for the [`Constants`](crate::Constants) of their specs. Kernels without serve every plan, and are
    /// slower.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub enum ConstantsMode, word, "constants mode" {
        /// On GPUs; where such a kernel is missing and may not or cannot be compiled, the one without constants.
        #[default]
        Auto = "auto",
        /// On every target.
        Always = "always",
        /// On none.
        Never = "never",
    }
}

/// How a [`Jit`](crate::Jit) works. Make one with [`JitConfig::new`] and change fields.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct JitConfig {
    /// The root of the cache.
    pub cache: PathBuf,
    /// Read-only caches that are searched first, by source, target and user options; the compiler that made them may
    /// be another one than here, or none may be here.
    pub prebuilt: Vec<PathBuf>,
    /// Whether to compile at all.
    pub compile: CompileMode,
    /// Whether to compile for the constants of a plan.
    pub constants: ConstantsMode,
    /// For development: headers and `<unit>.hip` are taken from here where they exist, from this folder, its `device`
    /// and `kernels`, and those of each folder below its `crates`; a header `ep/routing.h` also from `crates/ep/kernels`.
    /// What is read is part of the key.
    pub source_dir: Option<PathBuf>,
    /// Options after the tool chain's own.
    pub extra_options: Vec<String>,
    /// Parameters that every kernel is compiled with, in place of its own of the same name. In the key like a kernel's own.
    pub parameters: Vec<(&'static str, ParameterValue)>,
    /// For development: changes of sources, wherever they come from, before they are compiled. What comes of them is part of the key.
    pub edits: Vec<SourceEdit>,
    /// Make debug information.
    pub debug_info: bool,
    /// The AMD code-object version; the compiler's default otherwise.
    pub code_object_version: Option<u32>,
    /// What devices must be; `None` takes what each reports.
    pub arch: Option<Target>,
    /// Failed compilations that are kept in the cache, for bug reports.
    pub keep_failed: usize,
    /// How long one compilation may take. Compilers that are libraries cannot be stopped.
    pub compile_deadline: Duration,
    /// How often a compilation that takes long, or a wait for another process's, is reported, to the observer and in the log.
    pub progress_interval: Duration,
    /// How long to wait for another process or thread that compiles the same kernel.
    pub wait_deadline: Duration,
    /// Where to compile when the cache cannot be written, at whatever step that shows; the kernel is not kept then, and a
    /// warning says so. `None` makes that an error.
    pub scratch: Option<PathBuf>,
    /// Treat a warning as a failure. Not in the key: an object from the cache is taken as it is.
    pub deny_warnings: bool,
    /// Receives reports about compilations.
    pub observer: Option<Arc<dyn JitObserver>>,
    /// The disk, which tests may make fail.
    pub disk: Disk,
}

impl JitConfig {
    /// The default limit of one compilation: far longer than any kernel takes on a machine that is not overloaded.
    pub const PATIENCE: Duration = Duration::from_secs(20 * 60);

    /// A process waits this much longer than one compilation for another process that compiles the same kernel.
    const WAIT_BEYOND: Duration = Duration::from_secs(60);

    /// Sets how long one compilation may take, and how long others wait for it.
    pub fn set_patience(&mut self, patience: Duration) {
        self.compile_deadline = patience;
        self.wait_deadline = patience.saturating_add(Self::WAIT_BEYOND);
    }

    /// The defaults, with a cache below `cache`.
    pub fn new(cache: impl Into<PathBuf>) -> Self {
        Self {
            cache: cache.into(),
            prebuilt: Vec::new(),
            compile: CompileMode::Auto,
            constants: ConstantsMode::Auto,
            source_dir: None,
            extra_options: Vec::new(),
            parameters: Vec::new(),
            edits: Vec::new(),
            debug_info: false,
            code_object_version: None,
            arch: None,
            keep_failed: 8,
            compile_deadline: Self::PATIENCE,
            progress_interval: Duration::from_secs(15),
            wait_deadline: Self::PATIENCE + Self::WAIT_BEYOND,
            scratch: None,
            deny_warnings: false,
            observer: None,
            disk: Disk::default(),
        }
    }
}

/// Receives reports about compilations, on the thread that compiles: a progress line, a trace.
pub trait JitObserver: Send + Sync + fmt::Debug {
    /// A compiler is about to run.
    fn compiling(&self, label: &str, target: &Target);
    /// It has been running for so long and is not done; called every [`JitConfig::progress_interval`], on a thread of its own.
    fn still_compiling(&self, label: &str, target: &Target, so_far: Duration) {
        let _ = (label, target, so_far);
    }
    /// Another process has been compiling the same kernel for as long as this one has waited for it; `owner` names it (`process 12 on
    /// node3`). Called every [`JitConfig::progress_interval`], on the thread that waits.
    fn waiting(&self, label: &str, target: &Target, owner: &str, so_far: Duration) {
        let _ = (label, target, owner, so_far);
    }
    /// It has run.
    fn finished(&self, label: &str, target: &Target, outcome: Outcome, took: Duration);
}

/// How a request for a code object ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It was there.
    Hit,
    /// It was compiled.
    Compiled,
    /// There is none.
    Failed,
}

/// Where a code object came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// A prebuilt folder.
    Prebuilt,
    /// The cache.
    Cache,
    /// A compiler, now.
    Compiled,
}

/// A code object, checked.
#[derive(Clone, Debug)]
pub struct CodeObject {
    /// Its key; of a prebuilt object, the key that it was made under.
    pub key: CacheKey,
    /// What it is for.
    pub target: Target,
    /// Unit and parameters, for people.
    pub label: String,
    /// Its kernels' C names.
    pub entries: Vec<String>,
    /// The ELF file (or what the target's loader takes).
    pub bytes: Arc<[u8]>,
    /// Where it came from.
    pub origin: Origin,
    /// Its entry; the work folder, which is gone, when it could not be cached.
    pub directory: PathBuf,
}

/// Counters of one [`Jit`](crate::Jit).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct JitStats {
    /// Compilers run with success.
    pub compiled: u64,
    /// Requests answered from the cache or a prebuilt folder.
    pub hits: u64,
    /// Broken entries moved aside.
    pub healed: u64,
    /// Requests that waited for another thread or process to compile.
    pub waited: u64,
    /// Compilations that failed.
    pub failed: u64,
}
