//! A world whose ranks are threads of this process.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, PoisonError};

use anabranch_bootstrap::Rendezvous as _;
use anabranch_hip::Device;
use anabranch_hip_jit::Jit;
use anabranch_ranks::GlobalRank;

use crate::config::WorldConfig;
use crate::error::Error;
use crate::world::World;

/// What one rank joins with. Ranks of the host runtime share one machine and so one [`anabranch_hip::Runtime`].
#[derive(Clone, Debug)]
pub struct RankSetup {
    /// Equal on all ranks.
    pub config: WorldConfig,
    /// The rank's own device.
    pub device: Device,
    /// The kernel pipeline, mostly shared.
    pub jit: Jit,
}

/// How a rank failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RankError<E> {
    /// Making, joining or leaving the world failed.
    #[error("the world of {rank} failed: {error}")]
    World {
        /// The rank.
        rank: GlobalRank,
        /// Its error.
        error: Error,
    },
    /// The work returned an error.
    #[error("the work of {rank} failed: {error}")]
    Work {
        /// The rank.
        rank: GlobalRank,
        /// Its error.
        error: E,
    },
    /// The work panicked.
    #[error("the work of {rank} panicked: {message}")]
    Panicked {
        /// The rank.
        rank: GlobalRank,
        /// What it said.
        message: String,
    },
    /// No thread could be started for the rank.
    #[error("no thread for {rank}")]
    Thread {
        /// The rank.
        rank: GlobalRank,
        /// Why.
        #[source]
        source: std::io::Error,
    },
}

/// Runs `work` on `size` ranks, each on a thread of its own, and returns each rank's result in rank order.
///
/// Each thread asks `make` what to join with, joins, works, and leaves. A rank whose work fails or panics drops its world;
/// the others then lose it and end with an error that names it. Every rank's heap stays allocated until all have ended, so
/// that kernels on their way never meet freed memory.
pub fn spawn_threads<T, E, M, W>(size: u32, make: M, work: W) -> Vec<Result<T, RankError<E>>>
where
    T: Send,
    E: Send,
    M: Fn(GlobalRank) -> Result<RankSetup, Error> + Sync,
    W: Fn(&World) -> Result<T, E> + Sync,
{
    let guards = Mutex::new(Vec::new());
    let results = std::thread::scope(|scope| {
        let started: Vec<_> = anabranch_bootstrap::threads(size)
            .into_iter()
            .map(|rendezvous| {
                let rank = rendezvous.rank();
                let (make, work, guards) = (&make, &work, &guards);
                let world_error = move |error| RankError::World { rank, error };
                let body = move || {
                    let setup = make(rank).map_err(world_error)?;
                    let world = World::join(setup.config, setup.device, setup.jit, Arc::new(rendezvous))
                        .map_err(world_error)?;
                    guards.lock().unwrap_or_else(PoisonError::into_inner).push(world.memory_guard());
                    let value = work(&world).map_err(|error| RankError::Work { rank, error })?;
                    world.leave().map_err(world_error)?;
                    let goodbye = world.rendezvous().leave();
                    goodbye.map_err(|source| {
                        world_error(Error::Rendezvous { step: "leave".to_owned(), source })
                    })?;
                    Ok(value)
                };
                let caught = move || {
                    catch_unwind(AssertUnwindSafe(body)).unwrap_or_else(|panic| {
                        Err(RankError::Panicked { rank, message: words(panic.as_ref()) })
                    })
                };
                let thread = std::thread::Builder::new().name(format!("rank {}", rank.get()));
                (rank, thread.spawn_scoped(scope, caught))
            })
            .collect();
        started
            .into_iter()
            .map(|(rank, thread)| match thread {
                Ok(thread) => thread.join().unwrap_or_else(|panic| {
                    Err(RankError::Panicked { rank, message: words(panic.as_ref()) })
                }),
                Err(source) => Err(RankError::Thread { rank, source }),
            })
            .collect()
    });
    drop(guards);
    results
}

fn words(panic: &(dyn std::any::Any + Send)) -> String {
    panic
        .downcast_ref::<&str>()
        .map(|text| (*text).to_owned())
        .or_else(|| panic.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "(no message)".to_owned())
}
