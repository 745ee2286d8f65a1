//! Tables that the launches of one team read.

use std::fmt;
use std::sync::{Arc, Weak};

use anabranch_hip::DeviceAddress;

use super::Team;
use crate::error::Result;
use crate::inflight::InFlight;
use crate::route::Table;
use crate::world::{Inner, Keep};

/// Words in this rank's device memory for kernels of one team to read. Dropping it does not block: its place is used again
/// when the launches that the team has tracked by then are over.
pub struct TeamTable {
    // Not a `World`: a table may be kept by the world itself.
    world: Weak<Inner>,
    in_flight: Arc<InFlight>,
    table: Option<Table>,
}

impl fmt::Debug for TeamTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("TeamTable").field(&self.address()).finish()
    }
}

impl Team {
    /// Writes `words` to device memory for kernels that [`Self::launch_in_order`] launches, and waits for it; not for use in
    /// a capture. Not collective. A table that a captured launch reads is given to [`Self::hold`].
    ///
    /// # Errors
    /// Device memory that is exhausted; the copy's.
    pub fn table(&self, words: &[u64]) -> Result<TeamTable> {
        let inner = &self.world().inner;
        let table = Some(inner.tables.write(words)?);
        Ok(TeamTable { world: Arc::downgrade(inner), in_flight: Arc::clone(self.in_flight()), table })
    }
}

impl TeamTable {
    /// Where the words are; aligned to 64 bytes.
    pub fn address(&self) -> DeviceAddress {
        self.table.as_ref().map_or(DeviceAddress::NULL, Table::address)
    }
}

impl Drop for TeamTable {
    fn drop(&mut self) {
        // Without its world nothing is in flight any more.
        if let (Some(table), Some(world)) = (self.table.take(), self.world.upgrade()) {
            world.park(&self.in_flight, Keep::Table { _table: table });
        }
    }
}
