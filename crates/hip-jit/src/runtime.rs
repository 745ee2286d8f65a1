//! Opens the runtime that the configuration names.

use std::path::PathBuf;
use std::sync::Arc;

use anabranch_hip::{Runtime, RuntimeKind};
use anabranch_hip_host::{HostConfig, HostMachine};

use crate::error::{Error, Result};

/// What opening a runtime needs to know.
#[derive(Clone, Debug, Default)]
pub struct RuntimeConfig {
    /// The machine made of CPU threads.
    pub host: HostConfig,
    /// The runtime library (AMD's, or the CUDA driver), when named; tried before `search`.
    pub library: Option<PathBuf>,
    /// Folders with runtime libraries, tried before the loader's own.
    pub search: Vec<PathBuf>,
}

/// Opens a runtime. Each call for the host makes a machine of its own; the others are one per process.
///
/// # Errors
/// [`Error::Runtime`] with the loader's error: what was tried, and why each did not serve.
pub fn open_runtime(kind: RuntimeKind, config: &RuntimeConfig) -> Result<Runtime> {
    let search: Vec<_> = config.library.iter().chain(&config.search).cloned().collect();
    match kind {
        RuntimeKind::Amd => anabranch_hip::load_amd(&search).map_err(|error| failed(kind, error)),
        RuntimeKind::Nvidia => anabranch_hip_cuda::open(&search).map_err(|error| failed(kind, error)),
        RuntimeKind::Host => HostMachine::new(config.host.clone())
            .map(|machine| machine.runtime())
            .map_err(|error| failed(kind, error)),
    }
}

fn failed(kind: RuntimeKind, error: impl std::error::Error + Send + Sync + 'static) -> Error {
    Error::Runtime { kind, source: Arc::new(error) }
}
