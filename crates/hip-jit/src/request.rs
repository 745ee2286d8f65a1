//! A request on its way, and what answers it.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::cache::{Manifest, Stored};
use crate::config::{CodeObject, Origin};
use crate::elf::{self, Kernels};
use crate::error::{FailureReason, Result};
use crate::key::{CacheKey, SCHEMA, digest};
use crate::source::Rendered;
use crate::target::Target;
use crate::toolchain::{CompileFailure, CompileOutput, Toolchain};

/// A request on its way.
pub(crate) struct Request<'a> {
    pub(crate) rendered: Rendered,
    pub(crate) target: &'a Target,
    pub(crate) portable_key: CacheKey,
    /// The compiler and the key that comes with it, or why there is none.
    pub(crate) tool: Result<Tool>,
}

pub(crate) struct Tool {
    pub(crate) toolchain: Arc<dyn Toolchain>,
    pub(crate) options: Vec<String>,
    pub(crate) key: CacheKey,
}

/// What is done about an entry that is there and broken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Broken {
    /// Nothing: the next look-up, under the lock, repairs it.
    Ignore,
    /// It is named in the log.
    Warn,
    /// It is named, counted and moved out of the way.
    Heal,
}

/// A whole entry is taken when its object is what the request needs.
pub(crate) fn accept(
    request: &Request<'_>,
    directory: &Path,
    origin: Origin,
    stored: Stored,
) -> Result<CodeObject, String> {
    let key = stored.manifest.key.parse()?;
    check_object(&stored.object, request)?;
    Ok(object(request, key, stored.object, origin, directory.to_owned()))
}

pub(crate) fn refusal(log: String) -> CompileFailure {
    CompileFailure { reason: FailureReason::Refused, log, command: "run by another process".to_owned() }
}

/// The object must be whole and have the unit's kernels and no other.
pub(crate) fn check_object(bytes: &[u8], request: &Request<'_>) -> Result<(), String> {
    let Kernels::Listed(found) = elf::inspect(bytes, request.target.kind())? else { return Ok(()) };
    let missing: Vec<_> =
        request.rendered.entries.iter().filter(|entry| !found.contains(entry)).cloned().collect();
    let unlisted: Vec<_> =
        found.into_iter().filter(|entry| !request.rendered.entries.contains(entry)).collect();
    if missing.is_empty() && unlisted.is_empty() {
        return Ok(());
    }
    let word = |names: Vec<String>| if names.is_empty() { "none".to_owned() } else { names.join(", ") };
    Err(format!(
        "kernels of the unit missing in it: {}; kernels in it that the unit does not list: {}",
        word(missing),
        word(unlisted)
    ))
}

pub(crate) fn object(
    request: &Request<'_>,
    key: CacheKey,
    bytes: Arc<[u8]>,
    origin: Origin,
    directory: PathBuf,
) -> CodeObject {
    CodeObject {
        key,
        target: request.target.clone(),
        label: request.rendered.label.clone(),
        entries: request.rendered.entries.clone(),
        bytes,
        origin,
        directory,
    }
}

pub(crate) fn manifest(
    request: &Request<'_>,
    tool: &Tool,
    inputs: BTreeMap<String, String>,
    output: &CompileOutput,
    took: Duration,
) -> Manifest {
    Manifest {
        schema: SCHEMA,
        key: tool.key.to_string(),
        portable_key: request.portable_key.to_string(),
        unit: request.rendered.unit.to_owned(),
        label: request.rendered.label.clone(),
        target: request.target.to_string(),
        entries: request.rendered.entries.clone(),
        inputs,
        compiler: tool.toolchain.identity().to_string(),
        command: output.command.clone(),
        log: output.log.clone(),
        seconds: took.as_secs_f64(),
        created: SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs(),
        object_bytes: output.object.len() as u64,
        object_sha256: digest(&output.object),
    }
}
