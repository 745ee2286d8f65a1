//! The making of a code object: the key's lock, a compiler, an entry; or without a cache.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use crate::cache::{KeyLock, TEMPORARY, Workspace};
use crate::config::{CodeObject, Origin, Outcome};
use crate::error::{CompileError, Error, FailureReason, Result};
use crate::jit::Jit;
use crate::request::{Broken, Request, Tool, check_object, manifest, object, refusal};
use crate::sync::lock;
use crate::toolchain::{CompileFailure, CompileJob, CompileOutput, Severity, parse_diagnostics};

impl Jit {
    pub(crate) fn build(&self, request: &Request<'_>, tool: &Tool) -> Result<CodeObject> {
        let error = match self.build_entry(request, tool) {
            Err(error) if is_the_caches(&error) => error,
            outcome => return outcome,
        };
        let Some(scratch) = &self.inner.config.scratch else { return Err(error) };
        tracing::warn!(%error, "the kernel cache cannot be written; compiling without it");
        self.build_in(scratch, request, tool)
    }

    fn build_in(&self, scratch: &Path, request: &Request<'_>, tool: &Tool) -> Result<CodeObject> {
        let disk = &self.inner.config.disk;
        let work = Workspace::create(disk, scratch, request.rendered.unit, &request.rendered)?;
        let (output, _) = self.run_compiler(request, tool, &work, false)?;
        let directory = work.folder().to_owned();
        Ok(object(request, tool.key, output.object.into(), Origin::Compiled, directory))
    }

    fn build_entry(&self, request: &Request<'_>, tool: &Tool) -> Result<CodeObject> {
        let cache = &self.inner.cache;
        cache.make_folders(request.target)?;
        self.inner.cleaned.call_once(|| cache.clean_leftovers());
        let asked = SystemTime::now();
        let config = &self.inner.config;
        let label = &request.rendered.label;
        let report = |owner: &str, so_far: Duration| {
            let target = request.target;
            tracing::info!(label, %target, seconds = so_far.as_secs(), "waiting for {owner}, which compiles the same kernel");
            if let Some(observer) = &config.observer {
                observer.waiting(label, target, owner, so_far);
            }
        };
        let held = KeyLock::acquire(cache, tool.key, config.wait_deadline, config.progress_interval, report)?;
        let waited = held.as_ref().is_none_or(|lock| lock.waited);
        if waited {
            self.inner.waited.fetch_add(1, Ordering::Relaxed);
            if let Some((kept, log)) = cache.failure_since(tool.key, asked) {
                return Err(self.note_failure(request, tool, refusal(log), Some(kept)));
            }
        }
        // Only the holder of the lock moves an entry: no other process replaces a broken one meanwhile. A process that
        // goes on without the lock builds and leaves the judgement to `publish`.
        let broken = if held.is_some() { Broken::Heal } else { Broken::Warn };
        if let Some(found) = self.look_up(request, broken) {
            self.inner.hits.fetch_add(1, Ordering::Relaxed);
            return Ok(found);
        }
        let disk = &self.inner.config.disk;
        let temporary = cache.service_folder(TEMPORARY);
        let work = Workspace::create(disk, &temporary, request.rendered.unit, &request.rendered)?;
        let (output, took) = self.run_compiler(request, tool, &work, true)?;
        let mut directory = cache.entry(request.target, request.rendered.unit, tool.key);
        let manifest = manifest(request, tool, self.described(request), &output, took);
        if let Err(error) =
            work.publish(cache, &directory, &output.object, &manifest, self.inner.config.debug_info)
        {
            if self.inner.config.scratch.is_none() {
                return Err(error);
            }
            tracing::warn!(%error, "the kernel cache cannot be written; a compiled kernel is not kept");
            work.folder().clone_into(&mut directory);
        }
        Ok(object(request, tool.key, output.object.into(), Origin::Compiled, directory))
    }

    #[expect(clippy::disallowed_methods, reason = "compile times are wall-clock times")]
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
            options: &options,
            work: work.folder(),
            deadline: config.compile_deadline,
            disk: &config.disk,
        };
        let report = |so_far: Duration| {
            tracing::info!(label, %target, seconds = so_far.as_secs(), "still compiling");
            if let Some(observer) = &config.observer {
                observer.still_compiling(label, target, so_far);
            }
        };
        let result = reporting(config.progress_interval, report, || tool.toolchain.compile(&job))
            .and_then(|output| self.check_output(request, tool, output));
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
        tool: &Tool,
        output: CompileOutput,
    ) -> Result<CompileOutput, CompileFailure> {
        let warned =
            parse_diagnostics(&output.log).iter().any(|diagnostic| diagnostic.severity == Severity::Warning);
        let reason = match check_object(&output.object, request) {
            _ if !tool.toolchain.is_current() => FailureReason::Replaced,
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

/// Does the work, and meanwhile reports at every interval how long it has taken.
#[expect(clippy::disallowed_methods, reason = "compilers run in the machine's time")]
fn reporting<T>(every: Duration, report: impl Fn(Duration) + Send, work: impl FnOnce() -> T) -> T {
    let begun = Instant::now();
    let (done, ended) = mpsc::channel::<()>();
    thread::scope(move |scope| {
        // Moved in here, so that the reporter ends also when the work panics.
        let done = done;
        let report = move || {
            while ended.recv_timeout(every) == Err(RecvTimeoutError::Timeout) {
                report(begun.elapsed());
            }
        };
        // Without a thread nothing is reported.
        if let Err(error) = thread::Builder::new().spawn_scoped(scope, report) {
            tracing::debug!(%error, "no thread reports how long the compiler takes");
        }
        let result = work();
        drop(done);
        result
    })
}

/// Whether a kernel could be made where the cache is not.
fn is_the_caches(error: &Error) -> bool {
    match error {
        Error::Cache { .. } => true,
        Error::Compile(error) => matches!(error.reason, FailureReason::WorkFolder { .. }),
        _ => false,
    }
}
