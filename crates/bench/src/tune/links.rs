//! `anabranch tune links`: the speeds of links by which routes are chosen where no table was measured (`[links]`). Inside a node on that of
//! rank 0, through a NIC from rank 0 to the first rank of another node.

use std::path::PathBuf;

use anabranch::{Config, Error, Group, GroupRank, RuntimeKind, World};
use anabranch_conformance::shmem::{COPY_UNIT, MESSAGE_UNIT};
use anabranch_hip_jit::KernelSpec;
use anabranch_ranks::{LinkSettings, Nodes};
use anyhow::{Context as _, bail};
use clap::Args;
use serde::Serialize;

use super::nic;
use crate::ccl::tune::write_whole;
use crate::device::{self, Links, Stamps};
use crate::link;
use crate::print;
use crate::ranks::{RankArgs, RankContext};
use crate::statistics::Samples;

/// `anabranch tune links`.
#[derive(Clone, Debug, Args)]
pub(crate) struct TuneLinksArgs {
    #[command(flatten)]
    pub(crate) ranks: RankArgs,
    /// Samples of each speed [default: 20, and 5 without a GPU].
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    samples: Option<u32>,
    /// Where the table goes, in place of standard output.
    #[arg(long, value_name = "FILE.toml")]
    output: Option<PathBuf>,
}

/// Stamps of a row, of which each is a launch.
const STAMPS: u64 = 65;

/// What a run launches.
pub(crate) fn needed_kernels() -> Vec<KernelSpec> {
    let mut all = vec![KernelSpec::new(&anabranch_shmem::TEAM_BARRIER_UNIT)];
    all.extend(device::kernels());
    all.extend([&COPY_UNIT, &MESSAGE_UNIT].map(KernelSpec::new));
    all
}

/// Checks the arguments before any rank is started.
///
/// # Errors
/// A single rank; a heap that holds no area.
pub(crate) fn check(config: &Config, ranks: u32) -> anyhow::Result<()> {
    if ranks < 2 {
        bail!("tune links needs at least 2 ranks, and {ranks} is asked for");
    }
    let heap = config.heap.most_bytes();
    let least = (1 << 20) * u64::from(ranks).max(4);
    if heap < least {
        bail!("heap.bytes is {heap}; tune links of {ranks} ranks needs at least {least}");
    }
    Ok(())
}

/// One speed, for `--json`.
#[derive(Debug, Serialize)]
struct Row {
    setting: String,
    /// `None` where it could not be measured.
    value: Option<f64>,
}

/// Measures on one rank. Collective over the world.
///
/// # Errors
/// What made the world fail; bytes that arrived wrong; a file that cannot be written.
pub(crate) fn run(context: &RankContext<'_>, arguments: &TuneLinksArgs) -> anyhow::Result<()> {
    let world = context.world;
    let nodes = world.nodes_of(world.group()).map_err(Error::from)?;
    let host = world.device().runtime().kind() == RuntimeKind::Host;
    let samples = arguments.samples.unwrap_or(if host { 5 } else { 20 });
    // A file that cannot be written is an error before anything is measured.
    arguments.write(context, &text_of(world, &nodes, &LinkSettings::default()))?;
    let mut links = LinkSettings::default();
    let near = world.group().subset(nodes.members_of(node_of_first(&nodes)))?;
    if near.rank_of(world.rank()).is_some() {
        context.progress.say("inside the node");
        inside(world, &near, samples, &mut links)?;
    }
    if let Some(peer) = nodes.ranks().find(|rank| nodes.node_of(*rank) != nodes.node_of(GroupRank::new(0))) {
        context.progress.say("between nodes");
        let pair = world.group().subset(&[GroupRank::new(0), peer])?;
        if pair.rank_of(world.rank()).is_some() {
            let found = nic::measure(world, &pair, samples)?;
            links.nic_gb_per_s = found.gb_per_s.map(rounded);
            links.nic_hop_us = Some(rounded(found.hop_us));
            links.nic_message_us = found.message_us.map(rounded);
        }
    }
    world.barrier(world.group(), "tune links").map_err(Error::from)?;
    context.progress.clear();
    if !context.is_root() {
        return Ok(());
    }
    if context.json {
        for (key, value) in links.values() {
            print::json(&Row { setting: format!("links.{key}"), value })?;
        }
    }
    let text = text_of(world, &nodes, &links);
    arguments.write(context, &text)?;
    match &arguments.output {
        Some(path) => print::line(&format!("written to {}, a part of a configuration", path.display())),
        None if context.json => Ok(()),
        None => print::line(text.trim_end()),
    }
}

impl TuneLinksArgs {
    /// Writes the table, if a file was asked for and this rank writes it.
    fn write(&self, context: &RankContext<'_>, text: &str) -> anyhow::Result<()> {
        let Some(path) = self.output.as_ref().filter(|_| context.is_root()) else { return Ok(()) };
        write_whole(path, text).with_context(|| format!("--output {}", path.display()))
    }
}

#[expect(clippy::expect_used, reason = "the division is of all ranks")]
fn node_of_first(nodes: &Nodes) -> u32 {
    nodes.node_of(GroupRank::new(0)).expect("rank 0 is on some node")
}

/// Rates, latencies and launches on one node. Collective over its ranks.
fn inside(world: &World, near: &Group, samples: u32, links: &mut LinkSettings) -> anyhow::Result<()> {
    let host = world.device().runtime().kind() == RuntimeKind::Host;
    if near.size() > 1 {
        links.inside_gb_per_s = link::store_speed(world, near)?.map(rounded);
        let mut areas = Links::new(world, near, 4096)?;
        let (hop, verified) = link::ping(world, &mut areas, 0, samples, if host { 50 } else { 1000 })?;
        areas.free()?;
        if !verified {
            bail!("a flag between ranks of one node came without what was stored before it");
        }
        links.inside_hop_us = Some(rounded(hop.median()));
    }
    let mut stamps = Stamps::new(world, STAMPS)?;
    let stream = world.device().create_stream().map_err(Error::from)?;
    let mut launches = Vec::new();
    for _ in 0..samples {
        (0..STAMPS).try_for_each(|_| stamps.take(&stream))?;
        world.synchronize_within(&stream, link::patience(world)).map_err(Error::from)?;
        let times = stamps.read()?;
        launches.extend(times.windows(2).map(|pair| pair[1].saturating_sub(pair[0]) as f64 / 1e3));
    }
    links.launch_us = Some(rounded(Samples::new(launches).median()));
    Ok(())
}

/// To three digits: more than what a measurement repeats.
fn rounded(value: f64) -> f64 {
    // A clock that stood still.
    if value <= 0.0 {
        return 0.0;
    }
    let unit = 10_f64.powf(2.0 - value.log10().floor());
    (value * unit).round() / unit
}

/// The `[links]` table of a configuration; speeds that were not measured are comments.
fn text_of(world: &World, nodes: &Nodes, links: &LinkSettings) -> String {
    let device = world.device().name();
    let head = format!(
        "# Measured by `anabranch tune links`: {} ranks on {} nodes, {device}.\n[links]\n",
        world.size(),
        nodes.count()
    );
    let line = |(key, value): (&str, Option<f64>)| match value {
        // A clock that stood still measured nothing.
        Some(value) if value > 0.0 => format!("{key} = {value:?}\n"),
        _ => format!("# {key} was not measured: {}\n", why_not(key, nodes)),
    };
    std::iter::once(head).chain(links.values().into_iter().map(line)).collect()
}

fn why_not(key: &str, nodes: &Nodes) -> &'static str {
    match (key.starts_with("nic"), nodes.count()) {
        (true, 1) => "all ranks are on one node",
        (false, _) if nodes.members_of(node_of_first(nodes)).len() < 2 => "rank 0 is alone on its node",
        _ => "more took no longer than less",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_three_digits() {
        let text = [338.96, 0.640_4, 51.27, 0.0, -1.0].map(|value| rounded(value).to_string());
        assert_eq!(text, ["339", "0.64", "51.3", "0", "0"]);
    }
}
