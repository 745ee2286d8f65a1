//! Which engine serves which peer. Nothing here asks a machine: a tree goes in, engines and reasons come out.
//!
//! Engines count: those of the tree's link description; then, only on the one machine that it describes, those of the kernel's
//! own table; else there is none, and that is an error. What the kernel recommends (`kfd_set_recommended_sdma_engines` in
//! `kfd_topology.c`): one engine for each peer on eight whole GPUs in a hive, every xGMI engine for other peers over xGMI, and
//! every general engine for the rest.

use std::collections::BTreeMap;

use super::error::{AmdError, AmdResult};
use super::link::Link;
use super::topology::{Gpu, Topology};

/// PCI device ids (the PCI ID database).
const MI300X: u32 = 0x74a1;
const MI308X: u32 = 0x74a2;

/// gfx1250 as `gfx_target_version` gives it.
const GFX1250: u32 = 120_500;

/// Engines of an MI300X: general ones, and those for xGMI.
const MI300X_ENGINES: (u32, u32) = (2, 14);

/// Engine by place of source (row) and destination (column) among eight MI300X; `rec_sdma_eng_map` in `kfd_topology.c`, where
/// the diagonal is -1.
const MI300X_TABLE: [[Option<u32>; 8]; 8] = {
    const fn row(engines: [u32; 8], own: usize) -> [Option<u32>; 8] {
        let mut out = [None; 8];
        let mut column = 0;
        while column < 8 {
            if column != own {
                out[column] = Some(engines[column]);
            }
            column += 1;
        }
        out
    }
    [
        row([0, 14, 12, 2, 4, 8, 10, 6], 0),
        row([14, 0, 2, 10, 8, 4, 6, 12], 1),
        row([10, 2, 0, 12, 14, 6, 4, 8], 2),
        row([2, 12, 10, 0, 6, 14, 8, 4], 3),
        row([4, 8, 14, 6, 0, 10, 12, 2], 4),
        row([8, 4, 6, 14, 12, 0, 2, 10], 5),
        row([10, 6, 4, 8, 12, 2, 0, 14], 6),
        row([6, 12, 8, 4, 2, 10, 14, 0], 7),
    ]
};

/// An engine for one queue, and why it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Choice {
    /// Its number among all engines of the GPU.
    pub engine: u32,
    /// Why, in words.
    pub reason: String,
}

/// Engines that may serve a peer.
struct Pool {
    engines: Vec<u32>,
    /// Where this peer begins in them, so that peers that share a pool do not all begin with the same engine.
    first: usize,
    reason: String,
}

/// Engines for queues from a GPU to a peer (or to itself), one for each of `channels` queues. Both GPUs are nodes of `topology`.
///
/// # Errors
/// [`AmdError::NoLink`], [`AmdError::NoRecommendation`], [`AmdError::EngineOutOfRange`], [`AmdError::NoEngine`];
/// [`AmdError::TooManyChannels`] if the peer's engines do not hold that many queues.
pub fn choose(topology: &Topology, source: &Gpu, destination: &Gpu, channels: u32) -> AmdResult<Vec<Choice>> {
    let pool = pool(topology, source, destination)?;
    let allowed = (pool.engines.len() as u32).saturating_mul(source.queues_per_engine);
    if channels == 0 || channels > allowed {
        return Err(AmdError::TooManyChannels {
            source_node: source.node,
            destination_node: destination.node,
            asked: channels,
            allowed,
            engines: pool.engines.len() as u32,
            queues_per_engine: source.queues_per_engine,
        });
    }
    let around = pool.engines.iter().cycle().skip(pool.first).take(channels as usize);
    Ok(around.map(|engine| Choice { engine: *engine, reason: pool.reason.clone() }).collect())
}

/// Engines for `channels` queues from a GPU to each of several peers, as [`choose`] says, if the engines hold them all.
///
/// # Errors
/// As [`choose`]; [`AmdError::Oversubscribed`] if the peers' queues together are too many for an engine. (What other programs
/// hold is seen when a queue is made.)
pub fn plan(
    topology: &Topology,
    source: &Gpu,
    destinations: &[&Gpu],
    channels: u32,
) -> AmdResult<Vec<Vec<Choice>>> {
    let mut wanted: BTreeMap<u32, u32> = BTreeMap::new();
    let mut choices = Vec::with_capacity(destinations.len());
    for destination in destinations {
        let chosen = choose(topology, source, destination, channels)?;
        for choice in &chosen {
            *wanted.entry(choice.engine).or_default() += 1;
        }
        choices.push(chosen);
    }
    match wanted.into_iter().find(|(_, asked)| *asked > source.queues_per_engine) {
        Some((engine, asked)) => Err(AmdError::Oversubscribed {
            node: source.node,
            engine,
            asked,
            peers: destinations.len(),
            queues_per_engine: source.queues_per_engine,
        }),
        None => Ok(choices),
    }
}

fn pool(topology: &Topology, source: &Gpu, destination: &Gpu) -> AmdResult<Pool> {
    if source.node == destination.node {
        return loopback(topology, source);
    }
    let link = source
        .link_to(destination.node)
        .ok_or(AmdError::NoLink { source_node: source.node, destination_node: destination.node })?;
    if let Some(mask) = link.recommended_engines {
        return recommended(topology, source, destination, link, mask);
    }
    match table(topology, source, destination) {
        Ok(engine) => Ok(Pool {
            engines: vec![engine],
            first: 0,
            reason: format!(
                "engine {engine} by the table for eight MI300X; {} recommends none",
                link.file.display()
            ),
        }),
        Err(why) => Err(AmdError::NoRecommendation {
            source_node: source.node,
            destination_node: destination.node,
            file: link.file.clone(),
            why,
        }),
    }
}

/// Copies within a GPU have no link. General engine 0 does them; on gfx1250, where the sixth queue on one engine is refused, the
/// engines of the way to the host share them.
fn loopback(topology: &Topology, gpu: &Gpu) -> AmdResult<Pool> {
    if gpu.gfx_target_version == GFX1250 {
        let mut host = gpu.links.iter().filter(|link| topology.cpus().contains(&link.to));
        let mask = host.find_map(|link| Some((link, link.recommended_engines?)));
        let (link, mask) = mask.ok_or(AmdError::NoEngine {
            node: gpu.node,
            purpose: "copies within the GPU: no link to the host recommends any",
        })?;
        return Ok(Pool {
            engines: engines_of(gpu, link, mask)?,
            first: 0,
            reason: format!(
                "within the GPU; {} recommends the engines {mask:#x} for the host",
                link.file.display()
            ),
        });
    }
    if gpu.engines == 0 {
        return Err(AmdError::NoEngine {
            node: gpu.node,
            purpose: "copies within the GPU: it has no general engine",
        });
    }
    Ok(Pool { engines: vec![0], first: 0, reason: "within the GPU: general engine 0".to_owned() })
}

fn recommended(
    topology: &Topology,
    source: &Gpu,
    destination: &Gpu,
    link: &Link,
    mask: u32,
) -> AmdResult<Pool> {
    let engines = engines_of(source, link, mask)?;
    // Peers with the same recommendation take turns in it, in the order of their nodes.
    let before =
        topology.gpus().iter().filter(|peer| peer.node != source.node && peer.node < destination.node);
    let sharing = before
        .filter(|peer| source.link_to(peer.node).and_then(|other| other.recommended_engines) == Some(mask));
    let first = sharing.count() % engines.len();
    let folded = if source.device_id == MI308X { ", of which an MI308X has the even ones" } else { "" };
    let reason = format!("{}: {} recommends the engines {mask:#x}{folded}", link.kind, link.file.display());
    Ok(Pool { engines, first, reason })
}

/// The engines of a mask, in ascending order; never none.
fn engines_of(gpu: &Gpu, link: &Link, mask: u32) -> AmdResult<Vec<u32>> {
    let all = gpu.all_engines();
    if mask.checked_shr(all).unwrap_or(0) != 0 {
        return Err(AmdError::EngineOutOfRange {
            file: link.file.clone(),
            mask,
            node: gpu.node,
            engines: all,
        });
    }
    // An MI308X shows 2 + 6 engines, and only those with even numbers exist (mori issue 693).
    let fold = if gpu.device_id == MI308X { !1 } else { !0 };
    let mut engines: Vec<u32> =
        (0..all.min(32)).filter(|bit| mask >> bit & 1 != 0).map(|bit| bit & fold).collect();
    engines.dedup();
    Ok(engines)
}

/// The engine of the table, or why the table does not describe this machine.
fn table(topology: &Topology, source: &Gpu, destination: &Gpu) -> Result<u32, String> {
    let gpus = topology.gpus();
    let total = gpus.len() + topology.hidden().len();
    if total != 8 {
        return Err(format!("it is about eight GPUs, and there are {total}"));
    }
    if !topology.hidden().is_empty() {
        return Err(format!("{} of the eight GPUs are hidden from this process", topology.hidden().len()));
    }
    if let Some(other) = gpus.iter().find(|gpu| gpu.device_id != MI300X) {
        return Err(format!(
            "it is about MI300X ({MI300X:#06x}), and node {} is {:#06x}",
            other.node, other.device_id
        ));
    }
    if let Some(part) = gpus.iter().find(|gpu| topology.is_divided(gpu)) {
        return Err(format!("it is about whole GPUs, and node {} is a partition", part.node));
    }
    if let Some(other) = gpus.iter().find(|gpu| (gpu.engines, gpu.xgmi_engines) != MI300X_ENGINES) {
        return Err(format!(
            "it is about {} + {} engines, and node {} has {} + {}",
            MI300X_ENGINES.0, MI300X_ENGINES.1, other.node, other.engines, other.xgmi_engines
        ));
    }
    if let Some(other) = gpus.iter().find(|gpu| gpu.hive_id == 0 || gpu.hive_id != source.hive_id) {
        return Err(format!(
            "it is about one hive, and node {} is in {}, node {} in {}",
            source.node, source.hive_id, other.node, other.hive_id
        ));
    }
    let mut places = [None; 8];
    for gpu in gpus {
        let place =
            gpu.xgmi_physical_id.ok_or_else(|| format!("the place of node {} is not known", gpu.node))?;
        let slot = places
            .get_mut(place as usize)
            .ok_or_else(|| format!("it knows the places 0 to 7, and node {} is at {place}", gpu.node))?;
        if let Some(other) = slot.replace(gpu.node) {
            return Err(format!("nodes {other} and {} are both at place {place}", gpu.node));
        }
    }
    let place = |gpu: &Gpu| gpu.xgmi_physical_id.unwrap_or(u32::MAX) as usize;
    let row = MI300X_TABLE.get(place(source));
    row.and_then(|row| row.get(place(destination)).copied().flatten())
        .ok_or_else(|| format!("nodes {} and {} are not two of its places", source.node, destination.node))
}
