//! A picture of a part of a program.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use anabranch_hip::Trace;
use anabranch_shmem::WaitTrace;

use crate::error::{Error, Result};
use crate::trace::{BOUND, DRAIN, Line, Part, picture};
use crate::world::World;

/// Exchanges that compare the clocks of machines.
const ROUNDS: u32 = 8;
/// Bytes of a trace in one message. The rendezvous limits messages.
const SLICE: usize = 8 << 20;

/// A trace of this rank that began with [`World::profile`]. Dropping it ends the trace without a file.
#[derive(Debug)]
#[must_use = "the trace ends where this is dropped"]
pub struct Profile {
    world: World,
    trace: Arc<Trace>,
    /// `None` for kernels that do not note their waits.
    waits: Option<WaitTrace>,
    lines: Vec<Line>,
}

impl World {
    /// Starts to trace this rank's calls, the work on streams of its device ([`World::device`](anabranch_shmem::World::device)), and, with
    /// `kernels.note_waits`, the last 65,536 waits inside its kernels (no kernel may then be in flight that waits for what this thread
    /// launches later). End it on all ranks with [`Profile::finish`].
    ///
    /// # Errors
    /// [`anabranch_hip::Error::Traced`] while the device is traced already, as by `anabranch trace`; the codes of a stream and its events; those
    /// of [`trace_waits`](anabranch_shmem::World::trace_waits).
    pub fn profile(&self) -> Result<Profile> {
        let trace = self.device().start_trace(BOUND)?;
        let waits = self.trace_waits().inspect_err(|_| trace.stop())?;
        let mut profile = Profile { world: self.clone(), trace, waits, lines: Vec::new() };
        if let Some(waits) = &mut profile.waits {
            profile.lines.extend(Line::of_kernel_clock(waits)?);
        }
        Ok(profile)
    }
}

impl Profile {
    /// Ends the trace; rank 0 writes the picture of all ranks to its `path`. Waits up to a second for work on streams. Collective over the
    /// world.
    ///
    /// The clocks of ranks on one machine are one clock. Between machines the clocks are compared by eight exchanges: an exchange returns
    /// on each rank after all have sent.
    ///
    /// # Errors
    /// What made the world fail; [`Error::Trace`] on rank 0 for a file that cannot be written.
    pub fn finish(mut self, path: &Path) -> Result<()> {
        self.trace.drain(DRAIN);
        let mut of_kernels = std::mem::take(&mut self.lines);
        let mut overwritten = 0;
        if let Some(mut waits) = self.waits.take() {
            // No error here: the other ranks are on their way to the exchanges below.
            let found =
                Line::of_waits(&mut waits).and_then(|lines| Ok((lines, Line::of_kernel_clock(&mut waits)?)));
            match found {
                Ok((lines, clock)) => of_kernels.extend(lines.into_iter().chain(clock)),
                Err(error) => {
                    tracing::warn!(%error, "waits of kernels are missing from the picture of this rank");
                }
            }
            overwritten = waits.lost();
        }
        self.trace.stop();
        let world = &self.world;
        let mut lines = vec![Line::rank(world.rank(), &world.device().name(), &world.local().nics_of.0)];
        lines.extend(Line::of_records(self.trace.take()));
        lines.extend(of_kernels);
        lines.push(Line::untraced(self.trace.untraced(), overwritten));
        for _ in 0..ROUNDS {
            let sent = Trace::now_ns();
            world.exchange(world.group(), "compare clocks", &[])?;
            lines.push(Line::Round { sent, received: Trace::now_ns() });
        }
        let failed = |source| Error::Trace { path: path.to_owned(), source };
        let text = Line::text(&lines).map_err(failed)?;
        let parts = gather(world, text.as_bytes(), SLICE)?;
        if world.rank().get() != 0 {
            return Ok(());
        }
        let parts = parts.iter().filter_map(|part| Part::parse(&String::from_utf8_lossy(part))).collect();
        let text = picture(parts).map_err(|error| failed(error.into()))?;
        fs::write(path, text).map_err(failed)
    }
}

/// The bytes of each rank, on rank 0; nothing on the others. In messages of at most `slice` bytes. Collective over the world.
fn gather(world: &World, bytes: &[u8], slice: usize) -> Result<Vec<Vec<u8>>> {
    let slices: Vec<_> = bytes.chunks(slice).collect();
    let counts = world.exchange(world.group(), "slices of traces", &(slices.len() as u64).to_le_bytes())?;
    let count = |part: &Vec<u8>| part.as_slice().try_into().map_or(0, u64::from_le_bytes);
    let most = counts.iter().map(count).max().unwrap_or(0);
    let mut gathered = vec![Vec::new(); counts.len()];
    for index in 0..most as usize {
        let parts = world.exchange(world.group(), "traces", slices.get(index).unwrap_or(&&[][..]))?;
        if world.rank().get() == 0 {
            gathered.iter_mut().zip(parts).for_each(|(all, part)| all.extend(part));
        }
    }
    if world.rank().get() != 0 {
        gathered.clear();
    }
    Ok(gathered)
}

impl Drop for Profile {
    fn drop(&mut self) {
        // Another trace may begin as soon as this one has stopped.
        self.waits = None;
        self.trace.stop();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_traces_are_gathered_in_slices() {
        let config = crate::Config::from_toml("a test", "heap.bytes = \"8 MiB\"").unwrap().config;
        let text = |rank: u32| (0..10 * rank).map(|byte| (byte + rank) as u8).collect::<Vec<_>>();
        let results = crate::spawn_threads(&config, 3, |world| gather(world, &text(world.rank().get()), 7));
        let gathered: Vec<_> = results.unwrap().into_iter().map(Result::unwrap).collect();
        assert_eq!(gathered[0], [text(0), text(1), text(2)]);
        assert!(gathered[1..].iter().all(Vec::is_empty), "the other ranks keep nothing");
    }
}
