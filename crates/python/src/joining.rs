//! Joining a world: by a launcher, by a store, or as threads of this process.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use anabranch::bootstrap::{JoinStop, TcpRoot, UniqueId};
use anabranch::{JoinedRank, ProcessLayout};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyTuple};

use crate::config::Config;
use crate::errors::{raise, usage};
use crate::logs;
use crate::state::{State, interrupted, interruptible};
use crate::unlocked::Unlocked;
use crate::world::World;

/// Where ranks meet when a store brings them together.
struct StoreRank {
    rank: u32,
    size: u32,
    local: Option<(u32, u32)>,
    id: UniqueId,
    /// The sockets of rank 0.
    root: Option<TcpRoot>,
}

/// How often this process has joined by a store, by name.
static JOINED: Mutex<BTreeMap<String, u32>> = Mutex::new(BTreeMap::new());

/// Rank 0 listens and puts the address with a new secret into the store; the others get it.
fn meet_in_store(
    config: &anabranch::Config,
    store: &Bound<'_, PyAny>,
    name: &str,
    (rank, size): (u32, u32),
    local: Option<(u32, u32)>,
) -> PyResult<StoreRank> {
    // A world that is joined again meets at another key. All ranks join as often.
    let joined = {
        let mut joined = JOINED.lock().unwrap_or_else(PoisonError::into_inner);
        let count = joined.entry(name.to_owned()).or_insert(0);
        *count += 1;
        *count
    };
    let key = format!("anabranch/{name}/{joined}");
    if rank == 0 {
        let root = anabranch::bind_root(config).map_err(raise)?;
        let id = root.unique_id().map_err(raise)?;
        store.call_method1("set", (key, PyBytes::new(store.py(), &id.to_bytes())))?;
        return Ok(StoreRank { rank, size, local, id, root: Some(root) });
    }
    let bytes = store.call_method1("get", (key,))?;
    let bytes = bytes.extract::<Vec<u8>>()?;
    let bytes = <&[u8; UniqueId::BYTES]>::try_from(bytes.as_slice()).map_err(|_| {
        usage(format!("the store has {} bytes for {name:?}, not an id of a world", bytes.len()))
    })?;
    let id = UniqueId::from_bytes(bytes).map_err(|error| usage(error.to_string()))?;
    Ok(StoreRank { rank, size, local, id, root: None })
}

/// A number from the environment of the launcher.
fn from_environment(name: &str) -> PyResult<Option<u32>> {
    match anabranch::Environment::of_process().get(name) {
        None => Ok(None),
        Some(text) => {
            text.parse().map(Some).map_err(|_| usage(format!("{name} is {text:?}, which is no number")))
        }
    }
}

/// Joins the world of all ranks that a launcher started (torchrun, srun, mpirun, `python -m anabranch run`), or that share `store`.
/// Collective: returns when all ranks have joined.
///
/// `config` is a TOML file's path, a mapping (`{"heap.bytes": "1 GiB"}`) or a `Config`; `set` has further settings, each `"key=value"`.
/// `store` is anything with `set(key, bytes)` and a `get(key)` that waits: torch's stores. `rank` and `world_size` are then given, or the
/// environment's RANK and WORLD_SIZE; worlds of one store have different names (`name`). Every process that reads the store can join the world.
#[pyfunction]
#[pyo3(signature = (config = None, *, set = Vec::new(), store = None, name = "world", rank = None, world_size = None,
    local_rank = None, local_world_size = None))]
#[expect(clippy::too_many_arguments, reason = "keywords of Python")]
pub(crate) fn init(
    py: Python<'_>,
    config: Option<&Bound<'_, PyAny>>,
    set: Vec<String>,
    store: Option<&Bound<'_, PyAny>>,
    name: &str,
    rank: Option<u32>,
    world_size: Option<u32>,
    local_rank: Option<u32>,
    local_world_size: Option<u32>,
) -> PyResult<World> {
    logs::start();
    let config = Config::from_argument(config, set)?.loaded.config;
    let meeting = match store.filter(|store| !store.is_none()) {
        None => {
            if rank.is_some() || world_size.is_some() || local_rank.is_some() || local_world_size.is_some() {
                return Err(usage(
                    "rank, world_size, local_rank and local_world_size come from the launcher; give them with `store`",
                ));
            }
            None
        }
        Some(store) => {
            let needed = |given: Option<u32>, keyword: &str, variable: &str| match given {
                Some(given) => Ok(given),
                None => from_environment(variable)?
                    .ok_or_else(|| usage(format!("give `{keyword}`, or set {variable}"))),
            };
            let rank = needed(rank, "rank", "RANK")?;
            let size = needed(world_size, "world_size", "WORLD_SIZE")?;
            if rank >= size {
                return Err(usage(format!("rank {rank} is not below world_size {size}")));
            }
            let local = match (local_rank, local_world_size) {
                (Some(rank), Some(size)) => Some((rank, size)),
                (None, None) => None,
                _ => return Err(usage("give local_rank and local_world_size, or neither")),
            };
            Some(meet_in_store(&config, store, name, (rank, size), local)?)
        }
    };
    let state = interruptible(
        py,
        false,
        || (),
        move || {
            let joined = match meeting {
                None => anabranch::rendezvous_from_launcher(&config)?,
                Some(StoreRank { rank, size, local, id, root }) => anabranch::rendezvous_by_id(
                    &config,
                    &id,
                    root,
                    (rank, size),
                    local,
                    &JoinStop::default(),
                )?,
            };
            let world = anabranch::join(&config, &joined)?;
            State::new(world, joined.local_rank)
        },
    );
    logs::flush(py);
    Ok(World { state: Unlocked::new(state?) })
}

/// Joins a world of `ranks` ranks of this process, one device each, and returns all of them in rank order. For frameworks that run several
/// devices in one process. Calls that are collective have to be made on all of them at once, each on a thread of its own.
#[pyfunction]
#[pyo3(signature = (ranks, config = None, *, set = Vec::new()))]
pub(crate) fn join_threads(
    py: Python<'_>,
    ranks: u32,
    config: Option<&Bound<'_, PyAny>>,
    set: Vec<String>,
) -> PyResult<Vec<World>> {
    logs::start();
    let config = Config::from_argument(config, set)?.loaded.config;
    if ranks == 0 {
        return Err(usage("ranks is 0; a world has at least one"));
    }
    let states = interruptible(
        py,
        false,
        || (),
        move || {
            let platform = anabranch::Platform::open(&config, ProcessLayout::Threads { ranks })?;
            let links = anabranch::bootstrap::threads(ranks);
            std::thread::scope(|scope| {
                let join = |(local_rank, link): (u32, anabranch::bootstrap::ThreadRendezvous)| {
                    let (platform, rendezvous) = (&platform, Arc::new(link));
                    scope.spawn(move || {
                        let world =
                            platform.join(&JoinedRank { rendezvous, local_rank, local_size: ranks })?;
                        State::new(world, local_rank)
                    })
                };
                let threads: Vec<_> = (0..ranks).zip(links).map(join).collect();
                let joined = |thread: std::thread::ScopedJoinHandle<'_, _>| {
                    thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
                };
                threads.into_iter().map(joined).collect::<Result<Vec<_>, anabranch::Error>>()
            })
        },
    );
    logs::flush(py);
    Ok(states?.into_iter().map(|state| World { state: Unlocked::new(state) }).collect())
}

/// Runs `work(world)` on `ranks` ranks of one world, each on a thread of this process, and returns the results in rank order. Each rank
/// leaves the world when its work returns. The first exception of a rank ends the others and is raised.
#[pyfunction]
#[pyo3(signature = (work, ranks, config = None, *, set = Vec::new()))]
pub(crate) fn spawn_threads<'py>(
    py: Python<'py>,
    work: &Bound<'py, PyAny>,
    ranks: u32,
    config: Option<&Bound<'py, PyAny>>,
    set: Vec<String>,
) -> PyResult<Bound<'py, PyTuple>> {
    logs::start();
    let config = Config::from_argument(config, set)?.loaded.config;
    if ranks == 0 {
        return Err(usage("ranks is 0; a world has at least one"));
    }
    let work = work.clone().unbind();
    let (worlds, order) = (Arc::new(Mutex::new(Vec::new())), Arc::new(AtomicUsize::new(0)));
    let to_poison = Arc::clone(&worlds);
    let interrupted = move || {
        for world in to_poison.lock().unwrap_or_else(PoisonError::into_inner).iter() {
            interrupted(world);
        }
    };
    let results = interruptible(py, true, interrupted, move || {
        let platform = anabranch::Platform::open(&config, ProcessLayout::Threads { ranks })?;
        platform.spawn_threads(|world| {
            worlds.lock().unwrap_or_else(PoisonError::into_inner).push(world.clone());
            let result = run_rank(world, &work);
            worlds
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .retain(|other| other.rank() != world.rank());
            result.map_err(|error| (order.fetch_add(1, Ordering::Relaxed), error))
        })
    });
    logs::flush(py);
    let (mut values, mut failures) = (Vec::new(), Vec::new());
    for result in results? {
        match result {
            Ok(value) => values.push(value),
            Err(anabranch::RankError::Work { rank, error: (order, error) }) => {
                // A rank that only missed another one is not the cause.
                failures.push((is_of_peer(py, &error)?, order, rank.get(), error));
            }
            Err(anabranch::RankError::World { rank, error }) => {
                let error = raise(error);
                failures.push((is_of_peer(py, &error)?, usize::MAX, rank.get(), error));
            }
            Err(other) => return Err(pyo3::exceptions::PyRuntimeError::new_err(format!("{other:?}"))),
        }
    }
    failures.sort_by_key(|(of_peer, order, ..)| (*of_peer, *order));
    match failures.into_iter().next() {
        None => PyTuple::new(py, values),
        Some((_, _, rank, error)) => {
            // Exceptions have notes from Python 3.11 on.
            if error.value(py).hasattr("add_note")? {
                error.value(py).call_method1("add_note", (format!("raised on rank {rank} of {ranks}"),))?;
            }
            Err(error)
        }
    }
}

/// The work of one rank of [`spawn_threads`].
fn run_rank(world: &anabranch::World, work: &Py<PyAny>) -> PyResult<Py<PyAny>> {
    let state = State::new(world.clone(), world.rank().get()).map_err(raise)?;
    let result = Python::attach(|py| {
        let world = Py::new(py, World { state: Unlocked::new(Arc::clone(&state)) })?;
        work.call1(py, (world,))
    });
    match &result {
        // Here and not by the drop of the world, so that the tensors of the last calls are let go of.
        Ok(_) => state.leave().map_err(raise)?,
        Err(error) => {
            let leaving = state.abandon(&format!("an exception in Python: {error}"));
            // A panic there was printed, and the exception is the error to report.
            let _ = leaving.map(JoinHandle::join);
        }
    }
    Python::attach(|_| state.release());
    result
}

/// Whether an exception, or one that it was raised from, is about another rank.
fn is_of_peer(py: Python<'_>, error: &PyErr) -> PyResult<bool> {
    let class = py.import("anabranch._errors")?.getattr("PeerError")?;
    let mut next = Some(error.value(py).clone().into_any());
    while let Some(error) = next {
        if error.is_instance(&class)? {
            return Ok(true);
        }
        let causes = [error.getattr("__cause__")?, error.getattr("__context__")?];
        next = causes.into_iter().find(|cause| !cause.is_none());
    }
    Ok(false)
}
