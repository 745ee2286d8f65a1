//! A picture of a part of a program.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use anabranch_hip::Trace;

use crate::error::{Error, Result};
use crate::trace::{BOUND, DRAIN, Line, Part, picture};
use crate::world::World;

/// Exchanges that compare the clocks of machines.
const ROUNDS: u32 = 8;

/// A trace of this rank that began with [`World::profile`]. Dropping it ends the trace without a file.
#[derive(Debug)]
#[must_use = "the trace ends where this is dropped"]
pub struct Profile {
    world: World,
    trace: Arc<Trace>,
}

impl World {
    /// Starts to trace this rank's calls, and the work on streams of its device ([`World::device`](anabranch_shmem::World::device)). End it
    /// on all ranks with [`Profile::finish`].
    ///
    /// # Errors
    /// [`anabranch_hip::Error::Traced`] while the device is traced already, as by `anabranch trace`; the codes of a stream and its events.
    pub fn profile(&self) -> Result<Profile> {
        Ok(Profile { world: self.clone(), trace: self.device().start_trace(BOUND)? })
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
    pub fn finish(self, path: &Path) -> Result<()> {
        self.trace.drain(DRAIN);
        self.trace.stop();
        let world = &self.world;
        let mut lines = vec![Line::rank(world.rank(), &world.device().name(), &world.local().nics_of.0)];
        lines.extend(Line::of_records(self.trace.take()));
        lines.push(Line::untraced(self.trace.untraced()));
        for _ in 0..ROUNDS {
            let sent = Trace::now_ns();
            world.exchange(world.group(), "compare clocks", &[])?;
            lines.push(Line::Round { sent, received: Trace::now_ns() });
        }
        let failed = |source| Error::Trace { path: path.to_owned(), source };
        let text = Line::text(&lines).map_err(failed)?;
        let parts = world.exchange(world.group(), "traces", text.as_bytes())?;
        if world.rank().get() != 0 {
            return Ok(());
        }
        let parts = parts.iter().filter_map(|part| Part::parse(&String::from_utf8_lossy(part))).collect();
        let text = picture(parts).map_err(|error| failed(error.into()))?;
        fs::write(path, text).map_err(failed)
    }
}

impl Drop for Profile {
    fn drop(&mut self) {
        self.trace.stop();
    }
}
