//! Opens the runtime that the configuration names.

use std::path::PathBuf;

use anabranch_hip::{Runtime, RuntimeKind};
#[cfg(feature = "host")]
use anabranch_hip_host::{HostConfig, HostMachine};

use crate::error::{Error, Result};

/// What opening a runtime needs to know.
#[derive(Clone, Debug, Default)]
pub(crate) struct RuntimeConfig {
    /// The machine made of CPU threads.
    #[cfg(feature = "host")]
    pub(crate) host: HostConfig,
    /// Its schedule, when a seed decides every step.
    #[cfg(feature = "seeded")]
    pub(crate) seeded: Option<anabranch_weakmem::SeededSchedule>,
    /// The runtime library (AMD's, or the CUDA driver), when named; tried before `search`.
    #[cfg_attr(
        not(any(feature = "amd", feature = "nvidia")),
        expect(dead_code, reason = "only runtimes of GPUs are libraries")
    )]
    pub(crate) library: Option<PathBuf>,
    /// Folders with runtime libraries, tried before the loader's own.
    #[cfg_attr(
        not(any(feature = "amd", feature = "nvidia")),
        expect(dead_code, reason = "only runtimes of GPUs are libraries")
    )]
    pub(crate) search: Vec<PathBuf>,
}

/// Opens a runtime.
pub(crate) fn open(kind: RuntimeKind, config: &RuntimeConfig) -> Result<Runtime> {
    match kind {
        #[cfg(feature = "amd")]
        RuntimeKind::Amd => anabranch_hip::load_amd(&folders(config)).map_err(|error| failed(kind, error)),
        #[cfg(feature = "nvidia")]
        RuntimeKind::Nvidia => {
            anabranch_hip_cuda::open(&folders(config)).map_err(|error| failed(kind, error))
        }
        #[cfg(feature = "host")]
        RuntimeKind::Host => open_host(config).map_err(|error| failed(kind, error)),
        #[cfg(not(all(feature = "amd", feature = "nvidia", feature = "host")))]
        kind => {
            let _ = config;
            Err(Error::NotBuilt { setting: "device.runtime", feature: crate::features::of_runtime(kind) })
        }
    }
}

/// Where runtime libraries are looked for.
#[cfg(any(feature = "amd", feature = "nvidia"))]
fn folders(config: &RuntimeConfig) -> Vec<PathBuf> {
    config.library.iter().chain(&config.search).cloned().collect()
}

#[cfg(feature = "host")]
fn open_host(config: &RuntimeConfig) -> std::result::Result<Runtime, anabranch_hip_host::Error> {
    #[cfg(feature = "seeded")]
    if let Some(schedule) = &config.seeded {
        let host = anabranch_weakmem::SeededHost::new(config.host.clone(), schedule)?;
        return Ok(host.runtime());
    }
    Ok(HostMachine::new(config.host.clone())?.runtime())
}

#[cfg(any(feature = "amd", feature = "nvidia", feature = "host"))]
fn failed(kind: RuntimeKind, error: impl std::error::Error + Send + Sync + 'static) -> Error {
    Error::Runtime { kind, source: Box::new(error) }
}

#[cfg(all(test, feature = "amd"))]
mod tests {
    use super::*;

    #[test]
    fn absent_runtime_lists_what_was_tried() {
        let config =
            RuntimeConfig { library: Some("/nonexistent/libamdhip64.so".into()), ..RuntimeConfig::default() };
        match open(RuntimeKind::Amd, &config) {
            Ok(runtime) => println!("skipped: {} is here", runtime.origin()),
            Err(error) => {
                let source = std::error::Error::source(&error).unwrap().to_string();
                assert!(source.contains("/nonexistent/libamdhip64.so"), "{source}");
            }
        }
    }
}
