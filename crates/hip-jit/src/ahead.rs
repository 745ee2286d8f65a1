//! Compiling many kernels before they are needed.

use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use crate::config::{CodeObject, Origin, Outcome};
use crate::error::{Error, Result};
use crate::jit::Jit;
use crate::source::KernelSpec;
use crate::sync::{Mutex, lock};
use crate::target::Target;

/// What came of one spec and target.
#[derive(Clone, Debug)]
pub struct AheadRow {
    /// Unit and parameters.
    pub label: String,
    /// The target.
    pub target: Target,
    /// How long it took.
    pub took: Duration,
    /// The object, or why there is none.
    pub result: Result<CodeObject>,
}

impl AheadRow {
    /// Hit, compiled or failed.
    pub fn outcome(&self) -> Outcome {
        match &self.result {
            Ok(object) if object.origin == Origin::Compiled => Outcome::Compiled,
            Ok(_) => Outcome::Hit,
            Err(_) => Outcome::Failed,
        }
    }
}

/// What [`Jit::compile_ahead`] did, in the order of the request. A failure in it must fail the caller's command.
#[derive(Clone, Debug)]
#[must_use = "a failed row is a failed build"]
pub struct AheadReport {
    /// One row for each request.
    pub rows: Vec<AheadRow>,
}

impl AheadReport {
    /// The rows that failed.
    pub fn failures(&self) -> impl Iterator<Item = (&AheadRow, &Error)> {
        self.rows.iter().filter_map(|row| row.result.as_ref().err().map(|error| (row, error)))
    }

    /// Rows with this outcome.
    pub fn count(&self, outcome: Outcome) -> usize {
        self.rows.iter().filter(|row| row.outcome() == outcome).count()
    }

    /// The objects, or the first failure.
    ///
    /// # Errors
    /// The first failure, in the order of the request.
    pub fn into_result(self) -> Result<Vec<CodeObject>> {
        self.rows.into_iter().map(|row| row.result).collect()
    }
}

impl fmt::Display for AheadReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for row in &self.rows {
            let outcome = match row.outcome() {
                Outcome::Hit => "hit",
                Outcome::Compiled => "compiled",
                Outcome::Failed => "FAILED",
            };
            let key = row.result.as_ref().map(|object| object.key.to_string()).unwrap_or_default();
            let key = key.get(..16).unwrap_or("-");
            writeln!(
                f,
                "{outcome:8} {:7.2} s  {:28} {key:16} {}",
                row.took.as_secs_f64(),
                row.target.to_string(),
                row.label
            )?;
        }
        write!(
            f,
            "{} compiled, {} from the cache, {} failed",
            self.count(Outcome::Compiled),
            self.count(Outcome::Hit),
            self.count(Outcome::Failed)
        )
    }
}

impl Jit {
    /// Compiles every spec for its target with at most `jobs` compilers at once, and goes on after a failure, so that
    /// the report has all of them. No device is needed.
    #[expect(clippy::disallowed_methods, reason = "compile times are wall-clock times")]
    pub fn compile_ahead(&self, wanted: &[(KernelSpec, Target)], jobs: usize) -> AheadReport {
        let next = AtomicUsize::new(0);
        let rows: Mutex<Vec<(usize, AheadRow)>> = Mutex::default();
        std::thread::scope(|scope| {
            for _ in 0..jobs.clamp(1, wanted.len().max(1)) {
                scope.spawn(|| {
                    while let Some(index) = Some(next.fetch_add(1, Ordering::Relaxed))
                        && let Some((spec, target)) = wanted.get(index)
                    {
                        let begun = Instant::now();
                        let result = self.compile(spec, target);
                        let compiled = result.as_ref().ok().map(|object| object.label.clone());
                        let row = AheadRow {
                            label: compiled.unwrap_or_else(|| spec.label()),
                            target: target.clone(),
                            took: begun.elapsed(),
                            result,
                        };
                        lock(&rows).push((index, row));
                    }
                });
            }
        });
        let mut rows = std::mem::take(&mut *lock(&rows));
        rows.sort_by_key(|(index, _)| *index);
        AheadReport { rows: rows.into_iter().map(|(_, row)| row).collect() }
    }
}
