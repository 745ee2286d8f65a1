//! Joining and leaving.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};

use anabranch_bootstrap::{Deadline, Loss, LossObserver, Rendezvous};
use anabranch_hip::{Device, DeviceAddress, Stream};
use anabranch_hip_jit::Jit;
use anabranch_ranks::{GlobalRank, Group};
use anabranch_transport::{PeerInfo, PeerMemory, Region, Transport, TransportKind};
use anabranch_transport_p2p::{ExchangeError, FlatLayout, FlatWindow, Patience, WindowError};
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use super::check::DRAIN;
use super::identity::peer_info;
use super::residency::Residency;
use super::sharing;
use super::turns::Turns;
use super::{Inner, World};
use crate::collective::{Collectives, compare_fields, group_id};
use crate::config::{HeapMode, WorldConfig};
use crate::error::{Error, Result};
use crate::fault::answers::Answering;
use crate::fault::control::Control;
use crate::fault::names::Explainers;
use crate::fault::state::FaultState;
use crate::heap::ledger::Ledger;
use crate::heap::ranges::ByteRange;
use crate::heap::{HEADER_BYTES, HeapMemory};
use crate::inflight::InFlightUsers;
use crate::route::{Connections, Offers, Tables, Transports, base_of};

/// What each rank sends first.
#[derive(Debug, Serialize, Deserialize)]
struct HelloMsg {
    info: PeerInfo,
    fields: Vec<(String, String)>,
    /// Rank 0's becomes the world's number.
    number: u64,
    /// What its device maps in, bytes, where heaps are to lie in flat ranges.
    granularity: Option<u64>,
    /// Bytes of its device: free, and in total. Zeros where `heap.bytes` is configured.
    memory: (u64, u64),
}

/// What all ranks have learned of each other.
struct Peers {
    infos: Vec<PeerInfo>,
    number: u64,
    layout: Option<FlatLayout>,
    /// The configuration, with the size of the heap of every rank.
    config: WorldConfig,
}

/// What a rank makes before it reaches peers.
struct LocalParts {
    heap: Arc<HeapMemory>,
    control: Control,
    tables: Arc<Tables>,
    service: Stream,
    transports: Transports,
    offers: Offers,
}

impl World {
    /// Joins the world of all ranks of the rendezvous. Collective: every rank calls it, with an equal configuration, each
    /// with a device of its own. Exchanges and compares what the ranks are, allocates the heap, maps the peers',
    /// and probes each mapping by a real copy.
    ///
    /// The rendezvous stays the caller's: it may serve another world after this one was left.
    ///
    /// # Errors
    /// On all ranks: [`Error::Differs`] with the setting, both values and ranks; [`Error::Unreachable`] with the reason of
    /// each transport; [`Error::HeapMemory`]; [`Error::HeapAlignment`]; [`Error::Pair`]; [`Error::Probe`]. Where only one rank failed, the
    /// others get [`Error::FailedOn`], which names it. [`Error::Rendezvous`] when a rank did not come in time.
    pub fn join(
        config: WorldConfig,
        device: Device,
        jit: Jit,
        rendezvous: Arc<dyn Rendezvous>,
    ) -> Result<Self> {
        Self::join_with(config, device, jit, rendezvous, Vec::new())
    }

    /// [`World::join`] with transports of the caller's, which take the place of built-in ones of their kind.
    ///
    /// # Errors
    /// The errors of [`World::join`].
    #[expect(clippy::expect_used, clippy::missing_panics_doc, reason = "the agreements fail in these cases")]
    pub fn join_with(
        config: WorldConfig,
        device: Device,
        jit: Jit,
        rendezvous: Arc<dyn Rendezvous>,
        transports: Vec<Box<dyn Transport>>,
    ) -> Result<Self> {
        let group = Group::world(rendezvous.size())?;
        // One for all steps: it is how long joining may take.
        let deadline = Deadline::after(config.rendezvous_deadline);
        let first = Collectives::new(Arc::clone(&rendezvous), 0, config.rendezvous_deadline);
        let Peers { infos: peers, number, layout, config } =
            handshake(&first, &group, config, &device, deadline)?;
        let local = peers
            .get(first.rank().index())
            .cloned()
            .ok_or_else(|| Error::NotAMember { step: "join".to_owned(), rank: first.rank() })?;
        sharing::refuse(&peers, config.share_devices)?;

        let collectives = Collectives::new(rendezvous, number, config.rendezvous_deadline);
        let turns = Turns::new(&config, &local, &peers);
        let prepared = || prepare(&config, &device, &local, &peers, number, layout, transports);
        let offers_of = |parts: &LocalParts| parts.offers.clone();
        let (parts, offers) =
            turns.take(&collectives, &group, "allocate the heap", deadline, prepared, offers_of)?;
        let parts = parts.expect("the agreement fails on all ranks where one has made nothing");

        if let Some(window) = parts.heap.window() {
            let place = parts.transports.built_in_p2p();
            let passed = pass_descriptors(window, place, &collectives, &local, &peers, &offers, deadline);
            let passed = passed.map_err(|source| Error::PassDescriptors { source: Box::new(source) });
            collectives.agree_by(&group, "pass the heaps' descriptors", passed, deadline)?;
        }
        let connect = || connect(&parts.transports, &device, &peers, &offers, config.heap_bytes, number);
        let kinds = |(_, routes, _): &Connected| -> Vec<String> {
            routes.iter().map(|route| route.kind.word().to_owned()).collect()
        };
        let connected = turns.take(&collectives, &group, "map the peers' heaps", deadline, connect, kinds);
        let connected = match connected {
            Ok((connected, kinds)) => connected.map(|connected| (connected, kinds)),
            // All ranks close what they have mapped before any of them frees its heap. A broken exchange is not followed by another
            // one, which would wait a second time for the rank that is missing.
            Err(error) => {
                if !matches!(error, Error::Rendezvous { .. }) {
                    let _ = collectives.agree_by(&group, "close the peers' heaps", Ok(()), deadline);
                }
                return Err(error);
            }
        };
        let ((memory, routes, places), kinds) =
            connected.expect("the agreement fails on all ranks where one has made nothing");
        if let Err(error) = both_ways(&kinds) {
            drop(memory);
            collectives.agree_by(&group, "close the peers' heaps", Ok(()), deadline)?;
            return Err(error);
        }
        for (transport, place) in parts.transports.all().zip(0..) {
            // Both ends agree, as all routes to memory that is not mapped go both ways.
            transport.keep_only(&|rank| places.get(rank.index()) == Some(&place));
        }
        if let Some(window) = parts.heap.window() {
            window.forget_descriptors();
        }

        let bases: Vec<DeviceAddress> = memory.iter().map(|memory| base_of(memory.as_ref())).collect();
        let segment = ByteRange { offset: HEADER_BYTES, bytes: config.heap_bytes - HEADER_BYTES };
        let state = Arc::new(FaultState::new(parts.control));
        let in_flight = InFlightUsers::default();
        let inner = Inner {
            queue_watch: Mutex::new(None),
            answering: Mutex::new(None),
            connections: Arc::new(RwLock::new(Connections { memory, places, transports: parts.transports })),
            routes,
            bases,
            kernels: Mutex::new(None),
            tables: parts.tables,
            state: Arc::clone(&state),
            service: parts.service,
            ledger: Mutex::new(Ledger::new(local.rank.get(), segment)),
            heap_busy: AtomicBool::new(false),
            groups: Arc::new(Mutex::new(HashMap::from([(group_id(&group), group.clone())]))),
            names: Arc::default(),
            explainers: Explainers::default(),
            residency: Arc::new(Residency::default()),
            launches: in_flight.user(),
            in_flight,
            parked: Mutex::default(),
            observer: Mutex::new(None),
            left: AtomicBool::new(false),
            unproven: AtomicBool::new(false),
            turns,
            peers,
            local,
            group,
            config,
            jit,
            device,
            collectives,
            heap: parts.heap,
        };
        let world = Self { inner: Arc::new(inner) };
        // The rendezvous outlives the world; what it holds must not keep the world, nor let its last part end on a thread of
        // the rendezvous.
        let weak = Arc::downgrade(&state);
        drop(state);
        let observer: Arc<dyn LossObserver> = Arc::new(move |loss: &Loss| {
            if let Some(state) = weak.upgrade() {
                state.lost(loss);
            }
        });
        world.rendezvous().observe(Arc::clone(&observer));
        *world.inner.observer.lock().unwrap_or_else(PoisonError::into_inner) = Some(observer);
        world.log_routes();
        world.answer();
        world.probe_nics(|peer| probe_word(number, peer), deadline)?;
        Ok(world)
    }

    /// Starts the answers to other ranks.
    fn answer(&self) {
        match Answering::start(&self.inner.reports(), self.size()) {
            Ok(answering) => {
                *self.inner.answering.lock().unwrap_or_else(PoisonError::into_inner) = answering;
            }
            // The join is over, no later step would report it, and the world works without it.
            Err(error) => {
                tracing::warn!(%error, "this rank will not report what it is doing when others wait for it");
            }
        }
    }

    fn log_routes(&self) {
        for route in self.routes() {
            tracing::debug!(rank = self.rank().get(), %route, "route");
        }
    }

    /// Leaves: waits for this rank's work in flight, and what it has put by NIC, then for all ranks, closes the mappings of the peers' heaps, and returns
    /// when no rank maps this rank's any more. Collective over all ranks; doing it again does nothing. Memory is freed when
    /// everything that was made from the world is dropped.
    ///
    /// Work in flight is what the world knows of: barriers and copies of teams, and launches under [`World::launching`], such
    /// as those of the crates above. Synchronize your own kernels before you call `leave`. The wait ends a
    /// second after the operation deadline; what is still in flight then keeps this rank's heap and mappings for good.
    ///
    /// # Errors
    /// What made the world fail, here or on another rank ([`Error::FailedOn`]); [`Error::StreamBusy`] when work in flight
    /// did not end; who did not come. The world is left in any case, with an error on all ranks when it failed on one.
    pub fn leave(&self) -> Result<()> {
        let inner = &self.inner;
        if inner.left.swap(true, Ordering::AcqRel) {
            return Ok(());
        }
        // Launches that have begun are on their streams after this; later ones are refused.
        drop(inner.connections.write().unwrap_or_else(PoisonError::into_inner));
        // Kernels that still wait for peers come to their end: the peers launch theirs before they leave.
        let drained = self.check_fault().and_then(|()| inner.drain()).and_then(|()| self.complete_nics());
        let drained = drained.and_then(|()| self.check_fault());
        inner.state.leaving();
        let met = self.meet_to_leave(drained);
        // Until then others wait for what this rank has put, and miss it where its NIC fails.
        inner.stop_watching();
        inner.stop_observing();
        inner.stop_answering(met.is_ok());
        if let Err(error) = &met {
            // Peers may still write here, and kernels of this rank must not outlive the mappings that they use.
            self.poison(&format!("leave failed: {error}"));
            if let Err(error) = inner.drain() {
                tracing::warn!(%error, "work in flight did not end; the mappings of the peers' heaps stay");
                inner.unproven.store(true, Ordering::Release);
            }
        }
        let close = || {
            if !inner.unproven.load(Ordering::Acquire) {
                let mut connections = inner.connections.write().unwrap_or_else(PoisonError::into_inner);
                connections.memory.clear();
                connections.transports.close();
            }
        };
        if met.is_err() {
            close();
            return met;
        }
        let (group, step) = (&inner.group, "close the peers' heaps");
        let deadline = Deadline::after(inner.config.rendezvous_deadline);
        let closed = || {
            close();
            Ok(())
        };
        inner.turns.take(&inner.collectives, group, step, deadline, closed, |()| ())?;
        Ok(())
    }

    /// Exchanges the outcome with the others.
    fn meet_to_leave(&self, drained: Result<()>) -> Result<()> {
        let (group, config) = (&self.inner.group, &self.inner.config);
        let patience = match &drained {
            // The others may have failed of the same and never come.
            Err(Error::Fault(_)) => config.rendezvous_deadline.min(DRAIN),
            _ => config.rendezvous_deadline,
        };
        let status = drained.as_ref().err().map_or(Ok(()), |error| Err(anabranch_hip::with_causes(error)));
        let agreed = self.agree_status_by(group, "leave", status, Deadline::after(patience));
        drained.and(agreed)
    }
}

/// Exchanges and compares what the ranks are.
fn handshake(
    collectives: &Collectives,
    group: &Group,
    config: WorldConfig,
    device: &Device,
    deadline: Deadline,
) -> Result<Peers> {
    let about = config.check().and_then(|()| {
        let memory = match config.heap_bytes {
            0 => device.memory_info().map(|(free, total)| (free as u64, total as u64))?,
            _ => (0, 0),
        };
        let flat = || {
            FlatWindow::granularity(device).map_err(|source| flat_error(config.heap_bytes, device, source))
        };
        let granularity = match config.heap_mode {
            HeapMode::Static => None,
            HeapMode::Flat => Some(flat()?),
        };
        Ok((peer_info(collectives.rank(), &config, device)?, granularity, memory))
    });
    let hello = about.map(|(info, granularity, memory)| {
        let mut fields = vec![("anabranch version".to_owned(), env!("CARGO_PKG_VERSION").to_owned())];
        fields.push(("device.runtime".to_owned(), info.runtime.clone()));
        fields.push(("device.arch".to_owned(), info.arch.clone()));
        fields.extend(config.fields());
        let number = fresh_number(&info);
        HelloMsg { info, fields, number, granularity, memory }
    });
    let hellos = collectives.agree_by(group, "join", hello, deadline)?.parts;
    compare_fields("join", group, &hellos.iter().map(|hello| hello.fields.clone()).collect::<Vec<_>>())?;
    let number = hellos[0].number;
    let (memory, infos): (Vec<_>, Vec<_>) =
        hellos.iter().map(|hello| (hello.memory, hello.info.clone())).unzip();
    let heap_bytes = match config.heap_bytes {
        0 => sharing::chosen_heap_bytes(&infos, &memory),
        bytes => bytes,
    };
    let layout = match config.heap_mode {
        HeapMode::Static => None,
        HeapMode::Flat => {
            let granularities = hellos.iter().filter_map(|hello| hello.granularity);
            let layout = FlatLayout::new(group.size(), heap_bytes, granularities);
            Some(layout.map_err(|source| flat_error(heap_bytes, device, source))?)
        }
    };
    Ok(Peers { infos, number, layout, config: WorldConfig { heap_bytes, ..config } })
}

fn flat_error(bytes: u64, device: &Device, source: WindowError) -> Error {
    let (runtime, device) = (device.runtime().kind(), device.ordinal());
    let problem = format!("heap.mode = flat cannot be had of the {runtime} runtime");
    Error::HeapMemory { bytes, device, problem, source: Box::new(source) }
}

/// A number that no other world of this rendezvous has had: who, and when. Under a driver, whose runs must be the same in
/// every process, it is the rank and the driver's time; there no world follows another within an instant.
fn fresh_number(info: &PeerInfo) -> u64 {
    if anabranch_clock::is_attached() {
        let now = anabranch_clock::Moment::now().since_origin();
        return first_word(&format!("{} {}", info.rank.get(), now.as_nanos()));
    }
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    first_word(&format!("{info:?} {}", now.as_nanos()))
}

/// The word at the start of a rank's heap.
fn probe_word(world: u64, info: &PeerInfo) -> u64 {
    first_word(&format!("{world:x} {}", info.rank.get())) | 1
}

fn first_word(text: &str) -> u64 {
    Sha256::digest(text).iter().take(8).fold(0, |word, byte| (word << 8) | u64::from(*byte))
}

fn prepare(
    config: &WorldConfig,
    device: &Device,
    local: &PeerInfo,
    peers: &[PeerInfo],
    number: u64,
    layout: Option<FlatLayout>,
    brought: Vec<Box<dyn Transport>>,
) -> Result<LocalParts> {
    let audience = Transports::audience(local, peers);
    let window = layout.map(|layout| FlatWindow::new(device, local.rank, layout, audience)).transpose();
    let window = window.map_err(|source| flat_error(config.heap_bytes, device, source))?.map(Arc::new);
    let transports = Transports::new(config, device, local, peers, brought, window.as_ref())?;
    if window.is_some() && transports.built_in_p2p().is_none() {
        let expected =
            "static, as flat ranges need the built-in transport p2p and another one was given".into();
        return Err(Error::Config { field: "heap.mode", given: "flat".to_owned(), expected });
    }
    let probe = probe_word(number, local);
    let heap = Arc::new(match &window {
        None => HeapMemory::new(device, config.heap_bytes, probe)?,
        Some(window) => HeapMemory::in_window(device, window, config.heap_bytes, probe)?,
    });
    let control = Control::new(device, config.operation_deadline)?;
    let tables = Tables::new(device.clone())?;
    let service = device.create_stream()?;
    let region = Region { address: heap.address().0, bytes: heap.bytes() };
    let offers = transports.export(region, audience)?;
    Ok(LocalParts { heap, control, tables, service, transports, offers })
}

/// Exchanges file descriptors of heaps with the ranks of other processes. Ends in time for an agreement on the outcome.
fn pass_descriptors(
    window: &FlatWindow,
    place: Option<usize>,
    collectives: &Collectives,
    local: &PeerInfo,
    peers: &[PeerInfo],
    offers: &[Offers],
    deadline: Deadline,
) -> Result<(), ExchangeError> {
    let offered = |offers: &'_ Offers| place.and_then(|place| offers.get(place)?.as_ref().ok().cloned());
    let offered: Vec<_> = offers.iter().map(offered).collect();
    let peers: Vec<_> = peers.iter().zip(offered.iter().map(Option::as_deref)).collect();
    let due = Deadline::after(deadline.remaining() / 2);
    let lost = |rank| {
        let losses = collectives.rendezvous().losses();
        losses.iter().find(|loss| loss.rank == rank).map(ToString::to_string)
    };
    window.exchange(local, &peers, &Patience { time: &|| (due.remaining(), due.waited()), lost: &lost })
}

/// All routes of a pair of ranks go by NIC or none: queue pairs are connected at both ends. `kinds` are the words of each rank's routes.
fn both_ways(kinds: &[Vec<String>]) -> Result<()> {
    let kind = |from: usize, to: usize| kinds.get(from)?.get(to)?.parse::<TransportKind>().ok();
    let pairs = (0..kinds.len()).flat_map(|first| (0..first).map(move |second| (first, second)));
    for (first, second) in pairs {
        let (Some(there), Some(back)) = (kind(first, second), kind(second, first)) else { continue };
        if (there == TransportKind::Rdma) != (back == TransportKind::Rdma) {
            let rank = |index: usize| GlobalRank::new(index as u32);
            let (first, second) = (rank(first), rank(second));
            let problem = format!(
                "the first reaches the second over {there}, the second the first over {back}; rdma has to serve both ways"
            );
            return Err(Error::Pair { first, second, problem });
        }
    }
    Ok(())
}

type Connected = (Vec<Box<dyn PeerMemory>>, Vec<anabranch_transport::Route>, Vec<usize>);

/// Maps every rank's heap and reads the word that its owner wrote there.
fn connect(
    transports: &Transports,
    device: &Device,
    peers: &[PeerInfo],
    offers: &[Offers],
    heap_bytes: u64,
    number: u64,
) -> Result<Connected> {
    let (mut memory, mut routes, mut places) = (Vec::new(), Vec::new(), Vec::new());
    for (peer, offers) in peers.iter().zip(offers) {
        let mut opened = transports.connect(peer, offers, heap_bytes)?;
        let base = base_of(opened.memory.as_ref());
        if !base.is_null() {
            let mut word = [0; 8];
            // SAFETY: the mapping was just opened with `heap_bytes` bytes, at least 1 MiB, and its owner frees it only after
            // a later step in which this rank takes part.
            unsafe { device.read_memory(base, &mut word) }?;
            let (read, expected) = (u64::from_le_bytes(word), probe_word(number, peer));
            if read != expected {
                let kind = transports.kind(opened.place).unwrap_or(opened.route.kind);
                return Err(Error::Probe { peer: peer.rank, kind, read, expected });
            }
            opened.route.reason.push_str("; probed by a copy");
        }
        memory.push(opened.memory);
        routes.push(opened.route);
        places.push(opened.place);
    }
    Ok((memory, routes, places))
}
