//! What can go wrong, as values.

use std::fmt;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anabranch_ranks::ErrorKind;

use crate::compiler::Looked;
use crate::diagnostics::{Diagnostic, Severity};
use crate::key::CacheKey;
use crate::target::{Target, TargetError};

/// The result of calls in this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// An error of the kernel pipeline. Cheap to clone, so that all who waited for one compilation can have it.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A target that does not exist.
    #[error(transparent)]
    Target(#[from] TargetError),
    /// A unit or parameter that cannot be rendered.
    #[error("unit {unit}: {parameter}: {problem}")]
    Parameter {
        /// The unit.
        unit: &'static str,
        /// The parameter (or entry).
        parameter: String,
        /// What is wrong.
        problem: String,
    },
    /// A source includes something that is not embedded.
    #[error("unit {unit}: {file}:{line}: `{include}` is not among the unit's headers")]
    Include {
        /// The unit.
        unit: &'static str,
        /// The file with the line.
        file: String,
        /// The line, from 1.
        line: u32,
        /// What it includes.
        include: String,
    },
    /// The folder of source overrides cannot be read.
    #[error("source folder: cannot read {}", path.display())]
    SourceDir {
        /// What was read.
        path: PathBuf,
        /// Why it failed.
        #[source]
        source: SharedIo,
    },
    /// An edit that does not fit the source.
    #[error("edit of {file}: {problem}: {line:?}")]
    Edit {
        /// The file.
        file: String,
        /// The text that the edit replaces.
        line: String,
        /// What is wrong.
        problem: String,
    },
    /// No tool chain for the target.
    #[error("no compiler for {target}; looked for:{}", list(looked))]
    NoCompiler {
        /// The target.
        target: Target,
        /// Each candidate and why it does not serve.
        looked: Vec<Looked>,
    },
    /// A setting that names no compiler.
    #[error(
        "`{given}` is no compiler setting; accepted are auto, hipcc, clang, hiprtc, nvrtc, nvcc, or a path, with a `/`, whose file name \
         identifies it: *clang*, *g++*, *gcc*, *c++*, *hipcc*, *nvcc*, libnvrtc*, libhiprtc*"
    )]
    CompilerSetting {
        /// What was given.
        given: String,
    },
    /// The compiler refused the source, or failed.
    #[error(transparent)]
    Compile(Arc<CompileError>),
    /// A file operation in the cache failed.
    #[error("kernel cache: cannot {operation} {}{}", path.display(), advice(source))]
    Cache {
        /// What was being done.
        operation: &'static str,
        /// To which file or folder.
        path: PathBuf,
        /// Why it failed.
        #[source]
        source: SharedIo,
    },
    /// Compiling is forbidden and the object is neither prebuilt nor in the cache.
    #[error("{label} for {target} (key {key}) is not in the cache and compiling is forbidden; {}", nearest_text(nearest.as_deref()))]
    Denied {
        /// The spec's label.
        label: String,
        /// The target.
        target: Target,
        /// The key asked for.
        key: CacheKey,
        /// The entry of the unit that differs least, and in what.
        nearest: Option<Box<Nearest>>,
    },
    /// Another thread of the process compiles this kernel and did not finish in time.
    #[error("{label} for {target}: another thread has been compiling it for more than {waited:?}")]
    Busy {
        /// The spec's label.
        label: String,
        /// The target.
        target: Target,
        /// How long this thread waited.
        waited: Duration,
    },
    /// The device is not the one that the configuration names.
    #[error("{device} reports {reported}, but the configuration asks for {configured}")]
    TargetMismatch {
        /// The device.
        device: String,
        /// What it reports.
        reported: Target,
        /// What is configured.
        configured: Target,
    },
    /// Architecture and wave size of a device contradict each other.
    #[error("{device} reports {target} and {reported} lanes a wave; {target} has {expected}")]
    WaveSize {
        /// The device.
        device: String,
        /// Its target.
        target: Target,
        /// What it reports.
        reported: u32,
        /// What the target has.
        expected: u32,
    },
    /// The constant clock of a device ticks at another rate than kernels for its architecture are compiled for, so their
    /// deadlines would be wrong.
    #[error(
        "{device} reports a clock of {reported} kHz; kernels for {target} are compiled for {expected} kHz"
    )]
    ClockRate {
        /// The device.
        device: String,
        /// Its target.
        target: Target,
        /// What it reports.
        reported: u32,
        /// What the target has.
        expected: u32,
    },
    /// The runtime refused a code object.
    #[error("cannot load {label}, compiled for {target}, on {device}; entry {}", directory.display())]
    Load {
        /// The spec's label.
        label: String,
        /// What it was compiled for.
        target: Target,
        /// The device and its architecture.
        device: String,
        /// The cache entry.
        directory: PathBuf,
        /// The runtime's error.
        #[source]
        source: Arc<anabranch_hip::Error>,
    },
    /// A loaded object lacks a kernel.
    #[error("no kernel `{entry}` in the loaded object of {label}; entry {}", directory.display())]
    Symbol {
        /// The kernel's C name.
        entry: String,
        /// The spec's label.
        label: String,
        /// The cache entry.
        directory: PathBuf,
        /// The runtime's error.
        #[source]
        source: Arc<anabranch_hip::Error>,
    },
    /// A kernel of another unit was asked for.
    #[error("the loaded unit {unit} has no kernel {entry}; it has {}", known.join(", "))]
    NoEntry {
        /// Unit and name of the kernel that was asked for.
        entry: String,
        /// The loaded unit.
        unit: &'static str,
        /// What it has.
        known: Vec<String>,
    },
    /// A launch shape that no kernel can have.
    #[error("kernel {entry}: {problem}")]
    Shape {
        /// The kernel.
        entry: String,
        /// What is wrong.
        problem: &'static str,
    },
    /// Arguments that differ from the constants of the kernel's spec.
    #[error("kernel {entry} was loaded for {constant}, and the launch has {given}")]
    Constant {
        /// The kernel.
        entry: String,
        /// The field and its value.
        constant: String,
        /// The value of the launch.
        given: String,
    },
    /// The runtime refused a launch or a query.
    #[error("kernel {entry} could not be launched: {cause}")]
    Launch {
        /// The kernel.
        entry: String,
        /// The runtime's error. A part of the text, since it is the whole reason.
        cause: Arc<anabranch_hip::Error>,
    },
    /// The stream or device could not be asked.
    #[error(transparent)]
    Hip(Arc<anabranch_hip::Error>),
}

/// An I/O error that can be cloned.
pub type SharedIo = Arc<io::Error>;

impl Error {
    /// Who can do something about it.
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::Target(_)
            | Self::CompilerSetting { .. }
            | Self::TargetMismatch { .. }
            | Self::SourceDir { .. } => ErrorKind::Config,
            Self::NoCompiler { .. } | Self::Cache { .. } | Self::Busy { .. } | Self::WaveSize { .. } => {
                ErrorKind::Environment
            }
            Self::Compile(_) | Self::Parameter { .. } | Self::Include { .. } | Self::Denied { .. } => {
                ErrorKind::Compile
            }
            Self::NoEntry { .. } | Self::Shape { .. } | Self::Constant { .. } => ErrorKind::Usage,
            Self::Hip(error) => error.kind(),
            _ => ErrorKind::Device,
        }
    }

    pub(crate) fn cache(operation: &'static str, path: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> Self {
        let path = path.into();
        move |source| Self::Cache { operation, path, source: Arc::new(source) }
    }

    /// The compile error, when it is one.
    pub fn compile_error(&self) -> Option<&CompileError> {
        match self {
            Self::Compile(error) => Some(error),
            _ => None,
        }
    }
}

/// What to do about a file operation that failed.
fn advice(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
            " (free some space there, or choose another folder for the cache)"
        }
        io::ErrorKind::ReadOnlyFilesystem | io::ErrorKind::PermissionDenied => {
            " (make it writable, or choose another folder for the cache)"
        }
        io::ErrorKind::NotADirectory | io::ErrorKind::AlreadyExists => {
            " (something else is in its place; remove that, or choose another folder for the cache)"
        }
        _ => "",
    }
}

fn list(looked: &[Looked]) -> String {
    let lines: Vec<_> =
        looked.iter().map(|candidate| format!("\n  {}: {}", candidate.what, candidate.problem)).collect();
    lines.concat()
}

/// The cache entry that differs least from one that is missing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Nearest {
    /// Its folder.
    pub directory: PathBuf,
    /// Each differing input: name, value there (empty: absent), value wanted (empty: absent).
    pub differences: Vec<(String, String, String)>,
}

fn nearest_text(nearest: Option<&Nearest>) -> String {
    let Some(nearest) = nearest else { return "no entry of this unit exists".to_owned() };
    let word = |value: &str| {
        if value.is_empty() { "absent".to_owned() } else { format!("`{}`", value.replace('\n', "; ")) }
    };
    let differences: Vec<_> = nearest
        .differences
        .iter()
        .map(|(name, there, wanted)| format!("\n  {name}: {} there, {} wanted", word(there), word(wanted)))
        .collect();
    format!("the nearest entry, {}, differs in:{}", nearest.directory.display(), differences.concat())
}

/// Why no code object came out of a compiler.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum FailureReason {
    /// The compiler refused the source.
    Refused,
    /// The compiler warned, and warnings are denied.
    Warnings,
    /// The compiler was ended by a signal.
    Crashed {
        /// The signal.
        signal: i32,
    },
    /// The compiler was killed because it took too long.
    TimedOut {
        /// The deadline.
        after: Duration,
    },
    /// The compiler failed and did not blame the source: its disk was full, a part of it was killed, it is broken.
    Failed {
        /// Its exit code.
        code: i32,
    },
    /// The compiler could not be started.
    NotRun {
        /// The system's error.
        problem: String,
    },
    /// A file of the compilation could not be made, read or removed.
    WorkFolder {
        /// The file and the system's error.
        problem: String,
    },
    /// The compiler's program was replaced since it was identified, so its object belongs under another key.
    Replaced,
    /// The compiler claims success, but what it wrote is not a code object with the unit's kernels.
    BadObject {
        /// What is wrong with it.
        problem: String,
    },
}

/// A unit did not compile.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CompileError {
    /// The spec's label.
    pub label: String,
    /// The target.
    pub target: Target,
    /// Kind, first line of the version, and place of the compiler.
    pub compiler: String,
    /// Command or options.
    pub command: String,
    /// The key of the entry that was to be made.
    pub key: CacheKey,
    /// Why.
    pub reason: FailureReason,
    /// The compiler's diagnostics, in order.
    pub diagnostics: Vec<Diagnostic>,
    /// The compiler's whole output.
    pub log: String,
    /// The folder that was kept, with `kernel.hip` and `compile.log`; `None` when nothing is kept.
    pub kept: Option<PathBuf>,
}

impl fmt::Display for CompileError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "cannot compile {} for {}: ", self.label, self.target)?;
        let errors = self.diagnostics.iter().filter(|d| d.severity == Severity::Error).count();
        match &self.reason {
            FailureReason::Refused if errors == 1 => f.write_str("1 error")?,
            FailureReason::Refused if errors == 0 => f.write_str("the compiler failed")?,
            FailureReason::Refused => write!(f, "{errors} errors")?,
            FailureReason::Warnings => f.write_str("the compiler warned, and warnings are denied")?,
            FailureReason::Crashed { signal } => write!(f, "the compiler was ended by signal {signal}")?,
            FailureReason::TimedOut { after } => {
                write!(
                    f,
                    "the compiler was killed after {after:?}, the time that it may take (kernels.patience)"
                )?;
            }
            FailureReason::Failed { code } => {
                write!(f, "the compiler failed with code {code}, blaming no line of the source")?;
            }
            FailureReason::NotRun { problem } => write!(f, "the compiler did not run: {problem}")?,
            FailureReason::WorkFolder { problem } => write!(f, "{problem}")?,
            FailureReason::Replaced => {
                f.write_str("the compiler was replaced since it was identified; try again")?;
            }
            FailureReason::BadObject { problem } => write!(f, "the compiler wrote a bad object: {problem}")?,
        }
        let worst = |severity| self.diagnostics.iter().find(|diagnostic| diagnostic.severity == severity);
        // A warning is the cause only where warnings are denied.
        let denied = self.reason == FailureReason::Warnings;
        if let Some(first) = worst(Severity::Error).or_else(|| worst(Severity::Warning).filter(|_| denied)) {
            write!(f, "\n  {first}")?;
        } else if !matches!(self.reason, FailureReason::BadObject { .. }) {
            for line in self.log.lines().filter(|line| !line.trim().is_empty()).take(3) {
                write!(f, "\n  {line}")?;
            }
        }
        if let Some(kept) = &self.kept {
            let kept = kept.display();
            write!(
                f,
                "\n  source and full log: {kept}/kernel.hip, {kept}/compile.log (kept because compilation failed)"
            )?;
        }
        write!(f, "\n  compiler: {}: {}", self.compiler, self.command)
    }
}

impl std::error::Error for CompileError {}
