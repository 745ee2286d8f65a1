//! Turns kernel sources into loaded, launchable kernels.
//!
//! ```text
//! KernelSpec --render--> source --key--> cache entry --load--> module of one device --launch--> stream
//! ```
//!
//! * A [`KernelUnit`] describes one `.hip` file, a [`KernelSpec`] one instance of it; rendering is a pure function.
//!   [`kernel_unit!`] declares a unit with its kernels, each a [`Kernel`] of its argument struct.
//! * [`constants!`] names fields of arguments that a plan's kernels are compiled for.
//! * A [`CacheKey`] is the name of a code object, computed from everything it depends on.
//! * [`ToolSearch`] says where compilers are looked for; [`cache`] keeps what they make.
//! * [`Jit`] puts these together: compile, compile ahead, load for a device.
//! * [`device_struct!`] declares argument structs once, for Rust and for the device compiler.
//! * [`PRELUDE`] is the lowest device header.
//!
//! Who checks what: specs, includes and parameters are checked when rendered; objects when they come out of a compiler
//! and again whenever they come off the disk; symbols when loaded; what an argument struct's addresses point to is the
//! launching crate's promise (`unsafe`).
//!
//! A launch never compiles, never loads and never touches a file: kernels are objects that [`Jit::load`] returns, and
//! loading is done when a plan is made.
//!
//! This crate reads no environment variable, keeps no process global, and prints nothing.
#![warn(missing_docs)]

pub mod cache;
#[doc(hidden)]
pub mod constants;
pub mod control;
pub mod disk;
mod key;
pub mod layout;
pub mod source;
mod source_dir;
pub mod target;
mod toolchain;

mod ahead;
mod compile;
mod compiler;
mod config;
mod deadline;
mod diagnostics;
mod edit;
mod elf;
mod error;
mod flight;
mod jit;
mod kernel;
mod load;
mod prelude;
mod request;
mod sync;

pub use bytemuck;

pub use ahead::{AheadReport, AheadRow};
pub use cache::{Cache, CacheEntry, CleanReport, CleanRule};
pub use config::{CodeObject, CompileMode, ConstantsMode, JitConfig, JitObserver, JitStats, Origin, Outcome};
pub use constants::{Constant, ConstantField, Constants, NullPointer};
pub use disk::Disk;
pub use edit::SourceEdit;
pub use error::{CompileError, Error, FailureReason, Nearest, Result, SharedIo};
pub use jit::Jit;
pub use kernel::{Kernel, LoadedKernel};
pub use key::CacheKey;
pub use layout::{DeviceField, DevicePointer, DeviceStruct};
pub use load::{LOCAL_RESERVED_BYTES, LoadedUnit};
pub use prelude::PRELUDE;
pub use source::{Header, Headers, KernelSpec, KernelUnit, ParameterValue, Rendered};
pub use target::{Target, TargetError, TargetKind};
pub use toolchain::{CompilerIdentity, CompilerSetting, Diagnostic, Looked, Severity, ToolSearch};

#[cfg(test)]
pub(crate) mod scratch {
    use std::path::PathBuf;

    /// An empty folder of this test.
    pub(crate) fn folder(name: &str) -> PathBuf {
        let path = std::env::temp_dir().join(format!("anabranch-jit-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&path);
        std::fs::create_dir_all(&path).unwrap();
        path
    }
}
