//! The one place through which lanes, streams and host threads reach the world of a run.

use std::sync::{Mutex, MutexGuard};

use super::world::World;
use crate::sync::lock;

/// A world, for one user at a time. No lane is switched and nothing is waited for while it is borrowed.
#[derive(Debug)]
pub(crate) struct WorldCell(Mutex<World>);

impl WorldCell {
    pub(crate) fn new(world: World) -> Self {
        Self(Mutex::new(world))
    }

    pub(crate) fn borrow(&self) -> MutexGuard<'_, World> {
        lock(&self.0)
    }

    pub(crate) fn into_inner(self) -> World {
        self.0.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    pub(crate) fn borrow_mut(&self) -> MutexGuard<'_, World> {
        lock(&self.0)
    }
}
