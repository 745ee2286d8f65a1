//! Pictures of runs: what the ranks did, as a file for [Perfetto](https://ui.perfetto.dev).
//!
//! Each rank traces its device ([`anabranch_hip::Trace`]). A program that runs with `ANABRANCH_TRACE=FOLDER`, as `anabranch trace` starts
//! it, writes a part for each rank of each world into that folder, and [`merge`] makes one picture of them.
//! [`World::profile`](crate::World::profile) does the same for a stretch of a program, through the world.

mod line;
mod picture;

pub(crate) use line::Line;
pub(crate) use picture::{Part, picture};

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use anabranch_hip::{Device, Trace};
use anabranch_ranks::GlobalRank;
use anabranch_shmem::WaitTrace;

use crate::error::{Error, Result};

/// The most entries of a rank that wait in memory.
pub(crate) const BOUND: usize = 1 << 20;
/// How often a rank writes its part.
const INTERVAL: Duration = Duration::from_millis(100);
/// How long the end of a trace waits for work that is not over.
pub(crate) const DRAIN: Duration = Duration::from_secs(1);

/// Waits of the rank's kernels, from the join of its world on, and lines of them that are not written yet.
#[derive(Debug, Default)]
struct Waits {
    trace: Option<WaitTrace>,
    lines: Vec<Line>,
}

impl Waits {
    /// Moves what kernels have noted to the lines.
    fn collect(&mut self) -> anabranch_shmem::Result<()> {
        if let Some(trace) = &mut self.trace {
            self.lines.extend(Line::of_waits(trace)?);
        }
        Ok(())
    }

    /// As well a look at the clock of kernels.
    fn collect_with_clock(&mut self) -> anabranch_shmem::Result<()> {
        self.collect()?;
        if let Some(trace) = &mut self.trace {
            self.lines.extend(Line::of_kernel_clock(trace)?);
        }
        Ok(())
    }
}

/// The part of a rank, which grows while the rank runs.
#[derive(Debug)]
pub(crate) struct TraceFile {
    trace: Arc<Trace>,
    waits: Arc<Mutex<Waits>>,
    writer: Mutex<Option<(Sender<()>, JoinHandle<()>)>>,
}

impl TraceFile {
    /// Starts to trace the device of a rank into a new file of the folder.
    ///
    /// # Errors
    /// [`Error::Trace`] where the file cannot be made; the trace's own.
    pub(crate) fn start(folder: &Path, device: &Device, rank: GlobalRank) -> Result<Self> {
        let failed = |path: &Path| {
            let path = path.to_owned();
            move |source| Error::Trace { path, source }
        };
        let (path, mut file) = new_file(folder, rank).map_err(failed(folder))?;
        write(&mut file, &[Line::rank(rank, &device.name(), "")]).map_err(failed(&path))?;
        let trace = device.start_trace(BOUND)?;
        let (stop, stopped) = channel();
        let of_thread = Arc::clone(&trace);
        let waits = Arc::<Mutex<Waits>>::default();
        let of_kernels = Arc::clone(&waits);
        let body = move || {
            loop {
                let last = stopped.recv_timeout(INTERVAL) != Err(RecvTimeoutError::Timeout);
                let mut lines = Line::of_records(of_thread.take());
                {
                    let mut waits = of_kernels.lock().unwrap_or_else(PoisonError::into_inner);
                    if let Err(error) = waits.collect() {
                        tracing::warn!(%error, "waits of kernels are missing from the trace of this rank");
                    }
                    lines.append(&mut waits.lines);
                    if last {
                        let overwritten = waits.trace.as_ref().map_or(0, WaitTrace::lost);
                        lines.push(Line::untraced(of_thread.untraced(), overwritten));
                    }
                }
                if let Err(error) = write(&mut file, &lines) {
                    tracing::warn!(path = %path.display(), %error, "the trace of this rank ends here");
                    return of_thread.stop();
                }
                if last {
                    return;
                }
            }
        };
        let thread = std::thread::Builder::new().name("anabranch trace".to_owned()).spawn(body);
        let thread = thread.map_err(|source| {
            trace.stop();
            Error::Thread { rank: rank.get(), source }
        })?;
        Ok(Self { trace, waits, writer: Mutex::new(Some((stop, thread))) })
    }

    /// Records the waits of this world's kernels, too, from now on. Where that fails, the trace goes on without them.
    pub(crate) fn follow(&self, world: &anabranch_shmem::World) {
        let mut waits = self.waits();
        let started = world.trace_waits().and_then(|trace| {
            waits.trace = trace;
            waits.collect_with_clock()
        });
        if let Err(error) = started {
            tracing::warn!(%error, "waits of kernels are missing from the trace of this rank");
        }
    }

    /// Takes the waits up to now, with a look at their clock.
    pub(crate) fn take_waits(&self) {
        if let Err(error) = self.waits().collect_with_clock() {
            tracing::warn!(%error, "waits of kernels are missing from the trace of this rank");
        }
    }

    fn waits(&self) -> MutexGuard<'_, Waits> {
        self.waits.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Writes the rest. Doing it again does nothing.
    pub(crate) fn finish(&self) {
        let Some((stop, thread)) = self.writer.lock().unwrap_or_else(PoisonError::into_inner).take() else {
            return;
        };
        self.trace.drain(DRAIN);
        self.trace.stop();
        self.take_waits();
        drop(stop);
        if thread.join().is_err() {
            tracing::warn!("the thread that writes the trace panicked");
        }
        self.waits().trace = None;
    }
}

impl Drop for TraceFile {
    fn drop(&mut self) {
        self.finish();
    }
}

/// A file that no rank has yet: a process may join several worlds.
fn new_file(folder: &Path, rank: GlobalRank) -> io::Result<(PathBuf, File)> {
    let process = std::process::id();
    for number in 0_u32.. {
        let path = folder.join(format!("rank-{}-{process}-{number}.jsonl", rank.get()));
        match OpenOptions::new().write(true).create_new(true).open(&path) {
            Ok(file) => return Ok((path, file)),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(error),
        }
    }
    Err(io::ErrorKind::AlreadyExists.into())
}

fn write(file: &mut File, lines: &[Line]) -> io::Result<()> {
    file.write_all(Line::text(lines)?.as_bytes())
}

/// One picture of all parts in a folder, as Chrome's trace events in JSON; `None` without a part. The parts are of one machine. Of a rank
/// that was killed it has what the rank had written: all but the last 100 ms.
///
/// # Errors
/// [`Error::Trace`] for a folder or a part that cannot be read.
pub fn merge(folder: &Path) -> Result<Option<String>> {
    let failed = |path: &Path| {
        let path = path.to_owned();
        move |source| Error::Trace { path, source }
    };
    let mut paths = Vec::new();
    for entry in fs::read_dir(folder).map_err(failed(folder))? {
        paths.push(entry.map_err(failed(folder))?.path());
    }
    paths.sort();
    let mut parts = Vec::new();
    for path in paths {
        let text = fs::read_to_string(&path).map_err(failed(&path))?;
        parts.extend(Part::parse(&text));
    }
    if parts.is_empty() {
        return Ok(None);
    }
    picture(parts).map(Some).map_err(|error| failed(folder)(error.into()))
}
