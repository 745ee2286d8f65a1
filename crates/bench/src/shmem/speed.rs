//! Time of single operations from rank 0 to one peer of each route, by one block, many in one launch.

use anabranch::{Error, GlobalRank, World};
use anabranch_conformance::shmem::{COPY, CopyArgs, CopyCase, CopyKind, draw};
use anabranch_transport::Scope;

use super::super::link;
use super::super::statistics::Samples;
use super::matrix::{self, Lacking, lacking};
use super::region::{Grid, OPERATION, Region};

/// What was timed to one peer.
#[derive(Clone, Debug)]
pub(crate) struct Timed {
    pub(crate) kind: CopyKind,
    pub(crate) scope: Scope,
    pub(crate) peer: u32,
    /// The route's transport.
    pub(crate) route: String,
    pub(crate) bytes: u64,
    /// Operations of a launch.
    pub(crate) operations: u32,
    /// Microseconds an operation.
    pub(crate) samples: Samples,
    pub(crate) verified: bool,
}

/// How much is timed.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    /// Bytes of an operation.
    pub(crate) sizes: Vec<u64>,
    /// Launches that are timed.
    pub(crate) iters: u32,
    /// Operations of a launch.
    pub(crate) operations: u32,
}

impl Plan {
    /// Bytes of the heap that it takes: what is sent and what is received.
    pub(crate) fn heap_bytes(&self) -> Option<u64> {
        self.largest().checked_add(4096)?.checked_next_multiple_of(16)?.checked_mul(2)
    }

    /// Bytes from one operation's target to the next, and how many have one of their own; the others begin again at the first.
    fn targets(&self, bytes: u64) -> (u64, u64) {
        let stride = bytes.max(8).next_multiple_of(16);
        (stride, (self.incoming() / stride).clamp(1, u64::from(self.operations)))
    }

    fn largest(&self) -> u64 {
        self.sizes.iter().copied().max().unwrap_or(0).max(8)
    }

    /// Where it is received; it is sent from the region's start.
    fn incoming(&self) -> u64 {
        (self.largest() + 4096).next_multiple_of(16)
    }
}

/// The nearest peer that rank 0 reaches by each kind of route. Collective over the world.
fn peers(world: &World) -> anyhow::Result<Vec<(u32, String)>> {
    let mut found: Vec<(u32, String)> = Vec::new();
    for route in world.routes().iter().filter(|route| route.peer != GlobalRank::new(0)) {
        let kind = route.kind.to_string();
        if !found.iter().any(|(_, known)| *known == kind) {
            found.push((route.peer.get(), kind));
        }
    }
    // Rank 0's view is the one that counts: it alone sends.
    let said = serde_json::to_vec(&found)?;
    let all = world.exchange(world.group(), "bench shmem: peers", &said).map_err(Error::from)?;
    Ok(serde_json::from_slice(all.first().map_or(&[], Vec::as_slice))?)
}

/// Times every operation at its widest scope. What rank 0 has not to a peer is left out, and said at the end. Collective over the world.
///
/// # Errors
/// More than the heap holds; what made the world fail.
pub(crate) fn measure(
    world: &World,
    plan: &Plan,
    say: impl Fn(&str),
) -> anyhow::Result<(Vec<Timed>, Lacking)> {
    let mut region = Region::new(world, world.group(), plan.heap_bytes().unwrap_or(u64::MAX))?;
    let mut rows = Vec::new();
    let mut lacking_all = Vec::new();
    for (peer, route) in peers(world)? {
        let adds = {
            let routes = world.routes().iter().filter(|route| route.peer.get() == peer);
            let lacks = matrix::lacking_adds(world, routes).is_some();
            let said =
                world.exchange(world.group(), "bench shmem: adds", &[lacks.into()]).map_err(Error::from)?;
            said.first().is_none_or(|first| first == &[0])
        };
        for kind in CopyKind::ALL {
            let scope = if kind.is_value() { Scope::Thread } else { Scope::Block };
            // Rank 0 decides: it alone sends.
            let routes = world.routes().iter().filter(|route| route.peer.get() == peer);
            let lacks = lacking(world, routes, matrix::operation(kind), scope, 8).unwrap_or_default();
            let said =
                world.exchange(world.group(), "bench shmem: can", lacks.as_bytes()).map_err(Error::from)?;
            if let Some(lacks) = said.first().filter(|lacks| !lacks.is_empty()) {
                lacking_all.push(String::from_utf8_lossy(lacks).into_owned());
                continue;
            }
            let sizes = if kind.is_value() { &[8][..] } else { &plan.sizes };
            for &bytes in sizes {
                say(&format!("{} of {bytes} bytes by {route}", matrix::operation(kind)));
                let (samples, verified) = one(&mut region, plan, (kind, adds), scope, peer, bytes)?;
                let (operations, route) = (plan.operations, route.clone());
                rows.push(Timed { kind, scope, peer, route, bytes, operations, samples, verified });
            }
        }
    }
    region.free()?;
    Ok((rows, lacking_all))
}

fn one(
    region: &mut Region<'_>,
    plan: &Plan,
    (kind, adds): (CopyKind, bool),
    scope: Scope,
    peer: u32,
    bytes: u64,
) -> anyhow::Result<(Samples, bool)> {
    let world = region.world;
    let (me, incoming) = (region.rank(), plan.incoming());
    // What each of the two holds where it is sent from.
    let pattern = |rank: u32| -> Vec<u8> {
        let mut state = u64::from(rank) * 1000 + bytes + kind as u64;
        (0..bytes.max(8)).map(|_| draw(&mut state) as u8).collect()
    };
    let mut first = pattern(me);
    first.resize(incoming as usize, 0);
    // Signals go to the end of the part that is sent from, which has 4096 bytes more than any operation.
    let signal = incoming - 16;
    let (stride, targets) = plan.targets(bytes);
    first.resize((incoming + targets * stride) as usize, 0xa5);
    region.fill(&first)?;
    let base = region.offset();
    let value = u64::from_le_bytes(std::array::from_fn(|at| pattern(0)[at]));
    let case = |number: u64| {
        let target = incoming + number % targets * stride;
        let (local, remote) = if kind.is_get() { (target, 0) } else { (0, target) };
        CopyCase {
            remote: base + remote,
            local: base + local,
            bytes,
            signal: base + signal,
            value,
            peer,
            signal_op: adds.into(),
        }
    };
    let all: Vec<CopyCase> = (0..u64::from(plan.operations)).map(case).collect();
    let cases = region.buffer(bytemuck::cast_slice(&all))?;
    // What no case writes is no success.
    let unwritten = if me == 0 { 0xff } else { 0 };
    let statuses = region.buffer(&vec![unwritten; plan.operations as usize * 4])?;
    let arguments = CopyArgs {
        team: region.team(),
        cases: cases.pointer(),
        statuses: statuses.pointer(),
        case_count: plan.operations,
        kind: kind as u32,
        scope: if scope == Scope::Thread { 0 } else { 2 },
        operation: OPERATION,
    };
    // A value is one thread's: as many threads as the launch has cases would work side by side.
    let wave = world.device().wave_size();
    let large = world.device().multiprocessors() >= 32;
    let threads = if kind.is_value() {
        wave
    } else if large {
        256
    } else {
        (2 * wave).max(8)
    };
    let grid = Grid { blocks: 1, threads };
    let mut times = Vec::new();
    // The first warms up and is not counted.
    for _ in 0..=plan.iters {
        let arguments = (me == 0).then_some(&arguments);
        let us = region.run(COPY, grid, 1, arguments)?;
        times.push(us / f64::from(plan.operations));
    }
    let found = region.contents(first.len())?;
    let mut expected = first;
    let receiver = if kind.is_get() { 0 } else { peer };
    if me == receiver {
        let sent = if kind.is_get() { pattern(peer) } else { pattern(0) };
        for target in expected[incoming as usize..].chunks_exact_mut(stride as usize) {
            target[..bytes as usize].copy_from_slice(&sent[..bytes as usize]);
        }
    }
    if me == peer && kind.signals() {
        let old = &expected[signal as usize..][..8];
        let old = old.iter().rev().fold(0u64, |word, byte| word << 8 | u64::from(*byte));
        let count = u64::from(plan.operations) * u64::from(plan.iters + 1);
        let new = if adds { old.wrapping_add(count.wrapping_mul(value)) } else { value };
        expected[signal as usize..][..8].copy_from_slice(&new.to_le_bytes());
    }
    let right = found == expected && statuses.is_zero()?;
    let verified = link::all_agree(world, world.group(), "bench shmem: verified", right)?;
    let times = link::gather(world, world.group(), "bench shmem: times", &times[1..])?;
    Ok((Samples::new(times.into_iter().next().unwrap_or_default()), verified))
}
