//! The pipeline: render, key, look up, compile, publish.

use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Once};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use crate::cache::{Cache, Expected, KeyLock, Manifest, Stored, TEMPORARY, Workspace, read_entry};
use crate::config::{CodeObject, CompileMode, JitConfig, JitStats, Origin, Outcome};
use crate::elf::{self, Kernels};
use crate::error::{CompileError, Error, FailureReason, Result};
use crate::flight::{Flights, Role, lock};
use crate::key::{CacheKey, KeyInputs, SCHEMA, digest};
use crate::load::Modules;
use crate::source::{KernelSpec, Rendered};
use crate::target::{Target, TargetKind};
use crate::toolchain::{
    CompileFailure, CompileJob, CompileOutput, CompilerIdentity, OptionChoices, Severity, ToolSearch,
    Toolchain, find_toolchain, parse_diagnostics,
};

/// Compiles and loads kernels. Clones share everything. There is no global one: whoever makes a world makes one, or is
/// given one.
#[derive(Clone, Debug)]
pub struct Jit {
    inner: Arc<Inner>,
}

/// A compiler, or why there is none.
type Found = Result<Arc<dyn Toolchain>>;

#[derive(Debug)]
struct Inner {
    config: JitConfig,
    search: ToolSearch,
    cache: Cache,
    prebuilt: Vec<Cache>,
    /// By kind and base architecture: a compiler may know one architecture and not another.
    toolchains: Mutex<HashMap<(TargetKind, String), Found>>,
    flights: Flights,
    /// Sources that a compiler refused in this process.
    refused: Mutex<HashMap<CacheKey, Arc<CompileError>>>,
    modules: Modules,
    cleaned: Once,
    compiled: AtomicU64,
    hits: AtomicU64,
    healed: AtomicU64,
    waited: AtomicU64,
    failed: AtomicU64,
}

/// A request on its way.
struct Request<'a> {
    rendered: Rendered,
    target: &'a Target,
    portable_key: CacheKey,
    inputs: BTreeMap<String, String>,
    /// The compiler and the key that comes with it, or why there is none.
    tool: Result<Tool>,
}

/// What is done about an entry that is there and broken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Broken {
    /// Nothing: whoever looks next, under the lock, will.
    Ignore,
    /// It is named in the log.
    Warn,
    /// It is named, counted and moved out of the way.
    Heal,
}

struct Tool {
    toolchain: Arc<dyn Toolchain>,
    options: Vec<String>,
    key: CacheKey,
}

impl Jit {
    /// A pipeline with compilers looked for where `search` says, when they are first needed.
    pub fn new(config: JitConfig, search: ToolSearch) -> Self {
        let inner = Inner {
            cache: Cache::new(&config.cache),
            prebuilt: config.prebuilt.iter().map(Cache::new).collect(),
            config,
            search,
            toolchains: Mutex::default(),
            flights: Flights::default(),
            refused: Mutex::default(),
            modules: Modules::default(),
            cleaned: Once::new(),
            compiled: AtomicU64::new(0),
            hits: AtomicU64::new(0),
            healed: AtomicU64::new(0),
            waited: AtomicU64::new(0),
            failed: AtomicU64::new(0),
        };
        Self { inner: Arc::new(inner) }
    }

    /// Its configuration.
    pub fn config(&self) -> &JitConfig {
        &self.inner.config
    }

    /// Its cache.
    pub fn cache(&self) -> &Cache {
        &self.inner.cache
    }

    /// What has happened so far.
    pub fn stats(&self) -> JitStats {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        JitStats {
            compiled: read(&self.inner.compiled),
            hits: read(&self.inner.hits),
            healed: read(&self.inner.healed),
            waited: read(&self.inner.waited),
            failed: read(&self.inner.failed),
        }
    }

    pub(crate) fn modules(&self) -> &Modules {
        &self.inner.modules
    }

    /// The compiler for a target: found once, then remembered, also when there is none.
    ///
    /// # Errors
    /// [`Error::NoCompiler`].
    pub fn compiler(&self, target: &Target) -> Result<CompilerIdentity> {
        self.toolchain(target).map(|toolchain| toolchain.identity().clone())
    }

    fn toolchain(&self, target: &Target) -> Result<Arc<dyn Toolchain>> {
        let mut known = lock(&self.inner.toolchains);
        known
            .entry((target.kind(), target.base().to_owned()))
            .or_insert_with(|| {
                let found = find_toolchain(&self.inner.search, target);
                if let Ok(toolchain) = &found {
                    tracing::debug!(%target, compiler = %toolchain.identity(), "compiler found");
                }
                found
            })
            .clone()
    }

    /// The code object of a spec: prebuilt, from the cache, or compiled now.
    ///
    /// # Errors
    /// What [`KernelSpec::render`] refuses; [`Error::NoCompiler`], [`Error::Compile`], [`Error::Denied`],
    /// [`Error::Busy`], [`Error::Cache`].
    pub fn compile(&self, spec: &KernelSpec, target: &Target) -> Result<CodeObject> {
        let request = self.request(spec, target)?;
        loop {
            // What is broken is left to `build`, which holds the key's lock; where nothing will be built, it is named.
            let will_build = request.tool.is_ok() && self.inner.config.compile != CompileMode::Deny;
            let broken = if will_build { Broken::Ignore } else { Broken::Warn };
            if let Some(found) = self.look_up(&request, broken) {
                self.inner.hits.fetch_add(1, Ordering::Relaxed);
                return Ok(found);
            }
            if self.inner.config.compile == CompileMode::Deny {
                return Err(self.denied(&request));
            }
            let tool = request.tool.as_ref().map_err(Clone::clone)?;
            if let Some(error) = lock(&self.inner.refused).get(&tool.key) {
                return Err(Error::Compile(error.clone()));
            }
            match self.inner.flights.join(tool.key) {
                Role::Lead(_leader) => return self.build(&request, tool),
                Role::Follow(flight) => {
                    self.inner.waited.fetch_add(1, Ordering::Relaxed);
                    let waited = self.inner.config.wait_deadline;
                    if !flight.wait(waited) {
                        let label = request.rendered.label.clone();
                        return Err(Error::Busy { label, target: target.clone(), waited });
                    }
                }
            }
        }
    }

    /// Whether [`Jit::compile`] would run a compiler. Changes nothing on the disk.
    ///
    /// # Errors
    /// What [`KernelSpec::render`] refuses.
    pub fn needs_compile(&self, spec: &KernelSpec, target: &Target) -> Result<bool> {
        let request = self.request(spec, target)?;
        Ok(self.look_up(&request, Broken::Warn).is_none())
    }

    fn request<'a>(&self, spec: &KernelSpec, target: &'a Target) -> Result<Request<'a>> {
        let config = &self.inner.config;
        let rendered = spec.with_all(&config.parameters).render(target, config.source_dir.as_deref())?;
        let choices =
            OptionChoices { debug_info: config.debug_info, code_object_version: config.code_object_version };
        let nobody = CompilerIdentity { kind: "none", version: String::new(), location: String::new() };
        let toolchain = self.toolchain(target);
        let (identity, options) = match &toolchain {
            Ok(toolchain) => (toolchain.identity(), toolchain.options(target, choices)),
            Err(_) => (&nobody, Vec::new()),
        };
        let key_inputs = KeyInputs {
            rendered: &rendered,
            target,
            options: &options,
            extra_options: &config.extra_options,
            debug_info: config.debug_info,
            code_object_version: config.code_object_version,
            compiler: identity,
        };
        let mut inputs = key_inputs.describe();
        if toolchain.is_err() {
            inputs.remove("compiler");
            inputs.remove("options");
        }
        let (key, portable_key) = (key_inputs.key(), key_inputs.portable_key());
        let tool = toolchain.clone().map(|toolchain| Tool { toolchain, options, key });
        Ok(Request { rendered, target, portable_key, inputs, tool })
    }

    /// Prebuilt folders first, then the cache. Without a compiler the cache is searched like a prebuilt folder, so
    /// that a warm cache works without one.
    fn look_up(&self, request: &Request<'_>, broken: Broken) -> Option<CodeObject> {
        let unit = request.rendered.unit;
        for prebuilt in &self.inner.prebuilt {
            let exact = request.tool.as_ref().ok().map(|tool| prebuilt.entry(request.target, unit, tool.key));
            let others = prebuilt
                .entries_of(request.target, unit)
                .into_iter()
                .filter(|path| exact.as_ref() != Some(path));
            for directory in exact.iter().cloned().chain(others) {
                // A prebuilt folder is somebody else's and never changed; the look-up before the lock has named it.
                let broken = if broken == Broken::Heal { Broken::Ignore } else { Broken::Warn };
                if let Some(found) = self.read(request, &directory, Origin::Prebuilt, broken) {
                    return Some(found);
                }
            }
        }
        match &request.tool {
            Ok(tool) => {
                let directory = self.inner.cache.entry(request.target, unit, tool.key);
                self.read(request, &directory, Origin::Cache, broken)
            }
            Err(_) => self
                .inner
                .cache
                .entries_of(request.target, unit)
                .iter()
                .find_map(|directory| self.read(request, directory, Origin::Cache, broken)),
        }
    }

    fn read(
        &self,
        request: &Request<'_>,
        directory: &Path,
        origin: Origin,
        broken: Broken,
    ) -> Option<CodeObject> {
        let portable = request.portable_key.to_string();
        let exact = match (&request.tool, origin) {
            (Ok(tool), Origin::Cache) => Some(tool.key.to_string()),
            _ => None,
        };
        let expected = exact.as_deref().map_or(Expected::PortableKey(&portable), Expected::Key);
        let problem = match read_entry(directory, expected) {
            Ok(None) => return None,
            Ok(Some(stored)) => match accept(request, directory, origin, stored) {
                Ok(found) => return Some(found),
                Err(problem) => problem,
            },
            Err(problem) => problem,
        };
        match broken {
            Broken::Ignore => {}
            Broken::Warn => {
                tracing::warn!(directory = %directory.display(), problem, "broken entry; it is not used");
            }
            Broken::Heal => {
                tracing::warn!(directory = %directory.display(), problem, "broken cache entry; it is built again");
                self.inner.healed.fetch_add(1, Ordering::Relaxed);
                if let Err(error) = self.inner.cache.move_aside(directory) {
                    tracing::warn!(%error, "a broken cache entry stays");
                }
            }
        }
        None
    }

    fn denied(&self, request: &Request<'_>) -> Error {
        let caches = self.inner.prebuilt.iter().chain([&self.inner.cache]);
        let nearest = caches
            .filter_map(|cache| cache.nearest(request.rendered.unit, &request.inputs))
            .min_by_key(|nearest| nearest.differences.len())
            .map(Box::new);
        Error::Denied {
            label: request.rendered.label.clone(),
            target: request.target.clone(),
            key: request.tool.as_ref().map_or(request.portable_key, |tool| tool.key),
            nearest,
        }
    }

    fn build(&self, request: &Request<'_>, tool: &Tool) -> Result<CodeObject> {
        let cache = &self.inner.cache;
        if let Err(error) = cache.make_folders(request.target) {
            return match &self.inner.config.scratch {
                Some(scratch) => {
                    tracing::warn!(%error, "the kernel cache cannot be written; compiling without it");
                    let work = Workspace::create(scratch, request.rendered.unit, &request.rendered)?;
                    let (output, _) = self.run_compiler(request, tool, &work, false)?;
                    let directory = work.folder().to_owned();
                    Ok(object(request, tool.key, output.object.into(), Origin::Compiled, directory))
                }
                None => Err(error),
            };
        }
        self.inner.cleaned.call_once(|| cache.clean_leftovers());
        let asked = SystemTime::now();
        let held = KeyLock::acquire(cache, tool.key, self.inner.config.wait_deadline)?;
        let waited = held.as_ref().is_none_or(|lock| lock.waited);
        if waited {
            self.inner.waited.fetch_add(1, Ordering::Relaxed);
            if let Some((kept, log)) = cache.failure_since(tool.key, asked) {
                return Err(self.note_failure(request, tool, refusal(log), Some(kept)));
            }
        }
        // Only the holder of the lock moves an entry: what it finds broken, nobody replaces at the same time. Whoever
        // goes on without the lock builds and leaves the judgement to `publish`.
        let broken = if held.is_some() { Broken::Heal } else { Broken::Warn };
        if let Some(found) = self.look_up(request, broken) {
            self.inner.hits.fetch_add(1, Ordering::Relaxed);
            return Ok(found);
        }
        let temporary = cache.service_folder(TEMPORARY);
        let work = Workspace::create(&temporary, request.rendered.unit, &request.rendered)?;
        let (output, took) = self.run_compiler(request, tool, &work, true)?;
        let directory = cache.entry(request.target, request.rendered.unit, tool.key);
        let manifest = manifest(request, tool, &output, took);
        work.publish(cache, &directory, &output.object, &manifest)?;
        Ok(object(request, tool.key, output.object.into(), Origin::Compiled, directory))
    }

    fn run_compiler(
        &self,
        request: &Request<'_>,
        tool: &Tool,
        work: &Workspace,
        keep: bool,
    ) -> Result<(CompileOutput, Duration)> {
        let config = &self.inner.config;
        let (label, target) = (&request.rendered.label, request.target);
        if let Some(observer) = &config.observer {
            observer.compiling(label, target);
        }
        tracing::debug!(label, %target, key = %tool.key, "compiling");
        let begun = Instant::now();
        let options: Vec<_> = tool.options.iter().chain(&config.extra_options).cloned().collect();
        let job = CompileJob {
            rendered: &request.rendered,
            target,
            options: &options,
            work: work.folder(),
            deadline: config.compile_deadline,
        };
        let result = tool.toolchain.compile(&job).and_then(|output| self.check_output(request, output));
        let took = begun.elapsed();
        if let Some(observer) = &config.observer {
            let outcome = if result.is_ok() { Outcome::Compiled } else { Outcome::Failed };
            observer.finished(label, target, outcome, took);
        }
        match result {
            Ok(output) => {
                self.inner.compiled.fetch_add(1, Ordering::Relaxed);
                Ok((output, took))
            }
            Err(failure) => {
                let refused = failure.reason == FailureReason::Refused;
                let kept = keep
                    .then(|| {
                        work.keep_failed(
                            &self.inner.cache,
                            tool.key,
                            &failure.log,
                            refused,
                            config.keep_failed,
                        )
                    })
                    .flatten();
                Err(self.note_failure(request, tool, failure, kept))
            }
        }
    }

    fn check_output(
        &self,
        request: &Request<'_>,
        output: CompileOutput,
    ) -> Result<CompileOutput, CompileFailure> {
        let warned =
            parse_diagnostics(&output.log).iter().any(|diagnostic| diagnostic.severity == Severity::Warning);
        let reason = match check_object(&output.object, request) {
            Err(problem) => FailureReason::BadObject { problem },
            Ok(()) if warned && self.inner.config.deny_warnings => FailureReason::Warnings,
            Ok(()) => return Ok(output),
        };
        Err(CompileFailure { reason, log: output.log, command: output.command })
    }

    fn note_failure(
        &self,
        request: &Request<'_>,
        tool: &Tool,
        failure: CompileFailure,
        kept: Option<PathBuf>,
    ) -> Error {
        self.inner.failed.fetch_add(1, Ordering::Relaxed);
        let refused = failure.reason == FailureReason::Refused;
        let error = Arc::new(CompileError {
            label: request.rendered.label.clone(),
            target: request.target.clone(),
            compiler: tool.toolchain.identity().to_string(),
            command: failure.command,
            key: tool.key,
            reason: failure.reason,
            diagnostics: parse_diagnostics(&failure.log),
            log: failure.log,
            kept,
        });
        if refused {
            lock(&self.inner.refused).insert(tool.key, error.clone());
        }
        Error::Compile(error)
    }
}

/// A whole entry is taken when its object is what the request needs.
fn accept(
    request: &Request<'_>,
    directory: &Path,
    origin: Origin,
    stored: Stored,
) -> Result<CodeObject, String> {
    let key = stored.manifest.key.parse()?;
    check_object(&stored.object, request)?;
    Ok(object(request, key, stored.object, origin, directory.to_owned()))
}

fn refusal(log: String) -> CompileFailure {
    CompileFailure { reason: FailureReason::Refused, log, command: "run by another process".to_owned() }
}

/// The object must be whole and have the unit's kernels and no other.
fn check_object(bytes: &[u8], request: &Request<'_>) -> Result<(), String> {
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

fn object(
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

fn manifest(request: &Request<'_>, tool: &Tool, output: &CompileOutput, took: Duration) -> Manifest {
    Manifest {
        schema: SCHEMA,
        key: tool.key.to_string(),
        portable_key: request.portable_key.to_string(),
        unit: request.rendered.unit.to_owned(),
        label: request.rendered.label.clone(),
        target: request.target.to_string(),
        entries: request.rendered.entries.clone(),
        inputs: request.inputs.clone(),
        compiler: tool.toolchain.identity().to_string(),
        command: output.command.clone(),
        log: output.log.clone(),
        seconds: took.as_secs_f64(),
        created: SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs(),
        object_bytes: output.object.len() as u64,
        object_sha256: digest(&output.object),
    }
}
