//! The pipeline: render, key, look up; what is missing is made in `compile.rs`.

use std::collections::{BTreeMap, HashMap};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Once};

use crate::cache::{Cache, Expected, read_entry};
use crate::config::{CodeObject, CompileMode, ConstantsMode, JitConfig, JitStats, Origin};
use crate::error::{CompileError, Error, Result};
use crate::flight::{Role, SingleFlight};
use crate::key::{CacheKey, KeyCompiler, KeyInputs};
use crate::load::Modules;
use crate::request::{Broken, Request, Tool, accept};
use crate::source::{KernelSpec, Rendered};
use crate::sync::{Mutex, lock};
use crate::target::{Target, TargetKind};
use crate::toolchain::{CompilerIdentity, OptionChoices, ToolSearch, Toolchain, find_toolchain};

/// Compiles and loads kernels. Clones share everything. There is no global one: the code that makes a world makes one, or is
/// given one.
#[derive(Clone, Debug)]
pub struct Jit {
    pub(crate) inner: Arc<Inner>,
}

/// A compiler, or why there is none.
type Found = Result<Arc<dyn Toolchain>>;

#[derive(Debug)]
pub(crate) struct Inner {
    pub(crate) config: JitConfig,
    search: ToolSearch,
    pub(crate) cache: Cache,
    prebuilt: Vec<Cache>,
    /// By kind and base architecture: a compiler may know one architecture and not another.
    toolchains: Mutex<HashMap<(TargetKind, String), Found>>,
    flights: SingleFlight,
    /// Sources that a compiler refused in this process.
    pub(crate) refused: Mutex<HashMap<CacheKey, Arc<CompileError>>>,
    modules: Modules,
    pub(crate) cleaned: Once,
    /// Reports that constants are left out.
    general: Once,
    pub(crate) compiled: AtomicU64,
    pub(crate) hits: AtomicU64,
    healed: AtomicU64,
    pub(crate) waited: AtomicU64,
    pub(crate) failed: AtomicU64,
}

impl Jit {
    /// A pipeline with compilers looked for by `search`, when they are first needed.
    pub fn new(config: JitConfig, search: ToolSearch) -> Self {
        let inner = Inner {
            cache: Cache::with_disk(&config.cache, config.disk.clone()),
            prebuilt: config
                .prebuilt
                .iter()
                .map(|root| Cache::with_disk(root, config.disk.clone()))
                .collect(),
            config,
            search,
            toolchains: Mutex::default(),
            flights: SingleFlight::default(),
            refused: Mutex::default(),
            modules: Modules::default(),
            cleaned: Once::new(),
            general: Once::new(),
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

    /// The compiler for a target: found once, then remembered, also when there is none; looked for again when its program
    /// was replaced.
    ///
    /// # Errors
    /// [`Error::NoCompiler`].
    pub fn compiler(&self, target: &Target) -> Result<CompilerIdentity> {
        self.toolchain(target).map(|toolchain| toolchain.identity().clone())
    }

    fn toolchain(&self, target: &Target) -> Result<Arc<dyn Toolchain>> {
        let mut known = lock(&self.inner.toolchains);
        let key = (target.kind(), target.base().to_owned());
        let stale = match known.get(&key) {
            Some(Ok(toolchain)) if !toolchain.is_current() => true,
            Some(found) => return found.clone(),
            None => false,
        };
        let found = find_toolchain(&self.inner.search, target);
        match &found {
            Ok(toolchain) => tracing::debug!(%target, compiler = %toolchain.identity(), "compiler found"),
            // A compiler that is being replaced will be back: the next request looks again.
            Err(_) if stale => return found,
            Err(_) => {}
        }
        known.insert(key, found.clone());
        found
    }

    /// The code object of a spec: prebuilt, from the cache, or compiled now; with the spec's constants as
    /// [`JitConfig::constants`] has it. Where there is none with constants in [`ConstantsMode::Auto`], that for any plan.
    ///
    /// # Errors
    /// What [`KernelSpec::render`] refuses; [`Error::NoCompiler`], [`Error::Compile`], [`Error::Denied`],
    /// [`Error::Busy`], [`Error::Cache`].
    pub fn compile(&self, spec: &KernelSpec, target: &Target) -> Result<CodeObject> {
        if !self.uses_constants(spec, target) {
            return self.compile_given(&spec.without_constants(), target);
        }
        match self.compile_given(spec, target) {
            Err(error) if self.inner.config.constants == ConstantsMode::Auto => {
                let general = self.compile_given(&spec.without_constants(), target)?;
                self.inner.general.call_once(|| {
                    tracing::warn!(
                        "kernels without constants are used, which are slower (kernels.constants = \"never\" asks for them); \
                         the first is {}: {error}",
                        general.label
                    );
                });
                Ok(general)
            }
            result => result,
        }
    }

    /// Whether the spec is compiled with its constants, if it can be compiled.
    fn uses_constants(&self, spec: &KernelSpec, target: &Target) -> bool {
        let wanted = match self.inner.config.constants {
            ConstantsMode::Auto => target.kind() != TargetKind::Host,
            ConstantsMode::Always => true,
            ConstantsMode::Never => false,
        };
        wanted && spec.has_constants()
    }

    fn compile_given(&self, spec: &KernelSpec, target: &Target) -> Result<CodeObject> {
        let request = self.request(spec, target)?;
        loop {
            // What is broken is left to `build`, which holds the key's lock; where nothing will be built, it is named.
            let broken = if self.may_build(&request) { Broken::Ignore } else { Broken::Warn };
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

    /// Whether a compiler is there and may run.
    fn may_build(&self, request: &Request<'_>) -> bool {
        request.tool.is_ok() && self.inner.config.compile != CompileMode::Deny
    }

    /// Whether [`Jit::compile`] would run a compiler. Changes nothing on the disk.
    ///
    /// # Errors
    /// What [`KernelSpec::render`] refuses.
    pub fn needs_compile(&self, spec: &KernelSpec, target: &Target) -> Result<bool> {
        if self.uses_constants(spec, target) {
            let request = self.request(spec, target)?;
            if self.look_up(&request, Broken::Warn).is_some() {
                return Ok(false);
            }
            if self.may_build(&request) || self.inner.config.constants == ConstantsMode::Always {
                return Ok(true);
            }
        }
        let request = self.request(&spec.without_constants(), target)?;
        Ok(self.look_up(&request, Broken::Warn).is_none())
    }

    fn request<'a>(&self, spec: &KernelSpec, target: &'a Target) -> Result<Request<'a>> {
        let config = &self.inner.config;
        let rendered = spec
            .with_all(&config.parameters)
            .edited(&config.edits)
            .render(target, config.source_dir.as_deref())?;
        let choices =
            OptionChoices { debug_info: config.debug_info, code_object_version: config.code_object_version };
        let fields = self.key_inputs(&rendered, target).portable_fields();
        let tool = self.toolchain(target).map(|toolchain| {
            let options = toolchain.options(target, choices);
            let key = fields.key(KeyCompiler { identity: toolchain.identity(), options: &options });
            Tool { toolchain, options, key }
        });
        Ok(Request { rendered, target, portable_key: fields.portable_key(), tool })
    }

    fn key_inputs<'a>(&'a self, rendered: &'a Rendered, target: &'a Target) -> KeyInputs<'a> {
        let config = &self.inner.config;
        KeyInputs {
            rendered,
            target,
            extra_options: &config.extra_options,
            debug_info: config.debug_info,
            code_object_version: config.code_object_version,
        }
    }

    /// What a request's key is computed from, by name.
    pub(crate) fn described(&self, request: &Request<'_>) -> BTreeMap<String, String> {
        let tool = request.tool.as_ref().ok();
        let compiler =
            tool.map(|tool| KeyCompiler { identity: tool.toolchain.identity(), options: &tool.options });
        self.key_inputs(&request.rendered, request.target).describe(compiler)
    }

    /// Prebuilt folders first, then the cache. Without a compiler the cache is searched like a prebuilt folder, so
    /// that a warm cache works without one.
    pub(crate) fn look_up(&self, request: &Request<'_>, broken: Broken) -> Option<CodeObject> {
        let unit = request.rendered.unit;
        for prebuilt in &self.inner.prebuilt {
            let exact = request.tool.as_ref().ok().map(|tool| prebuilt.entry(request.target, unit, tool.key));
            let others = prebuilt
                .entries_of(request.target, unit)
                .into_iter()
                .filter(|path| exact.as_ref() != Some(path));
            for directory in exact.iter().cloned().chain(others) {
                // A prebuilt folder belongs to the operator and is never changed; the look-up before the lock has named it.
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
        let problem = match read_entry(&self.inner.config.disk, directory, expected) {
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
                tracing::warn!(directory = %directory.display(), problem, "broken cache entry; rebuilding it");
                self.inner.healed.fetch_add(1, Ordering::Relaxed);
                if let Err(error) = self.inner.cache.move_aside(directory) {
                    tracing::warn!(%error, "a broken cache entry stays");
                }
            }
        }
        None
    }

    fn denied(&self, request: &Request<'_>) -> Error {
        let inputs = self.described(request);
        let caches = self.inner.prebuilt.iter().chain([&self.inner.cache]);
        let nearest = caches
            .filter_map(|cache| cache.nearest(request.rendered.unit, &inputs))
            .min_by_key(|nearest| nearest.differences.len())
            .map(Box::new);
        Error::Denied {
            label: request.rendered.label.clone(),
            target: request.target.clone(),
            key: request.tool.as_ref().map_or(request.portable_key, |tool| tool.key),
            nearest,
        }
    }
}
