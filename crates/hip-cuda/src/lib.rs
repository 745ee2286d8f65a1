//! The HIP function table over the CUDA driver.
//!
//! HIP's second platform is NVIDIA: the same kernels and the same host code, with HIP's functions forwarded to
//! `libcuda.so.1`, which is opened at run time. No CUDA header or library is needed to build.
//!
//! What differs from AMD's runtime, by design:
//!
//! * Every device is used through its primary context, which frameworks in the same process use too. It is
//!   retained when it is first needed and never released.
//! * The reported architecture is `sm_<major><minor>`, the warp has 32 lanes, and the local memory of a block
//!   is the device's opt-in maximum, which every function is allowed when it is looked up.
//! * `hipMemcpy` and `hipMemset` have finished when they return.
//! * What is given to a stream whose capture was invalidated is still taken, and lost when the capture ends.
//! * Fine-grained and uncached device memory is ordinary device memory.
//! * Functions are loaded when they are looked up and never with a launch.
//! * Memory of the virtual-memory calls has no IPC handle (`hipErrorNotSupported`), but a file descriptor.
//! * Error codes that HIP does not name keep CUDA's number.
//!
//! Layers, from below: `cuda` (types and numbers), `functions` (the driver's entry points), `driver` (the opened
//! library), `captures` (what is refused beside them), `context` and `call` (current device, errors), `convert` (pure
//! translation), `shims` (HIP's functions), `table`.

mod call;
mod captures;
mod context;
mod convert;
mod cuda;
mod driver;
mod functions;
mod shims;
mod table;

use std::path::PathBuf;

use anabranch_hip::{LoadError, Runtime, RuntimeKind};

pub use functions::DRIVER_SYMBOLS;

/// Opens the CUDA driver and fills the table.
///
/// Order: a copy that is already mapped in this process, then each of `search` (a library file, or a directory
/// that holds `libcuda.so.1`), then the system loader's path and two places known from NVIDIA's packages. The
/// driver is one per process: after the first success `search` is no longer looked at, and the library stays
/// open until the process ends. A driver that shows no device opens; its device count is 0.
///
/// # Errors
/// [`LoadError::NotFound`] with every candidate and the loader's words, [`LoadError::MissingSymbol`] for a
/// driver before CUDA 11.4, or [`LoadError::Init`] with the driver's code, as where the kernel module and the
/// library do not fit.
pub fn open(search: &[PathBuf]) -> Result<Runtime, LoadError> {
    let driver = driver::open(search)?;
    Ok(Runtime::new(RuntimeKind::Nvidia, table::table(&driver.cuda), None, driver.origin.clone()))
}
