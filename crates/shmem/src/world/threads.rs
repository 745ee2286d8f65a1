//! A world whose ranks are threads of this process.

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, PoisonError};

use anabranch_bootstrap::Rendezvous;
use anabranch_clock::{Driver, Seat, attach};
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

/// How a rank failed. The text has that of the rank's error, whose own cause is the source; of the work's error where that is this crate's or
/// boxed (others write their causes with `{error:#}`, or are looked at in [`RankError::Work`]).
#[derive(Debug)]
#[non_exhaustive]
pub enum RankError<E> {
    /// Making, joining or leaving the world failed.
    World {
        /// The rank.
        rank: GlobalRank,
        /// Its error.
        error: Error,
    },
    /// The work returned an error.
    Work {
        /// The rank.
        rank: GlobalRank,
        /// Its error.
        error: E,
    },
    /// The work panicked.
    Panicked {
        /// The rank.
        rank: GlobalRank,
        /// The panic's message.
        message: String,
    },
    /// The ranks' runtimes are not all under one driver of host threads, so that the ranks could not wait for each other.
    Drivers {
        /// A rank.
        rank: GlobalRank,
        /// One whose runtime is under another driver, or under none.
        other: GlobalRank,
    },
    /// No thread could be started for the rank.
    Thread {
        /// The rank.
        rank: GlobalRank,
        /// Why.
        source: std::io::Error,
    },
}

impl<E: fmt::Display> fmt::Display for RankError<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::World { rank, error } => write!(f, "the world of {rank} failed: {error}"),
            // Types such as `anyhow::Error` write their causes so.
            Self::Work { rank, error } => write!(f, "the work of {rank} failed: {error:#}"),
            Self::Panicked { rank, message } => write!(f, "the work of {rank} panicked: {message}"),
            Self::Drivers { rank, other } => {
                write!(
                    f,
                    "the runtime of {other} is under another driver of host threads than that of {rank}"
                )
            }
            Self::Thread { rank, .. } => write!(f, "no thread for {rank}"),
        }
    }
}

impl<E: fmt::Display + fmt::Debug + 'static> std::error::Error for RankError<E> {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::World { error, .. } => error.source(),
            Self::Work { error, .. } => source_of_work(error),
            Self::Thread { source, .. } => Some(source),
            Self::Panicked { .. } | Self::Drivers { .. } => None,
        }
    }
}

/// The cause of a work's error, which need be no [`std::error::Error`] (`String`, `anyhow::Error`): of the types that are known here.
fn source_of_work<E: 'static>(error: &E) -> Option<&(dyn std::error::Error + 'static)> {
    let error = error as &dyn std::any::Any;
    if let Some(error) = error.downcast_ref::<Error>() {
        return std::error::Error::source(error);
    }
    error.downcast_ref::<Box<dyn std::error::Error + Send + Sync>>()?.source()
}

/// Runs `work` on `size` ranks, each on a thread of its own, and returns each rank's result in rank order.
///
/// `make` returns what each rank joins with; it is called on this thread, before any other starts. Each thread joins, works, and
/// leaves. A rank whose setup or work fails or panics drops its world; the others then lose it and end with an error that
/// names it. Every rank's heap stays allocated until all have ended, so that kernels in flight never access freed memory; it
/// is freed on this thread.
///
/// When the ranks' runtime has a [driver](anabranch_hip::Runtime::driver), the threads are attached to it until they have
/// dropped all that they own.
pub fn spawn_threads<T, E, M, W>(size: u32, make: M, work: W) -> Vec<Result<T, RankError<E>>>
where
    T: Send,
    E: Send,
    M: FnMut(GlobalRank) -> Result<RankSetup, Error>,
    W: Fn(&World) -> Result<T, E> + Sync,
{
    let links = anabranch_bootstrap::threads(size).into_iter();
    spawn_threads_on(links.map(|link| Arc::new(link) as Arc<dyn Rendezvous>).collect(), make, work)
}

/// [`spawn_threads`] over links of the caller's: one for each rank, in rank order, of one rendezvous.
///
/// A link that the caller holds too stays open when its rank fails, and the others wait for it until a deadline.
pub fn spawn_threads_on<T, E, M, W>(
    links: Vec<Arc<dyn Rendezvous>>,
    make: M,
    work: W,
) -> Vec<Result<T, RankError<E>>>
where
    T: Send,
    E: Send,
    M: FnMut(GlobalRank) -> Result<RankSetup, Error>,
    W: Fn(&World) -> Result<T, E> + Sync,
{
    let size = links.len() as u32;
    let setups: Vec<_> = (0..size).map(GlobalRank::new).map(make).collect();
    let driver = match common_driver(&setups) {
        Ok(driver) => driver,
        Err((rank, other)) => {
            return setups.iter().map(|_| Err(RankError::Drivers { rank, other })).collect();
        }
    };
    // All seats before any thread, so that their order does not depend on how fast threads start.
    let owners: Vec<u32> = (0..size).collect();
    let seats = driver.as_ref().map(|driver| driver.seats(&owners)).unwrap_or_default();
    let guards = Mutex::new(Vec::new());
    let results = std::thread::scope(|scope| {
        let started: Vec<_> = links
            .into_iter()
            .zip(setups)
            .map(|(rendezvous, setup)| {
                let rank = rendezvous.rank();
                let place = driver.clone().zip(seats.get(rank.index()).copied());
                let (work, guards) = (&work, &guards);
                let world_error = move |error| RankError::World { rank, error };
                let body = move || {
                    let setup = setup.map_err(world_error)?;
                    let world = World::join(setup.config, setup.device, setup.jit, rendezvous)
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
                let thread = std::thread::Builder::new().name(format!("rank {}", rank.get()));
                let given = place.clone();
                let thread = thread.spawn_scoped(scope, move || run_attached(rank, given, body));
                if let (Err(_), Some((driver, seat))) = (&thread, place) {
                    driver.leave(seat);
                }
                (rank, thread)
            })
            .collect();
        started
            .into_iter()
            .map(|(rank, thread)| match thread {
                Ok(thread) => thread.join().unwrap_or_else(|panic| Err(panicked(rank, panic.as_ref()))),
                Err(source) => Err(RankError::Thread { rank, source }),
            })
            .collect()
    });
    drop(guards);
    results
}

/// The driver of all runtimes, or two ranks whose drivers differ. Ranks without a setup do not count.
fn common_driver(
    setups: &[Result<RankSetup, Error>],
) -> Result<Option<Arc<dyn Driver>>, (GlobalRank, GlobalRank)> {
    let mut drivers = (0..).map(GlobalRank::new).zip(setups).filter_map(|(rank, setup)| {
        let setup = setup.as_ref().ok()?;
        Some((rank, setup.device.runtime().driver()))
    });
    let Some((rank, first)) = drivers.next() else { return Ok(None) };
    let same = |other: &Option<Arc<dyn Driver>>| match (&first, other) {
        (None, None) => true,
        (Some(one), Some(other)) => Arc::ptr_eq(one, other),
        _ => false,
    };
    match drivers.find(|(_, driver)| !same(driver)) {
        Some((other, _)) => Err((rank, other)),
        None => Ok(first),
    }
}

/// Runs a rank's body, and drops all that it owns, under the driver.
fn run_attached<T, E>(
    rank: GlobalRank,
    place: Option<(Arc<dyn Driver>, Seat)>,
    body: impl FnOnce() -> Result<T, RankError<E>>,
) -> Result<T, RankError<E>> {
    let attached = place.map(|(driver, seat)| attach(driver, seat));
    let ended = catch_unwind(AssertUnwindSafe(body));
    let ended = ended.unwrap_or_else(|panic| Err(panicked(rank, panic.as_ref())));
    drop(attached);
    ended
}

fn panicked<E>(rank: GlobalRank, panic: &(dyn std::any::Any + Send)) -> RankError<E> {
    RankError::Panicked { rank, message: words(panic) }
}

fn words(panic: &(dyn std::any::Any + Send)) -> String {
    panic
        .downcast_ref::<&str>()
        .map(|text| (*text).to_owned())
        .or_else(|| panic.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "(no message)".to_owned())
}

#[cfg(test)]
mod tests {
    use std::error::Error as _;

    use anabranch_hip::{HipError, RuntimeKind};

    use super::*;

    fn refused() -> anabranch_hip::Error {
        anabranch_hip::Error::Runtime {
            call: "hipModuleLaunchKernel",
            runtime: RuntimeKind::Host,
            code: HipError(1),
        }
    }

    #[test]
    fn the_text_of_a_failed_launch_has_the_reason() {
        let error = anabranch_hip_jit::Error::Launch { entry: "app_k".into(), cause: Arc::new(refused()) };
        let text = RankError::Work { rank: GlobalRank::new(0), error: Error::from(error) }.to_string();
        assert!(text.contains("rank 0") && text.contains("app_k"), "{text}");
        assert!(text.ends_with(&refused().to_string()), "{text}");
    }

    #[test]
    fn the_cause_of_a_ranks_error_is_its_source() {
        let error = Error::HeapMemory {
            bytes: 1,
            device: anabranch_hip::DeviceOrdinal(0),
            problem: "none is free".to_owned(),
            source: Box::new(refused()),
        };
        let text = anabranch_hip::with_causes(&error);
        let failed: RankError<Error> = RankError::Work { rank: GlobalRank::new(0), error };
        assert_eq!(failed.source().unwrap().to_string(), refused().to_string());
        assert_eq!(anabranch_hip::with_causes(&failed), format!("the work of rank 0 failed: {text}"));
    }

    #[test]
    fn an_error_of_any_type_passes_on_as_an_error() {
        fn passed_on<E: fmt::Display + fmt::Debug + Send + Sync + 'static>(
            error: E,
        ) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
            let result: Result<(), RankError<E>> = Err(RankError::Work { rank: GlobalRank::new(0), error });
            result?;
            Ok(())
        }
        let error = passed_on("no file".to_owned()).unwrap_err();
        assert_eq!(
            (error.to_string().as_str(), error.source().is_none()),
            ("the work of rank 0 failed: no file", true)
        );
        let device = anabranch_hip::DeviceOrdinal(0);
        let (problem, source) = ("none is free".to_owned(), Box::new(refused()).into());
        let full = Error::HeapMemory { bytes: 1, device, problem, source };
        let boxed: Box<dyn std::error::Error + Send + Sync> = Box::new(full);
        let error = passed_on(boxed).unwrap_err();
        assert_eq!(error.source().unwrap().to_string(), refused().to_string());
    }
}
